#include "omega.h"

#include <algorithm>
#include <mutex>

namespace thinwire {

Word omega(uint64_t k) {
    Word w{0, 1};
    while (k > 1) {
        const int width = 64 - __builtin_clzll(k);
        w.code |= k << w.length;
        w.length += width;
        k = uint64_t(width - 1);
    }
    return w;
}

uint64_t read_omega(Bytes m, uint64_t *at) {
    uint64_t value = 1;
    for (;;) {
        const uint64_t w = window_msb(m, *at);
        if (w >> 63 == 0) {
            ++*at;
            return value;
        }
        if (value > 32) throw WireError("An Elias code is longer than any number here; resend the message.");
        *at += value + 1;
        value = w >> (63 - value);
    }
}

const std::array<Word, kSmall> &small_words() {
    static const std::array<Word, kSmall> words = [] {
        std::array<Word, kSmall> all{};
        for (uint64_t k = 1; k < kSmall; k++) all[k] = omega(k);
        return all;
    }();
    return words;
}

namespace {

Entry dense_entry(uint32_t window, Layout layout) {
    Entry entry{};
    uint8_t bytes[8] = {};
    const uint64_t w = __builtin_bswap64(uint64_t(window) << (64 - kPeek));
    std::memcpy(bytes, &w, 8);
    for (uint64_t at = 0; entry.count < 4;) {
        const Bytes m{bytes, 8};
        uint64_t level = 0;
        try {
            level = read_omega(m, &at) - 1;
        } catch (const WireError &) {
            return entry;
        }
        const uint64_t sign = level ? window_msb(m, at++) >> 63 : 0;
        if (at > kPeek || level > layout.most) return entry;
        entry.symbols[entry.count++] = uint8_t(level | (sign ? layout.sign : 0));
        entry.length = uint8_t(at);
    }
    return entry;
}

}  // namespace

const DenseTable &dense_table(Layout layout) {
    static DenseTable tables[9];
    static std::once_flag built[9];
    std::call_once(built[layout.bits], [&] {
        for (uint32_t w = 0; w < 1 << kPeek; w++) tables[layout.bits][w] = dense_entry(w, layout);
    });
    return tables[layout.bits];
}

const OmegaTable &omega_table() {
    static const OmegaTable table = [] {
        OmegaTable all{};
        for (uint8_t k = 1; omega(k).length <= kPeek; k++) {
            const Word w = omega(k);
            const uint64_t first = w.code << (kPeek - w.length);
            std::fill_n(all.begin() + first, size_t(1) << (kPeek - w.length), ShortCode{k, uint8_t(w.length)});
        }
        return all;
    }();
    return table;
}

}  // namespace thinwire
