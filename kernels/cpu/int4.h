// Products with 4-bit weights, in integers.
//
// Widening a weight of 4 bits takes several times as long as reading it. So it is not widened: the rows of X are rounded
// to 8 bits instead, with a scale for every GROUP features, and integers are multiplied, four features in one lane:
//
//     w = scale · i + minimum,  i in 0…15           x ≈ step · j,  j in −127…127,  step = largest |x| of the group / 127
//     Σ w x ≈ Σ over the groups:  scale · step · Σ i j  +  minimum · step · Σ j
//
// The sums within a group are exact, and groups are added in their order, so a row comes out the same in any batch.
//
// A quad of features of a panel is one register of bytes. A byte holds a feature of one of the first LANES columns in its
// low half, and of the same one of the last LANES columns in its high half:
//
//     panels  [panels, features / 4, LANES, 4]
#pragma once

#include <algorithm>
#include <limits>

#include "matmul.h"

constexpr int GROUP = 32;
constexpr int QUAD = 4;

// 8 quads of 2 products of at most 15 · 127 each: a group's sums fit into 16 bits.
static_assert(GROUP / QUAD * 2 * 15 * 127 <= std::numeric_limits<int16_t>::max());

using Bytes = Lanes<uint8_t, QUAD * LANES>;
using Shorts = Lanes<int16_t, 2 * LANES>;

// Each byte of `weights`, unsigned, times the signed one of `x`; neighbours are added.
[[gnu::always_inline]] inline Shorts add_products(Bytes weights, Bytes x) {
#if defined(__AVX512BW__) && ORRERY_LANES == 16
    return (Shorts)_mm512_maddubs_epi16((__m512i)weights, (__m512i)x);
#elif defined(__AVX2__) && ORRERY_LANES == 8
    return (Shorts)_mm256_maddubs_epi16((__m256i)weights, (__m256i)x);
#else
    const Shorts w = (Shorts)weights, signed_x = (Shorts)x;
    return (w & 255) * ((signed_x << 8) >> 8) + (w >> 8) * (signed_x >> 8);
#endif
}

// Neighbours are added.
[[gnu::always_inline]] inline IntVec add_pairs(Shorts x) {
#if defined(__AVX512BW__) && ORRERY_LANES == 16
    return (IntVec)_mm512_madd_epi16((__m512i)x, _mm512_set1_epi16(1));
#elif defined(__AVX2__) && ORRERY_LANES == 8
    return (IntVec)_mm256_madd_epi16((__m256i)x, _mm256_set1_epi16(1));
#else
    return (((IntVec)x << 16) >> 16) + ((IntVec)x >> 16);
#endif
}

// Rows of X in 8 bits.
struct RoundedRows {
    int8_t* integers;  // [rows, features]
    float* steps;      // [rows, groups]
    float* sums;       // [rows, groups]: step · Σ integers
    int features;

    int groups() const { return features / GROUP; }

    // So many rows fit into features · PANEL floats; whole tiles of them.
    static constexpr int MOST = PANEL * GROUP / (GROUP / QUAD + 2) / TILE_ROWS * TILE_ROWS;

    RoundedRows(float* at, int features)
        : integers(reinterpret_cast<int8_t*>(at)), steps(at + size_t(MOST) * features / sizeof(float)), features(features) {
        sums = steps + MOST * groups();
    }

    void round(int row, const float* x) {
        for (int group = 0; group < groups(); group++) round_group(row, group, x + group * GROUP);
    }

   private:
    void round_group(int row, int group, const float* x) {
        Vec tops = {}, nothing = {};
        for (int i = 0; i < GROUP; i += LANES) {
            const Vec value = load(x + i);
            tops = maximum(tops, maximum(value, -value));
            nothing += value - value;
        }
        const float top = largest(tops);
        const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
        IntVec total = {};
        for (int i = 0; i < GROUP; i += LANES) {
            // 1.5 · 2^23 has room for an integer in its lowest bits: adding it rounds to the nearest.
            const IntVec rounded = (IntVec)(load(x + i) * inverse + 12582912.0f) - 0x4B400000;
            const auto narrow = __builtin_convertvector(rounded, Lanes<int8_t, LANES>);
            std::memcpy(integers + size_t(row) * features + group * GROUP + i, &narrow, sizeof narrow);
            total += rounded;
        }
        int32_t whole = 0;
        for (int lane = 0; lane < LANES; lane++) whole += total[lane];
        // What is not a finite number has no place among integers: it makes the whole group one that is none.
        const float step = top / 127.0f + sum(nothing);
        steps[row * groups() + group] = step;
        sums[row * groups() + group] = step * float(whole);
    }
};

// `take` as for `tile`.
template <int ROWS, class Take>
[[gnu::noinline]] void int4_tile(
    const RoundedRows& x, int row, int first_row, const Matrix& matrix, int panel, const Prefetch& next, const Take& take) {
    Vec acc[ROWS][2] = {};
    const char* weights = matrix.panel_begin(panel);
    const Float16* scales = matrix.scales + size_t(panel) * x.groups() * 2 * PANEL;
    for (int group = 0; group < x.groups(); group++, scales += 2 * PANEL) {
        Shorts products[ROWS][2] = {};
#pragma GCC unroll 2
        for (int feature = group * GROUP; feature < (group + 1) * GROUP; feature += QUAD) {
            Bytes both;
            std::memcpy(&both, weights + size_t(feature) * LANES, sizeof both);
            const Bytes low = both & 15, high = (Bytes)((Lanes<uint16_t, 2 * LANES>)both >> 4) & 15;
            next.fetch<(QUAD * LANES + 63) / 64>(feature, x.features);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                int32_t quad;
                std::memcpy(&quad, x.integers + size_t(row + r) * x.features + feature, sizeof quad);
                const Bytes four = (Bytes)(IntVec{} + quad);
                products[r][0] += add_products(low, four);
                products[r][1] += add_products(high, four);
            }
        }
        for (int half = 0; half < 2; half++) {
            const Vec scale = load(scales + half * LANES), minimum = load(scales + PANEL + half * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                const size_t place = size_t(row + r) * x.groups() + group;
                const Vec factor = scale * x.steps[place];
                acc[r][half] += to_floats(add_pairs(products[r][half])) * factor;
                acc[r][half] += minimum * x.sums[place];
            }
        }
    }
    const float* bias = matrix.bias ? matrix.bias + size_t(panel) * PANEL : nullptr;
    const Vec low = bias ? load(bias) : Vec{}, high = bias ? load(bias + LANES) : Vec{};
    for (int r = 0; r < ROWS; r++) take(first_row + row + r, panel, acc[r][0] + low, acc[r][1] + high);
}

template <int ROWS = TILE_ROWS, class Take>
inline void int4_tile_of(
    int rows, const RoundedRows& x, int row, int first_row, const Matrix& matrix, int panel, const Prefetch& next,
    const Take& take) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return int4_tile_of<ROWS - 1>(rows, x, row, first_row, matrix, panel, next, take);
    int4_tile<ROWS>(x, row, first_row, matrix, panel, next, take);
}

// `multiply_part` for this format; `scratch` has room for RoundedRows::MOST rows.
template <class Take>
void multiply_int4_part(const Part& part, const Matrix& matrix, const char* after, float* scratch, const Take& take) {
    RoundedRows x(scratch, matrix.features);
    for (int first = part.first_row; first < part.last_row; first += RoundedRows::MOST) {
        const int rows = std::min(part.last_row - first, RoundedRows::MOST);
        const int num_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
        for (int row = 0; row < rows; row++) x.round(row, part.x + (first + row) * part.x_stride);
        for (int panel = part.first_panel; panel < part.last_panel; panel++)
            for (int t = 0; t < num_tiles; t++) {
                const int row = rows * t / num_tiles, count = rows * (t + 1) / num_tiles - row;
                const Prefetch next = prefetch_ahead(part, matrix, panel + 1, 1, t, num_tiles, after);
                int4_tile_of(count, x, row, first, matrix, panel, next, take);
            }
    }
}

// Row `column` of a panel of W.
inline void unpack_int4_row(const Matrix& matrix, int panel, int column, float* y) {
    const auto* weights = reinterpret_cast<const uint8_t*>(matrix.panel_begin(panel));
    const Float16* scales = matrix.scales + size_t(panel) * matrix.num_groups() * 2 * PANEL;
    for (int feature = 0; feature < matrix.features; feature++) {
        const Float16* of_group = scales + size_t(feature / GROUP) * 2 * PANEL;
        const uint8_t both = weights[(size_t(feature / QUAD) * LANES + column % LANES) * QUAD + feature % QUAD];
        const int integer = column < LANES ? both & 15 : both >> 4;
        y[feature] = float(integer) * widen(of_group[column]) + widen(of_group[PANEL + column]);
    }
}
