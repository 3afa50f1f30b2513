// Writing long memory that is not read again soon: stores that go around the caches spare reading it first.

using Eight = float __attribute__((vector_size(32)));  // eight numbers, whatever the instruction set makes of them

constexpr size_t kStreamed = 1 << 20;  // numbers from which on a result does not stay in the caches near its core

inline void load_eight(const float *from, Eight &to) { std::memcpy(&to, from, sizeof(Eight)); }

inline bool can_stream(const float *to, size_t n) {
    return n >= kStreamed && reinterpret_cast<uintptr_t>(to) % sizeof(Eight) == 0;
}

// With Stream, `to` lies at a multiple of 32 bytes.
template <bool Stream>
inline void store_eight(const Eight &from, float *to) {
#ifdef THINWIRE_F16C
    if (Stream) return _mm256_stream_ps(to, reinterpret_cast<const __m256 &>(from));
#endif
    std::memcpy(to, &from, sizeof(Eight));
}

// From here on, what was streamed is there for other threads.
inline void end_streams() {
#ifdef THINWIRE_F16C
    _mm_sfence();
#endif
}
