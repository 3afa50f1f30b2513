// Streaming passes of the selection by magnitude. Magnitudes order like their bit patterns: finite < inf < NaN.

constexpr size_t kLook = 32;  // numbers that are looked at together
#ifdef THINWIRE_AVX512
constexpr bool kMasks = true;  // comparisons leave bits
#else
constexpr bool kMasks = false;
#endif

inline uint32_t key_of(float v) { return to_bits(v) & kMagnitude; }

// Where keys come from: numbers as they lie in memory, or
struct Plain {
    const float *x;
    const float *look(size_t i, size_t, float *) const { return x + i; }
};

// importances, computed when they are looked at.
struct Scored {
    const float *v, *w;
    float floor, ranks;
    float at(size_t i) const { return __builtin_fabsf(v[i]) / (__builtin_fabsf(w[i]) + floor) * ranks; }
    const float *look(size_t i, size_t some, float *buffer) const {
        for (size_t j = 0; j < some; j++) buffer[j] = at(i + j);
        return buffer;
    }
};

// Whether anything of kLook numbers is at or above `low`; the compiler turns it into a few vector instructions.
inline bool any_at_least(const float *x, uint32_t low) {
    int32_t most = 0;
    for (size_t j = 0; j < kLook; j++) most = std::max(most, static_cast<int32_t>(key_of(x[j])));
    return static_cast<uint32_t>(most) >= low;
}

inline bool has_key(const float *x, size_t some, uint32_t key) {
    uint32_t same = 0;
    for (size_t j = 0; j < some; j++) same += key_of(x[j]) == key;
    return same > 0;
}

// The multiplication gathers eight bytes of 0 or 1 in the top one.
inline uint32_t bits_of(const uint8_t *flags) {
    uint32_t bits = 0;
    for (size_t j = 0; j < kLook; j += 8)
        bits |= static_cast<uint32_t>((load8(flags + j) * 0x0102040810204080u) >> 56) << j;
    return bits;
}

// A bit for everything above `key` among up to kLook numbers; -1 is below all keys.
inline uint32_t above_bits(const float *x, size_t some, int32_t key) {
#ifdef THINWIRE_AVX512
    if (some == kLook) {
        const auto bits = [=](const float *at) -> uint32_t {
            const __m512i keys = _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi32(kMagnitude));
            return _mm512_cmpgt_epi32_mask(keys, _mm512_set1_epi32(key));
        };
        return bits(x) | bits(x + 16) << 16;
    }
#endif
    alignas(64) uint8_t more[kLook];
    for (size_t j = 0; j < some; j++) more[j] = static_cast<int32_t>(key_of(x[j])) > key;
    for (size_t j = some; j < kLook; j++) more[j] = 0;
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
inline size_t write_bits(uint32_t bits, int64_t from, int64_t *out) {
    size_t found = 0;
    for (int64_t at = from; at < from + static_cast<int64_t>(kLook); at += 8, bits >>= 8) {
        const uint8_t *places = kPlaces.at[bits & 255];
        for (size_t j = 0; j < 8; j++) out[found + j] = at + places[j];
        found += kPlaces.count[bits & 255];
    }
    return found;
}

// Appends the keys of the bits, and their positions if these are wanted; up to kLook places more are written to.
inline size_t keep_bits(const float *x, uint32_t bits, uint32_t from, uint32_t *where, uint32_t *keys) {
#ifdef THINWIRE_AVX512
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const size_t half = static_cast<size_t>(__builtin_popcount(bits & 0xffff));
    const auto keep = [&](uint32_t part, size_t at, size_t to) {
        const __mmask16 mask = static_cast<__mmask16>(part);
        const __m512i key = _mm512_and_si512(_mm512_loadu_si512(x + at), _mm512_set1_epi32(kMagnitude));
        const __m512i place = _mm512_add_epi32(first, _mm512_set1_epi32(static_cast<int32_t>(from + at)));
        _mm512_storeu_si512(keys + to, _mm512_maskz_compress_epi32(mask, key));
        if (where) _mm512_storeu_si512(where + to, _mm512_maskz_compress_epi32(mask, place));
    };
    keep(bits & 0xffff, 0, 0);
    keep(bits >> 16, 16, half);
    return half + static_cast<size_t>(__builtin_popcount(bits >> 16));
#else
    size_t found = 0;
    for (; bits; bits &= bits - 1) {
        const uint32_t j = static_cast<uint32_t>(__builtin_ctz(bits));
        if (where) where[found] = from + j;
        keys[found++] = key_of(x[j]);
    }
    return found;
#endif
}

template <class Source>
size_t collect_from(Source from, size_t n, uint32_t low, uint32_t *where, uint32_t *keys, size_t room) {
    size_t found = 0;
    const int32_t below = static_cast<int32_t>(low) - 1;
    alignas(64) float buffer[kLook] = {};
    for (size_t i = 0; i < n && found <= room; i += kLook) {
        const size_t some = std::min(kLook, n - i);
        const float *x = some == kLook ? from.look(i, kLook, buffer) : from.look(i, some, buffer);
        if (some < kLook && x != buffer) x = static_cast<const float *>(std::memcpy(buffer, x, some * sizeof(float)));
        if (!kMasks && some == kLook && !any_at_least(x, low)) continue;
        const uint32_t bits = some == kLook ? above_bits(x, kLook, below) : above_bits(x, some, below);
        found += keep_bits(x, bits, static_cast<uint32_t>(i), where + found, keys + found);
    }
    return found;
}

// Appends the position and key of everything at or above `low`, of x or of the importances of x; returns more than
// `room` when there is too much of it, and may write 2 * kLook places more.
size_t collect(const Importances &of, size_t n, uint32_t low, uint32_t *where, uint32_t *keys, size_t room) {
    if (!of.w) return collect_from(Plain{of.v}, n, low, where, keys, room);
    return collect_from(Scored{of.v, of.w, of.floor, of.ranks}, n, low, where, keys, room);
}

// Counts the keys above `high` and keeps those from `low` to `high`; more than `room` of them means a poor guess.
size_t collect_band(const float *x, size_t n, uint32_t low, uint32_t high, uint32_t *band, size_t room, size_t *above) {
    size_t found = 0, more = 0;
    const int32_t below = static_cast<int32_t>(low) - 1, most = static_cast<int32_t>(high);
    for (size_t i = 0; i < n && found <= room; i += kLook) {
        alignas(64) float rest[kLook];
        const size_t some = std::min(kLook, n - i);
        const float *here = some == kLook ? x + i : static_cast<const float *>(std::memcpy(rest, x + i, 4 * some));
        const uint32_t lower = some == kLook ? above_bits(here, kLook, below) : above_bits(here, some, below);
        const uint32_t upper = some == kLook ? above_bits(here, kLook, most) : above_bits(here, some, most);
        more += static_cast<size_t>(__builtin_popcount(upper));
        found += keep_bits(here, lower & ~upper, 0, nullptr, band + found);
    }
    *above = more;
    return found;
}

void count_around(const float *x, size_t n, uint32_t key, size_t *above, size_t *equal) {
    size_t more = 0, same = 0;
    for (size_t i = 0; i < n;) {
        uint32_t block_more = 0, block_same = 0;  // narrow counters keep the inner loop in vectors of 32 bits
        for (const size_t end = std::min(n, i + 65536); i < end; i++) {
            const int32_t k = static_cast<int32_t>(key_of(x[i]));
            block_more += k > static_cast<int32_t>(key);
            block_same += k == static_cast<int32_t>(key);
        }
        more += block_more;
        same += block_same;
    }
    *above = more;
    *equal = same;
}

// Writes the positions of everything above `key`, and of the first `ties` that are equal to it, `k` in all; skips what
// holds neither.
void write_choice(const float *x, size_t n, uint32_t key, size_t ties, int64_t *out, size_t k) {
    int64_t spare[2 * kLook];  // takes the last ones, so that the loop may write a few places too far
    size_t found = 0;
    for (size_t i = 0; i < n && found < k; i += kLook) {
        const size_t some = std::min(kLook, n - i);
        if (some == kLook && !any_at_least(x + i, key + (ties == 0))) continue;
        const bool near_end = k - found <= kLook + 8;
        int64_t *to = near_end ? spare : out + found;
        size_t here = 0;
        if (ties > 0 && has_key(x + i, some, key)) {
            for (size_t j = i; j < i + some; j++) {
                const uint32_t own = key_of(x[j]);
                const size_t tie = (own == key) & (ties > 0);
                to[here] = static_cast<int64_t>(j);
                here += static_cast<size_t>(own > key) | tie;
                ties -= tie;
            }
        } else {
            const float *from = x + i;
            const int32_t below = static_cast<int32_t>(key);
            here = write_bits(some == kLook ? above_bits(from, kLook, below) : above_bits(from, some, below),
                              static_cast<int64_t>(i), to);
        }
        if (near_end) std::copy(spare, spare + std::min(here, k - found), out + found);
        found += here;
    }
}

void importances(const Importances &of, size_t n, float *out) {
    const Scored scores{of.v, of.w, of.floor, of.ranks};
    for (size_t i = 0; i < n; i++) out[i] = scores.at(i);
}

uint32_t squared_lengths(const float *pairs, size_t n, float *out) {
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        out[i] = pairs[2 * i] * pairs[2 * i] + pairs[2 * i + 1] * pairs[2 * i + 1];
        most = std::max(most, static_cast<int32_t>(key_of(out[i])));
    }
    return static_cast<uint32_t>(most);
}
