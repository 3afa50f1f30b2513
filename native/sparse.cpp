// Selection by magnitude and sparse addition, bound to Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>

#include "kernels.h"
#include "pages.h"
#include "wire.h"

namespace nb = nanobind;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Positions = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using PositionsOut = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void largest(Floats x, PositionsOut out) {
    nb::gil_scoped_release release;
    thinwire::largest(x.data(), x.size(), out.size(), out.data());
}

size_t count_above(Floats x, uint32_t key) {
    nb::gil_scoped_release release;
    return thinwire::count_above(x.data(), x.size(), key);
}

void write_above(Floats x, uint32_t key, PositionsOut out) {
    nb::gil_scoped_release release;
    thinwire::kernels().write_choice(x.data(), x.size(), key, 0, out.data(), out.size());
}

double sum_of_squares(Floats x) {
    nb::gil_scoped_release release;
    return thinwire::kernels().sum_of_squares(x.data(), x.size());
}

void same_length(size_t v, size_t w) {
    if (v != w) throw thinwire::CodecError("Every number needs a weight; pass the weights of this very tensor.");
}

void importances(Floats v, Floats w, double floor, float ranks, FloatsOut out) {
    same_length(v.size(), w.size());
    same_length(v.size(), out.size());
    nb::gil_scoped_release release;
    thinwire::expect_to_fill(out.data(), out.nbytes());
    thinwire::kernels().importances({v.data(), w.data(), static_cast<float>(floor), ranks}, v.size(), out.data());
}

bool most_important(Floats v, Floats w, double floor, float ranks, PositionsOut out) {
    same_length(v.size(), w.size());
    nb::gil_scoped_release release;
    return thinwire::most_important({v.data(), w.data(), static_cast<float>(floor), ranks}, v.size(), out.size(),
                                    out.data());
}

void expect_places(const Positions &indices, size_t groups, size_t values, size_t group) {
    bool inside = values == indices.size() * group;
    for (size_t i = 0; i < indices.size(); i++) inside &= uint64_t(indices.data()[i]) < groups;
    if (!inside)
        throw thinwire::CodecError("Every value needs a position inside the tensor; check indices and values.");
}

// Position i stands for `group` neighbours, most often one or two.
void add_groups(float *to, const int64_t *at, const float *from, size_t count, size_t group) {
    if (group == 1) {
        for (size_t i = 0; i < count; i++) to[at[i]] += from[i];
    } else if (group == 2) {
        for (size_t i = 0; i < count; i++) {
            to[2 * at[i]] += from[2 * i];
            to[2 * at[i] + 1] += from[2 * i + 1];
        }
    } else {
        for (size_t i = 0; i < count; i++)
            for (size_t j = 0; j < group; j++) to[at[i] * group + j] += from[i * group + j];
    }
}

// Checks all positions before it changes anything.
void scatter_add(FloatsOut out, Positions indices, Floats values, size_t group) {
    nb::gil_scoped_release release;
    expect_places(indices, out.size() / group, values.size(), group);
    add_groups(out.data(), indices.data(), values.data(), indices.size(), group);
}

// The same onto zeros, which are written block by block, shortly before their places are needed.
void scatter_groups(float *out, size_t n, const int64_t *at, const float *values, size_t count, size_t group) {
    constexpr size_t kStride = 4096;
    size_t done = 0;
    for (size_t low = 0; low < n; low += kStride * group) {
        const size_t high = std::min(n, low + kStride * group), begin = done;
        std::fill(out + low, out + high, 0.0f);
        const int64_t end = int64_t(low / group + kStride);
        while (done < count && at[done] < end) done++;
        add_groups(out, at + begin, values + begin * group, done - begin, group);
    }
}

void gather(Floats x, Positions indices, FloatsOut out, size_t group) {
    nb::gil_scoped_release release;
    expect_places(indices, x.size() / group, out.size(), group);
    const float *from = x.data();
    const int64_t *at = indices.data();
    float *to = out.data();
    if (group == 2)
        for (size_t i = 0; i < indices.size(); i++) std::memcpy(to + 2 * i, from + 2 * at[i], 8);
    else
        for (size_t i = 0; i < indices.size(); i++) std::copy_n(from + at[i] * group, group, to + i * group);
}

// The key of the largest.
uint32_t squared_lengths(Floats x, FloatsOut out) {
    if (x.size() != 2 * out.size()) throw thinwire::CodecError("Every pair has one length; give that much memory.");
    nb::gil_scoped_release release;
    return thinwire::kernels().squared_lengths(x.data(), out.size(), out.data());
}

// out = given (zeros without it) with values added at ascending positions; false: they are not ascending.
bool scatter(uintptr_t given, Positions indices, Floats values, FloatsOut out, size_t group) {
    nb::gil_scoped_release release;
    const int64_t *at = indices.data();
    const float *base = reinterpret_cast<const float *>(given);
    const size_t n = out.size(), count = indices.size();
    bool ascending = true;
    for (size_t i = 1; i < count; i++) ascending &= at[i - 1] < at[i];
    if (!ascending) return false;
    expect_places(indices, n / group, values.size(), group);
    thinwire::expect_to_fill(out.data(), out.nbytes());
    if (group == 1) {
        thinwire::kernels().scatter(base, n, at, values.data(), count, out.data());
    } else if (base) {
        std::copy_n(base, n, out.data());
        add_groups(out.data(), at, values.data(), count, group);
    } else {
        scatter_groups(out.data(), n, at, values.data(), count, group);
    }
    return true;
}

size_t union_ascending(Positions a, Positions b, PositionsOut out) {
    nb::gil_scoped_release release;
    if (out.size() < a.size() + b.size())
        throw thinwire::CodecError("A union may be as long as both its parts; give it that much memory.");
    const int64_t *end = std::set_union(a.data(), a.data() + a.size(), b.data(), b.data() + b.size(), out.data());
    return size_t(end - out.data());
}

}  // namespace

void bind_sparse(nb::module_ &m) {
    m.def("largest", &largest, nb::arg("x").noconvert(), nb::arg("out").noconvert());
    m.def("count_above", &count_above, nb::arg("x").noconvert(), nb::arg("key"));
    m.def("write_above", &write_above, nb::arg("x").noconvert(), nb::arg("key"), nb::arg("out").noconvert());
    m.def("sum_of_squares", &sum_of_squares, nb::arg("x").noconvert());
    m.def("importances", &importances, nb::arg("v").noconvert(), nb::arg("w").noconvert(), nb::arg("floor"),
          nb::arg("ranks"), nb::arg("out").noconvert());
    m.def("most_important", &most_important, nb::arg("v").noconvert(), nb::arg("w").noconvert(), nb::arg("floor"),
          nb::arg("ranks"), nb::arg("out").noconvert());
    m.def("scatter_add", &scatter_add, nb::arg("out").noconvert(), nb::arg("indices").noconvert(),
          nb::arg("values").noconvert(), nb::arg("group"));
    m.def("scatter", &scatter, nb::arg("given"), nb::arg("indices").noconvert(), nb::arg("values").noconvert(),
          nb::arg("out").noconvert(), nb::arg("group"));
    m.def("gather", &gather, nb::arg("x").noconvert(), nb::arg("indices").noconvert(), nb::arg("out").noconvert(),
          nb::arg("group"));
    m.def("squared_lengths", &squared_lengths, nb::arg("x").noconvert(), nb::arg("out").noconvert());
    m.def("union_ascending", &union_ascending, nb::arg("a").noconvert(), nb::arg("b").noconvert(),
          nb::arg("out").noconvert());
}
