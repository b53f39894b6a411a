// Y = X Wᵀ + b in any format, shared out among threads.
#pragma once

#include "int4.h"
#include "matmul.h"

// Floats of scratch that a thread needs for products with this matrix.
inline size_t scratch_floats(const Matrix& matrix) { return size_t(matrix.features) * PANEL; }

template <class Weights, class Take>
void multiply_part_as(const Part& part, const Matrix& matrix, const char* after, float* scratch, const Take& take) {
    if constexpr (std::is_same_v<Weights, Int4>)
        multiply_int4_part(part, matrix, after, scratch, take);
    else
        multiply_part<Weights>(part, matrix, after, scratch, take);
}

// What thread `thread` of `threads` does of X [rows, features] times the matrix. Few rows are shared out by panels,
// many by blocks of rows. `next`: the matrix that is multiplied after this one, whose first panels are fetched in time,
// or null.
template <class Take>
void multiply(
    const float* x, int rows, const Matrix& matrix, const Matrix* next, float* scratch, int thread, int threads,
    const Take& take) {
    with_format(matrix.format, [&](auto weights) {
        using Weights = decltype(weights);
        const int panels = matrix.num_panels();
        if (rows < threads * BLOCK_ROWS / 2) {
            const Part part{x, size_t(matrix.features), 0, rows, panels * thread / threads, panels * (thread + 1) / threads};
            const char* after = next ? next->panel_begin(next->num_panels() * thread / threads) : nullptr;
            return multiply_part_as<Weights>(part, matrix, after, scratch, take);
        }
        const int end = int(int64_t(rows) * (thread + 1) / threads);
        for (int row = int(int64_t(rows) * thread / threads); row < end; row += BLOCK_ROWS)
            multiply_part_as<Weights>(
                Part{x, size_t(matrix.features), row, std::min(row + BLOCK_ROWS, end), 0, panels}, matrix, nullptr, scratch,
                take);
    });
}

// Row `index` of W, widened: one lane of a panel, feature after feature.
inline void unpack_row(const Matrix& matrix, int64_t index, float* y) {
    const int panel = int(index / PANEL), column = int(index % PANEL);
    with_format(matrix.format, [&](auto weights) {
        using Weights = decltype(weights);
        if constexpr (std::is_same_v<Weights, Int4>)
            unpack_int4_row(matrix, panel, column, y);
        else
            each_feature<Weights>(matrix, panel, [=](int feature, Vec low, Vec high) {
                y[feature] = (column < LANES ? low : high)[column % LANES];
            });
    });
}
