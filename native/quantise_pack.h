// Blocks of symbols <-> bytes. A block is held as low bytes and, above 8 bits, high bytes.

struct Block {
    alignas(64) uint8_t low[kBlock];
    alignas(64) uint8_t high[kBlock];
};

// Codes as loops leave them: one that narrows what it computes narrows every intermediate value as well.
struct Codes {
    alignas(64) int32_t of[kBlock];
};

inline void narrow(const Codes &codes, size_t count, int shift, uint8_t *__restrict bytes) {
    if (count == kBlock)  // a constant length needs no code for the rest
        for (size_t i = 0; i < kBlock; i++) bytes[i] = static_cast<uint8_t>(codes.of[i] >> shift);
    else
        for (size_t i = 0; i < count; i++) bytes[i] = static_cast<uint8_t>(codes.of[i] >> shift);
}

constexpr uint64_t kEveryByte = 0x0101010101010101u;

inline uint64_t load8(const uint8_t *p) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    return word;
}

inline void store8(uint8_t *p, uint64_t word) { std::memcpy(p, &word, 8); }

// One plane of width W of `count` symbols, from bit `offset` of each; returns the bytes written.
template <int W>
inline size_t pack_plane(const uint8_t *symbols, size_t count, int offset, uint8_t *out) {
    const size_t size = count * W / 8;
    constexpr uint8_t mask = (1 << W) - 1;
    if (count == kBlock) {
        for (size_t j = 0; j < kBlock * W / 8; j += 8) {
            uint64_t word = 0;
            for (int i = 0; i < 8 / W; i++) {
                const uint64_t part = load8(symbols + j + i * (kBlock * W / 8));
                word |= ((part >> offset) & (kEveryByte * mask)) << (i * W);
            }
            store8(out + j, word);
        }
        return size;
    }
    for (size_t j = 0; j < size; j++) {
        uint32_t byte = 0;
        for (int i = 0; i < 8 / W; i++) byte |= ((symbols[j + i * size] >> offset) & mask) << (i * W);
        out[j] = static_cast<uint8_t>(byte);
    }
    return size;
}

// The first plane (offset 0) sets the symbols, later ones add their bits.
template <int W>
inline size_t unpack_plane(const uint8_t *in, size_t count, int offset, uint8_t *symbols) {
    const size_t size = count * W / 8;
    constexpr uint8_t mask = (1 << W) - 1;
    if (count == kBlock) {
        for (int i = 0; i < 8 / W; i++) {
            uint8_t *to = symbols + i * (kBlock * W / 8);
            for (size_t j = 0; j < kBlock * W / 8; j += 8) {
                const uint64_t part = ((load8(in + j) >> (i * W)) & (kEveryByte * mask)) << offset;
                store8(to + j, offset ? load8(to + j) | part : part);
            }
        }
        return size;
    }
    for (size_t j = 0; j < size; j++)
        for (int i = 0; i < 8 / W; i++) {
            const uint32_t part = ((in[j] >> (i * W)) & mask) << offset;
            symbols[j + i * size] = static_cast<uint8_t>(offset ? symbols[j + i * size] | part : part);
        }
    return size;
}

template <>
inline size_t pack_plane<8>(const uint8_t *symbols, size_t count, int, uint8_t *out) {
    std::memcpy(out, symbols, count);
    return count;
}

template <>
inline size_t unpack_plane<8>(const uint8_t *in, size_t count, int, uint8_t *symbols) {
    std::memcpy(symbols, in, count);
    return count;
}

inline size_t pack_bytes(const uint8_t *symbols, size_t count, int bits, uint8_t *out) {
    if (bits == 8) return pack_plane<8>(symbols, count, 0, out);
    size_t done = 0;
    int offset = 0;
    if (bits & 4) done += pack_plane<4>(symbols, count, offset, out), offset += 4;
    if (bits & 2) done += pack_plane<2>(symbols, count, offset, out + done), offset += 2;
    if (bits & 1) done += pack_plane<1>(symbols, count, offset, out + done);
    return done;
}

inline size_t unpack_bytes(const uint8_t *in, size_t count, int bits, uint8_t *symbols) {
    if (bits == 8) return unpack_plane<8>(in, count, 0, symbols);
    size_t done = 0;
    int offset = 0;
    if (bits & 4) done += unpack_plane<4>(in, count, offset, symbols), offset += 4;
    if (bits & 2) done += unpack_plane<2>(in + done, count, offset, symbols), offset += 2;
    if (bits & 1) done += unpack_plane<1>(in + done, count, offset, symbols);
    return done;
}

// Store the block that starts at element `at` and holds `count` symbols.
inline void put_block(Block &block, size_t at, size_t count, int bits, const Symbols &to) {
    if (to.packed) {
        const size_t padded = (count + 7) / 8 * 8;
        for (size_t i = count; i < padded; i++) block.low[i] = block.high[i] = 0;
        uint8_t *out = to.packed + at / 8 * bits;
        const size_t done = pack_bytes(block.low, padded, std::min(bits, 8), out);
        if (bits > 8) pack_bytes(block.high, padded, bits - 8, out + done);
    } else if (to.narrow) {
        std::memcpy(to.narrow + at, block.low, count);
    } else {
        for (size_t i = 0; i < count; i++) to.wide[at + i] = block.low[i] | block.high[i] << 8;
    }
}

inline void get_block(Block &block, size_t at, size_t count, int bits, const Symbols &from) {
    if (from.packed) {
        const size_t padded = (count + 7) / 8 * 8;
        const uint8_t *in = from.packed + at / 8 * bits;
        const size_t done = unpack_bytes(in, padded, std::min(bits, 8), block.low);
        if (bits > 8) unpack_bytes(in + done, padded, bits - 8, block.high);
    } else if (from.narrow) {
        std::memcpy(block.low, from.narrow + at, count);
    } else {
        for (size_t i = 0; i < count; i++) {
            block.low[i] = static_cast<uint8_t>(from.wide[at + i]);
            block.high[i] = static_cast<uint8_t>(from.wide[at + i] >> 8);
        }
    }
}

// Pack or unpack: one of the two sides is packed.
void repack(Symbols from, int bits, size_t n, Symbols to) {
    Block block;
    for (size_t at = 0; at < n; at += kBlock) {
        const size_t count = std::min(kBlock, n - at);
        get_block(block, at, count, bits, from);
        put_block(block, at, count, bits, to);
    }
}
