// Shared-scale integers: stochastic rounding into signed digits of int32 lanes, and back.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "wire.h"

namespace nb = nanobind;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using LanesOut = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline uint32_t hash32(uint64_t key, uint32_t position) {
    uint32_t x = position + uint32_t(key);
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15) ^ uint32_t(key >> 32)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

struct Rounding {
    float lift, factor;
    int32_t levels;
    uint64_t key;
};

// floor(x * lift * factor + u), within +-levels, shifted into its digit and added to the lanes.
THINWIRE_CLONES void add_digit(const float *x, int64_t count, uint32_t position, Rounding how, int shift,
                               int32_t *lanes) {
    for (int64_t j = 0; j < count; j++) {
        const float u = float(int32_t(hash32(how.key, position + uint32_t(j)) >> 8)) * 0x1p-24f;
        const float t = (x[j] * how.lift) * how.factor + u;
        int32_t whole = int32_t(t);
        whole -= int32_t(float(whole) > t);
        whole = whole > how.levels ? how.levels : whole;
        whole = whole < -how.levels ? -how.levels : whole;
        lanes[j] = int32_t(uint32_t(lanes[j]) + (uint32_t(whole) << shift));
    }
}

// The digit is what remains of the lane after the lower digits, read as a signed number of `bits` bits.
THINWIRE_CLONES void take_digit(int32_t *lanes, int64_t lane_count, int64_t count, int bits, float unit, float scale,
                                bool add, float *out) {
    for (int64_t j = 0; j < lane_count; j++) {
        const int32_t digit = int32_t(uint32_t(lanes[j]) << (32 - bits)) >> (32 - bits);
        if (j < count) {
            const float value = (float(digit) * unit) * scale;
            out[j] = add ? out[j] + value : value;
        }
        lanes[j] = int32_t(uint32_t(lanes[j]) - uint32_t(digit)) >> bits;
    }
}

void check(int bits, size_t numel, size_t lanes) {
    if (bits < 2 || bits > 16) throw thinwire::CodecError("Lanes hold digits of 2 to 16 bits.");
    const size_t fields = 32 / bits;
    if (lanes != (numel + fields - 1) / fields)
        throw thinwire::CodecError("The lanes do not fit the number of elements.");
}

void integers_encode(Floats x, int bits, int32_t levels, float lift, float factor, uint64_t key, uint32_t base,
                     LanesOut lanes) {
    check(bits, x.size(), lanes.size());
    nb::gil_scoped_release release;
    const int64_t n = x.size(), each = lanes.size();
    std::memset(lanes.data(), 0, each * sizeof(int32_t));
    for (int64_t field = 0, low = 0; field < 32 / bits && low < n; field++, low += each)
        add_digit(x.data() + low, n - low < each ? n - low : each, base + uint32_t(low), {lift, factor, levels, key},
                  int(field) * bits, lanes.data());
}

void integers_decode(LanesOut lanes, int bits, float unit, float scale, bool add, FloatsOut out) {
    check(bits, out.size(), lanes.size());
    nb::gil_scoped_release release;
    const int64_t n = out.size(), each = lanes.size();
    for (int64_t field = 0, low = 0; field < 32 / bits && low < n; field++, low += each)
        take_digit(lanes.data(), each, n - low < each ? n - low : each, bits, unit, scale, add, out.data() + low);
}

}  // namespace

void bind_integers(nb::module_ &m) {
    m.def("integers_encode", &integers_encode, nb::arg("x").noconvert(), nb::arg("bits"), nb::arg("levels"),
          nb::arg("lift"), nb::arg("factor"), nb::arg("key"), nb::arg("base"), nb::arg("lanes").noconvert());
    m.def("integers_decode", &integers_decode, nb::arg("lanes").noconvert(), nb::arg("bits"), nb::arg("unit"),
          nb::arg("scale"), nb::arg("add"), nb::arg("out").noconvert());
}
