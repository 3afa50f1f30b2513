// Positions of the largest magnitudes: a sampled guess, one streaming pass, an exact choice among few candidates.
#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "kernels.h"
#include "wire.h"

namespace thinwire {
namespace {

constexpr size_t kSlack = 64;  // places behind their end that loops may write to
constexpr size_t kSample = 16384;
constexpr size_t kFew = 16;  // up to one in so many, candidates are kept with their positions
constexpr uint32_t kMostKey = 0x7fffffffu;

inline uint32_t key_of(float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    return bits & kMostKey;
}

inline float look(const Importances &of, size_t i) {
    return of.w ? __builtin_fabsf(of.v[i]) / (__builtin_fabsf(of.w[i]) + of.floor) * of.ranks : of.v[i];
}

struct Choice {
    uint32_t key;  // everything above is taken,
    size_t ties;   // and so many of the first that are equal
};

struct Bracket {
    uint32_t low, high;
};

// Two keys that the k-th largest lies between, almost surely, if the sample looks like the rest.
Bracket bracket(const Importances &of, size_t n, size_t k) {
    const size_t stride = std::max<size_t>(1, n / kSample) | 1;  // odd: does not fall in step with rows of a matrix
    std::vector<uint32_t> sample;
    sample.reserve(n / stride + 1);
    for (size_t i = stride / 2; i < n; i += stride) sample.push_back(key_of(look(of, i)));
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
    kernels().count_around(x, n, key, &above, &equal);
    *choice = {key, k - above};
    return above < k && above + equal >= k;
}

// Few are wanted: keep all candidates of one pass with their positions, and choose among those.
bool take_candidates(const Importances &of, size_t n, size_t k, Bracket guess, int64_t *out) {
    const size_t room = k + k / 2 + n / 64 + 1024;
    const std::unique_ptr<uint32_t[]> buffer(new uint32_t[2 * (room + kSlack)]);
    uint32_t *where = buffer.get(), *keys = where + room + kSlack;
    const size_t count = kernels().collect(of, n, guess.low, where, keys, room);
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
    const std::unique_ptr<uint32_t[]> band(new uint32_t[room + kSlack]);
    size_t above = 0;
    const size_t count = kernels().collect_band(x, n, guess.low, guess.high, band.get(), room, &above);
    if (count > room || above >= k || above + count < k) return false;
    *choice = choose(band.get(), count, kMostKey, k - above);
    return true;
}

}  // namespace

void largest(const float *x, size_t n, size_t k, int64_t *out) {
    if (k == 0) return;
    const Importances plain{x, nullptr, 0.0f, 1.0f};
    const Bracket guess = bracket(plain, n, k);
    Choice choice{};
    if (guess.low == guess.high) {
        if (!guess_holds(x, n, k, guess.low, &choice)) choice = choose_by_radix(x, n, k);
    } else if (k <= n / kFew) {
        if (take_candidates(plain, n, k, guess, out)) return;
        choice = choose_by_radix(x, n, k);
    } else if (!choose_in_band(x, n, k, guess, &choice)) {
        choice = choose_by_radix(x, n, k);
    }
    kernels().write_choice(x, n, choice.key, choice.ties, out, k);
}

bool most_important(const Importances &of, size_t n, size_t k, int64_t *out) {
    if (k == 0) return true;
    if (k > n / kFew) return false;
    const Bracket guess = bracket(of, n, k);
    return guess.low != guess.high && take_candidates(of, n, k, guess, out);
}

size_t count_above(const float *x, size_t n, uint32_t key) {
    size_t above = 0, equal = 0;
    kernels().count_around(x, n, key, &above, &equal);
    return above;
}

}  // namespace thinwire
