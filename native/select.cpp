// Positions of the largest magnitudes: a sampled guess, one streaming pass, an exact choice among few candidates.
#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "wire.h"

namespace thinwire {
namespace {

constexpr size_t kBlock = 32;
constexpr size_t kSample = 16384;
constexpr size_t kFew = 16;  // up to one in so many, candidates are kept with their positions
constexpr uint32_t kMostKey = 0x7fffffffu;

// Magnitudes order like their bit patterns: finite < inf < NaN.
inline uint32_t key_of(float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    return bits & kMostKey;
}

// Where keys come from: numbers as they lie in memory, or
struct Plain {
    const float *x;
    float at(size_t i) const { return x[i]; }
    const float *block(size_t i, size_t, float *) const { return x + i; }
};

// importances, computed when they are looked at: |v| / (|w| + floor) * ranks.
struct Scored {
    const float *v, *w;
    float floor, ranks;
    float at(size_t i) const { return __builtin_fabsf(v[i]) / (__builtin_fabsf(w[i]) + floor) * ranks; }
    const float *block(size_t i, size_t some, float *buffer) const {
        for (size_t j = 0; j < some; j++) buffer[j] = at(i + j);
        return buffer;
    }
};

struct Choice {
    uint32_t key;  // everything above is taken,
    size_t ties;   // and so many of the first that are equal
};

struct Bracket {
    uint32_t low, high;
};

// Whether a block has anything at or above `low`; the compiler turns it into a few vector instructions.
inline __attribute__((always_inline)) bool any_at_least(const float *x, uint32_t low) {
    int32_t most = 0;
    for (size_t j = 0; j < kBlock; j++) most = std::max(most, int32_t(key_of(x[j])));
    return uint32_t(most) >= low;
}

inline __attribute__((always_inline)) bool has_key(const float *x, size_t some, uint32_t key) {
    uint32_t same = 0;
    for (size_t j = 0; j < some; j++) same += key_of(x[j]) == key;
    return same > 0;
}

// The multiplication gathers eight bytes of 0 or 1 in the top one.
inline __attribute__((always_inline)) uint32_t bits_of(const uint8_t *flags) {
    uint32_t bits = 0;
    for (size_t j = 0; j < kBlock; j += 8) bits |= uint32_t((load64(flags + j) * 0x0102040810204080u) >> 56) << j;
    return bits;
}

// A bit for everything of a block at or above `low`,
inline __attribute__((always_inline)) uint32_t hits(const float *x, size_t some, uint32_t low) {
    alignas(64) uint8_t at_least[kBlock];
    for (size_t j = 0; j < some; j++) at_least[j] = int32_t(key_of(x[j])) >= int32_t(low);
    for (size_t j = some; j < kBlock; j++) at_least[j] = 0;
    return bits_of(at_least);
}

// and for everything above `key`.
inline __attribute__((always_inline)) uint32_t hits_above(const float *x, size_t some, uint32_t key) {
    alignas(64) uint8_t more[kBlock];
    for (size_t j = 0; j < some; j++) more[j] = int32_t(key_of(x[j])) > int32_t(key);
    for (size_t j = some; j < kBlock; j++) more[j] = 0;
    return bits_of(more);
}

// The places of the bits that are set in a byte, and how many there are.
struct Places {
    uint8_t at[256][8], count[256];
    constexpr Places() : at{}, count{} {
        for (int byte = 0; byte < 256; byte++)
            for (uint8_t bit = 0; bit < 8; bit++)
                if (byte >> bit & 1) at[byte][count[byte]++] = bit;
    }
};
constexpr Places kPlaces;

// Writes the positions of the bits, eight bits at a time and without a branch; up to eight places more are written to.
inline __attribute__((always_inline)) size_t write_bits(uint32_t bits, int64_t from, int64_t *out) {
    size_t found = 0;
    for (int64_t at = from; at < from + int64_t(kBlock); at += 8, bits >>= 8) {
        const uint8_t *places = kPlaces.at[bits & 255];
        for (size_t j = 0; j < 8; j++) out[found + j] = at + places[j];
        found += kPlaces.count[bits & 255];
    }
    return found;
}

// Appends the position and key of everything at or above `low`; returns room+1 or more when there is too much of it.
template <class Source>
inline __attribute__((always_inline)) size_t collect_from(Source from, size_t n, uint32_t low, uint32_t *where,
                                                          uint32_t *keys, size_t room) {
    size_t found = 0;
    alignas(64) float buffer[kBlock];
    for (size_t i = 0; i < n; i += kBlock) {
        const size_t some = std::min(kBlock, n - i);
        const float *x = some == kBlock ? from.block(i, kBlock, buffer) : from.block(i, some, buffer);
        if (some == kBlock && !any_at_least(x, low)) continue;
        if (found > room) break;
        for (uint32_t left = some == kBlock ? hits(x, kBlock, low) : hits(x, some, low); left; left &= left - 1) {
            const size_t j = size_t(__builtin_ctz(left));
            where[found] = uint32_t(i + j);
            keys[found++] = key_of(x[j]);
        }
    }
    return found;
}

THINWIRE_CLONES size_t collect(Plain from, size_t n, uint32_t low, uint32_t *where, uint32_t *keys, size_t room) {
    return collect_from(from, n, low, where, keys, room);
}

THINWIRE_CLONES size_t collect(Scored from, size_t n, uint32_t low, uint32_t *where, uint32_t *keys, size_t room) {
    return collect_from(from, n, low, where, keys, room);
}

// Counts the keys above `high` and keeps those from `low` to `high`; more than `room` of them means a poor guess.
THINWIRE_CLONES size_t collect_band(const float *x, size_t n, Bracket in, uint32_t *band, size_t room, size_t *above) {
    size_t found = 0, more = 0;
    for (size_t i = 0; i < n && found <= room; i += kBlock) {
        const size_t some = std::min(kBlock, n - i);
        const uint32_t low = some == kBlock ? hits(x + i, kBlock, in.low) : hits(x + i, some, in.low);
        const uint32_t high = some == kBlock ? hits_above(x + i, kBlock, in.high) : hits_above(x + i, some, in.high);
        more += size_t(__builtin_popcount(high));
        for (uint32_t left = low & ~high; left; left &= left - 1) band[found++] = key_of(x[i + __builtin_ctz(left)]);
    }
    *above = more;
    return found;
}

THINWIRE_CLONES void count_around(const float *x, size_t n, uint32_t key, size_t *above, size_t *equal) {
    size_t more = 0, same = 0;
    for (size_t i = 0; i < n;) {
        uint32_t block_more = 0, block_same = 0;  // narrow counters keep the inner loop in vectors of 32 bits
        for (const size_t end = std::min(n, i + 65536); i < end; i++) {
            const int32_t k = int32_t(key_of(x[i]));
            block_more += k > int32_t(key);
            block_same += k == int32_t(key);
        }
        more += block_more;
        same += block_same;
    }
    *above = more;
    *equal = same;
}

// Writes the chosen positions among all; skips blocks that hold neither a larger key nor a tie that still counts.
THINWIRE_CLONES void write_choice(const float *x, size_t n, Choice choice, int64_t *out, size_t k) {
    int64_t spare[2 * kBlock];  // takes the last ones, so that the loop may write a few places too far
    size_t found = 0, ties = choice.ties;
    for (size_t i = 0; i < n && found < k; i += kBlock) {
        const size_t some = std::min(kBlock, n - i);
        if (some == kBlock && !any_at_least(x + i, choice.key + (ties == 0))) continue;
        const bool near_end = k - found <= kBlock + 8;
        int64_t *to = near_end ? spare : out + found;
        size_t here = 0;
        if (ties > 0 && has_key(x + i, some, choice.key)) {
            for (size_t j = i; j < i + some; j++) {
                const uint32_t key = key_of(x[j]);
                const size_t tie = (key == choice.key) & (ties > 0);
                to[here] = int64_t(j);
                here += size_t(key > choice.key) | tie;
                ties -= tie;
            }
        } else {
            const float *from = x + i;
            const bool whole = some == kBlock;
            here = write_bits(whole ? hits_above(from, kBlock, choice.key) : hits_above(from, some, choice.key),
                              int64_t(i), to);
        }
        if (near_end) std::copy(spare, spare + std::min(here, k - found), out + found);
        found += here;
    }
}

// Two keys that the k-th largest lies between, almost surely, if the sample looks like the rest.
template <class Source>
Bracket bracket(Source from, size_t n, size_t k) {
    const size_t stride = std::max<size_t>(1, n / kSample) | 1;  // odd: does not fall in step with rows of a matrix
    std::vector<uint32_t> sample;
    sample.reserve(n / stride + 1);
    for (size_t i = stride / 2; i < n; i += stride) sample.push_back(key_of(from.at(i)));
    const double expected = double(k) / double(n) * double(sample.size());
    const double share = std::min(1.0, double(k) / double(n));
    const double margin = 4 * __builtin_sqrt(expected * (1 - share)) + 4;
    const size_t deep = std::min(sample.size() - 1, size_t(expected + margin));
    const size_t shallow = size_t(std::max(0.0, expected - margin));
    const auto at = [&](size_t rank) {
        std::nth_element(sample.begin(), sample.begin() + rank, sample.end(), std::greater<uint32_t>());
        return sample[rank];
    };
    const uint32_t low = deep + 1 == sample.size() ? 0 : at(deep);
    return {low, expected > margin ? at(shallow) : kMostKey};
}

// The exact choice among candidates that hold all of the k largest keys.
Choice choose(const uint32_t *keys, size_t count, uint32_t high, size_t k) {
    size_t above = 0;
    for (size_t i = 0; i < count; i++) above += keys[i] > high;
    const bool usable = above < k;
    const uint32_t top = usable ? high : kMostKey;
    const size_t rank = usable ? k - above : k;
    std::vector<uint32_t> band(count + 1);
    size_t inside = 0;
    for (size_t i = 0; i < count; i++) {  // without a branch: nobody could foretell it
        band[inside] = keys[i];
        inside += keys[i] <= top;
    }
    band.resize(inside);
    std::nth_element(band.begin(), band.begin() + (rank - 1), band.end(), std::greater<uint32_t>());
    const uint32_t key = band[rank - 1];
    const size_t larger = size_t(std::count_if(band.begin(), band.end(), [=](uint32_t v) { return v > key; }));
    return {key, rank - larger};
}

// Digit by digit from the top: three passes whatever the data. Four histograms take turns, because many equal keys
// in a row would otherwise wait for one another's increments.
Choice choose_by_radix(const float *x, size_t n, size_t k) {
    uint32_t prefix = 0;
    for (int shift : {20, 10, 0}) {
        std::vector<uint64_t> histogram(4 * 2048, 0);
        const uint32_t digits = shift == 20 ? 2048 : 1024;
        for (size_t i = 0; i < n; i++) {
            const uint32_t key = key_of(x[i]) >> shift;
            if (key / digits == prefix / digits) histogram[(i & 3) * 2048 + key % digits]++;
        }
        uint32_t digit = digits - 1;
        for (;; digit--) {
            size_t here = 0;
            for (uint32_t turn = 0; turn < 4; turn++) here += histogram[turn * 2048 + digit];
            if (here >= k || digit == 0) break;
            k -= here;
        }
        prefix += digit;
        if (shift) prefix *= 1024;
    }
    return {prefix, k};
}

// A bracket of one value says that the data hold many equal ones (zeros, mostly): check that guess by counting.
bool guess_holds(const float *x, size_t n, size_t k, uint32_t key, Choice *choice) {
    size_t above = 0, equal = 0;
    count_around(x, n, key, &above, &equal);
    *choice = {key, k - above};
    return above < k && above + equal >= k;
}

// Few are wanted: keep all candidates of one pass with their positions, and choose among those.
template <class Source>
bool take_candidates(Source from, size_t n, size_t k, Bracket guess, int64_t *out) {
    const size_t room = k + k / 2 + n / 64 + 1024;
    const std::unique_ptr<uint32_t[]> buffer(new uint32_t[2 * (room + 2 * kBlock)]);
    uint32_t *where = buffer.get(), *keys = where + room + 2 * kBlock;
    const size_t count = collect(from, n, guess.low, where, keys, room);
    if (count < k || count > room) return false;
    const Choice choice = choose(keys, count, guess.high, k);
    size_t found = 0, ties = choice.ties;
    for (size_t i = 0; i < count && found < k; i++) {
        const bool tie = keys[i] == choice.key && ties > 0;
        out[found] = where[i];
        found += keys[i] > choice.key || tie;
        ties -= tie;
    }
    return true;
}

// Many are wanted: keep only the keys around the k-th, count what lies above, and leave the positions to a second pass.
bool choose_in_band(const float *x, size_t n, size_t k, Bracket guess, Choice *choice) {
    const size_t room = n / 8 + 1024;
    const std::unique_ptr<uint32_t[]> band(new uint32_t[room + 2 * kBlock]);
    size_t above = 0;
    const size_t count = collect_band(x, n, guess, band.get(), room, &above);
    if (count > room || above >= k || above + count < k) return false;
    *choice = choose(band.get(), count, kMostKey, k - above);
    return true;
}

}  // namespace

void largest(const float *x, size_t n, size_t k, int64_t *out) {
    if (k == 0) return;
    const Bracket guess = bracket(Plain{x}, n, k);
    Choice choice{};
    if (guess.low == guess.high) {
        if (!guess_holds(x, n, k, guess.low, &choice)) choice = choose_by_radix(x, n, k);
    } else if (k <= n / kFew) {
        if (take_candidates(Plain{x}, n, k, guess, out)) return;
        choice = choose_by_radix(x, n, k);
    } else if (!choose_in_band(x, n, k, guess, &choice)) {
        choice = choose_by_radix(x, n, k);
    }
    write_choice(x, n, choice, out, k);
}

bool most_important(const float *v, const float *w, size_t n, float floor, float ranks, size_t k, int64_t *out) {
    if (k == 0) return true;
    if (k > n / kFew) return false;
    const Scored scores{v, w, floor, ranks};
    const Bracket guess = bracket(scores, n, k);
    return guess.low != guess.high && take_candidates(scores, n, k, guess, out);
}

THINWIRE_CLONES void importances(const float *v, const float *w, size_t n, float floor, float ranks, float *out) {
    const Scored scores{v, w, floor, ranks};
    for (size_t i = 0; i < n; i++) out[i] = scores.at(i);
}

THINWIRE_CLONES uint32_t squared_lengths(const float *pairs, size_t n, float *out) {
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        out[i] = pairs[2 * i] * pairs[2 * i] + pairs[2 * i + 1] * pairs[2 * i + 1];
        most = std::max(most, int32_t(key_of(out[i])));
    }
    return uint32_t(most);
}

size_t count_above(const float *x, size_t n, uint32_t key) {
    size_t above = 0, equal = 0;
    count_around(x, n, key, &above, &equal);
    return above;
}

void write_above(const float *x, size_t n, uint32_t key, int64_t *out, size_t count) {
    write_choice(x, n, {key, 0}, out, count);
}

}  // namespace thinwire
