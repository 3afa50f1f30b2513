// Python bindings of the quantisation kernels: check every size, let go of the GIL, run the variant for this machine.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "pages.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace thinwire;

namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = Vector<const float>;
using FloatsOut = Vector<float>;
using Bytes = Vector<const uint8_t>;
using BytesOut = Vector<uint8_t>;
using Wide = Vector<const int32_t>;
using WideOut = Vector<int32_t>;

void require(bool held, const char *rule) {
    if (!held) throw std::invalid_argument(rule);
}

constexpr size_t kStretch = 8192;  // numbers that fit the first or second cache

size_t packed_size(size_t n, int bits) { return (n + 7) / 8 * static_cast<size_t>(bits); }

Scaled make_scaled(const std::string &name, const float *levels, int level_count, int bits, size_t bucket, bool l2) {
    Scaled how{Scheme::uniform, bits, bucket, l2, levels, level_count};
    require(bucket >= 1, "a bucket holds at least one element");
    if (name == "sign") {
        how.scheme = Scheme::sign;
        require(bits == 1, "sign codes have one bit");
        return how;
    }
    require(bits >= 2 && bits <= 8, "codes with a sign have 2 to 8 bits");
    if (name == "exponential") {
        how.scheme = Scheme::exponential;
    } else if (name == "levels") {
        how.scheme = Scheme::levels;
        require(how.level_count >= 2 && how.level_count <= 1 << (bits - 1), "the table has 2 to 2^(bits-1) levels");
    } else {
        require(name == "uniform", "schemes are uniform, exponential, levels and sign");
    }
    return how;
}

size_t scale_bytes(const Scaled &how) { return how.scheme == Scheme::sign ? 8 : 4; }

Range make_range(int bits, int mantissa, int32_t base, int32_t positives, int32_t negatives, bool stochastic) {
    require(bits >= 4 && bits <= 16 && mantissa >= 0 && mantissa <= bits - 3, "no such range float");
    const int32_t keys = 0xff << mantissa;  // keys of finite magnitudes lie below
    require(base >= 1 << mantissa && base < keys, "the smallest key lies outside the normal floats");
    require(positives >= 0 && positives <= keys - base, "positive codes reach beyond the finite floats");
    require(negatives >= 0 && negatives <= keys - base, "negative codes reach beyond the finite floats");
    require(positives + negatives < 1 << bits, "the grid has more codes than the width can number");
    return {bits, mantissa, base, positives, negatives, stochastic};
}

Draw make_draw(uint64_t key, uint32_t base) {
    return {static_cast<uint32_t>(key) + base, static_cast<uint32_t>(key >> 32)};
}

// Symbols of up to 8 bits are uint8, wider ones int32; kernels only read what comes in as const.
Symbols packed(const uint8_t *data) { return {const_cast<uint8_t *>(data), nullptr, nullptr}; }
Symbols plain(const uint8_t *data) { return {nullptr, const_cast<uint8_t *>(data), nullptr}; }
Symbols plain(const int32_t *data) { return {nullptr, nullptr, const_cast<int32_t *>(data)}; }
bool fits(const uint8_t *, int bits) { return bits <= 8; }
bool fits(const int32_t *, int bits) { return bits > 8; }

template <bool Packed>
Symbols checked(const uint8_t *data, size_t size, size_t n, int bits) {
    require(size == (Packed ? packed_size(n, bits) : n), "the buffer of symbols has the wrong size");
    return Packed ? packed(data) : plain(data);
}

// Threads begin where a bucket begins and a byte of packed symbols does not straddle.
template <class Run>
void by_bucket(const Scaled &how, size_t n, int threads, const Run &run) {
    if (how.bucket >= n) return run(size_t{0}, n);
    in_parts(n, std::lcm(how.bucket, kBlock), threads, run);
}

Symbols from_element(uint8_t *symbols, bool is_packed, int bits, size_t at) {
    return is_packed ? packed(symbols + at / 8 * static_cast<size_t>(bits)) : plain(symbols + at);
}

// Calls run(begin, end, numbers) for stretches of [a, b), with x / ranks in memory that stays in the cache: for numbers
// of ranks whose inverse is not exact. Stretches begin where `by_bucket` may cut.
template <class Run>
void divided(const Scaled &how, const float *x, size_t a, size_t b, uint32_t ranks, const Run &run) {
    const size_t grain = how.bucket >= b - a ? b - a : std::lcm(how.bucket, kBlock);
    const size_t stretch = grain * std::max<size_t>(1, kStretch / std::max<size_t>(grain, 1));
    std::vector<float> shares(std::min(stretch, b - a));
    for (size_t at = a; at < b; at += stretch) {
        const size_t end = std::min(at + stretch, b);
        kernels().share(x + at, end - at, ranks, nullptr, shares.data());
        run(at, end, shares.data());
    }
}

// Numbers, scales and symbols of the hot paths come as addresses, a tenth of the cost of taking tensors;
// thinwire.kernels.quantise has checked their types and sizes.
template <bool Packed>
void encode(const std::string &scheme, uintptr_t x, size_t n, uintptr_t levels, int level_count, uint32_t ranks,
            int bits, size_t bucket, bool l2, uint64_t key, uint32_t base, uintptr_t scales, uintptr_t symbols,
            int threads) {
    Scaled how = make_scaled(scheme, reinterpret_cast<const float *>(levels), level_count, bits, bucket, l2);
    const bool exact = (ranks & (ranks - 1)) == 0;
    if (exact) how.share = 1.0f / static_cast<float>(ranks);
    const float *from = reinterpret_cast<const float *>(x);
    uint8_t *scales_to = reinterpret_cast<uint8_t *>(scales), *to = reinterpret_cast<uint8_t *>(symbols);
    const Draw draw = make_draw(key, base);
    nb::gil_scoped_release unlocked;
    expect_to_fill(to, Packed ? packed_size(n, bits) : n);
    const auto run = [&](size_t a, size_t b, const float *numbers) {
        kernels().encode(how, numbers, b - a, {draw.low + static_cast<uint32_t>(a), draw.high},
                         scales_to + a / how.bucket * scale_bytes(how), from_element(to, Packed, bits, a));
    };
    by_bucket(how, n, threads, [&](size_t a, size_t b) {
        exact ? run(a, b, from + a) : divided(how, from, a, b, ranks, run);
    });
}

template <bool Packed>
void decode(const std::string &scheme, uintptr_t scales, uintptr_t symbols, uintptr_t levels, int level_count, int bits,
            size_t bucket, uintptr_t out, size_t n, bool add, bool negated, int threads) {
    Scaled how = make_scaled(scheme, reinterpret_cast<const float *>(levels), level_count, bits, bucket, false);
    if (negated) how.sign = -1.0f;
    uint8_t *scales_from = reinterpret_cast<uint8_t *>(scales), *from = reinterpret_cast<uint8_t *>(symbols);
    float *to = reinterpret_cast<float *>(out);
    nb::gil_scoped_release unlocked;
    by_bucket(how, n, threads, [&](size_t a, size_t b) {
        kernels().decode(how, scales_from + a / how.bucket * scale_bytes(how), from_element(from, Packed, bits, a),
                         to + a, b - a, add);
    });
}

int64_t range_encode(const Floats &x, int bits, int mantissa, int32_t base, int32_t positives, int32_t negatives,
                     bool stochastic, uint64_t key, uint32_t position, const BytesOut &out) {
    const size_t n = x.shape(0);
    const Range how = make_range(bits, mantissa, base, positives, negatives, stochastic);
    const Symbols to = checked<true>(out.data(), out.shape(0), n, bits);
    nb::gil_scoped_release unlocked;
    return kernels().range_encode(how, x.data(), n, make_draw(key, position), to);
}

template <class Out>
int64_t range_symbols(const Floats &x, int bits, int mantissa, int32_t base, int32_t positives, int32_t negatives,
                      bool stochastic, uint64_t key, uint32_t position, const Out &out) {
    const size_t n = x.shape(0);
    const Range how = make_range(bits, mantissa, base, positives, negatives, stochastic);
    require(out.shape(0) == n && fits(out.data(), bits), "symbols of up to 8 bits are uint8, others int32, one each");
    nb::gil_scoped_release unlocked;
    return kernels().range_encode(how, x.data(), n, make_draw(key, position), plain(out.data()));
}

void range_decode(const Bytes &in, int bits, int mantissa, int32_t base, int32_t positives, int32_t negatives,
                  const FloatsOut &out, bool add) {
    const Range how = make_range(bits, mantissa, base, positives, negatives, false);
    const Symbols from = checked<true>(in.data(), in.shape(0), out.shape(0), bits);
    nb::gil_scoped_release unlocked;
    kernels().range_decode(how, from, out.data(), out.shape(0), add);
}

template <class In>
void range_dequantise(const In &in, int bits, int mantissa, int32_t base, int32_t positives, int32_t negatives,
                      const FloatsOut &out, bool add) {
    const Range how = make_range(bits, mantissa, base, positives, negatives, false);
    const size_t n = out.shape(0);
    require(in.shape(0) == n && fits(in.data(), bits), "symbols of up to 8 bits are uint8, others int32, one each");
    nb::gil_scoped_release unlocked;
    kernels().range_decode(how, plain(in.data()), out.data(), n, add);
}

// The squared error of rounding to the nearest on a grid; numbers come as an address, like those of the hot paths.
double range_error(uintptr_t x, size_t n, int bits, int mantissa, int32_t base, int32_t positives, int32_t negatives) {
    const Range how = make_range(bits, mantissa, base, positives, negatives, false);
    const float *from = reinterpret_cast<const float *>(x);
    nb::gil_scoped_release unlocked;
    std::vector<uint8_t> codes(packed_size(n, bits));
    std::vector<float> errors(n);
    kernels().range_encode(how, from, n, make_draw(0, 0), packed(codes.data()));
    kernels().range_decode(how, packed(codes.data()), errors.data(), n, false);
    for (size_t i = 0; i < n; i++) errors[i] -= from[i];
    return kernels().sum_of_squares(errors.data(), n);
}

template <class In>
void pack(const In &symbols, int bits, const BytesOut &out) {
    require(bits >= 1 && bits <= 16 && fits(symbols.data(), bits), "symbols of up to 8 bits are uint8, others int32");
    const size_t n = symbols.shape(0);
    require(out.shape(0) == packed_size(n, bits), "the buffer of packed symbols has the wrong size");
    nb::gil_scoped_release unlocked;
    kernels().repack(plain(symbols.data()), bits, n, packed(out.data()));
}

template <class Out>
void unpack(const Bytes &in, int bits, const Out &symbols) {
    require(bits >= 1 && bits <= 16 && fits(symbols.data(), bits), "symbols of up to 8 bits are uint8, others int32");
    const size_t n = symbols.shape(0);
    require(in.shape(0) == packed_size(n, bits), "the buffer of packed symbols has the wrong size");
    nb::gil_scoped_release unlocked;
    kernels().repack(packed(in.data()), bits, n, plain(symbols.data()));
}

void clip(const Floats &x, size_t bucket, double factor, const FloatsOut &out) {
    require(bucket >= 1, "a bucket holds at least one element");
    require(out.shape(0) == x.shape(0), "the clipped values need a buffer of the same length");
    nb::gil_scoped_release unlocked;
    kernels().clip(x.data(), x.shape(0), bucket, factor, out.data());
}

}  // namespace

void bind_quantise(nb::module_ &m) {
    m.def("quantise_symbols", &encode<false>);
    m.def("quantise_encode", &encode<true>);
    m.def("quantise_dequantise", &decode<false>);
    m.def("quantise_decode", &decode<true>);

    m.def("range_encode", &range_encode, "x"_a.noconvert(), "bits"_a, "mantissa"_a, "base"_a, "positives"_a,
          "negatives"_a, "stochastic"_a, "key"_a, "position"_a, "packed"_a.noconvert());
    m.def("range_symbols", &range_symbols<BytesOut>, "x"_a.noconvert(), "bits"_a, "mantissa"_a, "base"_a, "positives"_a,
          "negatives"_a, "stochastic"_a, "key"_a, "position"_a, "symbols"_a.noconvert());
    m.def("range_symbols", &range_symbols<WideOut>, "x"_a.noconvert(), "bits"_a, "mantissa"_a, "base"_a, "positives"_a,
          "negatives"_a, "stochastic"_a, "key"_a, "position"_a, "symbols"_a.noconvert());
    m.def("range_decode", &range_decode, "packed"_a.noconvert(), "bits"_a, "mantissa"_a, "base"_a, "positives"_a,
          "negatives"_a, "out"_a.noconvert(), "add"_a);
    m.def("range_dequantise", &range_dequantise<Bytes>, "symbols"_a.noconvert(), "bits"_a, "mantissa"_a, "base"_a,
          "positives"_a, "negatives"_a, "out"_a.noconvert(), "add"_a);
    m.def("range_dequantise", &range_dequantise<Wide>, "symbols"_a.noconvert(), "bits"_a, "mantissa"_a, "base"_a,
          "positives"_a, "negatives"_a, "out"_a.noconvert(), "add"_a);

    m.def("range_error", &range_error);

    m.def("pack", &pack<Bytes>, "symbols"_a.noconvert(), "bits"_a, "packed"_a.noconvert());
    m.def("pack", &pack<Wide>, "symbols"_a.noconvert(), "bits"_a, "packed"_a.noconvert());
    m.def("unpack", &unpack<BytesOut>, "packed"_a.noconvert(), "bits"_a, "symbols"_a.noconvert());
    m.def("unpack", &unpack<WideOut>, "packed"_a.noconvert(), "bits"_a, "symbols"_a.noconvert());
    m.def("clip_to_sigma", &clip, "x"_a.noconvert(), "bucket"_a, "factor"_a, "out"_a.noconvert());
}
