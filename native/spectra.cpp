// Real FFTs as orthonormal spectra, bound to Python. Addresses come from tensors that
// thinwire.kernels.spectra has checked.
#include <nanobind/nanobind.h>

#include <cmath>
#include <memory>

#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

const float *numbers(uintptr_t address) { return reinterpret_cast<const float *>(address); }

struct alignas(64) Line {
    float numbers[16];
};

// Three rows, at the beginning of a line of the caches: registers as wide as that are loaded from one line each.
std::unique_ptr<Line[]> work_for(size_t length) { return std::unique_ptr<Line[]>(new Line[3 * length / 16 + 1]); }

// `size` numbers of roots, of which those that unfold are the last.
thinwire::Fourier fourier(size_t length, uintptr_t roots, size_t size, uint32_t ranks = 1) {
    const double n = static_cast<double>(length);
    return {length, numbers(roots), numbers(roots) + size - length / 4 * 2, static_cast<float>(std::sqrt(2.0 / n)),
            static_cast<float>(std::sqrt(1.0 / n)), static_cast<float>(std::sqrt(0.5 / n)), ranks};
}

void pairs_of_rows(uintptr_t rows, size_t count, size_t length, uint32_t ranks, uintptr_t roots, size_t size,
                   uintptr_t owed, uintptr_t out) {
    nb::gil_scoped_release unlocked;
    const std::unique_ptr<Line[]> work = work_for(length);
    thinwire::kernels().pairs_of_rows(fourier(length, roots, size, ranks), numbers(rows), count,
                                      owed ? numbers(owed) : nullptr, work[0].numbers, reinterpret_cast<float *>(out));
}

void rows_of_pairs(uintptr_t pairs, size_t count, size_t length, uintptr_t roots, size_t size, uintptr_t out) {
    nb::gil_scoped_release unlocked;
    const std::unique_ptr<Line[]> work = work_for(length);
    thinwire::kernels().rows_of_pairs(fourier(length, roots, size), numbers(pairs), count, work[0].numbers,
                                      reinterpret_cast<float *>(out));
}

}  // namespace

void bind_spectra(nb::module_ &m) {
    m.def("pairs_of_rows", &pairs_of_rows, "rows"_a, "count"_a, "length"_a, "ranks"_a, "roots"_a, "size"_a, "owed"_a,
          "out"_a);
    m.def("rows_of_pairs", &rows_of_pairs, "pairs"_a, "count"_a, "length"_a, "roots"_a, "size"_a, "out"_a);
}
