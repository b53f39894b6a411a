// A drafter's pass in one parallel region, and drafts one behind another, each the likeliest token, in another: so little
// is read for them that to leave and enter Python in between would take longer.
//
//     state ─► head ─► draft ─► its embedding, with the state where the drafter wants it ─► layers ─► norm ─► state …
#pragma once

#include <vector>

#include "decoder_layer.h"

// A drafter of layers of one shape.
struct Drafter {
    const Matrix* embedding;
    const Matrix* combine;  // [hidden, 2 · hidden], of embedding and state; null: the embedding alone enters
    const Matrix* head;
    const Layer* const* layers;
    const float* norm;          // [hidden]
    const float *cos, *sin;     // [positions, head_size / 2]
    const int64_t* target_ids;  // [columns of the head]: the tokens that they stand for; null: themselves
    int32_t num_layers;
    float eps;
};

// The requests that drafts are for.
struct DraftRequests {
    const int64_t* first;         // [requests]: the position that the first draft is run at
    const int64_t* wanted;        // [requests]: drafts, at least one
    const int32_t* block_tables;  // [requests, table_stride]
    int32_t table_stride, requests;
    float confidence_threshold;  // nothing is drafted behind a draft of a lower probability
};

// The largest logit of each row that a thread has seen, lane by lane, and the column where it first was; and, where its
// probability is asked for, Σ e^(x − largest). NaN is the largest of all.
class Largest {
   public:
    static size_t floats(int rows) { return size_t(rows) * 3 * LANES; }

    Largest(float* at, int rows, bool with_probability)
        : best(at),
          columns(best + size_t(rows) * LANES),
          sums(columns + size_t(rows) * LANES),
          rows(rows),
          with_probability(with_probability) {}

    void clear() {
        for (int i = 0; i < rows * LANES; i++) best[i] = MINUS_INFINITY;
        std::memset(columns, 0, size_t(rows) * 2 * LANES * sizeof(float));
    }

    // Columns `column` and those behind it, of which `count` are numbers of the row.
    void see(int row, int column, Vec x, int count) {
        for (int lane = std::max(count, 0); lane < LANES; lane++) x[lane] = MINUS_INFINITY;
        Vec largest = load(best + row * LANES);
        IntVec where;
        std::memcpy(&where, columns + row * LANES, sizeof where);
        const IntVec better = (x > largest) | (x != x);
        if (with_probability) {
            const Vec before = load(sums + row * LANES), apart = exp(better ? largest - x : x - largest);
            const Vec part = apart == apart ? apart : Vec{};  // of two infinities there is no difference
            store(sums + row * LANES, better ? before * part + 1.0f : before + part);
        }
        store(best + row * LANES, better ? x : largest);
        where = better ? IntVec{} + column : where;
        std::memcpy(columns + row * LANES, &where, sizeof where);
    }

    // Takes in one row's; `column` is meant to be the first of the largest.
    void merge_into(int row, float& value, int& column) const {
        for (int lane = 0; lane < LANES; lane++) {
            const float x = best[row * LANES + lane];
            int32_t from;
            std::memcpy(&from, columns + row * LANES + lane, sizeof from);
            const bool better = x > value || (x != x && value == value), equal = x == value;
            if (better || (equal && from + lane < column)) {
                value = x;
                column = from + lane;
            }
        }
    }

    // What this adds to Σ e^(x − value).
    float sum_below(int row, float value) const {
        return sum(load(sums + row * LANES) * exp(load(best + row * LANES) - value));
    }

   private:
    float *best, *columns, *sums;  // [rows, LANES] each
    int rows;
    bool with_probability;
};

// What lives as long as a call: that of the layers, and of each thread a corner with scratch and `Largest`.
struct DraftWorkspace {
    float *residual, *entering, *cos, *sin, *layers, *corners;
    size_t corner, scratch;

    static size_t scratch_of(const Drafter& drafter) {
        return std::max(scratch_floats(*drafter.head), drafter.combine ? scratch_floats(*drafter.combine) : 0);
    }

    static size_t floats(const Drafter& drafter, int tokens, int threads) {
        const Layer& layer = *drafter.layers[0];
        const size_t row = size_t(3) * layer.qkv.features + layer.heads.head_size;
        return tokens * row + Workspace::floats(layer, tokens, threads) + threads * (scratch_of(drafter) + Largest::floats(tokens));
    }

    DraftWorkspace(float* at, const Drafter& drafter, int tokens, int threads) {
        const Layer& layer = *drafter.layers[0];
        const size_t hidden = layer.qkv.features, half = layer.heads.head_size / 2;
        scratch = scratch_of(drafter);
        corner = scratch + Largest::floats(tokens);
        residual = at;
        entering = residual + tokens * hidden;
        cos = entering + tokens * 2 * hidden;
        sin = cos + tokens * half;
        layers = sin + tokens * half;
        corners = layers + Workspace::floats(layer, tokens, threads);
    }
};

// The drafter over some tokens, from what enters to the states after its norm.
class DraftPass {
   public:
    DraftPass(const Drafter& drafter, const DraftWorkspace& space, int tokens)
        : drafter(drafter),
          space(space),
          layer_space(space.layers, *drafter.layers[0], tokens),
          tokens(tokens),
          hidden(drafter.layers[0]->qkv.features),
          half(drafter.layers[0]->heads.head_size / 2) {}

    // Token `row` of the pass; `state` is that which it was drawn from.
    void enter(int row, int64_t token, int64_t position, const float* state) {
        std::memcpy(space.cos + row * half, drafter.cos + position * half, half * sizeof(float));
        std::memcpy(space.sin + row * half, drafter.sin + position * half, half * sizeof(float));
        float* embedding = drafter.combine ? space.entering + row * 2 * hidden : space.residual + row * hidden;
        unpack_row(*drafter.embedding, token, embedding);
        if (drafter.combine) std::memcpy(embedding + hidden, state, hidden * sizeof(float));
    }

    // What one thread does once all have entered. states [tokens, hidden].
    void run(const Step& step, float* states, int thread, int threads) {
        const Layer* const* layers = drafter.layers;
        if (drafter.combine) {
            multiply(
                space.entering, tokens, *drafter.combine, &layers[0]->qkv, space.corners + thread * space.corner, thread,
                threads, [&](int row, int panel, Vec low, Vec high) {
                    store_panel(space.residual + row * hidden + panel * PANEL, low, high, int(hidden) - panel * PANEL);
                });
#pragma omp barrier
        }
        for (int i = 0; i < drafter.num_layers; i++)
            run_layer(
                *layers[i], step, Angles{space.cos, space.sin}, i + 1 < drafter.num_layers ? &layers[i + 1]->qkv : drafter.head,
                space.residual, layer_space, next_tile, thread, threads);
        rms_norm_rows(space.residual, drafter.norm, tokens, int(hidden), drafter.eps, states, thread, threads);
#pragma omp barrier
    }

   private:
    const Drafter& drafter;
    const DraftWorkspace& space;
    Workspace layer_space;
    int tokens;
    size_t hidden, half;
    std::atomic<int> next_tile{0};
};

// Draft after draft. A request that gets no more takes part in a pass, but writes nothing and looks at its first token
// alone; if none does, there is no pass.
class DraftChain {
   public:
    // states [requests, hidden]: those that the first drafts follow from; overwritten. drafts [count, requests].
    DraftChain(const Drafter& drafter, const DraftRequests& asked, float* states, int64_t* drafts, float* workspace, int threads)
        : drafter(drafter),
          asked(asked),
          states(states),
          drafts(drafts),
          space(workspace, drafter, asked.requests, threads),
          pass(drafter, space, asked.requests),
          seq_lens(asked.requests),
          starts(asked.requests + 1),
          ones(asked.requests, 1),
          slots(asked.requests),
          left(asked.wanted, asked.wanted + asked.requests) {
        for (int i = 0; i <= asked.requests; i++) starts[i] = i;
        step = Step{starts.data(), seq_lens.data(), asked.block_tables, slots.data(), starts.data(), starts.data(),
                    ones.data(), asked.requests, asked.requests, asked.table_stride};
    }

    // What one thread does.
    void run(int count, int thread, int threads) {
        for (int number = 0;; number++) {
            choose(thread, threads);
#pragma omp barrier
            if (thread == 0) settle(number, threads);
#pragma omp barrier
            if (number + 1 == count || !goes_on) return;
            pass.run(step, states, thread, threads);
        }
    }

   private:
    const Drafter& drafter;
    const DraftRequests& asked;
    float* states;
    int64_t* drafts;
    DraftWorkspace space;
    DraftPass pass;
    std::vector<int32_t> seq_lens, starts, ones;
    std::vector<int64_t> slots, left;  // of each request; `left`: drafts that it still gets
    bool goes_on = true;
    Step step;

    float* scratch(int thread) const { return space.corners + thread * space.corner; }
    Largest largest(int thread) const {
        return Largest(scratch(thread) + space.scratch, asked.requests, asked.confidence_threshold > 0);
    }

    void choose(int thread, int threads) {
        const Matrix& head = *drafter.head;
        Largest mine = largest(thread);
        mine.clear();
        multiply(
            states, asked.requests, head, drafter.combine ? drafter.combine : &drafter.layers[0]->qkv, scratch(thread),
            thread, threads, [&](int row, int panel, Vec low, Vec high) {
                const int column = panel * PANEL;
                mine.see(row, column, low, head.columns - column);
                mine.see(row, column + LANES, high, head.columns - column - LANES);
            });
    }

    // Writes down draft `number` of each request, -1 where it gets none, and lays out the pass that runs it.
    void settle(int number, int threads) {
        goes_on = false;
        for (int row = 0; row < asked.requests; row++) {
            float value = MINUS_INFINITY;
            int column = drafter.head->columns;
            for (int thread = 0; thread < threads; thread++) largest(thread).merge_into(row, value, column);
            const bool drawn = left[row] > 0 && std::isfinite(value);
            const int64_t token = !drawn ? 0 : drafter.target_ids ? drafter.target_ids[column] : column;
            drafts[size_t(number) * asked.requests + row] = drawn ? token : -1;
            left[row] = drawn && is_confident(row, value, threads) ? left[row] - 1 : 0;
            goes_on |= left[row] > 0;
            enter(row, token, number);
        }
    }

    // The largest logit has the probability 1 / Σ e^(x − largest).
    bool is_confident(int row, float value, int threads) const {
        if (asked.confidence_threshold <= 0) return true;
        float sum = 0;
        for (int thread = 0; thread < threads; thread++) sum += largest(thread).sum_below(row, value);
        return asked.confidence_threshold * sum <= 1;
    }

    void enter(int row, int64_t token, int number) {
        const int64_t position = left[row] ? asked.first[row] + number : 0;
        const int block_size = drafter.layers[0]->cache.block_size;
        const int64_t block = asked.block_tables[size_t(row) * asked.table_stride + position / block_size];
        slots[row] = left[row] ? block * block_size + position % block_size : -1;
        seq_lens[row] = int32_t(position + 1);
        pass.enter(row, token, position, states + size_t(row) * drafter.layers[0]->qkv.features);
    }
};
