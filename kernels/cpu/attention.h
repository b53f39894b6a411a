// Attention over the paged cache, in tiles: some queries of one request, and the query heads that share a KV head.
//
// A block of the cache holds the keys of a head as [head_size, block_size] and its values as [block_size, head_size],
// the way a panel holds weights: both products run as the matrix kernel does, and nothing is transposed.
//
// Keys are taken in spans, counted from position 0. Within a span the softmax is exact; what the spans give is merged in
// their order. So the arithmetic of a query depends on its position and its window alone: not on the chunk it came in,
// nor on other requests, nor on the number of threads.
#pragma once

#include <cmath>
#include <limits>

#include "matmul.h"

constexpr int MOST_SPAN = 512;

// Queries × heads of a tile at most.
constexpr int MOST_TILE_ROWS = 64;

constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();

struct Cache {
    void* keys;      // [num_blocks, kv_heads, head_size, block_size]
    void* values;    // [num_blocks, kv_heads, block_size, head_size]
    int32_t format;  // FLOAT32, FLOAT16 or BFLOAT16
    int32_t block_size;

    int score_stride() const { return (span() + LANES - 1) / LANES * LANES; }

    int span() const { return block_size >= MOST_SPAN ? block_size : MOST_SPAN / block_size * block_size; }
};

struct Heads {
    const float* slopes;  // [query_heads] or null: ALiBi adds slope · (key position - query position) to a score
    int32_t query_heads;
    int32_t kv_heads;
    int32_t head_size;
    int32_t window;  // keys that a query sees, itself included; 0: all before it
    float scale;
    float soft_cap;  // scores become soft_cap · tanh(score / soft_cap); 0: they stay

    int group() const { return query_heads / kv_heads; }
};

// A step's super-sequence, and its tiles.
struct Step {
    const int32_t* query_start;   // [requests + 1]
    const int32_t* seq_lens;      // [requests]: keys, this step's included
    const int32_t* block_tables;  // [requests, table_stride]
    const int64_t* slots;         // [tokens]: block · block_size + offset; negative: nowhere
    const int32_t* tile_request;  // [tiles]
    const int32_t* tile_first;    // [tiles]: place of the first query in the super-sequence
    const int32_t* tile_queries;  // [tiles]
    int32_t tokens;
    int32_t tiles;
    int32_t table_stride;
};

// What a thread computes a tile in. `rows` are queries × heads of the largest tile.
struct TileBuffers {
    float* queries;  // [rows, head_size]
    float* scores;   // [rows, score_stride]
    float* sums;     // [rows, head_size]: of one span
    float* output;   // [rows, head_size]: of all spans so far
    float* largest;  // [rows]: largest score so far
    float* total;    // [rows]: sum of the exponentials so far
    float* strip;    // [max(head_size, block_size), LANES]

    static size_t floats(const Heads& heads, const Cache& cache, int rows) {
        return size_t(rows) * (3 * heads.head_size + cache.score_stride() + 2) + std::max(heads.head_size, cache.block_size) * LANES;
    }

    TileBuffers(float* at, const Heads& heads, const Cache& cache, int rows) {
        const size_t wide = size_t(rows) * heads.head_size;
        queries = at;
        sums = queries + wide;
        output = sums + wide;
        scores = output + wide;
        largest = scores + size_t(rows) * cache.score_stride();
        total = largest + rows;
        strip = total + rows;
    }
};

// Blocks lie anywhere: the processor cannot guess where the next one is.
inline void prefetch(const void* from, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) fetch_line(static_cast<const char*>(from) + line);
}

template <class T, int VECTORS>
struct Strided {
    const T* weights;
    size_t stride;

    static constexpr int WIDTH = VECTORS;

    [[gnu::always_inline]] void operator()(int feature, int, Vec (&w)[VECTORS]) const {
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) w[v] = load(weights + feature * stride + v * LANES);
    }
};

// Part of a product that runs over several blocks: so many features from `x` on, with their weights in one block.
template <class T>
struct Piece {
    const float* x;
    const T* weights;
    int features;
};

// y[row][column] = Σ x[row][feature] · weights[feature][column], over the features of all pieces in their order.
template <class T>
struct Product {
    const Piece<T>* pieces;
    int num_pieces;
    int rows;
    int columns;  // of a block, and what its features are apart
    size_t x_stride;
    float* y;
    size_t y_stride;
};

template <int ROWS, int VECTORS, class T>
[[gnu::noinline]] void product_tile(const Product<T>& p, int row, int column, int count, float* strip) {
    Vec acc[ROWS][VECTORS] = {};
    for (int i = 0; i < p.num_pieces; i++) {
        const Piece<T>& piece = p.pieces[i];
        const float* x = piece.x + row * p.x_stride;
        const T* weights = piece.weights + column;
        if (count == VECTORS * LANES) {
            multiply_add(acc, x, p.x_stride, 0, piece.features, Strided<T, VECTORS>{weights, size_t(p.columns)});
        } else {
            for (int feature = 0; feature < piece.features; feature++)
                for (int lane = 0; lane < VECTORS * LANES; lane++)
                    strip[feature * VECTORS * LANES + lane] =
                        lane < count ? widen(weights[size_t(feature) * p.columns + lane]) : 0.0f;
            multiply_add(acc, x, p.x_stride, 0, piece.features, Strided<float, VECTORS>{strip, VECTORS * LANES});
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            store_some(p.y + (row + r) * p.y_stride + column + v * LANES, acc[r][v], count - v * LANES);
}

template <int VECTORS, int ROWS = TILE_ROWS, class T>
inline void product_rows(const Product<T>& p, int row, int column, int count, float* strip) {
    if constexpr (ROWS > 1)
        if (p.rows - row < ROWS) return product_rows<VECTORS, ROWS - 1>(p, row, column, count, strip);
    product_tile<ROWS, VECTORS>(p, row, column, count, strip);
}

// `strip` has room for the features of a block, one vector each: columns that do not fill a vector go through it.
template <class T>
void multiply_blocks(const Product<T>& p, float* strip) {
    for (int column = 0; column < p.columns;) {
        const int left = p.columns - column, count = left >= PANEL ? PANEL : std::min(left, LANES);
        for (int row = 0; row < p.rows; row += TILE_ROWS) {
            if (count == PANEL)
                product_rows<2>(p, row, column, count, strip);
            else
                product_rows<1>(p, row, column, count, strip);
        }
        column += count;
    }
}

// A tile, some queries of a request for the query heads that share one KV head, or a half of one. Row = query · group + head.
// Tiles whose sums fit into the registers have no second half.
template <class T>
class Tile {
   public:
    Tile(
        const Heads& heads, const Cache& cache, const Step& step, int tile, int kv_head, int half, bool halved,
        const TileBuffers& buffers)
        : heads(heads),
          cache(cache),
          buffers(buffers),
          blocks(step.block_tables + size_t(step.tile_request[tile]) * step.table_stride),
          kv_head(kv_head),
          first_token(step.tile_first[tile]) {
        const int all_rows = step.tile_queries[tile] * heads.group();
        const int first_half = halved && all_rows > TILE_ROWS ? all_rows / 2 : all_rows;
        first_row = half == 0 ? 0 : first_half;
        rows = half == 0 ? first_half : all_rows - first_half;
        const int request = step.tile_request[tile];
        // The request's last query stands at its last key.
        first_position = step.seq_lens[request] - (step.query_start[request + 1] - first_token);
    }

    void attend(const float* query, size_t query_stride, float* output, size_t output_stride) {
        if (rows == 0) return;
        const int size = heads.head_size;
        for (int row = 0; row < rows; row++) {
            const float* from = query + token(row) * query_stride + head(row) * size;
            std::memcpy(buffers.queries + row * size, from, size * sizeof(float));
            std::memset(buffers.output + row * size, 0, size * sizeof(float));
            buffers.largest[row] = MINUS_INFINITY;
            buffers.total[row] = 0.0f;
        }
        const int begin = first_seen(0), end = position(rows - 1) + 1, span = cache.span();
        for (int start = begin / span * span; start < end; start += span)
            attend_span(start, std::max(begin, start), std::min(end, start + span));
        for (int row = 0; row < rows; row++) {
            float* to = output + token(row) * output_stride + head(row) * size;
            for (int d = 0; d < size; d++) to[d] = buffers.output[row * size + d] / buffers.total[row];
        }
    }

   private:
    const Heads& heads;
    const Cache& cache;
    const TileBuffers& buffers;
    const int32_t* blocks;
    int kv_head, first_token, first_row, rows, first_position;

    int head(int row) const { return kv_head * heads.group() + (first_row + row) % heads.group(); }
    size_t token(int row) const { return first_token + (first_row + row) / heads.group(); }
    int position(int row) const { return first_position + (first_row + row) / heads.group(); }
    int first_seen(int row) const { return heads.window ? std::max(0, position(row) - heads.window + 1) : 0; }

    const T* in_cache(const void* base, int block) const {
        const size_t index = size_t(blocks[block]) * heads.kv_heads + kv_head;
        return static_cast<const T*>(base) + index * cache.block_size * heads.head_size;
    }

    // Keys [first, last), which lie in the span that begins at position `start`.
    void attend_span(int start, int first, int last) {
        const int size = heads.head_size, block_size = cache.block_size;
        const size_t stride = cache.score_stride();
        for (int block = first / block_size; block * block_size < last; block++) {
            const bool more = (block + 1) * block_size < last;
            prefetch(in_cache(cache.values, block), size_t(block_size) * size * sizeof(T));
            if (more) prefetch(in_cache(cache.keys, block + 1), size_t(block_size) * size * sizeof(T));
            const Piece<T> keys{buffers.queries, in_cache(cache.keys, block), size};
            float* scores = buffers.scores + (block * block_size - start);
            multiply_blocks(Product<T>{&keys, 1, rows, block_size, size_t(size), scores, stride}, buffers.strip);
        }
        float tops[MOST_TILE_ROWS], totals[MOST_TILE_ROWS];
        for (int row = 0; row < rows; row++) tops[row] = softmax(row, start, first, last, totals[row]);
        Piece<T> values[MOST_SPAN];
        int num_blocks = 0;
        for (int key = first; key < last; key = values[num_blocks++].features + key) {
            const int block = key / block_size, offset = key % block_size;
            const T* from = in_cache(cache.values, block) + size_t(offset) * size;
            values[num_blocks] = {buffers.scores + (key - start), from, std::min(last - key, block_size - offset)};
        }
        multiply_blocks(Product<T>{values, num_blocks, rows, size, stride, buffers.sums, size_t(size)}, buffers.strip);
        for (int row = 0; row < rows; row++) merge(row, tops[row], totals[row]);
    }

    // Scores of one row become exponentials, 0 for keys that it does not see. Returns the largest score.
    float softmax(int row, int start, int first, int last, float& total) const {
        float* scores = buffers.scores + row * cache.score_stride();
        const int from = std::max(first_seen(row), first) - start, to = std::min(position(row) + 1, last) - start;
        const int begin = (first - start) / LANES * LANES, end = (last - start + LANES - 1) / LANES * LANES;
        total = 0.0f;
        if (from >= to) {
            std::fill(scores + begin, scores + end, 0.0f);
            return MINUS_INFINITY;
        }
        for (int key = from; key < to; key++) scores[key] *= heads.scale;
        if (heads.soft_cap > 0.0f)
            for (int key = from; key < to; key++) scores[key] = heads.soft_cap * std::tanh(scores[key] / heads.soft_cap);
        if (heads.slopes) {
            const float slope = heads.slopes[head(row)];
            for (int key = from; key < to; key++) scores[key] += slope * float(start + key - position(row));
        }
        std::fill(scores + begin, scores + from, MINUS_INFINITY);
        std::fill(scores + to, scores + end, MINUS_INFINITY);
        Vec tops = splat(MINUS_INFINITY), sums = {};
        for (int key = begin; key < end; key += LANES) tops = maximum(load(scores + key), tops);
        const float top = largest(tops);
        for (int key = begin; key < end; key += LANES) {
            const Vec powers = exp(load(scores + key) - top);
            store(scores + key, powers);
            sums += powers;
        }
        total = sum(sums);
        return top;
    }

    // Adds what a span gave to what the spans before it gave.
    void merge(int row, float top, float total) const {
        if (top == MINUS_INFINITY) return;
        const int size = heads.head_size;
        float *output = buffers.output + row * size, *sums = buffers.sums + row * size;
        const float both = std::max(buffers.largest[row], top);
        const float before = std::exp(buffers.largest[row] - both), now = std::exp(top - both);
        for (int d = 0; d < size; d++) output[d] = output[d] * before + sums[d] * now;
        buffers.total[row] = buffers.total[row] * before + total * now;
        buffers.largest[row] = both;
    }
};
