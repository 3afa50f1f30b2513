// CRC-32 of frames (the polynomial of zlib and Ethernet), by carry-less multiplication. Bytes are folded 64 or 256 at a
// time: multiplied by a power of x modulo the polynomial and added to those that lie so much further on (Gopal et al.,
// "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel, 2009).
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define THINWIRE_CRC32
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t kLeast = 64;         // bytes: shorter input has nothing to fold
constexpr size_t kWorthRelease = 1 << 16;  // bytes: what is shorter is done before another thread has the lock

#ifdef THINWIRE_CRC32
#define THINWIRE_FOLDS __attribute__((target("pclmul,sse4.1")))
#define THINWIRE_FOLDS_WIDE __attribute__((target("pclmul,sse4.1,avx512f,vpclmulqdq")))

// x^(8d + 32) and x^(8d - 32) modulo the polynomial, bits reversed, for folding over d bytes.
constexpr long long kOver16[2] = {0x1751997d0, 0x0ccaa009e};
constexpr long long kOver64[2] = {0x154442bd4, 0x1c6e41596};
constexpr long long kOver256[2] = {0x11542778a, 0x1322d1430};

THINWIRE_FOLDS inline __m128i load(const uint8_t *p) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p)); }

THINWIRE_FOLDS inline __m128i fold(__m128i state, __m128i by, __m128i next) {
    const __m128i low = _mm_clmulepi64_si128(state, by, 0x00), high = _mm_clmulepi64_si128(state, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// The remainder of 16 bytes modulo the polynomial: folded to 8, to 4, and the rest by Barrett's method.
THINWIRE_FOLDS inline uint32_t remainder_of(__m128i state) {
    const __m128i words = _mm_setr_epi32(-1, 0, -1, 0), over16 = _mm_set_epi64x(kOver16[1], kOver16[0]);
    state = _mm_xor_si128(_mm_srli_si128(state, 8), _mm_clmulepi64_si128(state, over16, 0x10));
    const __m128i over8 = _mm_set_epi64x(0, 0x163cd6124);
    state = _mm_xor_si128(_mm_srli_si128(state, 4), _mm_clmulepi64_si128(_mm_and_si128(state, words), over8, 0x00));
    const __m128i polynomial = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(state, words), polynomial, 0x10);
    quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, words), polynomial, 0x00);
    return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(state, quotient), 1));
}

// Folds n bytes, a multiple of 16 of at least 64, behind a state.
THINWIRE_FOLDS uint32_t crc_of_words(const uint8_t *p, size_t n, uint32_t state) {
    __m128i lanes[4] = {load(p), load(p + 16), load(p + 32), load(p + 48)};
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(state)));
    const __m128i over64 = _mm_set_epi64x(kOver64[1], kOver64[0]), over16 = _mm_set_epi64x(kOver16[1], kOver16[0]);
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int i = 0; i < 4; i++) lanes[i] = fold(lanes[i], over64, load(p + 16 * i));
    for (int i = 1; i < 4; i++) lanes[0] = fold(lanes[0], over16, lanes[i]);
    for (; n >= 16; p += 16, n -= 16) lanes[0] = fold(lanes[0], over16, load(p));
    return remainder_of(lanes[0]);
}

THINWIRE_FOLDS_WIDE inline __m512i fold_wide(__m512i state, __m512i by, const uint8_t *next) {
    const __m512i low = _mm512_clmulepi64_epi128(state, by, 0x00), high = _mm512_clmulepi64_epi128(state, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(next), 0x96);  // all three added
}

// The same for at least 512 bytes: 256 at a time; the last 256 are then folded as if they were the input.
THINWIRE_FOLDS_WIDE uint32_t crc_of_words_wide(const uint8_t *p, size_t n, uint32_t state) {
    const __m512i over256 = _mm512_broadcast_i32x4(_mm_set_epi64x(kOver256[1], kOver256[0]));
    __m512i lanes[4];
    for (int i = 0; i < 4; i++) lanes[i] = _mm512_loadu_si512(p + 64 * i);
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
        for (int i = 0; i < 4; i++) lanes[i] = fold_wide(lanes[i], over256, p + 64 * i);
    alignas(64) uint8_t folded[256];
    for (int i = 0; i < 4; i++) _mm512_store_si512(folded + 64 * i, lanes[i]);
    const __m128i over16 = _mm_set_epi64x(kOver16[1], kOver16[0]);
    __m128i last = load(folded);
    for (size_t at = 16; at < sizeof folded; at += 16) last = fold(last, over16, load(folded + at));
    for (; n >= 16; p += 16, n -= 16) last = fold(last, over16, load(p));
    return remainder_of(last);
}

bool has_folding() { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
bool has_wide_folding() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"); }

const bool folds = has_folding(), folds_wide = has_folding() && has_wide_folding();
bool uses_wide = folds_wide;

uint32_t crc_of(const uint8_t *p, size_t n, uint32_t state) {
    if (const size_t words = n & ~size_t{15}; n >= kLeast) {
        state = uses_wide && words >= 512 ? crc_of_words_wide(p, words, state) : crc_of_words(p, words, state);
        p += words, n -= words;
    }
    for (; n; n--) {
        state ^= *p++;
        for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (0xedb88320 & (0 - (state & 1)));
    }
    return state;
}

// False if this machine lacks the instructions; a test chooses the narrow ones.
bool use_crc32(bool wide) {
    uses_wide = wide && folds_wide;
    return folds && uses_wide == wide;
}

bool has_crc32() { return folds; }
#else
uint32_t crc_of(const uint8_t *, size_t, uint32_t state) { return state; }
bool use_crc32(bool) { return false; }
bool has_crc32() { return false; }
#endif

// The CRC of n bytes behind those whose CRC is `before`; only where `has_crc32`.
uint32_t crc32(uintptr_t data, size_t n, uint32_t before) {
    const uint8_t *p = reinterpret_cast<const uint8_t *>(data);
    if (n < kWorthRelease) return ~crc_of(p, n, ~before);
    nb::gil_scoped_release unlocked;
    return ~crc_of(p, n, ~before);
}

}  // namespace

void bind_checksum(nb::module_ &m) {
    m.def("has_crc32", &has_crc32, "Whether this machine multiplies without carries.");
    m.def("use_crc32", &use_crc32, "wide"_a);
    m.def("crc32", &crc32, "data"_a, "n"_a, "before"_a);
}
