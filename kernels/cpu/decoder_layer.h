// A layer of a decoder, as one thread of a team runs it; the threads meet at barriers.
//
// The residual stream is float32 [tokens, hidden]. Nothing else outlives a call but the KV cache.
#pragma once

#include <omp.h>

#include <atomic>

#include "attention.h"
#include "multiply.h"

struct Layer {
    Matrix qkv, output, gate_up, down;
    const float *input_norm, *post_norm;  // [hidden]
    const float *query_norm, *key_norm;   // [head_size] or null
    Heads heads;
    Cache cache;
    float eps;
};

// cos and sin of the rotary angles of the step's tokens: [tokens, head_size / 2] each.
struct Angles {
    const float *cos, *sin;
};

// Σ x² is taken lane by lane, then across the lanes.
inline void rms_norm(const float* x, const float* weight, int size, float eps, float* y) {
    Vec squares = {};
    int i = 0;
    for (; i + LANES <= size; i += LANES) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (; i < size; i++) total += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(total / size + eps);
    for (i = 0; i < size; i++) y[i] = x[i] * factor * weight[i];
}

inline void rms_norm_rows(
    const float* x, const float* weight, int rows, int size, float eps, float* y, int thread, int threads) {
    for (int row = int(int64_t(rows) * thread / threads); row < int64_t(rows) * (thread + 1) / threads; row++)
        rms_norm(x + size_t(row) * size, weight, size, eps, y + size_t(row) * size);
}

// Each plane (d, d + size / 2) of the head is turned by its angle.
inline void rotate(float* head, const float* cos, const float* sin, int size) {
    const int half = size / 2;
    for (int d = 0; d < half; d++) {
        const float a = head[d], b = head[d + half];
        head[d] = a * cos[d] - b * sin[d];
        head[d + half] = b * cos[d] + a * sin[d];
    }
}

// Where a token's key and value of one head lie: the elements of the key are a block apart.
template <class T>
struct CacheSlot {
    T *key, *value;

    CacheSlot(const Cache& cache, const Heads& heads, int64_t slot, int head) {
        const int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
        const size_t base = size_t(block * heads.kv_heads + head) * cache.block_size * heads.head_size;
        key = static_cast<T*>(cache.keys) + base + offset;
        value = static_cast<T*>(cache.values) + base + offset * heads.head_size;
    }
};

// key and value [head_size].
inline void write_to_cache(
    const Cache& cache, const Heads& heads, int64_t slot, int head, const float* key, const float* value) {
    if (slot < 0) return;
    with_number(cache.format, [&](auto number) {
        const CacheSlot<decltype(number)> to(cache, heads, slot, head);
        for (int d = 0; d < heads.head_size; d++) store(to.key + size_t(d) * cache.block_size, key[d]);
        for (int d = 0; d < heads.head_size; d++) store(to.value + d, value[d]);
    });
}

// What will be written there soon.
inline void fetch_from_cache(const Cache& cache, const Heads& heads, int64_t slot, int head) {
    if (slot < 0) return;
    with_number(cache.format, [&](auto number) {
        const CacheSlot<decltype(number)> at(cache, heads, slot, head);
        for (int d = 0; d < heads.head_size; d++) fetch_line(at.key + size_t(d) * cache.block_size);
        for (int d = 0; d < heads.head_size; d += 64 / sizeof number) fetch_line(at.value + d);
    });
}

// Tiles are handed out one by one: their lengths differ. Where there are hardly more than threads, large ones are halved.
inline void attend_tiles(
    const Heads& heads, const Cache& cache, const Step& step, const float* query, size_t query_stride, float* output,
    std::atomic<int>& next, float* scratch, int threads) {
    const TileBuffers buffers(scratch, heads, cache, MOST_TILE_ROWS);
    const int tiles = step.tiles * heads.kv_heads;
    const bool halved = threads > 1 && tiles < 4 * threads;
    with_number(cache.format, [&](auto number) {
        for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < (halved ? 2 : 1) * tiles;) {
            const int of_half = task % tiles;
            Tile<decltype(number)> tile(
                heads, cache, step, of_half / heads.kv_heads, of_half % heads.kv_heads, task / tiles, halved, buffers);
            tile.attend(query, query_stride, output, size_t(heads.query_heads) * heads.head_size);
        }
    });
}

// So few tokens are normed by every thread for itself: that takes less time than to wait for one another.
constexpr int FEW_TOKENS = 4;

// What lives as long as a call: activations of all tokens, and for each thread a corner with few normed ones and scratch.
struct Workspace {
    float *normed, *qkv, *attended, *gated, *corners;
    size_t corner;

    static size_t corner_floats(const Layer& layer) {
        const size_t scratch = std::max({scratch_floats(layer.qkv), scratch_floats(layer.output), scratch_floats(layer.down)});
        return FEW_TOKENS * layer.qkv.features + std::max(scratch, TileBuffers::floats(layer.heads, layer.cache, MOST_TILE_ROWS));
    }

    static size_t floats(const Layer& layer, int tokens, int threads) {
        const size_t row = layer.qkv.features + layer.qkv.columns + layer.output.features + layer.down.features;
        return tokens * row + threads * corner_floats(layer);
    }

    Workspace(float* at, const Layer& layer, int tokens) : corner(corner_floats(layer)) {
        normed = at;
        qkv = normed + size_t(tokens) * layer.qkv.features;
        attended = qkv + size_t(tokens) * layer.qkv.columns;
        gated = attended + size_t(tokens) * layer.output.features;
        corners = gated + size_t(tokens) * layer.down.features;
    }
};

// What one thread of a team does of a layer. `after`: the matrix that is read once the layer is done, or null.
inline void run_layer(
    const Layer& layer, const Step& step, const Angles& angles, const Matrix* after, float* residual,
    const Workspace& space, std::atomic<int>& next_tile, int thread, int threads) {
    const Heads& heads = layer.heads;
    const int tokens = step.tokens, hidden = layer.qkv.features, intermediate = layer.down.features;
    const int size = heads.head_size, query_size = heads.query_heads * size, kv_size = heads.kv_heads * size;
    const size_t qkv_size = query_size + 2 * size_t(kv_size);
    float* own_normed = space.corners + thread * space.corner;
    float* scratch = own_normed + FEW_TOKENS * hidden;

    const auto into = [](float* to, int columns) {
        return [=](int row, int panel, Vec low, Vec high) {
            store_panel(to + size_t(row) * columns + panel * PANEL, low, high, columns - panel * PANEL);
        };
    };
    const auto onto_residual = [=](int row, int panel, Vec low, Vec high) {
        add_panel(residual + size_t(row) * hidden + panel * PANEL, low, high, hidden - panel * PANEL);
    };
    // A panel of gate_up holds LANES columns of the gate beside the same columns of up.
    float* gated = space.gated;
    const auto gate = [=](int row, int panel, Vec gate, Vec up) {
        store_some(gated + size_t(row) * intermediate + panel * LANES, silu(gate) * up, intermediate - panel * LANES);
    };
    const auto normed = [&](const float* weight) {
        if (tokens <= FEW_TOKENS) {
            rms_norm_rows(residual, weight, tokens, hidden, layer.eps, own_normed, 0, 1);
            return own_normed;
        }
        rms_norm_rows(residual, weight, tokens, hidden, layer.eps, space.normed, thread, threads);
#pragma omp barrier
        return space.normed;
    };

    // A thread's share of the heads of all tokens: a KV head, and the query heads that share it.
    const int first_share = int(int64_t(tokens) * heads.kv_heads * thread / threads);
    const int last_share = int(int64_t(tokens) * heads.kv_heads * (thread + 1) / threads);
    if (tokens <= FEW_TOKENS)
        for (int share = first_share; share < last_share; share++)
            fetch_from_cache(layer.cache, heads, step.slots[share / heads.kv_heads], share % heads.kv_heads);
    multiply(normed(layer.input_norm), tokens, layer.qkv, &layer.output, scratch, thread, threads, into(space.qkv, qkv_size));
#pragma omp barrier
    for (int share = first_share; share < last_share; share++) {
        const int token = share / heads.kv_heads, kv_head = share % heads.kv_heads;
        float *query = space.qkv + token * qkv_size, *key = query + query_size + kv_head * size;
        const float *cos = angles.cos + token * size_t(size / 2), *sin = angles.sin + token * size_t(size / 2);
        const auto turn = [&](float* head, const float* norm) {
            if (norm) rms_norm(head, norm, size, layer.eps, head);
            rotate(head, cos, sin, size);
        };
        for (int head = kv_head * heads.group(); head < (kv_head + 1) * heads.group(); head++)
            turn(query + head * size, layer.query_norm);
        turn(key, layer.key_norm);
        write_to_cache(layer.cache, heads, step.slots[token], kv_head, key, key + kv_size);
    }
#pragma omp barrier
    attend_tiles(heads, layer.cache, step, space.qkv, qkv_size, space.attended, next_tile, scratch, threads);
#pragma omp barrier
    if (thread == 0) next_tile = 0;
    multiply(space.attended, tokens, layer.output, &layer.gate_up, scratch, thread, threads, onto_residual);
#pragma omp barrier
    multiply(normed(layer.post_norm), tokens, layer.gate_up, &layer.down, scratch, thread, threads, gate);
#pragma omp barrier
    multiply(space.gated, tokens, layer.down, after, scratch, thread, threads, onto_residual);
#pragma omp barrier
}
