// Shorter floats, bound to Python; thinwire.kernels.casts has checked what lies at the addresses.
#include <nanobind/nanobind.h>

#include "kernels.h"
#include "pages.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t kGrain = 1024;

void shorten(uintptr_t x, size_t n, bool brain, uintptr_t out, int threads) {
    const float *from = reinterpret_cast<const float *>(x);
    uint8_t *to = reinterpret_cast<uint8_t *>(out);
    nb::gil_scoped_release unlocked;
    thinwire::expect_to_fill(to, 2 * n);
    thinwire::in_parts(n, kGrain, threads,
                       [=](size_t a, size_t b) { thinwire::kernels().shorten(brain, from + a, b - a, to + 2 * a); });
}

void lengthen(uintptr_t in, size_t n, bool brain, uintptr_t out, bool add, int threads) {
    const uint8_t *from = reinterpret_cast<const uint8_t *>(in);
    float *to = reinterpret_cast<float *>(out);
    nb::gil_scoped_release unlocked;
    thinwire::in_parts(n, kGrain, threads, [=](size_t a, size_t b) {
        thinwire::kernels().lengthen(brain, from + 2 * a, b - a, to + a, add);
    });
}

}  // namespace

void bind_casts(nb::module_ &m) {
    m.def("shorten", &shorten, "x"_a, "n"_a, "brain"_a, "out"_a, "threads"_a);
    m.def("lengthen", &lengthen, "in"_a, "n"_a, "brain"_a, "out"_a, "add"_a, "threads"_a);
}
