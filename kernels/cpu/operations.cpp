// What Python calls (operations.py, draft_chain.py). Whatever is worth it is shared out in one parallel region.
#include "decoder_layer.h"
#include "draft_chain.h"

extern "C" {

int64_t decoder_layers_workspace(const Layer* layer, int32_t tokens, int32_t threads) {
    return int64_t(Workspace::floats(*layer, tokens, threads));
}

// residual [tokens, hidden], in place, through layers of one shape; steps [count]: of each layer's KV cache group.
// `after`: the matrix that is multiplied next, or null.
void decoder_layers(
    const Layer* const* layers, const Step* const* steps, int32_t count, const Angles* angles, const Matrix* after,
    float* residual, float* workspace, int32_t threads) {
    const Workspace space(workspace, *layers[0], steps[0]->tokens);
    std::atomic<int> next_tile{0};
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < count; i++)
        run_layer(
            *layers[i], *steps[i], *angles, i + 1 < count ? &layers[i + 1]->qkv : after, residual, space, next_tile,
            omp_get_thread_num(), omp_get_num_threads());
}

int64_t draft_workspace(const Drafter* drafter, int32_t tokens, int32_t threads) {
    return int64_t(DraftWorkspace::floats(*drafter, tokens, threads));
}

// One pass of a drafter. ids and positions [tokens]; states [tokens, hidden], that the ids were drawn from; output alike.
void draft_pass(
    const Drafter* drafter, const Step* step, const int64_t* ids, const int64_t* positions, const float* states,
    float* output, float* workspace, int32_t threads) {
    const DraftWorkspace space(workspace, *drafter, step->tokens, threads);
    DraftPass pass(*drafter, space, step->tokens);
    const int64_t tokens = step->tokens;
    const size_t hidden = drafter->layers[0]->qkv.features;
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num(), team = omp_get_num_threads();
        for (int row = int(tokens * thread / team); row < tokens * (thread + 1) / team; row++)
            pass.enter(row, ids[row], positions[row], states + row * hidden);
#pragma omp barrier
        pass.run(*step, output, thread, team);
    }
}

// drafts [count, requests]: those that follow from the states [requests, hidden], which are overwritten. If no request
// gets as many, those behind stay as they are.
void draft_chain(
    const Drafter* drafter, const DraftRequests* asked, int32_t count, float* states, int64_t* drafts, float* workspace,
    int32_t threads) {
    DraftChain chain(*drafter, *asked, states, drafts, workspace, threads);
#pragma omp parallel num_threads(threads)
    chain.run(count, omp_get_thread_num(), omp_get_num_threads());
}

// y [rows, columns] = x [rows, features] Wᵀ + b. `corners`: threads · features · PANEL floats.
void linear(const Matrix* matrix, const float* x, int32_t rows, float* y, float* corners, int32_t threads) {
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num(), columns = matrix->columns;
        float* corner = corners + thread * scratch_floats(*matrix);
        multiply(x, rows, *matrix, nullptr, corner, thread, omp_get_num_threads(), [=](int row, int panel, Vec low, Vec high) {
            store_panel(y + size_t(row) * columns + panel * PANEL, low, high, columns - panel * PANEL);
        });
    }
}

// y [rows, features] = the rows of the packed matrix that `ids` name.
void embedding(const Matrix* matrix, const int64_t* ids, int32_t rows, float* y) {
    for (int row = 0; row < rows; row++) unpack_row(*matrix, ids[row], y + size_t(row) * matrix->features);
}

// y [rows, size] = x / rms(x) · weight.
void rms_norm_all(const float* x, const float* weight, int32_t rows, int32_t size, float eps, float* y) {
    rms_norm_rows(x, weight, rows, size, eps, y, 0, 1);
}

// Writes the step's keys and values to the cache, then attends: query [tokens, query_heads, head_size] and output alike,
// key and value [tokens, kv_heads, head_size]. `corners`: threads · attention_workspace floats.
void attention(
    const Heads* heads, const Cache* cache, const Step* step, const float* query, const float* key, const float* value,
    float* output, float* corners, int32_t threads) {
    const size_t row = size_t(heads->kv_heads) * heads->head_size, corner = TileBuffers::floats(*heads, *cache, MOST_TILE_ROWS);
    std::atomic<int> next_tile{0};
    for (int token = 0; token < step->tokens; token++)
        for (int head = 0; head < heads->kv_heads; head++)
            write_to_cache(
                *cache, *heads, step->slots[token], head, key + token * row + head * heads->head_size,
                value + token * row + head * heads->head_size);
#pragma omp parallel num_threads(threads)
    attend_tiles(
        *heads, *cache, *step, query, size_t(heads->query_heads) * heads->head_size, output, next_tile,
        corners + omp_get_thread_num() * corner, omp_get_num_threads());
}

int64_t attention_workspace(const Heads* heads, const Cache* cache, int32_t threads) {
    return int64_t(threads * TileBuffers::floats(*heads, *cache, MOST_TILE_ROWS));
}

int32_t panel_columns() { return PANEL; }
}
