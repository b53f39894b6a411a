// Y = X Wᵀ + b for one row of X or for thousands: what one thread does of it.
//
// The kernel holds a tile of sums in registers: a few rows by one panel. It loads the weights of one feature, broadcasts
// that feature of each row, and multiplies; no sum across lanes is needed, and a panel streams through once for all rows
// of a tile.
//
// Every output is one chain of fused multiply-adds in the order of the features, whatever the number of rows and
// however the work is shared out among threads. So a row comes out the same, bit for bit, alone and in any batch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "simd.h"
#include "weights.h"

// Rows whose sums fit into the registers beside two vectors of weights and one broadcast element.
constexpr int TILE_ROWS = LANES == 16 ? 12 : 6;

// Rows that are taken through all panels together, so that they stay in the second-level cache.
constexpr int BLOCK_ROWS = 16 * TILE_ROWS;

// Does nothing beside a product.
struct Nothing {
    void operator()(int) const {}
};

// acc[row][vector] += x[row][feature] · weights[feature][vector].
template <int ROWS, int VECTORS, class Reader>
[[gnu::always_inline]] inline void multiply_add_feature(
    Vec (&acc)[ROWS][VECTORS], const float* x, size_t x_stride, int feature, const Reader& weights) {
    constexpr int WIDTH = Reader::WIDTH;
#pragma GCC unroll 16
    for (int part = 0; part < VECTORS / WIDTH; part++) {
        // Many sums leave no registers to keep elements in, so the compiler is made to load them again for each part.
        if (part && ROWS * VECTORS > 4) asm volatile("" ::: "memory");
        Vec w[WIDTH];
        weights(feature, part, w);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            const Vec element = splat(x[row * x_stride + feature]);
#pragma GCC unroll 16
            for (int v = 0; v < WIDTH; v++) acc[row][part * WIDTH + v] += element * w[v];
        }
    }
}

// The same over some features, in their order. `beside(feature)` is called once for every STRIDE of them.
template <int STRIDE = 1, int ROWS, int VECTORS, class Reader, class Beside = Nothing>
[[gnu::always_inline]] inline void multiply_add(
    Vec (&acc)[ROWS][VECTORS], const float* x, size_t x_stride, int first, int last, const Reader& weights,
    const Beside& beside = {}) {
    int feature = first;
#pragma GCC unroll 2
    for (; feature + STRIDE <= last; feature += STRIDE) {
        beside(feature);
#pragma GCC unroll 4
        for (int i = 0; i < STRIDE; i++) multiply_add_feature(acc, x, x_stride, feature + i, weights);
    }
    for (; feature < last; feature++) multiply_add_feature(acc, x, x_stride, feature, weights);
}

// The part of a product that one call works out.
struct Part {
    const float* x;
    size_t x_stride;
    int first_row, last_row;
    int first_panel, last_panel;
};

// From so many panels side by side the memory gives all it can without being asked ahead.
constexpr int ENOUGH_STREAMS = 3;

// Fetches what comes next while the features of a tile are multiplied: the processor itself looks no further than the
// page it is in, and a panel is several pages.
struct Prefetch {
    const char* from;
    size_t bytes_per_feature;

    // To be called again and again on the way through so many features, each time for LINES of 64 bytes. They are taken
    // from as many places that lie far apart: memory gives more to several streams than to one.
    template <int LINES>
    [[gnu::always_inline]] void fetch(int feature, int features) const {
#pragma GCC unroll 4
        for (int line = 0; line < LINES; line++)
            fetch_line(from + (size_t(line) * features + feature) * bytes_per_feature / LINES);
    }
};

// `take(row, panel, low, high)` gets the PANEL finished sums of a row, in two vectors.
template <class Weights, int ROWS, int PANELS, class Take>
[[gnu::noinline]] void tile(
    const Part& part, int row, const Matrix& matrix, int source, int panel, const Prefetch& next, const Take& take) {
    // The fewer the multiplications, the more it matters how the memory is asked.
    constexpr int STRIDE = ROWS * PANELS <= 3 ? 4 : 1;
    constexpr int LINES = (STRIDE * PANELS * PANEL * Weights::BITS / 8 + 63) / 64;
    Vec acc[ROWS][2 * PANELS] = {};
    const float* x = part.x + row * part.x_stride;
    for (int group = 0; group < matrix.num_groups(); group++) {
        const typename Weights::template Reader<PANELS> reader(matrix, source, group);
        multiply_add<STRIDE>(
            acc, x, part.x_stride, group * matrix.group, (group + 1) * matrix.group, reader, [&](int feature) {
                if constexpr (PANELS < ENOUGH_STREAMS) next.fetch<LINES>(feature, matrix.features);
            });
    }
#pragma GCC unroll 8
    for (int p = 0; p < PANELS; p++) {
        const float* bias = matrix.bias ? matrix.bias + size_t(panel + p) * PANEL : nullptr;
        const Vec low = bias ? load(bias) : Vec{}, high = bias ? load(bias + LANES) : Vec{};
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) take(row + r, panel + p, acc[r][2 * p] + low, acc[r][2 * p + 1] + high);
    }
}

template <class Weights, int ROWS = TILE_ROWS, class Take>
inline void tile_of(
    int rows, const Part& part, int row, const Matrix& matrix, int source, int panel, const Prefetch& next,
    const Take& take) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return tile_of<Weights, ROWS - 1>(rows, part, row, matrix, source, panel, next, take);
    tile<Weights, ROWS, 1>(part, row, matrix, source, panel, next, take);
}

// Calls `use(feature, low, high)` with the widened weights of a panel, feature after feature.
template <class Weights, class Use>
inline void each_feature(const Matrix& matrix, int panel, const Use& use) {
    for (int group = 0; group < matrix.num_groups(); group++) {
        const typename Weights::template Reader<1> reader(matrix, panel, group);
        for (int feature = group * matrix.group; feature < (group + 1) * matrix.group; feature++) {
            Vec w[2];
            reader(feature, 0, w);
            use(feature, w[0], w[1]);
        }
    }
}

// The panel as a matrix of its own, in float32 [features, PANEL].
template <class Weights>
Matrix widen_panel(const Matrix& matrix, int panel, float* scratch) {
    each_feature<Weights>(matrix, panel, [=](int feature, Vec low, Vec high) {
        store(scratch + size_t(feature) * PANEL, low);
        store(scratch + size_t(feature) * PANEL + LANES, high);
    });
    Matrix widened = matrix;
    widened.panels = scratch;
    widened.group = matrix.features;
    return widened;
}

// What to fetch while part `index` of `count` of the work on other panels is done: that share of so many panels from
// `panel` on; behind the last panel, of the bytes that are read `after` this part, if they are known.
inline Prefetch prefetch_ahead(
    const Part& part, const Matrix& matrix, int panel, int panels, int index, int count, const char* after) {
    const size_t bytes = panels * matrix.panel_bytes() / count;
    const char* from = panel < part.last_panel ? matrix.panel_begin(panel) : after;
    if (!from) return Prefetch{matrix.panel_begin(part.first_panel), 0};
    return Prefetch{from + index * bytes, (bytes + matrix.features - 1) / matrix.features};
}

// A product must wait for the one before it on the same sum. So where rows are few, panels are taken side by side: as many
// as give sums enough to fill the time, and still fit into the registers.
template <class Weights>
constexpr int panels_abreast(int rows) {
    return std::max(1, std::min(Weights::MOST_PANELS, (TILE_ROWS - Weights::ROWS_LESS) / rows));
}

// Takes ROWS rows through the panels side by side, while there are enough of them. Returns the first that is left.
template <class Weights, int ROWS, class Take>
int take_abreast(const Part& part, const Matrix& matrix, const char* after, const Take& take) {
    constexpr int PANELS = panels_abreast<Weights>(ROWS);
    int panel = part.first_panel;
    if constexpr (PANELS > 1)
        for (; panel + PANELS <= part.last_panel; panel += PANELS)
            tile<Weights, ROWS, PANELS>(
                part, part.first_row, matrix, panel, panel,
                prefetch_ahead(part, matrix, panel + PANELS, PANELS, 0, 1, after), take);
    return panel;
}

// `scratch` has room for one widened panel. `after`: where the bytes lie that are read after this part, or null.
template <class Weights, class Take>
void multiply_part(const Part& part, const Matrix& matrix, const char* after, float* scratch, const Take& take) {
    const int rows = part.last_row - part.first_row;
    int panel = part.first_panel;
    if (rows == 1) panel = take_abreast<Weights, 1>(part, matrix, after, take);
    if (rows == 2) panel = take_abreast<Weights, 2>(part, matrix, after, take);
    if (rows == 3) panel = take_abreast<Weights, 3>(part, matrix, after, take);
    const int num_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const bool widen = Weights::WIDEN_ABOVE && num_tiles > Weights::WIDEN_ABOVE;
    for (; panel < part.last_panel; panel++) {
        const Matrix widened = widen ? widen_panel<Weights>(matrix, panel, scratch) : matrix;
        for (int t = 0; t < num_tiles; t++) {
            const int row = part.first_row + rows * t / num_tiles;
            const int count = part.first_row + rows * (t + 1) / num_tiles - row;
            const Prefetch next = prefetch_ahead(part, matrix, panel + 1, 1, t, num_tiles, after);
            if (widen)
                tile_of<Plain<float>>(count, part, row, widened, 0, panel, next, take);
            else
                tile_of<Weights>(count, part, row, matrix, panel, panel, next, take);
        }
    }
}

// The last panel may be padded: only the first `count` numbers are stored.
inline void store_some(float* to, Vec x, int count) {
    if (count >= LANES) return store(to, x);
    float values[LANES];
    store(values, x);
    if (count > 0) std::memcpy(to, values, count * sizeof(float));
}

inline void store_panel(float* to, Vec low, Vec high, int count) {
    store_some(to, low, count);
    store_some(to + LANES, high, count - LANES);
}

inline void add_panel(float* to, Vec low, Vec high, int count) {
    if (count >= PANEL) {
        store(to, load(to) + low);
        store(to + LANES, load(to + LANES) + high);
        return;
    }
    float values[PANEL];
    store(values, low);
    store(values + LANES, high);
    for (int i = 0; i < count; i++) to[i] += values[i];
}
