// Fixed-width symbols in a bit stream: the stored form of the entropy coders.
#include "wire.h"

namespace thinwire {

size_t packed_size(size_t n, int bits) { return (n * size_t(bits) + 7) / 8; }

THINWIRE_CLONES void expect_width(const uint8_t *symbols, size_t n, int bits) {
    uint8_t seen = 0;
    for (size_t i = 0; i < n; i++) seen |= symbols[i];
    if (seen >> bits) throw CodecError("A symbol does not fit the stated number of bits; encode with more bits.");
}

// Eight symbols fill exactly `bits` bytes.
void pack_symbols(const uint8_t *symbols, size_t n, int bits, uint8_t *out) {
    for (size_t i = 0; i < n; i += 8, out += bits) {
        const size_t some = n - i < 8 ? n - i : 8;
        uint64_t w = 0;
        for (size_t j = 0; j < some; j++) w |= uint64_t(symbols[i + j]) << (j * bits);
        std::memcpy(out, &w, packed_size(some, bits));
    }
}

void unpack_symbols(Bytes packed, size_t n, int bits, uint8_t *out) {
    if (packed.size != packed_size(n, bits))
        throw WireError("Stored symbols have the wrong length; resend the message.");
    const uint64_t mask = (1u << bits) - 1;
    for (size_t i = 0; i < n; i += 8) {
        const size_t some = n - i < 8 ? n - i : 8;
        uint64_t w = 0;
        std::memcpy(&w, packed.data + i / 8 * bits, packed_size(some, bits));
        for (size_t j = 0; j < some; j++) out[i + j] = uint8_t(w >> (j * bits) & mask);
    }
    expect_end(packed, uint64_t(n) * bits, false);
}

}  // namespace thinwire
