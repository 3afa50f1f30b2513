// Elias omega coding of sign-magnitude symbols, as QSGD sends them: gaps and levels (sparse) or every level (dense).
#include <algorithm>
#include <array>

#include "omega.h"

namespace thinwire {
namespace {

enum Tag : uint8_t { kStored = 0, kSparse = 1, kDense = 2 };
constexpr size_t kSparseHeader = 5;  // tag, count

class BitWriter {
  public:
    BitWriter(uint8_t *at, uint8_t *end) : at_(at), end_(end) {}
    void put(Word w) {  // at most 56 bits
        held_ |= w.code << (64 - bits_ - w.length);
        bits_ += w.length;
        if (end_ - at_ >= 8) {
            store64(at_, __builtin_bswap64(held_));
        } else {
            for (int j = 0; at_ + j < end_; j++) at_[j] = uint8_t(held_ >> (56 - 8 * j));
        }
        at_ += bits_ >> 3;
        held_ <<= bits_ & ~7;
        bits_ &= 7;
    }

  private:
    uint8_t *at_, *end_;
    uint64_t held_ = 0;
    int bits_ = 0;
};

struct Sizes {
    uint64_t dense = 0, sparse = 0;  // bits
    uint32_t count = 0;
};

// Calls visit(gap, symbol) for every symbol but zeros. Their positions are listed first, a chunk at a time, because
// a branch on every symbol would be guessed wrong too often.
template <class Visit>
inline void each_nonzero(const uint8_t *symbols, size_t n, Visit visit) {
    constexpr size_t kChunk = 4096;
    uint16_t places[kChunk];
    size_t next = 0;  // where a gap of one would lead
    for (size_t start = 0; start < n; start += kChunk) {
        const size_t some = std::min(kChunk, n - start);
        size_t count = 0;
        for (size_t i = 0; i < some; i++) {
            places[count] = uint16_t(i);
            count += symbols[start + i] != 0;
        }
        for (size_t i = 0; i < count; i++) {
            const size_t at = start + places[i];
            visit(uint64_t(at + 1 - next), symbols[at]);
            next = at + 1;
        }
    }
}

Sizes measure(const uint8_t *symbols, size_t n, Layout layout) {
    uint64_t counts[4][256] = {};
    for (size_t i = 0; i < n; i++) counts[i & 3][symbols[i]]++;
    Sizes sizes;
    for (int v = 0; v < 1 << layout.bits; v++) {
        const uint64_t here = counts[0][v] + counts[1][v] + counts[2][v] + counts[3][v];
        if (here && !layout.legal(uint8_t(v)))
            throw CodecError("A symbol is minus zero; write level zero without a sign.");
        sizes.dense += here * layout.dense_word(uint8_t(v)).length;
        if (v == 0) continue;
        sizes.sparse += here * layout.sparse_word(uint8_t(v)).length;
        sizes.count += uint32_t(here);
    }
    const auto &words = small_words();
    each_nonzero(symbols, n, [&](uint64_t gap, uint8_t) { sizes.sparse += uint64_t(omega_of(words, gap).length); });
    return sizes;
}

void write_sparse(const uint8_t *symbols, size_t n, Layout layout, BitWriter out) {
    std::array<Word, 256> levels{};
    for (int v = 1; v < 1 << layout.bits; v++) levels[v] = layout.sparse_word(uint8_t(v));
    const auto &words = small_words();
    each_nonzero(symbols, n, [&](uint64_t gap, uint8_t symbol) {
        const Word level = levels[symbol];
        if (gap < kSmall) {
            out.put({words[gap].code << level.length | level.code, words[gap].length + level.length});
        } else {
            out.put(omega(gap));
            out.put(level);
        }
    });
}

void write_dense(const uint8_t *symbols, size_t n, Layout layout, BitWriter out) {
    std::array<Word, 256> words{};
    for (int v = 0; v < 1 << layout.bits; v++) words[v] = layout.dense_word(uint8_t(v));
    for (size_t i = 0; i < n; i++) out.put(words[symbols[i]]);
}

constexpr char kOutside[] = "An Elias message has a level or a position that cannot be; resend it.";

void read_dense(Bytes m, size_t n, Layout layout, uint8_t *out) {
    const DenseTable &table = dense_table(layout);
    uint64_t at = 0;
    for (size_t i = 0; i < n;) {
        const Entry &entry = table[window_msb(m, at) >> (64 - kPeek)];
        if (entry.count && n - i >= 4) {
            std::memcpy(out + i, entry.symbols, 4);
            i += entry.count;
            at += entry.length;
            continue;
        }
        const uint64_t level = read_omega(m, &at) - 1;
        if (level > layout.most) throw WireError(kOutside);
        const uint64_t sign = level ? window_msb(m, at++) >> 63 : 0;
        out[i++] = uint8_t(level | (sign ? layout.sign : 0));
    }
    expect_end(m, at, true);
}

void read_sparse(Bytes m, size_t n, Layout layout, uint8_t *out) {
    if (m.size < 4) throw WireError("A sparse Elias message has no count; resend it.");
    const uint32_t count = load32(m.data);
    m = {m.data + 4, m.size - 4};
    if (count > n || uint64_t(count) * 3 > uint64_t(m.size) * 8)
        throw WireError("A sparse Elias message counts more symbols than it can hold; resend it.");
    std::fill(out, out + n, uint8_t(0));
    const OmegaTable &table = omega_table();
    uint64_t at = 0, next = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t w = window_msb(m, at);
        const ShortCode gap = table[w >> (64 - kPeek)];
        const ShortCode level = table[w << gap.length << 1 >> (64 - kPeek)];
        if (gap.length && level.length) {
            next += gap.value;
            if (next > n || level.value > layout.most) throw WireError(kOutside);
            out[next - 1] = uint8_t(level.value | (w << gap.length >> 63 ? layout.sign : 0));
            at += gap.length + 1 + level.length;
            continue;
        }
        next += read_omega(m, &at);
        const uint64_t sign = window_msb(m, at++) >> 63, large = read_omega(m, &at);
        if (next > n || large > layout.most) throw WireError(kOutside);
        out[next - 1] = uint8_t(large | (sign ? layout.sign : 0));
    }
    expect_end(m, at, true);
}

}  // namespace

size_t elias_encode(const uint8_t *symbols, size_t n, int bits, uint8_t *out) {
    expect_width(symbols, n, bits);
    const Layout layout(bits);
    const Sizes sizes = measure(symbols, n, layout);
    const size_t stored = 1 + packed_size(n, bits);
    const size_t sparse = kSparseHeader + size_t((sizes.sparse + 7) / 8), dense = 1 + size_t((sizes.dense + 7) / 8);
    if (stored <= sparse && stored <= dense) {
        out[0] = kStored;
        pack_symbols(symbols, n, bits, out + 1);
        return stored;
    }
    if (sparse <= dense) {
        out[0] = kSparse;
        store32(out + 1, sizes.count);
        write_sparse(symbols, n, layout, {out + kSparseHeader, out + sparse});
        return sparse;
    }
    out[0] = kDense;
    write_dense(symbols, n, layout, {out + 1, out + dense});
    return dense;
}

void elias_decode(Bytes m, size_t n, int bits, uint8_t *out) {
    if (m.size == 0) throw WireError("An Elias message is empty; it needs at least a tag byte.");
    const Layout layout(bits);
    const Bytes body{m.data + 1, m.size - 1};
    if (m.data[0] == kStored) {
        unpack_symbols(body, n, bits, out);
        for (size_t i = 0; i < n; i++)
            if (out[i] == layout.sign) throw WireError("A stored symbol is minus zero; resend the message.");
    } else if (m.data[0] == kSparse) {
        read_sparse(body, n, layout, out);
    } else if (m.data[0] == kDense) {
        read_dense(body, n, layout, out);
    } else {
        throw WireError("An Elias message starts with an unknown tag; the sender uses another format.");
    }
}

}  // namespace thinwire
