// One vector register of floats, in the compiler's own vector types: the same source becomes AVX2, AVX-512 or NEON code.
//
// All arithmetic of the CPU kernels is float32. Weights and caches may be stored in fewer bytes; they are widened in
// registers on their way in, which costs less than the memory traffic it saves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Floats in a register. Another number may be asked for: the compiler makes do with the registers there are.
#if !defined(ORRERY_LANES) && defined(__AVX512F__)
#define ORRERY_LANES 16
#elif !defined(ORRERY_LANES) && defined(__AVX2__)
#define ORRERY_LANES 8
#elif !defined(ORRERY_LANES)
#define ORRERY_LANES 4
#endif
constexpr int LANES = ORRERY_LANES;

// Types of any vector size; loads and stores of them go through memcpy, so nothing needs to be aligned.
template <class T, int N>
using Lanes [[gnu::vector_size(sizeof(T) * N)]] = T;

using Vec = Lanes<float, LANES>;
using IntVec = Lanes<int32_t, LANES>;

// How a number of a given type is stored. Float16 and BFloat16 are only ever widened or narrowed, never computed with.
struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

// x - 0 is x, of every x: the compiler leaves a broadcast. (x + 0 would turn -0 into 0.)
inline Vec splat(float x) { return x - Vec{}; }

inline Vec load(const float* from) {
    Vec x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

// LANES integers of one or two bytes, each widened to 32 bits. Where the compiler makes a detour, by intrinsics.
template <class Int>
inline IntVec load_integers(const Int* from) {
    Lanes<Int, LANES> narrow;
    std::memcpy(&narrow, from, sizeof narrow);
#if defined(__AVX512F__) && ORRERY_LANES == 16
    if constexpr (std::is_same_v<Int, uint16_t>) return (IntVec)_mm512_cvtepu16_epi32((__m256i)narrow);
    if constexpr (std::is_same_v<Int, uint8_t>) return (IntVec)_mm512_cvtepu8_epi32((__m128i)narrow);
    if constexpr (std::is_same_v<Int, int8_t>) return (IntVec)_mm512_cvtepi8_epi32((__m128i)narrow);
#elif defined(__AVX2__) && ORRERY_LANES == 8
    if constexpr (std::is_same_v<Int, uint16_t>) return (IntVec)_mm256_cvtepu16_epi32((__m128i)narrow);
    if constexpr (std::is_same_v<Int, uint8_t>) return (IntVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
    if constexpr (std::is_same_v<Int, int8_t>) return (IntVec)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#endif
    return __builtin_convertvector(narrow, IntVec);
}

// A bfloat16 is the upper half of the float32 of the same value.
inline Vec load(const BFloat16* from) { return (Vec)(load_integers(&from->bits) << 16); }

inline float widen(float x) { return x; }

inline float widen(BFloat16 x) {
    uint32_t bits = uint32_t{x.bits} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float widen(Float16 x) {
    _Float16 half;
    std::memcpy(&half, &x, sizeof half);
    return float(half);
}

inline Vec load(const Float16* from) {
#if defined(__AVX512F__) && ORRERY_LANES == 16
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__) && ORRERY_LANES == 8
    return (Vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    Vec x;
    for (int lane = 0; lane < LANES; lane++) x[lane] = widen(from[lane]);
    return x;
#endif
}

// Fetches a cache line into the second-level cache. Not `__builtin_prefetch`: to the compiler that has no effect, so it
// takes a function that does nothing else for one that need not be called.
inline void fetch_line(const void* from) {
#if defined(__x86_64__)
    asm volatile("prefetcht1 (%0)" : : "r"(from));
#elif defined(__aarch64__)
    asm volatile("prfm pldl2keep, [%0]" : : "r"(from));
#else
    __builtin_prefetch(from, 0, 2);
#endif
}

inline void store(float* to, Vec x) { std::memcpy(to, &x, sizeof x); }

inline void store(float* to, float x) { *to = x; }

// Rounds to nearest, ties to even, as torch does.
inline void store(BFloat16* to, float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    to->bits = x != x ? 0x7FC0 : uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline void store(Float16* to, float x) {
    _Float16 half = _Float16(x);
    std::memcpy(to, &half, sizeof half);
}

inline float sum(Vec x) {
    // Halves are added to halves, so the order is the same wherever it is used.
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++) x[lane] += x[lane + width];
    return x[0];
}

inline Vec maximum(Vec a, Vec b) { return a > b ? a : b; }

inline float largest(Vec x) {
    float best = x[0];
    for (int lane = 1; lane < LANES; lane++) best = x[lane] > best ? x[lane] : best;
    return best;
}

// e to the x, within 2 units in the last place: x = n ln 2 + r, and a polynomial for e to the r (Cephes, expf).
// Below -87 it is 0, above 88 infinity; NaN stays NaN.
inline Vec exp(Vec x) {
    const Vec low = splat(-87.0f), high = splat(88.0f);
    const Vec bounded = x < low ? low : (x > high ? high : x);
    const Vec shifted = bounded * 1.44269504088896341f + 12582912.0f;  // 1.5 · 2^23: rounds to the nearest integer
    const Vec n = shifted - 12582912.0f;
    Vec r = bounded - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    Vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const IntVec exponent = (__builtin_convertvector(n, IntVec) + 127) << 23;
    const Vec value = p * (Vec)exponent;
    const Vec clipped = x < low ? splat(0.0f) : (x > high ? splat(__builtin_inff()) : value);
    return x != x ? x : clipped;
}

inline Vec silu(Vec x) { return x / (1.0f + exp(-x)); }
