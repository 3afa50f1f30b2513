// What all message kernels share: their two errors and unaligned access to byte buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

// Bit streams are read eight bytes at a time, which assumes that the first byte is the lowest one.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "thinwire's kernels need a little-endian machine");

// Compiled twice and chosen when the module is loaded, so that one build runs everywhere and fast on today's CPUs.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(THINWIRE_ONE_TARGET)
#define THINWIRE_CLONES __attribute__((target_clones("arch=haswell", "default")))
#else
#define THINWIRE_CLONES
#endif

namespace thinwire {

// Become thinwire.errors.WireError and CodecError in Python.
struct WireError : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct CodecError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Bytes {
    const uint8_t *data;
    size_t size;
};

inline uint64_t load64(const uint8_t *p) {
    uint64_t w;
    std::memcpy(&w, p, 8);
    return w;
}

inline void store64(uint8_t *p, uint64_t w) { std::memcpy(p, &w, 8); }

inline uint32_t load32(const uint8_t *p) {
    uint32_t w;
    std::memcpy(&w, p, 4);
    return w;
}

inline void store32(uint8_t *p, uint32_t w) { std::memcpy(p, &w, 4); }

// Eight bytes from `byte` on; what lies behind the end reads as zero, so no decoder needs a second way to look ahead.
inline uint64_t load_padded(Bytes m, size_t byte) {
    if (byte + 8 <= m.size) return load64(m.data + byte);
    uint64_t w = 0;
    if (byte < m.size) std::memcpy(&w, m.data + byte, m.size - byte);
    return w;
}

// At least 57 bits from bit `at` on, first bit lowest (bit j of byte i is bit 8i+j of the stream).
inline uint64_t window(Bytes m, uint64_t at) { return load_padded(m, at >> 3) >> (at & 7); }

// At least 57 bits from bit `at` on, first bit highest (bit 7-j of byte i is bit 8i+j of the stream).
inline uint64_t window_msb(Bytes m, uint64_t at) { return __builtin_bswap64(load_padded(m, at >> 3)) << (at & 7); }

// The bits of a stream must reach into its last byte, and what is left of that byte must be zero.
inline void expect_end(Bytes m, uint64_t at, bool msb) {
    if ((at + 7) >> 3 != m.size)
        throw WireError("A bit stream ends before or after its last code; resend the message.");
    if ((at & 7) && (msb ? window_msb(m, at) : window(m, at)))
        throw WireError("The padding behind a bit stream is not zero; resend the message.");
}

// Symbols of `bits` each, first bit lowest: symbol j occupies bits [j*bits, (j+1)*bits) of the stream.
size_t packed_size(size_t n, int bits);
void pack_symbols(const uint8_t *symbols, size_t n, int bits, uint8_t *out);
void unpack_symbols(Bytes packed, size_t n, int bits, uint8_t *out);
void expect_width(const uint8_t *symbols, size_t n, int bits);

// Sorted positions (indices.cpp).
struct IndexPlan {
    int tag;
    int rice;
    size_t size;
};
IndexPlan plan_indices(const int64_t *indices, size_t count, uint64_t numel);
void write_indices(const int64_t *indices, size_t count, IndexPlan plan, uint8_t *out);
size_t count_indices(Bytes message, uint64_t numel);
void read_indices(Bytes message, uint64_t numel, int64_t *out, size_t count);

// Entropy coders (huffman.cpp, elias.cpp): `out` of an encoder has 1 + packed_size(n, bits) bytes, always enough.
size_t huffman_encode(const uint8_t *symbols, size_t n, int bits, uint8_t *out);
void huffman_decode(Bytes message, size_t n, int bits, uint8_t *out);
size_t elias_encode(const uint8_t *symbols, size_t n, int bits, uint8_t *out);
void elias_decode(Bytes message, size_t n, int bits, uint8_t *out);

// Selection by magnitude (select.cpp), for fewer than 2^32 elements.
void largest(const float *x, size_t n, size_t k, int64_t *out);
// By importance; false: not so, make the importances and choose among them.
struct Importances;
bool most_important(const Importances &of, size_t n, size_t k, int64_t *out);
size_t count_above(const float *x, size_t n, uint32_t key);

}  // namespace thinwire
