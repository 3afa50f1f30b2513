// Elias omega code words, the words of sign-magnitude symbols built from them, and tables to read the short ones.
#pragma once

#include <array>

#include "wire.h"

namespace thinwire {

struct Word {
    uint64_t code;
    int length;
};

// binary(k), before it the binary of its length less one, and so on down to 1; a zero ends it.
Word omega(uint64_t k);

// Reads one omega code at bit `at`; a value of 2^33 or more belongs to no message.
uint64_t read_omega(Bytes m, uint64_t *at);

// The words of 1 to kSmall - 1, ready to use.
constexpr uint64_t kSmall = 256;
const std::array<Word, kSmall> &small_words();

inline Word omega_of(const std::array<Word, kSmall> &words, uint64_t k) { return k < kSmall ? words[k] : omega(k); }

// Symbols of `bits` bits: the sign in the top bit, the level below.
struct Layout {
    int bits;
    uint8_t sign, most;  // the sign bit; the highest level

    explicit Layout(int b) : bits(b), sign(uint8_t(1u << (b - 1))), most(uint8_t((1u << (b - 1)) - 1)) {}

    // Sparse: sign, omega(level). Dense: omega(level + 1), sign unless the level is zero.
    Word sparse_word(uint8_t symbol) const {
        Word w = omega(symbol & most);
        w.code |= uint64_t((symbol & sign) != 0) << w.length++;
        return w;
    }
    Word dense_word(uint8_t symbol) const {
        Word w = omega(uint64_t(symbol & most) + 1);
        if (symbol) w = {w.code << 1 | ((symbol & sign) != 0), w.length + 1};
        return w;
    }
    bool legal(uint8_t symbol) const { return symbol >> bits == 0 && symbol != sign; }
};

constexpr int kPeek = 12;  // bits looked up at once

// Up to four symbols whose dense codes lie whole in the next kPeek bits.
struct Entry {
    uint8_t symbols[4];
    uint8_t count, length;  // count 0: the first code is longer than the window
};
using DenseTable = std::array<Entry, 1 << kPeek>;
const DenseTable &dense_table(Layout layout);

// The omega code that lies whole in the next kPeek bits.
struct ShortCode {
    uint8_t value, length;  // length 0: longer than the window
};
using OmegaTable = std::array<ShortCode, 1 << kPeek>;
const OmegaTable &omega_table();

}  // namespace thinwire
