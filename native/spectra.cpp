// Bins of real FFTs and orthonormal spectra, bound to Python. Addresses come from tensors that thinwire.kernels.spectra
// has checked.
#include <nanobind/nanobind.h>

#include <cmath>

#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

const float *numbers(uintptr_t address) { return reinterpret_cast<const float *>(address); }

void pairs_of_bins(uintptr_t bins, size_t rows, size_t length, uintptr_t owed, uintptr_t out) {
    nb::gil_scoped_release unlocked;
    const double n = static_cast<double>(length);
    const thinwire::Scales by = {static_cast<float>(std::sqrt(2.0 / n)), static_cast<float>(std::sqrt(1.0 / n)),
                                 static_cast<float>(std::sqrt(0.5))};
    thinwire::kernels().pairs_of_bins(numbers(bins), rows, length, by, owed ? numbers(owed) : nullptr,
                                      reinterpret_cast<float *>(out));
}

void bins_of_pairs(uintptr_t pairs, size_t rows, size_t length, uintptr_t out) {
    nb::gil_scoped_release unlocked;
    const double n = static_cast<double>(length);
    const thinwire::Scales by = {static_cast<float>(std::sqrt(n / 2.0)), static_cast<float>(std::sqrt(n)), 1.0f};
    thinwire::kernels().bins_of_pairs(numbers(pairs), rows, length, by, reinterpret_cast<float *>(out));
}

}  // namespace

void bind_spectra(nb::module_ &m) {
    m.def("pairs_of_bins", &pairs_of_bins, "bins"_a, "rows"_a, "length"_a, "owed"_a, "out"_a);
    m.def("bins_of_pairs", &bins_of_pairs, "pairs"_a, "rows"_a, "length"_a, "out"_a);
}
