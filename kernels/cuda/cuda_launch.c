/*
 * cuda_launch.c - from a record to its kernels: for each kind of operator which kernels it takes,
 * with what arguments, over what grid. Runs on the queue's thread; looks up and allocates nothing.
 */
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_layout.h"

#include <inttypes.h>
#include <string.h>

enum {
    SPLIT_ROWS = 16,            /* steps of more rows keep a GPU busy without dividing contexts */
    SPLIT_SEGMENTS = 128,       /* for which there is room at so many rows: of 32768 positions */
    BF16_CAPABILITY = 80,       /* of tensor cores that multiply BF16 */
    MATVEC_WARPS_WANTED = 2048, /* of a product: 16 for each of 128 multiprocessors */
    MATVEC_SHARE_LEAST = 1024,  /* elements of a row for each warp: a block of 32 for each lane */
    TILE_WARPS_LEAST = 2,       /* of a block of attention_tile, however few rows there are */
};

/* A record being launched. */
struct launch {
    struct cuda_device *d;
    const struct compiled *c;
    const struct program_record *r;
    const struct cuda_record *kernels;
    const struct oato_op *op;
    const struct step *step;
    uint32_t T; /* rows, at least 1 */
};

struct grid {
    uint32_t x, y, z;
};

static cu_result start(const struct launch *l, cu_function kernel, struct grid grid,
                       uint32_t threads, uint32_t shared_bytes, void *argument)
{
    void *arguments[] = {argument};
    return l->d->cu->launch(kernel, grid.x, grid.y, grid.z, threads, 1, 1, shared_bytes,
                            l->d->queue.stream, arguments, NULL);
}

static uint32_t blocks_of(int64_t n, int64_t size)
{
    return (uint32_t)((n + size - 1) / size);
}

static const void *arena(const struct launch *l, uint64_t offset)
{
    return (const uint8_t *)l->c->program->arena + offset;
}

static const float *input(const struct launch *l, int i)
{
    return arena(l, l->r->in[i]);
}

static float *output(const struct launch *l, int i)
{
    return (float *)(uintptr_t)arena(l, l->r->out[i]);
}

static void *workspace(const struct launch *l)
{
    return (void *)(uintptr_t)l->d->workspace;
}

static const struct oato_weight *weight(const struct launch *l, int i)
{
    return l->c->program->weights[l->r->weight[i]];
}

static const float *vector(const struct launch *l, int i)
{
    return const_floats(weight(l, i)->data);
}

static struct cuda_matrix matrix(const struct launch *l, int i)
{
    const struct oato_weight *w = weight(l, i);
    struct cuda_matrix m = {
        .rows = (int32_t)w->rows, .k = (int32_t)w->k, .dtype = (int32_t)w->dtype};
    uint64_t offset[4];
    cuda_layout_planes(w->dtype, w->rows, w->k, offset);
    for (int p = 0; p < 4; p++)
        m.plane[p] = w->data + offset[p];
    return m;
}

static struct cuda_kv_layer kv_layer(const struct launch *l, int32_t i)
{
    const struct kv_cache *kv = l->c->program->kv;
    return (struct cuda_kv_layer){.data = kv->data + kv->layer_offset[i],
                                  .block_bytes = kv_block_bytes(kv->dtype, kv->layers[i].head_dim),
                                  .kv_heads = kv->layers[i].kv_heads,
                                  .head_dim = kv->layers[i].head_dim,
                                  .dtype = (int32_t)kv->dtype};
}

/* ------------------------------------------------------------------------------ products -- */

bool cuda_has_blocks(oato_dtype dtype)
{
    return dtype != DT_F32 && dtype != DT_F16 && dtype != DT_BF16;
}

/* Of a row of k elements. */
static uint64_t packed_bytes(oato_dtype dtype, int64_t k)
{
    if (!cuda_has_blocks(dtype))
        return (uint64_t)k * sizeof(uint16_t);
    return size_align((uint64_t)k + (uint64_t)k / 32 * sizeof(struct cuda_pack_scale), 16);
}

bool cuda_takes_matrix(const struct cuda_device *d, const struct oato_op *op,
                       enum numerics_choice choice)
{
    return choice == NUMERICS_PREFILL && op_weight_use(op) == WEIGHT_MATRIX &&
           op->dtype != DT_F32 && (op->dtype != DT_BF16 || d->capability >= BF16_CAPABILITY);
}

/* Packs `rows` rows of k, if the type wants it; where the columns are then, and how far apart. */
static cu_result pack(const struct launch *l, int64_t rows, const uint8_t **x, uint64_t *stride)
{
    const int32_t k = l->op->k;
    *x = (const uint8_t *)input(l, 0);
    *stride = (uint64_t)k * sizeof(float);
    if (!l->kernels->pack)
        return CU_OK;
    struct cuda_pack_args a = {.x = input(l, 0), .out = workspace(l), .k = k};
    *x = a.out;
    *stride = a.stride = packed_bytes((oato_dtype)l->op->dtype, k);
    if (l->kernels->packed)
        return CU_OK;
    return start(l, l->kernels->pack,
                 (struct grid){blocks_of(k, PACK_WARPS * 32), (uint32_t)rows, 1}, PACK_WARPS * 32,
                 0, &a);
}

static uint64_t packed_rows_bytes(const struct oato_op *op, int64_t rows)
{
    return size_align((uint64_t)rows * packed_bytes((oato_dtype)op->dtype, op->k), 256);
}

/* Of gate and up, up goes to the workspace, behind the packed input, and is multiplied in. */
static cu_result run_matrix(const struct launch *l)
{
    const bool gate_up = l->op->kind == OP_GATE_UP;
    struct cuda_matvec_args a = {.n = l->r->n_weights, .columns = (int32_t)l->T};
    uint32_t tiles = 0;
    for (int i = 0; i < a.n; i++) {
        a.w[i] = matrix(l, i);
        a.y[i] = gate_up && i
                     ? (float *)(void *)((uint8_t *)workspace(l) + packed_rows_bytes(l->op, l->T))
                     : output(l, i);
        tiles += blocks_of(a.w[i].rows, MATRIX_TILE);
    }
    cu_result result = pack(l, l->T, &a.x, &a.x_stride);
    if (!result)
        result = start(l, l->kernels->run, (struct grid){tiles, blocks_of(l->T, MATRIX_TILE), 1},
                       MATRIX_THREADS, MATRIX_ROOM_MOST, &a);
    if (result || !gate_up)
        return result;
    struct cuda_pairwise_args gate = {
        .a = a.y[0], .b = a.y[1], .y = a.y[0], .n = l->op->n, .what = PAIRWISE_SWIGLU};
    return start(l, l->kernels->merge, (struct grid){blocks_of(gate.n, ROW_THREADS), l->T, 1},
                 ROW_THREADS, 0, &gate);
}

/* Warps for each pair of rows: so many that a large GPU has enough of them, while lanes have work.
 * The shapes alone decide, because sums are added in another order. */
static int32_t split_of(int64_t pairs, int32_t k)
{
    int32_t split = 1;
    while (split < MATVEC_WARPS && pairs * split < MATVEC_WARPS_WANTED &&
           k >= 2 * split * MATVEC_SHARE_LEAST)
        split *= 2;
    return split;
}

static cu_result run_product(const struct launch *l)
{
    const bool gate_up = l->op->kind == OP_GATE_UP;
    if (cuda_takes_matrix(l->d, l->op, l->r->numerics))
        return run_matrix(l);
    struct cuda_matvec_args a = {
        .n = l->r->n_weights, .columns = (int32_t)l->T, .gate_up = gate_up};
    int64_t pairs = 0;
    for (int i = 0; i < a.n; i++) {
        a.w[i] = matrix(l, i);
        a.y[i] = gate_up ? output(l, 0) : output(l, i);
        pairs += (a.w[i].rows + 1) / 2;
    }
    if (gate_up)
        pairs = a.w[0].rows;
    const cu_result result = pack(l, l->T, &a.x, &a.x_stride);
    if (result)
        return result;
    const bool many = l->T > 1;
    a.split = split_of(pairs, l->op->k);
    const struct grid grid = {blocks_of(pairs * a.split, MATVEC_WARPS),
                              many ? blocks_of(l->T, MATVEC_COLUMNS) : 1, 1};
    return start(l, many ? l->kernels->many : l->kernels->run, grid, MATVEC_WARPS * 32, 0, &a);
}

/* ------------------------------------------------------------------------------- experts -- */

static bool is_experts(const struct oato_op *op)
{
    return op->kind == OP_EXPERT_GATE_UP || op->kind == OP_EXPERT_DOWN;
}

/* What grouped experts need of the workspace, in this order: their packed input, the list of
 * columns, its tiles, and a row a pair of what is merged afterwards (up, or what down gives). */
struct experts_room {
    uint64_t columns_at, tiles_at, parts_at, bytes;
    int64_t packed; /* rows */
    int32_t pairs;
    uint32_t tiles; /* most that a choice can make, whatever it is */
};

static struct experts_room experts_room(const struct oato_op *op, int64_t rows)
{
    const int64_t pairs = rows * op->experts_used, chosen = min_i64(pairs, op_experts_held(op));
    struct experts_room m = {.packed = op->kind == OP_EXPERT_DOWN ? pairs : rows,
                             .pairs = (int32_t)pairs,
                             /* every list's last tile may have a single column */
                             .tiles =
                                 (uint32_t)((pairs + (MATRIX_TILE - 1) * chosen) / MATRIX_TILE)};
    m.columns_at = packed_rows_bytes(op, m.packed);
    m.tiles_at =
        size_align(m.columns_at + (uint64_t)pairs * sizeof(struct cuda_expert_column), 256);
    m.parts_at = size_align(m.tiles_at + m.tiles * sizeof(struct cuda_expert_tile), 256);
    m.bytes = m.parts_at + (uint64_t)pairs * (uint64_t)op->n * sizeof(float);
    return m;
}

static struct cuda_choice choice_of(const struct launch *l)
{
    return (struct cuda_choice){.rows = input(l, 1),
                                .used = l->op->experts_used,
                                .first = l->op->expert_first,
                                .held = op_experts_held(l->op)};
}

/* Each expert's columns together, through tensor cores. The grid has room for the tiles of any
 * choice of so many rows, so a captured launch serves all steps of its size: fewer tiles than there
 * are experts have no columns, and their blocks leave at once. A step of few rows takes the same
 * kernels, for the same bits: its grid is a tile a pair, and a tile multiplies only the groups of 8
 * columns that it has. */
static cu_result run_grouped_experts(const struct launch *l)
{
    const struct oato_op *op = l->op;
    const bool gate_up = op->kind == OP_EXPERT_GATE_UP;
    const struct experts_room room = experts_room(op, l->T);
    uint8_t *memory = workspace(l);
    float *part = (float *)(void *)(memory + room.parts_at);
    struct cuda_group_args group = {
        .choice = choice_of(l),
        .column = (struct cuda_expert_column *)(void *)(memory + room.columns_at),
        .tile = (struct cuda_expert_tile *)(void *)(memory + room.tiles_at),
        .pairs = room.pairs,
        .tiles = (int32_t)room.tiles,
        .tokens = gate_up};
    struct cuda_grouped_args a = {.column = group.column, .tile = group.tile, .n = op->n};
    for (int i = 0; i < l->r->n_weights; i++) {
        a.w[i] = matrix(l, i);
        a.y[i] = gate_up && !i ? output(l, 0) : part;
    }
    const uint32_t held = (uint32_t)group.choice.held;
    cu_result result = start(l, l->kernels->group, (struct grid){held, 1, 1}, ROW_THREADS,
                             held * (uint32_t)sizeof(int32_t), &group);
    if (!result)
        result = pack(l, room.packed, &a.x, &a.x_stride);
    if (!result)
        result =
            start(l, l->kernels->run,
                  (struct grid){l->r->n_weights * blocks_of(op->n, MATRIX_TILE), room.tiles, 1},
                  MATRIX_THREADS, MATRIX_ROOM_MOST, &a);
    struct cuda_expert_parts_args merge = {
        .choice = group.choice, .part = part, .y = output(l, 0), .n = op->n};
    if (!result)
        result = start(
            l, l->kernels->merge,
            (struct grid){blocks_of(op->n, ROW_THREADS), gate_up ? (uint32_t)room.pairs : l->T, 1},
            ROW_THREADS, 0, &merge);
    return result;
}

static cu_result run_experts(const struct launch *l)
{
    const struct oato_op *op = l->op;
    const bool gate_up = op->kind == OP_EXPERT_GATE_UP;
    const uint32_t pairs = l->T * (uint32_t)op->experts_used;
    if (cuda_takes_matrix(l->d, op, l->r->numerics))
        return run_grouped_experts(l);
    struct cuda_experts_args a = {.y = output(l, 0), .choice = choice_of(l), .n = op->n};
    for (int i = 0; i < l->r->n_weights; i++)
        a.w[i] = matrix(l, i);
    const cu_result result = pack(l, gate_up ? l->T : pairs, &a.x, &a.x_stride);
    if (result)
        return result;
    const struct grid grid = {blocks_of(op->n, gate_up ? MATVEC_WARPS : MATVEC_ROWS),
                              gate_up ? pairs : l->T, 1};
    return start(l, l->kernels->run, grid, MATVEC_WARPS * 32, 0, &a);
}

/* --------------------------------------------------------------------------- row by row --- */

static cu_result run_norm(const struct launch *l)
{
    const bool adds = l->op->kind == OP_ADD_NORM, heads = l->op->kind == OP_HEAD_NORM;
    struct cuda_norm_args a = {.a = input(l, 0),
                               .y = output(l, adds),
                               .w = vector(l, 0),
                               .n = heads ? l->op->head_dim : l->op->n,
                               .eps = l->op->eps,
                               .heads = heads ? l->op->heads : 1};
    if (adds) {
        a.b = input(l, 1);
        a.sum = output(l, 0);
    }
    if (l->kernels->packs) {
        a.packed = workspace(l);
        a.packed_stride = packed_bytes(DT_Q8_0, a.n);
    }
    return start(l, l->kernels->run, (struct grid){l->T, 1, 1}, ROW_THREADS, 0, &a);
}

static cu_result run_pairwise(const struct launch *l)
{
    const uint16_t kind = l->op->kind;
    struct cuda_pairwise_args a = {.a = input(l, 0), .y = output(l, 0), .n = l->op->n};
    a.what = kind == OP_ADD     ? PAIRWISE_ADD
             : kind == OP_BIAS  ? PAIRWISE_BIAS
             : kind == OP_SCALE ? PAIRWISE_SCALE
                                : PAIRWISE_SWIGLU;
    a.b = kind == OP_BIAS || kind == OP_SCALE ? vector(l, 0) : input(l, 1);
    return start(l, l->kernels->run, (struct grid){blocks_of(a.n, ROW_THREADS), l->T, 1},
                 ROW_THREADS, 0, &a);
}

static cu_result run_merge(const struct launch *l)
{
    struct cuda_merge_args a = {
        .y = output(l, 0), .n_in = l->r->n_in, .n = l->op->n, .sums = l->op->kind == OP_MERGE_SUM};
    for (int i = 0; i < a.n_in; i++) {
        a.x[i] = input(l, i);
        a.width[i] = l->r->in_width[i];
    }
    return start(l, l->kernels->run, (struct grid){blocks_of(a.n, ROW_THREADS), l->T, 1},
                 ROW_THREADS, 0, &a);
}

static cu_result run_embed(const struct launch *l)
{
    struct cuda_embed_args a = {
        .step = l->c->step, .w = matrix(l, 0), .y = output(l, 0), .scale = l->op->scale};
    const int64_t units = cuda_has_blocks((oato_dtype)l->op->dtype) ? a.w.k / 32 : a.w.k;
    return start(l, l->kernels->run, (struct grid){blocks_of(units, ROW_THREADS), l->T, 1},
                 ROW_THREADS, 0, &a);
}

static cu_result run_select(const struct launch *l)
{
    struct cuda_select_args a = {
        .step = l->c->step, .x = input(l, 0), .y = output(l, 0), .n = l->op->n};
    return start(l, l->kernels->run, (struct grid){blocks_of(a.n, ROW_THREADS), l->T, 1},
                 ROW_THREADS, 0, &a);
}

static struct cuda_rope_args rope_args(const struct launch *l)
{
    return (struct cuda_rope_args){.step = l->c->step,
                                   .x = input(l, 0),
                                   .y = output(l, 0),
                                   .turn = (const uint64_t *)(uintptr_t)l->kernels->turn,
                                   .heads = l->op->heads,
                                   .head_dim = l->op->head_dim,
                                   .dims = l->op->rope_dims,
                                   .halves = l->op->rope_pairing == ROPE_HALVES};
}

static cu_result run_rope(const struct launch *l)
{
    struct cuda_rope_args a = rope_args(l);
    return start(l, l->kernels->run, (struct grid){l->T, 1, 1}, ROW_THREADS, 0, &a);
}

static cu_result run_route(const struct launch *l)
{
    const struct oato_op *op = l->op;
    struct cuda_route_args a = {.logits = input(l, 0),
                                .choice = output(l, 0),
                                .experts = op->experts,
                                .used = op->experts_used,
                                .norm = op->route_norm,
                                .scale = op->scale};
    const uint32_t words = (uint32_t)op->experts + blocks_of(op->experts, 32);
    return start(l, l->kernels->run, (struct grid){l->T, 1, 1}, 32, words * sizeof(uint32_t), &a);
}

/* ------------------------------------------------------------------- KV and attention ----- */

/* The launch of a record that stands `back` before this one. */
static struct launch launch_before(const struct launch *l, int back)
{
    struct launch before = *l;
    before.r -= back;
    before.kernels -= back;
    before.op = &before.r->op;
    return before;
}

static cu_result run_kv_store(const struct launch *l)
{
    struct cuda_rope_store_args a = {.store = {.step = l->c->step,
                                               .k = input(l, 0),
                                               .v = input(l, 1),
                                               .layer = kv_layer(l, l->r->kv_layer)}};
    void *argument = &a.store;
    if (l->kernels->joins) {
        const struct launch q = launch_before(l, 2), k = launch_before(l, 1);
        a.q = rope_args(&q);
        a.k = rope_args(&k);
        argument = &a;
    }
    return start(l, l->kernels->run, (struct grid){l->T, 1, 1}, ROW_THREADS, 0, argument);
}

static cu_result run_kv_copy(const struct launch *l)
{
    const struct kv_cache *kv = l->c->program->kv;
    cu_result result = CU_OK;
    for (int32_t i = 0; kv && i < kv->n_layers && !result; i++) {
        struct cuda_kv_copy_args a = {.step = l->c->step, .layer = kv_layer(l, i)};
        const struct grid grid = {2 * (uint32_t)a.layer.kv_heads, (uint32_t)l->step->n_page_copies,
                                  1};
        result = start(l, l->kernels->run, grid, ROW_THREADS, 0, &a);
    }
    return result;
}

static uint64_t partial_floats(const struct oato_op *op, int64_t rows)
{
    return (uint64_t)rows * (uint64_t)op->heads * (uint64_t)(2 + op->head_dim);
}

/* Segments that the longest context of the step is divided into; 0: it is not. */
static int32_t split_segments(const struct launch *l)
{
    int64_t longest = 0;
    for (int32_t s = 0; s < l->step->n_seqs; s++)
        longest = max_i64(longest, l->step->seq[s].kv_len);
    const int64_t segments = (longest + ATTENTION_SPAN - 1) / ATTENTION_SPAN;
    const uint64_t room = l->d->workspace_bytes / sizeof(float);
    const bool fits = partial_floats(l->op, l->T) * (uint64_t)segments <= room;
    return l->T <= SPLIT_ROWS && segments > 1 && fits ? (int32_t)segments : 0;
}

bool cuda_takes_tile(const struct oato_op *op, enum numerics_choice choice)
{
    const bool dims = op->head_dim == 64 || op->head_dim == 96 || op->head_dim == 128;
    return choice == NUMERICS_PREFILL && op->kind == OP_ATTENTION && dims &&
           (op->dtype == DT_F16 || op->dtype == DT_Q8_0);
}

/* Tall tiles read K and V less often; lower ones keep more of the GPU busy. The grid has room for
 * any division of the tokens among sequences, so that a captured launch stays right. */
static cu_result run_tiles(const struct launch *l)
{
    const struct oato_op *op = l->op;
    struct cuda_attention_args a = {.step = l->c->step,
                                    .layer = kv_layer(l, l->r->kv_layer),
                                    .q = input(l, 0),
                                    .y = output(l, 0),
                                    .heads = op->heads,
                                    .scale = op->scale,
                                    .seqs = l->c->program->max_seqs};
    const int64_t rows = (int64_t)l->T * (op->heads / op->kv_heads);
    uint32_t warps = ATTENTION_TILE_WARPS;
    while (warps > TILE_WARPS_LEAST &&
           (int64_t)blocks_of(rows, warps * ATTENTION_TILE_ROWS) * op->kv_heads <
               l->d->multiprocessors * 3 / 4)
        warps /= 2;
    const uint32_t tile = warps * ATTENTION_TILE_ROWS;
    const int64_t partial = min_i64(l->T, a.seqs) * (tile - 1); /* a tile of each sequence */
    const uint32_t tiles = (uint32_t)((rows + partial) / tile);
    return start(l, l->kernels->run, (struct grid){tiles * (uint32_t)op->kv_heads, 1, 1},
                 warps * 32, ATTENTION_TILE_SHARED((uint32_t)op->head_dim), &a);
}

static cu_result run_attention(const struct launch *l)
{
    const struct oato_op *op = l->op;
    if (cuda_takes_tile(op, l->r->numerics))
        return run_tiles(l);
    struct cuda_attention_args a = {.step = l->c->step,
                                    .layer = kv_layer(l, l->r->kv_layer),
                                    .q = input(l, 0),
                                    .y = output(l, 0),
                                    .heads = op->heads,
                                    .segments = split_segments(l),
                                    .scale = op->scale};
    a.partial = a.segments ? workspace(l) : NULL;
    struct grid grid = {a.segments ? (uint32_t)a.segments : 1, (uint32_t)op->kv_heads, l->T};
    cu_result result =
        start(l, l->kernels->run, grid, ATTENTION_THREADS, cuda_attention_shared(op->head_dim), &a);
    if (!result && a.partial)
        result =
            start(l, l->kernels->merge, (struct grid){(uint32_t)op->heads, l->T, 1}, 32, 0, &a);
    return result;
}

/* -------------------------------------------------------------------------------- kinds --- */

static const struct {
    cu_result (*run)(const struct launch *l);
    const char *kernel; /* "%s": one for each type, which stands there */
    const char *many, *merge;
} kinds[OP_KIND_COUNT] = {
    [OP_EMBED] = {run_embed, "embed", NULL, NULL},
    [OP_RMS_NORM] = {run_norm, "rms_norm", NULL, NULL},
    [OP_ADD_NORM] = {run_norm, "rms_norm", NULL, NULL},
    [OP_HEAD_NORM] = {run_norm, "head_norm", NULL, NULL},
    [OP_MUL_MAT] = {run_product, "matvec_%s", "matvec_many_%s", NULL},
    [OP_QKV] = {run_product, "matvec_%s", "matvec_many_%s", NULL},
    [OP_GATE_UP] = {run_product, "matvec_%s", "matvec_many_%s", NULL},
    [OP_EXPERT_GATE_UP] = {run_experts, "expert_gate_up_%s", NULL, NULL},
    [OP_EXPERT_DOWN] = {run_experts, "expert_down_%s", NULL, NULL},
    [OP_ADD] = {run_pairwise, "pairwise", NULL, NULL},
    [OP_BIAS] = {run_pairwise, "pairwise", NULL, NULL},
    [OP_SCALE] = {run_pairwise, "pairwise", NULL, NULL},
    [OP_SWIGLU] = {run_pairwise, "pairwise", NULL, NULL},
    [OP_MERGE] = {run_merge, "merge", NULL, NULL},
    [OP_MERGE_SUM] = {run_merge, "merge", NULL, NULL},
    [OP_SELECT] = {run_select, "select_rows", NULL, NULL},
    [OP_ROPE] = {run_rope, "rope", NULL, NULL},
    [OP_ROUTE] = {run_route, "route", NULL, NULL},
    [OP_KV_STORE] = {run_kv_store, "kv_store", NULL, NULL},
    [OP_KV_COPY] = {run_kv_copy, "kv_copy", NULL, NULL},
    [OP_ATTENTION] = {run_attention, "attention_%s", NULL, "attention_merge"},
};

static const char *tile_kernel(int32_t head_dim)
{
    return head_dim == 64   ? "attention_tile_%s_64"
           : head_dim == 96 ? "attention_tile_%s_96"
                            : "attention_tile_%s_128";
}

/* NULL pattern: none is wanted. */
static oato_status find_kernel(const struct cuda_device *d, const char *pattern, oato_dtype dtype,
                               cu_function *out, struct oato_error *err)
{
    char name[64];
    const char *type = pattern ? strstr(pattern, "%s") : NULL;
    if (!pattern)
        return OATO_OK;
    snprintf(name, sizeof name, "%.*s%s%s", (int)(type ? type - pattern : 63), pattern,
             type ? dtype_name(dtype) : "", type ? type + 2 : "");
    cu_result result = cuda_kernel(d, name, out);
    if (!result && type && !strncmp(pattern, "matrix", 6))
        result = d->cu->function_set(*out, CU_FUNCTION_MAX_DYNAMIC_SHARED, MATRIX_ROOM_MOST);
    if (result) {
        char doing[96];
        snprintf(doing, sizeof doing, "finding its kernel %s", name);
        return cuda_fail(d->cu, result, d->id, doing, err);
    }
    return OATO_OK;
}

oato_status cuda_record_kernels(const struct cuda_device *d, const struct program_record *r,
                                struct cuda_record *out, struct oato_error *err)
{
    const oato_dtype dtype = (oato_dtype)r->op.dtype;
    const bool product = op_weight_use(&r->op) == WEIGHT_MATRIX, blocks = cuda_has_blocks(dtype);
    const char *kernel = kinds[r->op.kind].kernel, *many = kinds[r->op.kind].many;
    const char *merge = kinds[r->op.kind].merge, *group = NULL;
    const char *pack = product && blocks ? "pack_q8" : NULL;
    if (cuda_takes_matrix(d, &r->op, r->numerics)) {
        const bool experts = is_experts(&r->op), down = r->op.kind == OP_EXPERT_DOWN;
        kernel = experts ? "matrix_experts_%s" : "matrix_%s";
        many = NULL;
        merge = !experts ? "pairwise" : down ? "expert_sum" : "expert_gate";
        group = experts ? "expert_groups" : NULL;
        pack = blocks ? "pack_q8" : "pack_%s";
    } else if (cuda_takes_tile(&r->op, r->numerics)) {
        kernel = tile_kernel(r->op.head_dim);
        merge = NULL;
    }
    cuda_enter(d);
    if (find_kernel(d, kernel, dtype, &out->run, err) ||
        find_kernel(d, many, dtype, &out->many, err) ||
        find_kernel(d, merge, dtype, &out->merge, err) ||
        find_kernel(d, group, dtype, &out->group, err) ||
        find_kernel(d, pack, dtype, &out->pack, err))
        return err->status;
    return OATO_OK;
}

uint64_t cuda_op_workspace(const struct oato_op *op, int32_t rows)
{
    if (op->kind == OP_ATTENTION)
        return partial_floats(op, min_i64(rows, SPLIT_ROWS)) * SPLIT_SEGMENTS * sizeof(float);
    if (op_weight_use(op) != WEIGHT_MATRIX || op->dtype == DT_F32)
        return 0;
    if (is_experts(op))
        return experts_room(op, rows).bytes;
    const uint64_t up =
        op->kind == OP_GATE_UP ? (uint64_t)rows * (uint64_t)op->n * sizeof(float) : 0;
    return packed_rows_bytes(op, rows) + up;
}

static oato_status copy_record(const struct launch *l, struct oato_error *err)
{
    uint8_t *host = l->c->program->host_arena;
    const cu_address own = (cu_address)(uintptr_t)l->c->program->arena;
    const size_t bytes = (size_t)l->T * (size_t)l->r->in_width[0] * sizeof(float);
    const bool up = l->r->kind == RECORD_UPLOAD;
    const struct cuda_driver *cu = l->d->cu;
    const cu_result result =
        up ? cu->upload(own + l->r->out[0], host + l->r->in[0], bytes, l->d->queue.stream)
           : cu->download(host + l->r->out[0], own + l->r->in[0], bytes, l->d->queue.stream);
    return result ? cuda_fail(cu, result, l->d->id,
                              up ? "uploading a value" : "downloading a value", err)
                  : OATO_OK;
}

oato_status cuda_run_record(struct cuda_device *d, const struct compiled *c, uint32_t index,
                            const struct step *step, struct oato_error *err)
{
    char key[OP_KEY_SIZE], doing[OP_KEY_SIZE + 16];
    const struct program_record *r = &c->program->records[index];
    const int32_t rows = record_rows(r, step);
    const struct launch l = {.d = d,
                             .c = c,
                             .r = r,
                             .kernels = &c->records[index],
                             .op = &r->op,
                             .step = step,
                             .T = (uint32_t)rows};
    const bool pages = r->kind == RECORD_RUN && r->op.kind == OP_KV_COPY;
    if (l.kernels->waits || (pages ? !step->n_page_copies : !rows))
        return OATO_OK;
    if (r->kind != RECORD_RUN)
        return copy_record(&l, err);
    const cu_result result = kinds[r->op.kind].run(&l);
    if (!result)
        return OATO_OK;
    snprintf(doing, sizeof doing, "running %s", oato_op_key(&r->op, NULL, key));
    return cuda_fail(d->cu, result, d->id, doing, err);
}
