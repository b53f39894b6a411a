// How the weights of a matrix are stored, and how they become floats.
//
// A panel is PANEL = 2 · LANES output columns; within it the weights of one input feature lie side by side:
//
//     W  [columns, features]    ─►    panels  [columns / PANEL, features, PANEL]
//
// so that two loads fetch what one element of the input is multiplied with. The last panel is padded with zeros.
#pragma once

#include "simd.h"

constexpr int PANEL = 2 * LANES;

enum Format : int32_t { FLOAT32, FLOAT16, BFLOAT16, INT8, INT4 };

struct Matrix {
    const void* panels;
    const Float16* scales;  // INT8: [panels, groups, PANEL]; INT4: [panels, groups, 2, PANEL], scales and minima
    const float* bias;      // [panels, PANEL] or null
    int32_t columns;
    int32_t features;
    int32_t format;
    int32_t group;  // features that share a scale; all of them where there are no scales

    int num_panels() const { return (columns + PANEL - 1) / PANEL; }
    int num_groups() const { return features / group; }

    size_t panel_bytes() const {
        const int bits = format == FLOAT32 ? 32 : format == INT8 ? 8 : format == INT4 ? 4 : 16;
        return size_t(features) * PANEL * bits / 8;
    }

    const char* panel_begin(int panel) const { return static_cast<const char*>(panels) + panel * panel_bytes(); }
};

// A reader widens PANELS neighbouring panels within one group of features: `reader(feature, panel, w)` gives the weights
// of a feature in one of them, two vectors.
//
// Few rows are taken through several panels side by side, no more than MOST_PANELS (matmul.h); scales and what widening
// needs take as many registers as the sums of ROWS_LESS rows. Many rows come in many tiles: where widening takes several
// instructions it is done once for all of them, above WIDEN_ABOVE tiles (0: never worth it). Four bits are not widened at
// all.

template <class T>
struct Plain {
    static constexpr int BITS = 8 * sizeof(T), MOST_PANELS = 3, ROWS_LESS = 0, WIDEN_ABOVE = 0;

    template <int PANELS>
    struct Reader {
        static constexpr int WIDTH = 2;
        const T* weights;
        size_t panel_size;

        Reader(const Matrix& matrix, int panel, int)
            : weights(static_cast<const T*>(matrix.panels) + size_t(panel) * matrix.features * PANEL),
              panel_size(size_t(matrix.features) * PANEL) {}

        [[gnu::always_inline]] void operator()(int feature, int panel, Vec (&w)[WIDTH]) const {
            const T* from = weights + panel * panel_size + size_t(feature) * PANEL;
            w[0] = load(from);
            w[1] = load(from + LANES);
        }
    };
};

// In a panel of bfloat16 the two halves of the columns alternate: column 0, LANES, 1, LANES + 1, …  A bfloat16 is the
// upper half of a float32, so one load holds both vectors: shifted up, and with the lower halves cleared.
struct PairedBFloat16 {
    static constexpr int BITS = 16, MOST_PANELS = 3, ROWS_LESS = 0, WIDEN_ABOVE = 0;

    template <int PANELS>
    struct Reader {
        static constexpr int WIDTH = 2;
        const uint16_t* weights;
        size_t panel_size;

        Reader(const Matrix& matrix, int panel, int)
            : weights(static_cast<const uint16_t*>(matrix.panels) + size_t(panel) * matrix.features * PANEL),
              panel_size(size_t(matrix.features) * PANEL) {}

        [[gnu::always_inline]] void operator()(int feature, int panel, Vec (&w)[WIDTH]) const {
            IntVec pairs;
            std::memcpy(&pairs, weights + panel * panel_size + size_t(feature) * PANEL, sizeof pairs);
            w[0] = (Vec)(pairs << 16);
            w[1] = (Vec)(pairs & int32_t(0xFFFF0000));
        }
    };
};

[[gnu::always_inline]] inline Vec to_floats(IntVec x) { return __builtin_convertvector(x, Vec); }

// weight = integer · scale.
struct Int8 {
    static constexpr int BITS = 8, MOST_PANELS = 2, ROWS_LESS = 4, WIDEN_ABOVE = 2;

    template <int PANELS>
    struct Reader {
        static constexpr int WIDTH = 2;
        const int8_t* weights;
        size_t panel_size;
        Vec scale[2 * PANELS];

        Reader(const Matrix& matrix, int panel, int group)
            : weights(static_cast<const int8_t*>(matrix.panels) + size_t(panel) * matrix.features * PANEL),
              panel_size(size_t(matrix.features) * PANEL) {
            for (int p = 0; p < PANELS; p++) {
                const Float16* from = matrix.scales + (size_t(panel + p) * matrix.num_groups() + group) * PANEL;
                scale[2 * p] = load(from);
                scale[2 * p + 1] = load(from + LANES);
            }
        }

        [[gnu::always_inline]] void operator()(int feature, int panel, Vec (&w)[WIDTH]) const {
            const int8_t* from = weights + panel * panel_size + size_t(feature) * PANEL;
            w[0] = to_floats(load_integers(from)) * scale[2 * panel];
            w[1] = to_floats(load_integers(from + LANES)) * scale[2 * panel + 1];
        }
    };
};

// weight = integer in 0…15 · scale + minimum: see int4.h.
struct Int4 {};

// Calls `use` with a number of the format's type; formats with scales have none.
template <class Use>
inline void with_number(int32_t format, Use use) {
    switch (format) {
        case FLOAT32: return use(float{});
        case FLOAT16: return use(Float16{});
        case BFLOAT16: return use(BFloat16{});
    }
    __builtin_unreachable();
}

// Calls `use` with an object of the format's type.
template <class Use>
inline void with_format(int32_t format, Use use) {
    switch (format) {
        case FLOAT32: return use(Plain<float>{});
        case FLOAT16: return use(Plain<Float16>{});
        case BFLOAT16: return use(PairedBFloat16{});
        case INT8: return use(Int8{});
        case INT4: return use(Int4{});
    }
    __builtin_unreachable();
}
