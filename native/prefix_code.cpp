#include "prefix_code.h"

#include <algorithm>
#include <vector>

namespace thinwire {
namespace {

// 0..12 are lengths; the rest say how often: 13 n = n+3 zeros, 14 lo hi = n+19 zeros, 15 n = the last one n+3 times.
enum : uint8_t { kZeros = 13, kManyZeros = 14, kRepeat = 15 };
constexpr int kShortest = 3, kMany = 19;

class NibbleWriter {
  public:
    explicit NibbleWriter(uint8_t *out) : out_(out) {}
    void put(int nibble) {
        if (count_ % 2 == 0) out_[count_ / 2] = 0;
        out_[count_ / 2] |= uint8_t(nibble << (count_ % 2 * 4));
        count_++;
    }
    size_t bytes() const { return (count_ + 1) / 2; }

  private:
    uint8_t *out_;
    size_t count_ = 0;
};

class NibbleReader {
  public:
    explicit NibbleReader(Bytes m) : m_(m) {}
    int take() {
        if (count_ / 2 >= m_.size) throw WireError("The code lengths of a Huffman message are cut off; resend it.");
        const int nibble = m_.data[count_ / 2] >> (count_ % 2 * 4) & 15;
        count_++;
        return nibble;
    }
    size_t end() {
        if (count_ % 2 && take())
            throw WireError("The padding behind the code lengths is not zero; resend the message.");
        return count_ / 2;
    }

  private:
    Bytes m_;
    size_t count_ = 0;
};

std::vector<int> by_count(const Counts &counts, int alphabet) {
    std::vector<int> used;
    for (int s = 0; s < alphabet; s++)
        if (counts[s]) used.push_back(s);
    std::stable_sort(used.begin(), used.end(), [&](int a, int b) { return counts[a] < counts[b]; });
    return used;
}

int run_length(const Lengths &lengths, int from, int alphabet) {
    int run = 1;
    while (from + run < alphabet && lengths[from + run] == lengths[from]) run++;
    return run;
}

}  // namespace

// Every level merges the leaves with pairs of the level before, a leaf first among equals. The first 2m-2 items of
// the last level make the code: a symbol is as long as the number of levels in which its leaf is among those needed.
Lengths code_lengths(const Counts &counts, int alphabet) {
    const std::vector<int> used = by_count(counts, alphabet);
    Lengths lengths{};
    if (used.size() == 1) lengths[used[0]] = lengths[used[0] ^ 1] = 1;  // a code needs two words
    if (used.size() < 2) return lengths;
    std::vector<uint64_t> items, packages;
    std::vector<std::vector<bool>> leaf(kMaxLength);
    for (int level = 0; level < kMaxLength; level++) {
        packages.clear();
        for (size_t i = 0; i + 1 < items.size(); i += 2) packages.push_back(items[i] + items[i + 1]);
        items.clear();
        for (size_t a = 0, b = 0; a < used.size() || b < packages.size();) {
            const bool take = a < used.size() && (b == packages.size() || counts[used[a]] <= packages[b]);
            items.push_back(take ? counts[used[a++]] : packages[b++]);
            leaf[level].push_back(take);
        }
    }
    size_t needed = 2 * used.size() - 2;
    for (int level = kMaxLength - 1; level >= 0; level--) {
        const size_t leaves = size_t(std::count(leaf[level].begin(), leaf[level].begin() + needed, true));
        for (size_t i = 0; i < leaves; i++) lengths[used[i]]++;
        needed = 2 * (needed - leaves);
    }
    return lengths;
}

std::array<uint32_t, 256> code_words(const Lengths &lengths, int alphabet) {
    std::array<uint32_t, 256> words{};
    uint32_t next = 0;
    for (int length = 1; length <= kMaxLength; length++, next <<= 1) {
        for (int s = 0; s < alphabet; s++) {
            if (lengths[s] != length) continue;
            uint32_t reversed = 0;
            for (int j = 0; j < length; j++) reversed |= (next >> j & 1) << (length - 1 - j);
            words[s] = reversed | uint32_t(length) << 16;
            next++;
        }
    }
    return words;
}

void fill_table(const Lengths &lengths, int alphabet, DecodeTable &table) {
    const auto words = code_words(lengths, alphabet);
    for (int s = 0; s < alphabet; s++) {
        if (lengths[s] == 0) continue;
        for (uint32_t at = words[s] & 0xffff; at < table.size(); at += 1u << lengths[s])
            table[at] = uint16_t(lengths[s] | s << 8);
    }
}

size_t write_lengths(const Lengths &lengths, int alphabet, uint8_t *out) {
    NibbleWriter nibbles(out);
    for (int s = 0; s < alphabet;) {
        const int run = run_length(lengths, s, alphabet);
        int covered = 1;
        if (lengths[s] == 0 && run >= kMany) {
            covered = std::min(run, kMany + 255);
            nibbles.put(kManyZeros);
            nibbles.put((covered - kMany) & 15);
            nibbles.put((covered - kMany) >> 4);
        } else if (run >= kShortest && (lengths[s] == 0 || (s > 0 && lengths[s] == lengths[s - 1]))) {
            covered = std::min(run, kShortest + 15);
            nibbles.put(lengths[s] == 0 ? kZeros : kRepeat);
            nibbles.put(covered - kShortest);
        } else {
            nibbles.put(lengths[s]);
        }
        s += covered;
    }
    return nibbles.bytes();
}

size_t read_lengths(Bytes m, int alphabet, Lengths &lengths) {
    NibbleReader nibbles(m);
    uint32_t kraft = 0;
    for (int s = 0; s < alphabet;) {
        int length = nibbles.take(), run = 1;
        if (length == kRepeat && s == 0) throw WireError("The code lengths of a Huffman message begin with a repeat.");
        if (length == kManyZeros) {
            run = kMany + nibbles.take();
            run += nibbles.take() << 4;
        } else if (length >= kZeros) {
            run = kShortest + nibbles.take();
        }
        length = length <= kMaxLength ? length : length == kRepeat ? lengths[s - 1] : 0;
        if (s + run > alphabet) throw WireError("A Huffman message has more code lengths than symbols; resend it.");
        for (; run > 0; run--, s++) {
            lengths[s] = uint8_t(length);
            kraft += length ? 1u << (kMaxLength - length) : 0;
        }
    }
    if (kraft != 1u << kMaxLength)
        throw WireError("The code lengths of a Huffman message form no complete code; resend it.");
    return nibbles.end();
}

}  // namespace thinwire
