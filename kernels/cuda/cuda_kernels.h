/*
 * cuda_kernels.h - what the host gives to the kernels of kernels/cuda: plain structures, one
 * argument a kernel, read by C on the host and by CUDA C on the device. Pointers are addresses of
 * device memory unless said otherwise.
 *
 * Values are float32, row after row, as kernels/op.h has them; T is the rows of a record. What
 * varies from step to step lies in device memory behind a struct cuda_step, so that a captured
 * graph of launches stays valid.
 */
#ifndef OATO_CUDA_KERNELS_H
#define OATO_CUDA_KERNELS_H

#include "kernels/activation.h"

#include <stdint.h>

/* A prepared matrix of `rows` x k in device memory. Types of whole blocks of 32 or 256 elements lie
 * in planes, each 256-byte aligned, elements row after row: see cuda_layout.h. */
struct cuda_matrix {
    const uint8_t *plane[4];
    int32_t rows, k;
    int32_t dtype; /* oato_dtype */
    int32_t pad;
};

/* ------------------------------------------------------------------------------- steps ---- */

struct cuda_seq {
    int64_t kv_len;
    int32_t query_begin, query_len;
    int32_t pages_at[2]; /* its block tables begin at cuda_step.pages + these; [1]: of layers with
                            a window */
    int32_t state, pad;  /* its slot */
};

struct cuda_page_copy {
    int32_t from, to, positions;
    int32_t window; /* 1: in layers with a window; 0: in the others */
};

struct cuda_state_copy {
    int32_t from, to;
};

/* A step as the device has it; addresses are fixed when a program is compiled. */
struct cuda_step {
    const int32_t *token_id, *token_position, *token_seq, *row, *pages;
    const struct cuda_seq *seq;
    const struct cuda_page_copy *page_copy;
    const struct cuda_state_copy *state_copy;
};

/* Pages of K and V of one layer: blocks of [head_dim][64] and [64][v_dim], laid out as in the
 * CPU's cache (kernels/core/core_internal.h, struct kv_cache). */
struct cuda_kv_layer {
    uint8_t *data;
    uint64_t block_bytes, v_bytes; /* of one head of K and of V in a page */
    int32_t kv_heads, head_dim, dtype;
    int32_t v_dim;
    int32_t v_in_k; /* 1: values are the first v_dim dimensions of K; v_bytes is 0 */
    int32_t window; /* 1: it has one, and so the second block table */
};

/* ------------------------------------------------------------------- products: matvec.cu -- */

enum {
    MATVEC_WARPS = 4, /* of a block; each computes two rows */
    MATVEC_ROWS = 2 * MATVEC_WARPS,
    MATVEC_COLUMNS = 4, /* at once, by the matvec_*_many kernels */
    PACK_WARPS = 8,
};

/* The packed input of a product with a block type: a row is k elements as signed bytes, then a
 * scale per 32 of them, then their sums, each part 16-byte aligned. The bytes cover the range from
 * the block's smallest to its largest element, which halves the error of bytes centred on zero. */
struct cuda_pack_scale {
    float d, middle; /* element = middle + d * byte */
};
struct cuda_pack_sums {
    int16_t low, high; /* of the first and the last 16 bytes */
};
#define CUDA_PACK_SUMS_AT(k) ((k) + ((k) / 32 * 8 + 15) / 16 * 16)
#define CUDA_PACK_BYTES(k)   (CUDA_PACK_SUMS_AT(k) + ((k) / 32 * 4 + 15) / 16 * 16)

/* The largest half is 65504, but activations of some models exceed it: pack_F16 multiplies by
 * CUDA_HALF_DOWN, and kernels that use its output multiply the result by CUDA_HALF_UP. Both are
 * powers of two, so only numbers below 2^-8 lose bits. */
#define CUDA_HALF_DOWN 0x1p-6f
#define CUDA_HALF_UP   0x1p6f

/* grid: (k / 32 / PACK_WARPS rounded up, rows); pack_q8, and pack_F16 and pack_BF16, which write
 * rows of k elements */
struct cuda_pack_args {
    const float *x; /* rows of k */
    uint8_t *out;   /* rows of `stride` bytes */
    uint64_t stride;
    int32_t k;
    int32_t x_stride; /* pack_q8: floats from a row to the next; 0: k */
};

/* Converts rows [first, first + rows) of w, of a block type, to halves: contiguous rows of w.k.
 * grid: (rows * w.k / HALVES_OF_THREAD / HALVES_THREADS rounded up) */
enum { HALVES_THREADS = 256, HALVES_OF_THREAD = 8 };
struct cuda_halves_args {
    struct cuda_matrix w;
    uint16_t *out;
    int64_t first, rows;
};

/* y_i[t] = w_i x[t] for up to three matrices of one type and k, or, with `gate_up`, y_0 =
 * a(w_0 x) * (w_1 x). With `sum`, sum[t] = y_0[t] + addend[t], `addend_stride` floats from one t
 * to the next. grid: pairs of rows * split / MATVEC_WARPS rounded up, times columns / columns at
 * once rounded up */
struct cuda_matvec_args {
    struct cuda_matrix w[3];
    float *y[3];        /* columns of w[i].rows floats */
    const uint8_t *x;   /* columns: packed, or float32 for types without blocks */
    uint64_t x_stride;  /* bytes */
    int32_t n, columns; /* matrices; rows of the record */
    int32_t gate_up;
    int32_t split; /* warps of a block that share a pair of rows: 1, 2 or MATVEC_WARPS */
    int32_t addend_stride, activation;
    const float *addend;
    float *sum;
    float limit; /* of the activation */
    int32_t pad;
};

/* The batch_* kernels compute the same for more columns. For block types they use tensor cores; a
 * thread block computes BATCH_ROWS rows of one matrix (or half as many of gate and of up) by
 * BATCH_COLUMNS columns. grid: columns / BATCH_COLUMNS rounded up, times blocks of rows of all
 * matrices. For types without blocks a warp computes FLOAT_ROWS rows (or half of gate and half of
 * up) by FLOAT_COLUMNS columns, and `split` warps share them. grid: such rows of all matrices *
 * split / MATVEC_WARPS rounded up, times columns / FLOAT_COLUMNS rounded up. */
enum {
    BATCH_ROWS = 32,
    BATCH_COLUMNS = 16,
    BATCH_UNITS = 16, /* blocks of 32 of a row that are in shared memory at once */
    BATCH_THREADS = BATCH_UNITS * 32,
    BATCH_ROOM = 48 << 10,      /* bytes of shared memory */
    BATCH_ROOM_Q2_K = 50 << 10, /* for Q2_K, which has two minima */
    FLOAT_ROWS = 8,
    FLOAT_COLUMNS = 8,
    FLOAT_ROOM = 16 << 10,      /* bytes of shared memory for each of `split` warps */
    BATCH_ROOM_MOST = 64 << 10, /* what every GPU has */
};

/* The experts of each token: their ids, then their weights. This device holds experts [first, first
 * + held); (token, expert) pairs are numbered token * used + place. */
struct cuda_choice {
    const float *rows; /* of 2 * used */
    /* With a cache: where the matrices of each expert of the model lie, -1: not here. NULL: those
     * of the experts held lie here in their order */
    const int32_t *slot;
    int32_t used, first, held;
    int32_t places; /* experts whose matrices there are: held, or the slots of the cache */
};

/* What is done to an expert's products, of gate and up or of down; all pointers may be NULL. */
struct cuda_expert_extras {
    const float *factor[2]; /* one for each expert of the model */
    const float *bias[2];   /* rows of n, likewise */
    float limit;            /* of the activation */
    int32_t weighs_input;   /* weights of the choice are for the products of gate and up */
    int32_t single, pad;    /* single: there is no up */
};

/* Where an expert's rows are among those of all: gate's, and those of up so much behind. */
struct cuda_expert_rows {
    int32_t each, up;
};

/* Products with the matrices of chosen experts, token by token; w has the held experts' matrices.
 * gate_up: y[pair] = a(w_0 x) * (w_1 x), or a(w_0 x), with the token's x; grid: (rows of one
 * expert's pairs, pairs). down: y[token] = sum over its choice of weight * w_0 x[pair], in the
 * order of the choice; grid: (pairs of rows, tokens). down, apart: y[pair] = w_0 x[pair] where the
 * expert is here, else as it was; grid: (pairs of rows, pairs). */
struct cuda_experts_args {
    struct cuda_matrix w[2];
    float *y;
    const uint8_t *x; /* gate_up: a row per token; down: one per pair */
    uint64_t x_stride;
    struct cuda_choice choice;
    struct cuda_expert_extras extras;
    struct cuda_expert_rows rows;
    int32_t n, activation; /* n: rows of one expert's matrix */
    int32_t apart, pad;
};

/* A product for each head, of n rows of its own: y[token][head] = {w x[token][head], what of the
 * head in `in` is behind the k columns that x has}. grid: (pairs of rows, heads, tokens) */
struct cuda_heads_args {
    struct cuda_matrix w;
    float *y;
    const float *in; /* heads of k + rest */
    const uint8_t *x;
    uint64_t x_stride;
    int32_t n, heads, rest, pad;
};

/* ------------------------------------------------------------------- products: matrix.cu -- */

/* The matrix_* kernels take struct cuda_matvec_args without gate_up and sum, columns packed by
 * pack_q8 or, for F16 and BF16, rounded to the type by pack_*: rows of k such elements. grid:
 * (tiles of MATRIX_TILE rows of all matrices, tiles of as many columns) */
enum {
    MATRIX_TILE = 64,
    MATRIX_THREADS = MATRIX_TILE / 16 * 32,
    MATRIX_ROOM_MOST = 52 << 10, /* bytes of shared memory */
};

/* A column of a product with one expert: the row of x to read, and the row of y to write. */
struct cuda_expert_column {
    int32_t from, to;
};

/* At most MATRIX_TILE columns of one expert, consecutive in the list of all columns; columns 0:
 * unused tile. */
struct cuda_expert_tile {
    int32_t expert, first, columns;
};

/* Groups the columns of each held expert, in order of their pairs, contiguously in `column` and in
 * tiles. `tiles` is enough for any choice; unused tiles get no columns. Pairs of other experts are
 * left out. grid: places; shared memory: an int for each */
struct cuda_group_args {
    struct cuda_choice choice;
    struct cuda_expert_column *column;
    struct cuda_expert_tile *tile;
    int32_t pairs, tiles;
    int32_t tokens, pad; /* number of tokens if x has a row per token; 0: a row per pair */
};

/* The matrix_experts_* kernels: y_i[to] = w_i x[from] for the columns of each expert, x packed as
 * for matrix_*. grid: (tiles of MATRIX_TILE rows of one expert's matrices, tiles) */
struct cuda_grouped_args {
    struct cuda_matrix w[2];
    float *y[2]; /* rows of n floats */
    const uint8_t *x;
    uint64_t x_stride;
    const struct cuda_expert_column *column;
    const struct cuda_expert_tile *tile;
    struct cuda_expert_rows rows;
    int32_t n, pad; /* n: rows of one expert's matrix */
};

/* ------------------------------------------------------------------- row by row: rows.cu -- */

enum {
    ROW_THREADS = 256,
    NORM_THREADS = 512, /* rms_norm: one block computes a row, so it gets more threads */
    NORM_VECTOR = 4,    /* neighbouring elements per thread */
    NORM_KEPT = 4,      /* vectors kept in registers, enough for rows up to 8192 */
};

/* y = x / rms(x) * w for every row, with `b`, x = a + b, which is stored in `sum`; with `packed`
 * (not head_norm), y is also stored as pack_q8 packs it. rms_norm is without flags. grid: rows */
struct cuda_norm_args {
    const float *a, *b; /* b NULL: x = a */
    float *sum, *y;
    const float *w;
    uint8_t *packed; /* rows of `packed_stride` bytes; NULL: none */
    uint64_t packed_stride;
    int32_t n; /* width */
    float eps;
    int32_t heads; /* HEAD_NORM: heads per row, n is the width of one; else 1 */
    int32_t norm;  /* enum norm_flag, for layer_norm and head_norm */
    const float *bias;
};

enum cuda_pairwise {
    PAIRWISE_ADD,
    PAIRWISE_BIAS,
    PAIRWISE_SCALE,
    PAIRWISE_GATE,
    PAIRWISE_DIVIDE,
    PAIRWISE_SPREAD
};

/* y = a op b; BIAS and DIVIDE take b as one row, SCALE as one number; SPREAD multiplies by the
 * activation of b, of which a number is for `wide` neighbours of a. grid: (width / ROW_THREADS
 * rounded up, rows) */
struct cuda_pairwise_args {
    const float *a, *b;
    float *y;
    int32_t n, what;
    float factor; /* PAIRWISE_SCALE without b; PAIRWISE_GATE: of the activation */
    int32_t activation;
    int32_t wide;
    int32_t skips; /* PAIRWISE_GATE: 1: y = 0 where |activation| <= threshold */
    float threshold;
    int32_t pad;
};

/* y = the inputs concatenated, their sum in order, or the first n columns of one input. grid:
 * (width of y / ROW_THREADS, rows) */
struct cuda_merge_args {
    const float *x[8];
    int32_t width[8];
    float *y;
    int32_t n_in, n; /* width of y */
    int32_t sums, pad;
};

/* grid: (k / 32 / ROW_THREADS rounded up, tokens); types without blocks: k / ROW_THREADS */
struct cuda_embed_args {
    struct cuda_step step;
    struct cuda_matrix w;
    float *y;
    float scale;              /* 0: none */
    int32_t rows_by_position; /* the rows that there are; 0: rows by token id */
    int32_t row_offset;       /* of position 0 */
    int32_t pad;
};

/* y = x times a factor that depends on the row's position, see SCALE. grid: as pairwise */
struct cuda_temper_args {
    struct cuda_step step;
    const float *x;
    float *y;
    int32_t n, pad;
    float scale, temperature, temperature_step, temperature_offset;
};

/* grid: (n / ROW_THREADS rounded up, rows) */
struct cuda_select_args {
    struct cuda_step step;
    const float *x;
    float *y;
    int32_t n, pad;
};

/* grid: tokens */
struct cuda_rope_args {
    struct cuda_step step;
    const float *x;
    float *y;
    /* per pair: rotation per position, in units of 2^-64 turns; multiplied by the position it wraps
     * exactly at a full turn. */
    const uint64_t *turn;
    int32_t heads, head_dim, dims, halves;
    float magnitude; /* of what is rotated */
    int32_t first;   /* the dimensions from there on */
};

/* grid: tokens; a warp takes 32 elements of a head */
struct cuda_kv_store_args {
    struct cuda_step step;
    const float *k, *v; /* with a tail: of each head what it does not share, and V; the tail */
    struct cuda_kv_layer layer;
    int32_t tail, pad; /* the last dimensions of K, which all heads share */
};

/* Both rotations of a layer and the store of K and V; rotated K is only stored in the cache. grid:
 * (KV heads, tokens); shared memory: a head of floats */
struct cuda_rope_store_args {
    struct cuda_rope_args q, k;      /* k.y: none */
    struct cuda_kv_store_args store; /* store.k: none */
};

/* grid: (blocks of the layer in a page, copies) */
struct cuda_kv_copy_args {
    struct cuda_step step;
    struct cuda_kv_layer layer;
};

/* ------------------------------------------------------------- recurrent mixers: state.cu -- */

enum { STATE_THREADS = 64 };

/* conv, delta, ssm: fields as of OP_CONV, OP_DELTA, OP_SSM (kernels/op.h); state: slots of
 * slot_floats. ssm with per_channel: a head is a group of single channels, its columns, each with a
 * dt and weights of its own. grid: (blocks of columns of all heads, or of channels; sequences);
 * shared memory: 3 head_dim or 2 rows floats */
struct cuda_state_args {
    struct cuda_step step;
    const float *in[3], *weight[2];
    float *state, *y;
    int64_t slot_floats;
    int32_t k, rows; /* conv: inputs before the current one; ssm: of a head's state */
    int32_t heads, groups, head_dim, per_channel, cyclic;
    float eps, scale; /* of op.h */
    float alibi;      /* ssm: constant decays */
};

/* grid: (slot_floats / STATE_THREADS rounded up) */
struct cuda_state_copy_args {
    struct cuda_step step;
    float *state;
    int64_t slot_floats;
    int32_t copies, pad;
};

/* grid: tokens; one warp; shared memory: words for each score, each 32 of them and each group */
struct cuda_route_args {
    const float *logits, *bias; /* bias: NULL or one for each score */
    const float *order;         /* of all experts; the choice has places in it. NULL: ids */
    float *choice;
    int32_t scores, share, used, norm, score, groups, groups_used;
    int32_t scored; /* scores choose, else logits; enum route_score */
    float scale;    /* 0: none */
    int32_t pad;
};

/* What becomes of the products of grouped experts, `part` being a row a pair. expert_gate: y[pair]
 * = a(y[pair]) * part[pair] for the pairs of held experts; the others are left as they are, and
 * nobody reads them. grid: (n / ROW_THREADS rounded up, pairs). expert_sum: y[token] = sum over the
 * held experts of its choice of weight * part[pair], in the order of the choice. grid: (n /
 * ROW_THREADS rounded up, tokens). expert_apart: y[pair] = part[pair]; grid as of expert_gate */
struct cuda_expert_parts_args {
    struct cuda_choice choice;
    struct cuda_expert_extras extras;
    const float *part;
    float *y;
    int32_t n, activation;
};

/* ------------------------------------------------------------------- sampling: sample.cu -- */

enum {
    TOP_THREADS = 512,
    TOP_STRETCH = 2048, /* keys in the shared memory of a block: so many logits, or of lists */
    TOP_SHARED = TOP_STRETCH * 8,
};

/* The candidates of rows of logits (OP_TOP_K). top_k makes of each stretch of TOP_STRETCH logits a
 * list of the 2^kept_bits first ones, in falling order; grid: (lists, rows). top_k_merge makes of
 * the lists of a row its candidates; grid: rows. */
struct cuda_top_args {
    const float *x; /* rows of n */
    float *y;       /* rows of `wanted` ids and as many logits */
    uint64_t *list; /* of each row `lists` ones of keys, see sample.cu */
    int32_t n, lists;
    int32_t first;             /* id of the first logit */
    int32_t wanted, kept_bits; /* wanted <= 2^kept_bits <= TOP_STRETCH / 2 */
};

/* ------------------------------------------------------------------ attention: attention.cu - */

enum {
    ATTENTION_THREADS = 128,
    ATTENTION_PAGE = 64,      /* positions of a page of KV: the unit of the online softmax */
    ATTENTION_HEADS = 4,      /* of a group, at once */
    ATTENTION_SEGMENTS = 128, /* of a context, at most; of one page each where that suffices */
};

/* One block a token, KV head and, with `partial`, segment: grid (segments or more, kv heads,
 * tokens), the results of a segment {max, sum, values[v_dim]} go to partial[((token * heads +
 * head) * segments + segment) * (2 + v_dim)]. Without, grid (1, kv heads, tokens), all segments
 * are merged in their order by the block. Both give the same bits. attention_turned_*: values lie
 * in K. Shared memory: cuda_attention_shared. */
struct cuda_attention_args {
    struct cuda_step step;
    struct cuda_kv_layer layer;
    const float *q;
    float *y, *partial;
    uint8_t *packed; /* y as pack_q8 packs it, too: a row a token; NULL: none */
    uint64_t packed_stride;
    const float *sinks; /* one for each head, or NULL */
    int32_t heads, segments;
    /* soft_cap, window, chunked, alibi: as in struct oato_op; attention_tile has none of them */
    float scale, soft_cap, alibi;
    int32_t alibi_first, alibi_heads;
    int32_t window;
    int32_t
        seqs; /* attention_tile: how many step.seq has, those behind the step's without queries */
    int32_t chunked;
};

/* Floats of ATTENTION_HEADS heads: two to scale with, the weights of a page, queries, values of a
 * segment and of all, and what each warp has of scores or each group of threads of values. */
static inline uint32_t cuda_attention_shared(int32_t head_dim, int32_t v_dim)
{
    const uint32_t d = (uint32_t)v_dim, pairs = d / 2;
    const uint32_t groups = pairs < ATTENTION_THREADS ? ATTENTION_THREADS / pairs : 1;
    const uint32_t scores = ATTENTION_THREADS / 32 * ATTENTION_PAGE, values = groups * d;
    const uint32_t part = scores > values ? scores : values;
    return (uint32_t)sizeof(float) * ATTENTION_HEADS *
           (2 + ATTENTION_PAGE + (uint32_t)head_dim + 2 * d + part);
}

/* ------------------------------------------------------------- attention: attention_tile.cu - */

/* The attention_tile_<type of KV>_<head_dim> kernels. Segments of ATTENTION_TILE_SPAN positions are
 * merged by the block or, with `partial` (the y dimension of the grid being segments), by
 * attention_tile_merge, as attention does it and with the same bits, too. The queries that a
 * sequence has under one KV head, heads / kv_heads a token, are divided into tiles of 16 rows a
 * warp; blocks have 1 to ATTENTION_TILE_WARPS warps, which changes no bits. grid: tiles of all
 * sequences * kv heads, or more. Shared memory: ATTENTION_TILE_SHARED, K and V of a page with 16
 * bytes behind each row. */
enum {
    ATTENTION_TILE_WARPS = 8,
    ATTENTION_TILE_ROWS = 16,
    ATTENTION_TILE_SPAN = 1024, /* what a block keeps elsewhere between two of them costs a tenth */
};
#define ATTENTION_TILE_SHARED(head_dim) (2 * (72 * (head_dim) + 64 * ((head_dim) + 8)))

/* ---------------------------------------------------------- weights sent: planes_make.cu -- */

enum { PLANES_THREADS = 128, PLANES_STRETCH = 16 };

/* The planes_<type> kernels: GGUF blocks, one behind the other from a multiple of 16 bytes on, to
 * where they begin in each plane. grid: cuda_planes_grid. */
struct cuda_planes_args {
    const uint8_t *from;
    uint8_t *plane[4];
    int64_t blocks;
};

/* elements: of a GGUF block */
static inline uint32_t cuda_planes_grid(int64_t blocks, int32_t elements)
{
    const int64_t each = elements == 256 ? PLANES_STRETCH : PLANES_THREADS / (elements / 32);
    return (uint32_t)((blocks + each - 1) / each);
}

/* ------------------------------------------------------------------ profiling: measure.cu -- */

/* Takes no argument, but every kernel has one. grid: 1 */
struct cuda_mark_args {
    int32_t pad;
};

enum { READ_THREADS = 256, READ_STRETCH = 16 << 10 };

/* Reads stretches of READ_STRETCH bytes, all zero, and writes nothing. grid: any */
struct cuda_read_args {
    const uint8_t *from;
    uint64_t stretches;
    uint32_t *out;
};

#endif
