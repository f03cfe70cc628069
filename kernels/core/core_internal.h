/*
 * core_internal.h - what every device shares: prepared weights, the pages of KV, the block formats
 * of GGUF, and the errors that tests inject. For the folders of kernels/, not for other rooms.
 */
#ifndef OATO_CORE_INTERNAL_H
#define OATO_CORE_INTERNAL_H

#include "kernels/device.h"

#include <math.h>

/* Casts for arenas, pages and prepared weights, which are bytes, where they hold float32. */
static inline float *floats(void *p)
{
    return p;
}
static inline const float *const_floats(const void *p)
{
    return p;
}

/* ----------------------------------------------------------------------------- weights ---- */

struct oato_weight {
    oato_dtype dtype; /* of the source */
    enum weight_use use;
    int64_t rows, k;
    const uint8_t *data; /* prepared, or (WEIGHT_LOOKUP on the host) the GGUF's own rows */
    uint64_t bytes;      /* owned bytes behind data; 0 when borrowed */
};

/* Row i of those that the source names. */
static inline const uint8_t *weight_source_row(const struct weight_source *s, int64_t i)
{
    const int64_t row =
        s->list && s->use != WEIGHT_COLUMNS ? s->list[s->row_begin + i] : s->row_begin + i;
    return (const uint8_t *)s->data + (uint64_t)row * weight_source_stride(s);
}
/* True when the rows exist and are whole blocks of a known type. */
bool weight_source_good(const struct weight_source *s);
/* Fails with the message that they are not, or of no type that the device supports. */
oato_status weight_source_fail(const struct weight_source *s, const char *device,
                               oato_status status, struct oato_error *err);
/* Bytes from one row to the next of prepared WEIGHT_ROWS, the GGUF's own rows of k elements. */
uint64_t weight_rows_stride(oato_dtype dtype, int64_t k);
/* Prepares such rows [begin, end). */
void weight_rows_copy(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                      int64_t end);
/* n of them, which the list names, as a matrix, by a function that prepares one. */
void weight_rows_panel(void (*prepare)(int lanes, const struct weight_source *s,
                                       struct oato_weight *w, int64_t begin, int64_t end),
                       int lanes, const struct oato_weight *w, const int32_t *list, int64_t n,
                       struct oato_weight *panel);
/* Rows [begin, end) of the source are no longer needed: releases the pages of its file. */
void weight_source_release(const struct weight_source *s, int64_t begin, int64_t end);

/* WEIGHT_COLUMNS, see columns.c. How a type is kept: */
struct columns_form {
    uint8_t bits;   /* of an integer, 4 or 8; 0: a float type */
    uint8_t offset; /* the stored integer is the weight's integer plus this */
    uint8_t block;  /* columns of the original matrix that share a scale */
    bool has_min;
    bool half; /* scales are F16, else float32 */
};
const struct columns_form *columns_form_of(oato_dtype dtype);

/* The parts of a prepared weight. */
struct columns {
    const struct columns_form *form;
    int64_t blocks;
    const int32_t *start;    /* the first column of each block, and their end */
    uint64_t scales, column; /* bytes of a block's scales and minima; of a column */
    const uint8_t *data;
};
struct columns columns_of(const struct oato_weight *w);
/* The same without reading the weight, which has so many blocks; `start` and `data` are addresses
 * where its data is. */
struct columns columns_at(const struct oato_weight *w, int64_t blocks);
/* A block: its scales, minima, then columns; float types have one block without scales. */
static inline const uint8_t *columns_block(const struct columns *c, int64_t b)
{
    return c->data + (uint64_t)b * c->scales + (uint64_t)(b ? c->start[b] : 0) * c->column;
}
/* Rows with those that make them whole. */
static inline int64_t columns_rows(int64_t n)
{
    return (n + 63) / 64 * 64;
}
/* The number among the integers of 64 rows of a row's. */
static inline int columns_place(int row)
{
    return row % 16 / 4 * 16 + row / 16 * 4 + row % 4;
}
/* Blocks of k columns; list: which ones, NULL: the first ones. */
int64_t columns_blocks(oato_dtype dtype, const int32_t *list, int64_t k);
uint64_t columns_bytes(oato_dtype dtype, int64_t n, int64_t k, int64_t blocks);
/* Rows [begin, end) of the source, at multiples of 64. */
void columns_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                     int64_t end);

/* ---------------------------------------------------------------------------------- KV ---- */

/* Paged KV of the layers on one device, in the layout that devices share, or that they bring pages
 * to and from (struct kv_layout). A page of a layer has a block of K for each head and then,
 * if values do not lie in K, a block of V for each head, kv_block. K is dimension-major,
 * [head_dim][64]: scores of neighbouring positions are the lanes of a vector. V is position-major,
 * [64][v_dim]: dimensions of a result are the lanes. A Q8_0 block has its bytes in the same order,
 * followed (for both K and V) by the F16 scales [dimensions / 32][64]. */
struct kv_cache {
    int32_t n_layers, pages;
    oato_dtype dtype;
    bool windows; /* some layers have a window, and so a block table of their own */
    struct kv_layer_shape *layers;
    uint64_t *layer_offset; /* bytes */
    uint8_t *data;
    uint64_t bytes;
    int32_t n_filed;     /* layers in a file, which lie in */
    uint64_t room_bytes; /* KV_ROOMS rooms at the beginning of data, in turn */
};
/* Sets layer_offset of each layer and the total size; false on overflow. KV_PADDING readable bytes
 * follow the last block. */
bool kv_cache_layout(struct kv_cache *kv, uint64_t *bytes); /* of one that is zero but for shapes */
/* A cache with its size set but no data yet, in one allocation; release with free(). */
oato_status kv_cache_new(const char *device, const struct kv_layer_shape *layers, int n,
                         oato_dtype dtype, int32_t pages, struct kv_cache **out,
                         struct oato_error *err);

static inline uint64_t kv_block_bytes(oato_dtype dtype, int64_t head_dim)
{
    size_t row = 0;
    dtype_row_bytes(dtype, head_dim, &row);
    return row * KV_PAGE_POSITIONS;
}

/* Bytes of a head's block of K (which 0) or V (1). */
static inline uint64_t kv_layer_block_bytes(const struct kv_cache *kv, int32_t layer, int which)
{
    const struct kv_layer_shape *s = &kv->layers[layer];
    if (which && s->v_in_k)
        return 0;
    return kv_block_bytes(kv->dtype, which && s->v_dim ? s->v_dim : s->head_dim);
}

static inline uint64_t kv_page_bytes(const struct kv_cache *kv, int32_t layer)
{
    const uint64_t bytes =
        (uint64_t)kv->layers[layer].kv_heads *
        (kv_layer_block_bytes(kv, layer, 0) + kv_layer_block_bytes(kv, layer, 1));
    return kv->layers[layer].filed ? size_align(bytes, READ_ALIGN) : bytes;
}

/* The block of K (which 0) or V (1). */
static inline uint8_t *kv_block(const struct kv_cache *kv, int32_t layer, int64_t page, int which,
                                int64_t head)
{
    uint8_t *block = kv->data + kv->layer_offset[layer] + (uint64_t)page * kv_page_bytes(kv, layer);
    if (which)
        block += (uint64_t)kv->layers[layer].kv_heads * kv_layer_block_bytes(kv, layer, 0);
    return block + (uint64_t)head * kv_layer_block_bytes(kv, layer, which);
}

/* Pages [page, page + n) of a layer that a step's sequences filled before it: all zero, then as
 * kv_history_next leaves it. */
struct kv_history {
    int32_t seq; /* which one to look at next, */
    int64_t at;  /* and where in its table */
    int32_t page, n;
};
/* The next pages that follow each other; false: there are no more. In a layer with a window only
 * those that some later token sees. */
bool kv_history_next(const struct kv_cache *kv, int32_t layer, const struct step *step,
                     struct kv_history *h);

/* The block table of a sequence that a layer goes by. */
static inline const int32_t *kv_table(const struct kv_cache *kv, int32_t layer,
                                      const struct step_seq *seq)
{
    return kv->layers[layer].window ? seq->window_pages : seq->pages;
}

/* A slot of a layer of states. */
static inline float *kv_state(const struct kv_cache *kv, int32_t layer, int64_t slot)
{
    return floats(kv->data + kv->layer_offset[layer]) + slot * kv->layers[layer].state;
}

/* ------------------------------------------------------------------------------ quants ---- */

/* Dequantises k elements of a GGUF row. */
void quants_row(oato_dtype dtype, const uint8_t *row, int64_t k, float *out);
bool quants_known(oato_dtype dtype);
/* Columns of struct columns_form's block number `sub` of a block: elements are scale * integer +
 * min. min is not set for types without. */
void quants_integers(oato_dtype dtype, const uint8_t *block, int sub, int8_t q[32], float *scale,
                     float *min);
/* The values of the nibbles of IQ4_NL, IQ4_XS, MXFP4 and NVFP4. */
extern const int8_t quants_iq4_values[16], quants_mxfp4_values[16];

/* IQ1, IQ2, IQ3: groups of 8 or 4 elements are words of a codebook (quants_grids.h), whose codes
 * and a bit of each element together number a value. */
extern const uint16_t quants_iq1_grid[2048], quants_iq2_xxs_grid[256], quants_iq2_xs_grid[512],
    quants_iq2_s_grid[1024], quants_iq3_xxs_grid[256], quants_iq3_s_grid[512];
/* Not of the format: groups of IQ1 as numbers to the base of 3, which are found faster. */
extern const uint16_t quants_trits_grid[256];
/* By the code plus 8 where the bit is set. */
extern const int8_t quants_iq1_values[16], quants_iq2_values[16], quants_iq3_xxs_values[16],
    quants_iq3_s_values[16];

/* A block of any of these types. */
struct quants_codes {
    uint16_t d;         /* F16 */
    uint8_t scale[16];  /* s of each 16 elements: they are d * (2 s + 1) * factor times values */
    uint16_t index[64]; /* words of groups in order; 32 of groups of 8 */
    uint8_t high[32];   /* a bit of each element: its sign; of IQ1, the sign of its group's shift */
};
bool quants_has_codes(oato_dtype dtype);
void quants_codes_read(oato_dtype dtype, const uint8_t *block, struct quants_codes *c);
/* Elements [from, from + n), all of one scale. */
void quants_codes_integers(oato_dtype dtype, const struct quants_codes *c, int from, int n,
                           int8_t *q, float *scale);

/* ------------------------------------------------------------------------------- tests ---- */

/* device_ops.inject_error: "record=5" makes the fifth record from now on fail, "alloc=3" the third
 * allocation. Devices count down and fail at 1; 0: off. */
oato_status inject_error(const char *device, const char *what, _Atomic int64_t *records,
                         int64_t *allocations, struct oato_error *err);

/* Radians by which a position turns pair i of ROPE, in double so that long contexts keep their
 * precision. */
static inline double rope_turn(const struct oato_op *op, int32_t i, const float *divisors)
{
    double scale = (double)op->rope_scale;
    if (op->rope_high != 0) {
        const double low = (double)op->rope_low, high = (double)op->rope_high;
        const double scaled = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        scale = scale * scaled + (1 - scaled);
    }
    const double turn = pow((double)op->rope_base, -2.0 * i / op->rope_dims) * scale;
    return divisors ? turn / (double)divisors[i] : turn;
}

/* What SCALE multiplies the row of a position by. */
static inline float scale_factor(const struct oato_op *op, int32_t position)
{
    if (op->temperature == 0)
        return op->scale;
    const double steps =
        floor(((double)position + (double)op->temperature_offset) / (double)op->temperature_step);
    return op->scale * (float)(1 + (double)op->temperature * log(steps + 1));
}

#endif
