// A rank's share of a mean, and whether numbers are finite, bound to Python. Addresses come from tensors that
// thinwire.kernels.shares has checked: taking them as numbers costs a tenth of taking tensors.
#include <nanobind/nanobind.h>

#include <atomic>

#include "kernels.h"
#include "pages.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t kGrain = 1024;  // parts begin at multiples of a page

bool share_into(uintptr_t x, size_t n, uint32_t ranks, uintptr_t residual, uintptr_t out, int threads) {
    const float *from = reinterpret_cast<const float *>(x), *held = reinterpret_cast<const float *>(residual);
    float *to = reinterpret_cast<float *>(out);
    nb::gil_scoped_release unlocked;
    thinwire::expect_to_fill(to, n * sizeof(float));
    std::atomic<bool> finite{true};
    thinwire::in_parts(n, kGrain, threads, [&](size_t a, size_t b) {
        if (!thinwire::kernels().share(from + a, b - a, ranks, held ? held + a : nullptr, to + a)) finite = false;
    });
    return finite;
}

uint32_t magnitude(uintptr_t x, size_t n, int threads) {
    const float *from = reinterpret_cast<const float *>(x);
    nb::gil_scoped_release unlocked;
    std::atomic<uint32_t> largest{0};
    thinwire::in_parts(n, kGrain, threads, [&](size_t a, size_t b) {
        const uint32_t here = thinwire::kernels().magnitude(from + a, b - a);
        for (uint32_t seen = largest; seen < here && !largest.compare_exchange_weak(seen, here);) continue;
    });
    return largest;
}

}  // namespace

void bind_shares(nb::module_ &m) {
    m.def("share_into", &share_into, "x"_a, "n"_a, "ranks"_a, "residual"_a, "out"_a, "threads"_a);
    m.def("magnitude", &magnitude, "x"_a, "n"_a, "threads"_a);
}
