// Huffman-coded symbols: neighbours share a code word when they are narrow, and four streams decode side by side.
#include <algorithm>

#include "prefix_code.h"

namespace thinwire {
namespace {

enum Tag : uint8_t { kStored = 0, kCoded = 1, kConstant = 2 };
constexpr int kStreams = 4;
constexpr int kRounds = 4;                // code words of one stream between two looks at its bytes: 4 * 12 + 7 <= 56
constexpr size_t kRoundBytes = 6;         // no stream moves further in kRounds
constexpr size_t kSinglesUpTo = 1 << 16;  // above, the longer table of grouped symbols is always worth it

inline int group_of(int bits) { return 8 / bits; }

template <int G>
inline __attribute__((always_inline)) uint32_t gather(const uint8_t *symbols, int bits) {
    uint32_t word = 0;
    for (int j = 0; j < G; j++) word |= uint32_t(symbols[j]) << (j * bits);
    return word;
}

// The group that begins at symbol `at`, zeros standing in for what the tensor no longer has.
uint32_t gather_tail(const uint8_t *symbols, size_t n, size_t at, int group, int bits) {
    uint32_t word = 0;
    for (int j = 0; j < group && at + j < n; j++) word |= uint32_t(symbols[at + j]) << (j * bits);
    return word;
}

struct Plan {
    int group, alphabet;
    size_t groups;
    Lengths lengths;
    uint8_t header[2 + 256 + 3 * 5];
    size_t header_size, size;
    size_t stream_size[kStreams];
};

template <int G>
void count_groups(const uint8_t *symbols, size_t n, int bits, Counts *counts) {
    const size_t whole = n / G;
    size_t i = 0;
    for (; i + kStreams <= whole; i += kStreams)
        for (int s = 0; s < kStreams; s++) counts[s][gather<G>(symbols + (i + s) * G, bits)]++;
    for (; i * G < n; i++) counts[i % kStreams][gather_tail(symbols, n, i * G, G, bits)]++;
}

size_t write_varint(uint64_t v, uint8_t *out) {
    size_t used = 0;
    for (; v >= 128; v >>= 7) out[used++] = uint8_t(v | 128);
    out[used++] = uint8_t(v);
    return used;
}

void count_any(const uint8_t *symbols, size_t n, int bits, int group, Counts *counts) {
    switch (group) {
        case 1: return count_groups<1>(symbols, n, bits, counts);
        case 2: return count_groups<2>(symbols, n, bits, counts);
        case 4: return count_groups<4>(symbols, n, bits, counts);
        default: return count_groups<8>(symbols, n, bits, counts);
    }
}

// Counting each stream apart gives its exact size, so all four can be written in place at once.
Plan plan_code(const uint8_t *symbols, size_t n, int bits, int group) {
    Plan plan{};
    plan.group = group;
    plan.alphabet = 1 << (bits * group);
    plan.groups = (n + group - 1) / group;
    Counts counts[kStreams] = {}, all{};
    count_any(symbols, n, bits, group, counts);
    for (int v = 0; v < plan.alphabet; v++)
        for (const Counts &c : counts) all[v] += c[v];
    plan.lengths = code_lengths(all, plan.alphabet);
    plan.header[0] = kCoded;
    plan.header[1] = uint8_t(group);
    plan.header_size = 2 + write_lengths(plan.lengths, plan.alphabet, plan.header + 2);
    for (int s = 0; s < kStreams; s++) {
        uint64_t total = 0;
        for (int v = 0; v < plan.alphabet; v++) total += counts[s][v] * plan.lengths[v];
        plan.stream_size[s] = size_t((total + 7) / 8);
        if (s + 1 < kStreams) plan.header_size += write_varint(plan.stream_size[s], plan.header + plan.header_size);
    }
    plan.size = plan.header_size;
    for (size_t bytes : plan.stream_size) plan.size += bytes;
    return plan;
}

struct StreamWriter {
    uint8_t *at, *end;
    uint64_t held;
    int bits;

    void put(uint32_t word) {
        held |= uint64_t(word & 0xffff) << bits;
        bits += int(word >> 16);
    }
    void flush() {
        store64(at, held);
        at += bits >> 3;
        held >>= bits & ~7;
        bits &= 7;
    }
    void flush_carefully(bool last) {
        for (; bits >= 8 || (last && bits > 0); bits -= 8, held >>= 8) *at++ = uint8_t(held);
    }
    size_t safe_turns() const { return size_t(end - at) < 8 ? 0 : (size_t(end - at) - 8) / kRoundBytes + 1; }
};

template <int G>
inline __attribute__((always_inline)) void write_streams(const uint8_t *symbols, size_t n, int bits, const Plan &plan,
                                                         uint8_t *out) {
    const auto words = code_words(plan.lengths, plan.alphabet);
    StreamWriter w[kStreams];
    for (int s = 0; s < kStreams; s++) {
        w[s] = {out, out + plan.stream_size[s], 0, 0};
        out = w[s].end;
    }
    constexpr size_t kTurn = kStreams * kRounds;
    size_t i = 0;
    for (;;) {
        size_t turns = (n / G - i) / kTurn;
        for (const StreamWriter &stream : w) turns = std::min(turns, stream.safe_turns());
        if (turns == 0) break;
        for (; turns > 0; turns--, i += kTurn) {
#pragma GCC unroll 4
            for (int s = 0; s < kStreams; s++) {
#pragma GCC unroll 4
                for (int r = 0; r < kRounds; r++)
                    w[s].put(words[gather<G>(symbols + (i + r * kStreams + s) * G, bits)]);
                w[s].flush();
            }
        }
    }
    for (; i < plan.groups; i++) {
        w[i % kStreams].put(words[gather_tail(symbols, n, i * G, G, bits)]);
        w[i % kStreams].flush_carefully(false);
    }
    for (StreamWriter &stream : w) stream.flush_carefully(true);
}

THINWIRE_CLONES void write_any(const uint8_t *symbols, size_t n, int bits, const Plan &plan, uint8_t *out) {
    switch (plan.group) {
        case 1: return write_streams<1>(symbols, n, bits, plan, out);
        case 2: return write_streams<2>(symbols, n, bits, plan, out);
        case 4: return write_streams<4>(symbols, n, bits, plan, out);
        default: return write_streams<8>(symbols, n, bits, plan, out);
    }
}

struct Coded {
    Bytes message;
    size_t start[kStreams + 1];
    int group;
    DecodeTable table;
    uint64_t spelled[256];  // the symbols of a group, one a byte
};

Coded open_message(Bytes m, int bits) {
    Coded coded{};
    coded.message = m;
    coded.group = m.size > 1 ? m.data[1] : 0;
    if (coded.group != 1 && coded.group != group_of(bits))
        throw WireError("A Huffman message groups its symbols in an unknown way; the sender uses another format.");
    const int alphabet = 1 << (bits * coded.group);
    Lengths lengths{};
    size_t at = 2 + read_lengths({m.data + 2, m.size - 2}, alphabet, lengths);
    fill_table(lengths, alphabet, coded.table);
    const int mask = (1 << bits) - 1;
    for (int v = 0; v < alphabet; v++)
        for (int j = 0; j < coded.group; j++) coded.spelled[v] |= uint64_t(v >> (j * bits) & mask) << (8 * j);
    uint64_t sizes[kStreams - 1] = {};
    for (uint64_t &size : sizes) {
        for (int shift = 0;; shift += 7) {
            if (at >= m.size || shift > 28)
                throw WireError("A Huffman message has no valid stream lengths; resend it.");
            size |= uint64_t(m.data[at] & 127) << shift;
            if (m.data[at++] < 128) break;
        }
    }
    coded.start[0] = at;
    for (int s = 1; s < kStreams; s++) {
        if (sizes[s - 1] > m.size - coded.start[s - 1])
            throw WireError("A Huffman message is shorter than its streams; resend it.");
        coded.start[s] = coded.start[s - 1] + size_t(sizes[s - 1]);
    }
    coded.start[kStreams] = m.size;
    return coded;
}

// Whole turns while every stream can be read eight bytes at a time; returns the groups decoded and moves `at`.
template <int G>
inline __attribute__((always_inline)) size_t read_turns(const Coded &coded, size_t whole, uint64_t *at, uint8_t *out) {
    constexpr size_t kTurn = kStreams * kRounds;
    const size_t size = coded.message.size;
    uint64_t p[kStreams] = {at[0], at[1], at[2], at[3]};
    size_t i = 0;
    for (;;) {
        size_t turns = (whole - i) / kTurn;
        for (uint64_t bit : p) {
            const size_t needed = size_t(bit >> 3) + 8;
            turns = std::min(turns, size < needed ? 0 : (size - needed) / kRoundBytes + 1);
        }
        if (turns == 0) break;
        for (; turns > 0; turns--, i += kTurn) {
            uint64_t w[kStreams];
            for (int s = 0; s < kStreams; s++) w[s] = load64(coded.message.data + (p[s] >> 3)) >> (p[s] & 7);
#pragma GCC unroll 4
            for (int r = 0; r < kRounds; r++) {
#pragma GCC unroll 4
                for (int s = 0; s < kStreams; s++) {
                    const uint32_t entry = coded.table[w[s] & ((1 << kMaxLength) - 1)];
                    w[s] >>= entry & 63;
                    p[s] += entry & 63;
                    std::memcpy(out + (i + r * kStreams + s) * G, &coded.spelled[entry >> 8], G);
                }
            }
        }
    }
    std::copy(p, p + kStreams, at);
    return i;
}

THINWIRE_CLONES size_t read_any(const Coded &coded, size_t n, uint64_t *at, uint8_t *out) {
    switch (coded.group) {
        case 1: return read_turns<1>(coded, n, at, out);
        case 2: return read_turns<2>(coded, n / 2, at, out);
        case 4: return read_turns<4>(coded, n / 4, at, out);
        default: return read_turns<8>(coded, n / 8, at, out);
    }
}

void read_coded(Bytes m, size_t n, int bits, uint8_t *out) {
    const Coded coded = open_message(m, bits);
    const size_t group = size_t(coded.group), groups = (n + group - 1) / group;
    uint64_t at[kStreams];
    for (int s = 0; s < kStreams; s++) at[s] = uint64_t(coded.start[s]) * 8;
    for (size_t i = read_any(coded, n, at, out); i < groups; i++) {
        uint64_t &bit = at[i % kStreams];
        const uint32_t entry = coded.table[window(m, bit) & ((1 << kMaxLength) - 1)];
        bit += entry & 63;
        const uint64_t spelled = coded.spelled[entry >> 8];
        const size_t some = std::min(group, n - i * group);
        std::memcpy(out + i * group, &spelled, some);
        if (some < group && spelled >> (8 * some))
            throw WireError("A Huffman message pads its last group with symbols; resend it.");
    }
    for (int s = 0; s < kStreams; s++) expect_end({m.data, coded.start[s + 1]}, at[s], false);
}

}  // namespace

size_t huffman_encode(const uint8_t *symbols, size_t n, int bits, uint8_t *out) {
    expect_width(symbols, n, bits);
    const size_t stored = 1 + packed_size(n, bits);
    if (stored > 2 && std::memcmp(symbols, symbols + 1, n - 1) == 0) {
        out[0] = kConstant;
        out[1] = symbols[0];
        return 2;
    }
    if (n > 0) {
        Plan plan = plan_code(symbols, n, bits, group_of(bits));
        if (group_of(bits) > 1 && n <= kSinglesUpTo) {
            const Plan singles = plan_code(symbols, n, bits, 1);
            if (singles.size < plan.size) plan = singles;
        }
        if (plan.size < stored) {
            std::memcpy(out, plan.header, plan.header_size);
            write_any(symbols, n, bits, plan, out + plan.header_size);
            return plan.size;
        }
    }
    out[0] = kStored;
    pack_symbols(symbols, n, bits, out + 1);
    return stored;
}

void huffman_decode(Bytes m, size_t n, int bits, uint8_t *out) {
    if (m.size == 0) throw WireError("A Huffman message is empty; it needs at least a tag byte.");
    if (m.data[0] == kStored) {
        unpack_symbols({m.data + 1, m.size - 1}, n, bits, out);
    } else if (m.data[0] == kCoded) {
        read_coded(m, n, bits, out);
    } else if (m.data[0] == kConstant && m.size == 2 && m.data[1] >> bits == 0) {
        std::fill(out, out + n, m.data[1]);
    } else {
        throw WireError("A Huffman message starts with an unknown tag or value; the sender uses another format.");
    }
}

}  // namespace thinwire
