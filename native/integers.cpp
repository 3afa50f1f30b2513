// Shared-scale integers in int32 lanes, bound to Python; thinwire.kernels.integers has checked the addresses.
#include <nanobind/nanobind.h>

#include "kernels.h"
#include "pages.h"
#include "parallel.h"
#include "wire.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t kGrain = 1024;

void check(int bits, size_t numel, size_t lanes) {
    if (bits < 2 || bits > 16) throw thinwire::CodecError("Lanes hold digits of 2 to 16 bits.");
    const size_t fields = 32 / bits;
    if (lanes != (numel + fields - 1) / fields)
        throw thinwire::CodecError("The lanes do not fit the number of elements.");
}

void integers_encode(uintptr_t x, size_t n, uint32_t ranks, int bits, int32_t levels, float lift, float factor,
                     uint64_t key, uint32_t base, uintptr_t lanes, size_t count, int threads) {
    check(bits, n, count);
    const float *from = reinterpret_cast<const float *>(x);
    int32_t *to = reinterpret_cast<int32_t *>(lanes);
    const thinwire::Lanes how{bits, count, levels, lift, factor, ranks};
    const thinwire::Draw draw{static_cast<uint32_t>(key) + base, static_cast<uint32_t>(key >> 32)};
    nb::gil_scoped_release unlocked;
    thinwire::expect_to_fill(to, count * sizeof(int32_t));
    thinwire::in_parts(count, kGrain, threads, [&](size_t a, size_t b) {
        thinwire::kernels().lanes_encode(how, from, n, draw, a, b, to);
    });
}

void integers_decode(uintptr_t lanes, size_t count, int bits, float unit, float scale, bool add, uintptr_t out,
                     size_t n, int threads) {
    check(bits, n, count);
    const int32_t *from = reinterpret_cast<const int32_t *>(lanes);
    float *to = reinterpret_cast<float *>(out);
    const thinwire::Lanes how{bits, count, 0, scale, unit, 1};
    nb::gil_scoped_release unlocked;
    thinwire::in_parts(count, kGrain, threads, [&](size_t a, size_t b) {
        thinwire::kernels().lanes_decode(how, from, n, a, b, to, add);
    });
}

}  // namespace

void bind_integers(nb::module_ &m) {
    m.def("integers_encode", &integers_encode, "x"_a, "n"_a, "ranks"_a, "bits"_a, "levels"_a, "lift"_a, "factor"_a,
          "key"_a, "base"_a, "lanes"_a, "count"_a, "threads"_a);
    m.def("integers_decode", &integers_decode, "lanes"_a, "count"_a, "bits"_a, "unit"_a, "scale"_a, "add"_a, "out"_a,
          "n"_a, "threads"_a);
}
