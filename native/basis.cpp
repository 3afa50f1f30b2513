// Slices in a learnt basis, bound to Python; thinwire.kernels.basis has checked the addresses.
#include <nanobind/nanobind.h>

#include <vector>

#include "kernels.h"
#include "pages.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t kLine = 16;

// The matrix [high, wide] or its transpose with rows filled up to whole registers.
std::vector<float> padded(const float *matrix, size_t high, size_t wide, bool transpose) {
    const size_t rows = transpose ? wide : high, columns = transpose ? high : wide;
    const size_t stride = (columns + 7) / 8 * 8;
    std::vector<float> to(rows * stride + kLine, 0.0f);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) to[i * stride + j] = transpose ? matrix[j * wide + i] : matrix[i * wide + j];
    return to;
}

const float *floats(uintptr_t address) { return reinterpret_cast<const float *>(address); }

const float *behind(const float *x, size_t n) { return x ? x + n : nullptr; }

void project(uintptr_t x, size_t rows, size_t length, uintptr_t columns, size_t kept, uintptr_t offset, float part,
             uintptr_t out, int threads) {
    nb::gil_scoped_release unlocked;
    const std::vector<float> matrix = padded(floats(columns), length, kept, false);
    const thinwire::Basis in{matrix.data(), length, kept};
    float *to = reinterpret_cast<float *>(out);
    thinwire::in_parts(rows * length, length, threads, [&](size_t a, size_t b) {
        const size_t low = a / length, high = b / length;
        thinwire::kernels().basis_project(in, floats(x) + a, high - low, behind(floats(offset), low * kept), part,
                                          to + low * kept);
    });
}

void rebuild(uintptr_t q, size_t rows, size_t length, uintptr_t columns, size_t kept, bool lying, uintptr_t mean,
             float part, uintptr_t given, uintptr_t out, int threads) {
    nb::gil_scoped_release unlocked;
    const std::vector<float> matrix =
        lying ? padded(floats(columns), kept, length, false) : padded(floats(columns), length, kept, true);
    const thinwire::Basis in{matrix.data(), length, kept};
    float *to = reinterpret_cast<float *>(out);
    thinwire::expect_to_fill(to, rows * length * sizeof(float));
    thinwire::in_parts(rows * length, length, threads, [&](size_t a, size_t b) {
        const size_t low = a / length, high = b / length;
        thinwire::kernels().basis_rebuild(in, floats(q) + low * kept, high - low, behind(floats(mean), a), part,
                                          behind(floats(given), a), to + a);
    });
}

}  // namespace

void bind_basis(nb::module_ &m) {
    m.def("basis_project", &project, "x"_a, "rows"_a, "length"_a, "columns"_a, "kept"_a, "offset"_a, "part"_a, "out"_a,
          "threads"_a);
    m.def("basis_rebuild", &rebuild, "q"_a, "rows"_a, "length"_a, "columns"_a, "kept"_a, "lying"_a, "mean"_a, "part"_a,
          "given"_a, "out"_a, "threads"_a);
}
