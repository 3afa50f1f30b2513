// Bins over a distribution with their means as levels, bound to Python.
//
// Numbers become fixed-point integers first. Sums of integers do not depend on their order, so that any device and any
// number of threads finds the same bins and means as the torch reference.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "wire.h"

namespace nb = nanobind;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Symbols = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using SymbolsOut = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using CountsOut = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr size_t kMostBins = 256;

inline double fixed(float v, double unit) { return std::nearbyint(static_cast<double>(v) * unit); }

// The sum, and that of the squares as its high and low halves.
THINWIRE_CLONES std::tuple<int64_t, int64_t, int64_t> moments(const float *x, size_t n, double unit) {
    int64_t sum = 0, high = 0, low = 0;
    for (size_t i = 0; i < n; i++) {
        const int64_t q = static_cast<int64_t>(fixed(x[i], unit));
        const int64_t square = q * q;
        sum += q;
        high += square >> 32;
        low += square & 0xffffffff;
    }
    return {sum, high, low};
}

// Four tables take turns, because many equal symbols in a row would otherwise wait for one another's additions.
THINWIRE_CLONES void bins(const float *x, size_t n, double unit, double first, double per, size_t count, uint8_t *to,
                          int64_t *sums, int64_t *counts) {
    int64_t sum[4][kMostBins] = {}, found[4][kMostBins] = {};
    const double last = static_cast<double>(count - 1);
    for (size_t i = 0; i < n; i++) {
        const double q = fixed(x[i], unit);
        const double place = std::floor((q - first) * per);
        const size_t bin = static_cast<size_t>(std::min(std::max(place, 0.0), last));
        to[i] = static_cast<uint8_t>(bin);
        sum[i & 3][bin] += static_cast<int64_t>(q);
        found[i & 3][bin]++;
    }
    for (size_t bin = 0; bin < count; bin++) {
        for (size_t turn = 0; turn < 4; turn++) {
            sums[bin] += sum[turn][bin];
            counts[bin] += found[turn][bin];
        }
    }
}

std::tuple<int64_t, int64_t, int64_t> codebook_moments(Floats x, double unit) {
    nb::gil_scoped_release release;
    return moments(x.data(), x.size(), unit);
}

// Adds to sums and counts.
void codebook_bins(Floats x, double unit, double first, double per, SymbolsOut to, CountsOut sums, CountsOut counts) {
    if (to.size() != x.size() || sums.size() != counts.size() || sums.size() < 2 || sums.size() > kMostBins)
        throw thinwire::CodecError("Every number needs a symbol, and every bin a sum and a count.");
    nb::gil_scoped_release release;
    bins(x.data(), x.size(), unit, first, per, sums.size(), to.data(), sums.data(), counts.data());
}

void codebook_values(Symbols symbols, Floats levels, FloatsOut out, bool add) {
    if (symbols.size() != out.size()) throw thinwire::CodecError("Every symbol needs a place for its number.");
    const uint8_t *from = symbols.data();
    float *to = out.data();
    nb::gil_scoped_release release;
    size_t most = 0;
    for (size_t i = 0; i < symbols.size(); i++) most = std::max<size_t>(most, from[i]);
    if (symbols.size() && most >= levels.size())
        throw thinwire::WireError("A symbol has no level in its codebook; resend the message.");
    if (add) {
        for (size_t i = 0; i < symbols.size(); i++) to[i] += levels.data()[from[i]];
    } else {
        for (size_t i = 0; i < symbols.size(); i++) to[i] = levels.data()[from[i]];
    }
}

}  // namespace

void bind_codebook(nb::module_ &m) {
    m.def("codebook_moments", &codebook_moments);
    m.def("codebook_bins", &codebook_bins);
    m.def("codebook_values", &codebook_values);
}
