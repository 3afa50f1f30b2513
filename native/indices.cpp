// Sorted positions as bytes: a bitmap, raw 32-bit numbers or Rice-coded gaps, whichever is smallest.
#include "wire.h"

namespace thinwire {
namespace {

enum Tag : uint8_t { kBitmap = 0, kRaw = 1, kRice = 2 };
constexpr size_t kRiceHeader = 6;  // tag, parameter, count
constexpr int kMaxRice = 31;

// Largest k with 2^k <= ln 2 / density, in integers so that every kernel chooses alike.
int usual_rice(uint64_t numel, uint64_t count) {
    int k = 0;
    while (k < kMaxRice && ((count << (k + 1)) * 10000) <= 6931 * numel) k++;
    return k;
}

THINWIRE_CLONES uint64_t rice_bits(const int64_t *indices, size_t count, int k) {
    if (count == 0) return 0;
    uint64_t quotients = uint64_t(indices[0]) >> k;
    for (size_t i = 1; i < count; i++) quotients += uint64_t(indices[i] - indices[i - 1] - 1) >> k;
    return quotients + uint64_t(count) * (k + 1);
}

// Clustered positions want a smaller parameter than their density says: walk on while the stream shrinks.
int best_rice(const int64_t *indices, size_t count, uint64_t numel, uint64_t *bits) {
    int k = usual_rice(numel, count);
    *bits = rice_bits(indices, count, k);
    for (int step : {-1, +1}) {
        const int start = k;
        while (k + step >= 0 && k + step <= kMaxRice) {
            const uint64_t next = rice_bits(indices, count, k + step);
            if (next >= *bits) break;
            *bits = next;
            k += step;
        }
        if (k != start) break;
    }
    return k;
}

class RiceWriter {
  public:
    RiceWriter(uint8_t *at, uint8_t *end, int k) : at_(at), end_(end), k_(k), low_((uint64_t(1) << k) - 1) {}
    void put(uint64_t skipped) {
        uint64_t zeros = skipped >> k_;
        if (bits_ + zeros + k_ + 1 > 64) {  // leave this word: what the zeros skip is zero already
            store();
            bits_ += zeros;
            zeros = 0;
            move();
        }
        held_ |= (1 | (skipped & low_) << 1) << (bits_ + zeros);
        bits_ += zeros + k_ + 1;
        store();
        move();
    }

  private:
    void store() {
        if (end_ - at_ >= 8) {
            store64(at_, held_);
        } else {
            for (int j = 0; at_ + j < end_; j++) at_[j] = uint8_t(held_ >> (8 * j));
        }
    }
    void move() {
        const uint64_t bytes = bits_ >> 3;
        at_ += bytes;
        held_ = bytes < 8 ? held_ >> (8 * bytes) : 0;
        bits_ &= 7;
    }

    uint8_t *at_, *end_;
    int k_;
    uint64_t low_, held_ = 0, bits_ = 0;
};

void write_rice(const int64_t *indices, size_t count, RiceWriter out) {
    int64_t last = -1;
    for (size_t i = 0; i < count; i++) {
        out.put(uint64_t(indices[i] - last - 1));
        last = indices[i];
    }
}

void expect_place(uint64_t position, uint64_t numel) {
    if (position >= numel) throw WireError("A packed position lies outside the tensor; resend the message.");
}

void read_bitmap(Bytes map, uint64_t numel, int64_t *out) {
    for (size_t byte = 0; byte < map.size; byte += 8) {
        for (uint64_t w = load_padded(map, byte); w; w &= w - 1) {
            const uint64_t position = uint64_t(byte) * 8 + __builtin_ctzll(w);
            expect_place(position, numel);
            *out++ = int64_t(position);
        }
    }
}

void read_raw(Bytes raw, uint64_t numel, int64_t *out) {
    int64_t last = -1;
    for (size_t i = 0; i < raw.size / 4; i++) {
        const int64_t position = load32(raw.data + 4 * i);
        expect_place(uint64_t(position), numel);
        if (position <= last) throw WireError("Packed positions are not ascending; resend the message.");
        out[i] = last = position;
    }
}

struct RicePlace {
    uint64_t at = 0;    // bits read so far
    uint64_t next = 0;  // the first position that may come
};

// As many codes as lie whole in one word, then the next word: most codes are a few bits long. The last position is
// the largest, so that the caller need look at no other.
THINWIRE_CLONES size_t read_short_rice(Bytes stream, uint64_t k, uint64_t numel, int64_t *out, size_t count,
                                       RicePlace *place) {
    const uint64_t low = (uint64_t(1) << k) - 1;
    uint64_t at = place->at, next = place->next;
    size_t i = 0;
    while (i < count && next <= numel && (at >> 3) + 8 <= stream.size) {
        uint64_t w = load64(stream.data + (at >> 3)) >> (at & 7), left = 64 - (at & 7);
        const size_t before = i;
        while (w && i < count) {
            const uint64_t zeros = uint64_t(__builtin_ctzll(w)), used = zeros + 1 + k;
            if (used > left || used > 63) break;
            next += zeros << k | (w >> zeros >> 1 & low);
            out[i++] = int64_t(next++);
            w >>= used;
            left -= used;
        }
        at += 64 - (at & 7) - left;
        if (i == before) break;
    }
    *place = {at, next};
    return i;
}

void read_rice(Bytes stream, int k, uint64_t numel, int64_t *out, size_t count) {
    const uint64_t low = (uint64_t(1) << k) - 1, total = uint64_t(stream.size) * 8;
    RicePlace place;
    uint64_t &at = place.at, &next = place.next;
    for (size_t i = 0; i < count; i++) {
        i += read_short_rice(stream, uint64_t(k), numel, out + i, count - i, &place);
        if (next) expect_place(next - 1, numel);
        if (i == count) break;
        uint64_t quotient = 0, w = window(stream, at);
        while (w == 0) {  // the unary part goes on behind this window
            quotient += 64 - (at & 7);
            at += 64 - (at & 7);
            if (at >= total) throw WireError("A Rice-coded message ends in the middle; resend it.");
            w = window(stream, at);
        }
        const int zeros = __builtin_ctzll(w);
        quotient += zeros;
        at += zeros + 1;
        const uint64_t rest = zeros + 1 + k <= 57 ? w >> zeros >> 1 : window(stream, at);
        at += k;
        expect_place(quotient, numel);
        next += quotient << k | (rest & low);
        expect_place(next, numel);
        out[i] = int64_t(next++);
    }
    expect_end(stream, at, false);
}

}  // namespace

IndexPlan plan_indices(const int64_t *indices, size_t count, uint64_t numel) {
    int64_t last = -1;
    bool sorted = true;
    for (size_t i = 0; i < count; i++) {
        sorted &= indices[i] > last;
        last = indices[i];
    }
    if (!sorted || (count && uint64_t(last) >= numel))
        throw CodecError("Positions must be ascending, unique and below numel; sort them and remove duplicates.");
    uint64_t bits = 0;
    const int k = best_rice(indices, count, numel, &bits);
    IndexPlan plan{kBitmap, 0, size_t(1 + (numel + 7) / 8)};
    if (1 + 4 * count < plan.size) plan = {kRaw, 0, 1 + 4 * count};
    const size_t rice = kRiceHeader + size_t((bits + 7) / 8);
    return rice < plan.size ? IndexPlan{kRice, k, rice} : plan;
}

void write_indices(const int64_t *indices, size_t count, IndexPlan plan, uint8_t *out) {
    std::memset(out, 0, plan.size);
    out[0] = uint8_t(plan.tag);
    if (plan.tag == kBitmap) {
        for (size_t i = 0; i < count; i++) out[1 + (indices[i] >> 3)] |= uint8_t(1u << (indices[i] & 7));
    } else if (plan.tag == kRaw) {
        for (size_t i = 0; i < count; i++) store32(out + 1 + 4 * i, uint32_t(indices[i]));
    } else {
        out[1] = uint8_t(plan.rice);
        store32(out + 2, uint32_t(count));
        write_rice(indices, count, {out + kRiceHeader, out + plan.size, plan.rice});
    }
}

// How many positions the message claims; never more than numel, so the caller may allocate them.
size_t count_indices(Bytes m, uint64_t numel) {
    if (m.size == 0) throw WireError("A message of positions is empty; it needs at least a tag byte.");
    const Bytes body{m.data + 1, m.size - 1};
    size_t count = 0;
    if (m.data[0] == kBitmap) {
        if (body.size != (numel + 7) / 8) throw WireError("A bitmap of positions has the wrong length; resend it.");
        for (size_t byte = 0; byte < body.size; byte += 8)
            count += size_t(__builtin_popcountll(load_padded(body, byte)));
    } else if (m.data[0] == kRaw) {
        if (body.size % 4) throw WireError("Raw positions take four bytes each; resend the message.");
        count = body.size / 4;
    } else if (m.data[0] == kRice) {
        if (m.size < kRiceHeader || m.data[1] > kMaxRice) throw WireError("A Rice-coded message has no valid header.");
        count = load32(m.data + 2);
        if (uint64_t(count) * (m.data[1] + 1) > uint64_t(m.size - kRiceHeader) * 8)
            throw WireError("A Rice-coded message is too short for its count; resend it.");
    } else {
        throw WireError("A message of positions starts with an unknown tag; the sender uses another format.");
    }
    if (count > numel) throw WireError("A message claims more positions than the tensor has; resend it.");
    return count;
}

void read_indices(Bytes m, uint64_t numel, int64_t *out, size_t count) {
    if (m.data[0] == kBitmap) {
        read_bitmap({m.data + 1, m.size - 1}, numel, out);
    } else if (m.data[0] == kRaw) {
        read_raw({m.data + 1, m.size - 1}, numel, out);
    } else {
        read_rice({m.data + kRiceHeader, m.size - kRiceHeader}, m.data[1], numel, out, count);
    }
}

}  // namespace thinwire
