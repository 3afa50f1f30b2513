// Canonical length-limited Huffman codes: from counts to lengths, codes, header bytes and back.
#pragma once

#include <array>

#include "wire.h"

namespace thinwire {

constexpr int kMaxLength = 12;

using Counts = std::array<uint64_t, 256>;
using Lengths = std::array<uint8_t, 256>;  // 0: the symbol does not occur

// Optimal lengths of at most kMaxLength bits (package-merge); their Kraft sum is exactly one.
Lengths code_lengths(const Counts &counts, int alphabet);

// Code of each symbol with its first bit lowest, as the streams want it: code | length << 16.
std::array<uint32_t, 256> code_words(const Lengths &lengths, int alphabet);

// Entry for every kMaxLength-bit window: length | symbol << 8.
using DecodeTable = std::array<uint16_t, 1 << kMaxLength>;
void fill_table(const Lengths &lengths, int alphabet, DecodeTable &table);

// Lengths in nibbles with runs. Returns the bytes used; `out` needs room for `alphabet` bytes.
size_t write_lengths(const Lengths &lengths, int alphabet, uint8_t *out);
size_t read_lengths(Bytes m, int alphabet, Lengths &lengths);

}  // namespace thinwire
