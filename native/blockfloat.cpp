// Block floats (OCP Microscaling), bound to Python: short floats with one power of two for each block of 32.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cmath>

#include "wire.h"

namespace nb = nanobind;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr size_t kLength = 32;     // numbers of a block
constexpr uint8_t kNotFinite = 255;  // the exponent of a block with an infinity or a NaN

inline uint32_t bits_of(float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    return bits;
}

// What a code of `bits` bits looks like: `mantissa` bits of fraction, the exponent of the smallest normal number, that
// of the largest, and the code of the largest number.
struct Format {
    int bits, mantissa, least, most;
    uint32_t top;
};

THINWIRE_CLONES void encode(const Format &f, const float *x, size_t n, uint8_t *exponents, uint8_t *symbols) {
    const double steps = std::ldexp(1.0, f.mantissa - f.least);
    const double normal = std::ldexp(1.0, f.least);
    for (size_t low = 0; low < n; low += kLength) {
        const size_t end = std::min(n, low + kLength);
        uint32_t most = 0;
        for (size_t i = low; i < end; i++) most = std::max(most, bits_of(x[i]) & 0x7fffffffu);
        if (most >= 0x7f800000u || most == 0) {
            exponents[low / kLength] = most ? kNotFinite : 0;
            std::fill(symbols + low, symbols + end, uint8_t(0));
            continue;
        }
        float largest;
        std::memcpy(&largest, &most, 4);
        const int shared = std::max(std::ilogb(largest) - f.most, -127);
        exponents[low / kLength] = static_cast<uint8_t>(shared + 127);
        const double scale = std::ldexp(1.0, -shared);
        for (size_t i = low; i < end; i++) {
            const double a = std::fabs(static_cast<double>(x[i]) * scale);
            uint32_t code;
            if (a < normal) {
                code = static_cast<uint32_t>(std::nearbyint(a * steps));
            } else {
                const uint32_t key = bits_of(static_cast<float>(a));
                const int drop = 23 - f.mantissa;
                const uint32_t rounded = (key + ((1u << (drop - 1)) - 1) + ((key >> drop) & 1)) >> drop;
                code = rounded - (static_cast<uint32_t>(f.least + 126) << f.mantissa);
            }
            code = std::min(code, f.top);
            symbols[i] = static_cast<uint8_t>(code | (bits_of(x[i]) >> 31) << (f.bits - 1));
        }
    }
}

THINWIRE_CLONES void decode(const uint8_t *symbols, const uint8_t *exponents, const float *values, size_t n, float *out,
                            bool add) {
    for (size_t low = 0; low < n; low += kLength) {
        const size_t end = std::min(n, low + kLength);
        const uint8_t exponent = exponents[low / kLength];
        const double scale = exponent == kNotFinite ? std::nan("") : std::ldexp(1.0, int(exponent) - 127);
        for (size_t i = low; i < end; i++) {
            const float value = static_cast<float>(static_cast<double>(values[symbols[i]]) * scale);
            out[i] = add ? out[i] + value : value;
        }
    }
}

void block_encode(Floats x, int bits, int mantissa, int least, int most, uint32_t top, BytesOut exponents,
                  BytesOut symbols) {
    if (symbols.size() != x.size() || exponents.size() != (x.size() + kLength - 1) / kLength)
        throw thinwire::CodecError("Every number needs a symbol, and every block of 32 an exponent.");
    nb::gil_scoped_release release;
    encode({bits, mantissa, least, most, top}, x.data(), x.size(), exponents.data(), symbols.data());
}

void block_decode(Bytes symbols, Bytes exponents, Floats values, FloatsOut out, bool add) {
    if (symbols.size() != out.size() || exponents.size() != (out.size() + kLength - 1) / kLength)
        throw thinwire::CodecError("Every number needs a symbol, and every block of 32 an exponent.");
    nb::gil_scoped_release release;
    uint8_t most = 0;
    for (size_t i = 0; i < symbols.size(); i++) most = std::max(most, symbols.data()[i]);
    if (symbols.size() && most >= values.size())
        throw thinwire::WireError("A symbol is wider than its block float; resend the message.");
    decode(symbols.data(), exponents.data(), values.data(), out.size(), out.data(), add);
}

}  // namespace

void bind_blockfloat(nb::module_ &m) {
    m.def("block_encode", &block_encode);
    m.def("block_decode", &block_decode);
}
