/*
 * cuda_products.c - products with matrices: how their inputs are packed, which kernels take them,
 * and what those need of the workspace. Of few rows they are read row by row (matvec.cu), of a
 * prompt's by tensor cores (matrix.cu, or cuBLAS where the plan says so), experts with all tokens
 * that chose them.
 */
#include "kernels/cuda/cuda_record.h"

enum {
    BF16_CAPABILITY = 80,       /* of tensor cores that multiply BF16 */
    MATVEC_WARPS_WANTED = 2048, /* of a product: 16 for each of 128 multiprocessors */
    MATVEC_SHARE_LEAST = 1024,  /* elements of a row for each warp: a block of 32 for each lane */
};

struct cuda_matrix launch_matrix(const struct launch *l, int i)
{
    const struct oato_weight *w = launch_weight(l, i);
    struct cuda_matrix m = {
        .rows = (int32_t)w->rows, .k = (int32_t)w->k, .dtype = (int32_t)w->dtype};
    uint64_t offset[4];
    cuda_layout_planes(w->dtype, w->rows, w->k, offset);
    for (int p = 0; p < 4; p++)
        m.plane[p] = w->data + offset[p];
    return m;
}

/* ------------------------------------------------------------------------------ products -- */

bool cuda_has_blocks(oato_dtype dtype)
{
    return dtype != DT_F32 && dtype != DT_F16 && dtype != DT_BF16;
}

/* Of a row of k elements. */
uint64_t cuda_packed_bytes(oato_dtype dtype, int64_t k)
{
    if (!cuda_has_blocks(dtype))
        return (uint64_t)k * sizeof(uint16_t);
    return CUDA_PACK_BYTES((uint64_t)k);
}

bool cuda_takes_matrix(const struct cuda_device *d, const struct oato_op *op,
                       enum numerics_choice choice)
{
    /* Gate and up of different types: two products, which only these kernels compute. */
    return (choice != NUMERICS_DECODE || op->up_dtype) && cuda_takes_rows(op) &&
           op->sparse != SPARSE_PREDICT && op->kind != OP_HEAD_MUL_MAT && op->dtype != DT_F32 &&
           (op->dtype != DT_BF16 || d->capability >= BF16_CAPABILITY);
}

bool cuda_takes_blas(const struct cuda_device *d, const struct oato_op *op,
                     enum numerics_choice choice)
{
    return choice == NUMERICS_LIBRARY && cuda_takes_matrix(d, op, choice) && !op_has_experts(op) &&
           cuda_blas_usable(cuda_of(&d->far.base));
}

/* A step of few rows is computed as in decode: reading the weights is what takes its time, and it
 * may be captured in a graph. */
static bool by_library(const struct launch *l)
{
    return l->kernels->blas && l->T > NUMERICS_DECODE_ROWS;
}

uint64_t cuda_packed_rows_bytes(oato_dtype dtype, int64_t k, int64_t rows)
{
    return size_align((uint64_t)rows * cuda_packed_bytes(dtype, k), 256);
}

static uint64_t packed_rows_bytes(const struct oato_op *op, int64_t rows)
{
    return cuda_packed_rows_bytes((oato_dtype)op->dtype, op->k, rows);
}

/* What gate's product is multiplied with. */
static uint64_t up_bytes(const struct oato_op *op, int64_t rows)
{
    const uint64_t bytes = (uint64_t)rows * (uint64_t)op->n * sizeof(float);
    return op->kind == OP_GATE_UP ? size_align(bytes, 256) : 0;
}

/* Rows of a matrix that become halves at once: a multiple of 64, unless there are fewer. */
static int64_t halves_rows(const struct cuda_device *d, int64_t rows, int64_t k)
{
    const int64_t fit = (int64_t)(d->blas.halves_bytes / ((uint64_t)k * sizeof(uint16_t)));
    return min_i64(rows, max_i64(fit / 64 * 64, 64));
}

/* Packs `rows` rows of k, if the type wants it; where the columns are then, and how far apart. */
cu_result launch_pack(const struct launch *l, int64_t rows, const uint8_t **x, uint64_t *stride)
{
    const int32_t k = l->op->k;
    const cu_function kernel = by_library(l) ? l->kernels->pack_blas : l->kernels->pack;
    *x = (const uint8_t *)launch_input(l, 0);
    *stride = (uint64_t)k * sizeof(float);
    if (!kernel)
        return CU_OK;
    const bool halves = by_library(l) && l->kernels->halves;
    struct cuda_pack_args a = {.x = launch_input(l, 0), .out = launch_workspace(l), .k = k};
    *x = a.out;
    *stride = a.stride = cuda_packed_bytes(halves ? DT_F16 : (oato_dtype)l->op->dtype, k);
    if (l->kernels->packed)
        return CU_OK;
    return launch_start(l, kernel, (struct grid){blocks_of(k, PACK_WARPS * 32), (uint32_t)rows, 1},
                        PACK_WARPS * 32, 0, &a);
}

/* y = w x by cuBLAS; weights with blocks become halves at `halves`, so many rows at a time. */
static cu_result multiply_by_library(const struct launch *l, const struct cuda_matrix *w,
                                     const uint8_t *x, uint64_t x_stride, uint8_t *halves, float *y)
{
    if (!l->kernels->halves)
        return cuda_blas_product(l->d, w, x, x_stride, (int32_t)l->T, y, w->rows);
    struct cuda_halves_args a = {.w = *w, .out = (uint16_t *)(void *)halves};
    cu_result result = CU_OK;
    for (; a.first < w->rows && !result; a.first += a.rows) {
        a.rows = min_i64(w->rows - a.first, halves_rows(l->d, w->rows, w->k));
        const struct cuda_matrix some = {
            .plane = {halves}, .rows = (int32_t)a.rows, .k = w->k, .dtype = DT_F16};
        const int64_t threads = a.rows * w->k / HALVES_OF_THREAD;
        result = launch_start(l, l->kernels->halves,
                              (struct grid){blocks_of(threads, HALVES_THREADS), 1, 1},
                              HALVES_THREADS, 0, &a);
        if (!result)
            result =
                cuda_blas_product(l->d, &some, x, x_stride, (int32_t)l->T, y + a.first, w->rows);
    }
    return result;
}

/* Tiles of so many rows of the first n matrices. */
static uint32_t row_tiles(const struct cuda_matvec_args *a, int n, int32_t rows)
{
    uint32_t tiles = 0;
    for (int i = 0; i < n; i++)
        tiles += blocks_of(a->w[i].rows, rows);
    return tiles;
}

/* Of gate and up, up goes to the workspace, behind the packed input, and is multiplied in. */
static cu_result run_matrix(const struct launch *l)
{
    const bool gate_up = l->op->kind == OP_GATE_UP;
    struct cuda_matvec_args a = {.n = l->r->n_weights, .columns = (int32_t)l->T};
    cu_result result = launch_pack(l, l->T, &a.x, &a.x_stride);
    uint8_t *up = (uint8_t *)launch_workspace(l) + size_align(l->T * a.x_stride, 256);
    for (int i = 0; i < a.n; i++) {
        a.w[i] = launch_matrix(l, i);
        a.y[i] = gate_up && i ? (float *)(void *)up : launch_output(l, i);
    }
    for (int i = 0; i < a.n && by_library(l) && !result; i++)
        result =
            multiply_by_library(l, &a.w[i], a.x, a.x_stride, up + up_bytes(l->op, l->T), a.y[i]);
    if (!by_library(l) && !result)
        result = launch_start(
            l, l->kernels->run,
            (struct grid){row_tiles(&a, a.n, MATRIX_TILE), blocks_of(a.columns, MATRIX_TILE), 1},
            MATRIX_THREADS, MATRIX_ROOM_MOST, &a);
    if (result || !gate_up)
        return result;
    struct cuda_pairwise_args gate = {.a = a.y[0],
                                      .b = a.y[1],
                                      .y = a.y[0],
                                      .n = l->op->n,
                                      .what = PAIRWISE_GATE,
                                      .factor = l->op->scale,
                                      .activation = l->op->activation,
                                      .skips = l->op->sparse != SPARSE_OFF,
                                      .threshold = l->op->threshold};
    return launch_start(l, l->kernels->merge,
                        (struct grid){blocks_of(gate.n, ROW_THREADS), l->T, 1}, ROW_THREADS, 0,
                        &gate);
}

/* Warps for each pair of rows: so many that a large GPU has enough of them, while lanes have work.
 * The shapes alone decide, because sums are added in another order. */
int32_t launch_split(int64_t pairs, int32_t k)
{
    int32_t split = 1;
    while (split < MATVEC_WARPS && pairs * split < MATVEC_WARPS_WANTED &&
           k >= 2 * split * MATVEC_SHARE_LEAST)
        split *= 2;
    return split;
}

/* The record behind a product adds a residual, or a bias to every row. */
static void add_next(const struct launch *l, struct cuda_matvec_args *a)
{
    const struct launch next = launch_near(l, 1);
    a->sum = launch_output(&next, 0);
    if (next.op->kind == OP_BIAS) {
        a->addend = launch_vector(&next, 0);
        return;
    }
    a->addend = launch_input(&next, next.r->in[0] == l->r->out[0]);
    a->addend_stride = next.op->n;
}

/* By tensor cores: blocks of rows times blocks of columns. */
static cu_result run_batch(const struct launch *l, struct cuda_matvec_args *a)
{
    const uint32_t tiles =
        a->gate_up ? row_tiles(a, 1, BATCH_ROWS / 2) : row_tiles(a, a->n, BATCH_ROWS);
    return launch_start(l, l->kernels->batch,
                        (struct grid){tiles * blocks_of(l->T, BATCH_COLUMNS), 1, 1}, BATCH_THREADS,
                        l->op->dtype == DT_Q2_K ? BATCH_ROOM_Q2_K : BATCH_ROOM, a);
}

/* The same of types without blocks, whose rows several warps may share. */
static cu_result run_floats(const struct launch *l, struct cuda_matvec_args *a)
{
    const uint32_t tiles =
        a->gate_up ? row_tiles(a, 1, FLOAT_ROWS / 2) : row_tiles(a, a->n, FLOAT_ROWS);
    const uint32_t blocks = blocks_of((int64_t)tiles * a->split, MATVEC_WARPS);
    return launch_start(l, l->kernels->batch,
                        (struct grid){blocks * blocks_of(l->T, FLOAT_COLUMNS), 1, 1},
                        MATVEC_WARPS * 32, (uint32_t)a->split * FLOAT_ROOM, a);
}

/* `pairs` of rows by the kernels for few columns. */
static cu_result run_rows(const struct launch *l, struct cuda_matvec_args *a, int64_t pairs)
{
    if (l->T > MATVEC_COLUMNS)
        return cuda_has_blocks((oato_dtype)l->op->dtype) ? run_batch(l, a) : run_floats(l, a);
    const cu_function kernel = l->T > 1 ? l->kernels->many : l->kernels->run;
    const uint32_t columns = l->T > 1 ? MATVEC_COLUMNS : 1; /* at once */
    const uint32_t blocks = blocks_of(pairs * a->split, MATVEC_WARPS) * blocks_of(l->T, columns);
    return launch_start(l, kernel, (struct grid){blocks, 1, 1}, MATVEC_WARPS * 32, 0, a);
}

cu_result launch_product(const struct launch *l)
{
    const bool gate_up = l->op->kind == OP_GATE_UP, skips = gate_up && l->op->sparse;
    if (op_by_columns(l->op))
        return launch_columns(l);
    if (l->op->sparse == SPARSE_PREDICT)
        return launch_listed(l);
    if (l->kernels->blas ? by_library(l) : cuda_takes_matrix(l->d, l->op, l->r->numerics))
        return run_matrix(l);
    struct cuda_matvec_args a = {.n = skips ? 1 : l->r->n_weights,
                                 .columns = (int32_t)l->T,
                                 .gate_up = gate_up && !skips,
                                 .activation = l->op->activation,
                                 .limit = l->op->scale};
    int64_t pairs = 0;
    for (int i = 0; i < a.n; i++) {
        a.w[i] = launch_matrix(l, i);
        a.y[i] = gate_up ? launch_output(l, 0) : launch_output(l, i);
        pairs += (a.w[i].rows + 1) / 2;
    }
    if (a.gate_up)
        pairs = a.w[0].rows;
    if (l->kernels->adds)
        add_next(l, &a);
    cu_result result = launch_pack(l, l->T, &a.x, &a.x_stride);
    if (result)
        return result;
    a.split = launch_split(gate_up ? a.w[0].rows : pairs, l->op->k); /* skipping changes no bits */
    result = run_rows(l, &a, pairs);
    return result || !skips ? result : launch_sparse_up(l, &a);
}

/* ------------------------------------------------------------------------------- experts -- */

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
    const int32_t slots = l->op->expert_slots, held = op_experts_held(l->op);
    return (struct cuda_choice){.rows = launch_input(l, 1),
                                .slot = slots ? launch_slots(l) : NULL,
                                .used = l->op->experts_used,
                                .first = l->op->expert_first,
                                .held = held,
                                .places = slots ? slots : held};
}

static struct cuda_expert_extras extras_of(const struct launch *l)
{
    const struct oato_op *op = l->op;
    const bool gate_up = op->kind == OP_EXPERT_GATE_UP;
    const int first = op_weight_least(op), matrices = gate_up ? 2 : 1;
    struct cuda_expert_extras x = {
        .limit = op->scale, .weighs_input = op->weighs_input, .single = op->single};
    for (int i = 0; i < matrices; i++) {
        x.factor[i] = launch_optional(l, first + i);
        x.bias[i] = launch_optional(l, first + matrices + i);
    }
    return x;
}

static struct cuda_expert_rows rows_of(const struct oato_op *op)
{
    return (struct cuda_expert_rows){op->one_tensor ? 2 * op->n : op->n,
                                     op->one_tensor ? op->n : 0};
}

/* One launch for all matrices, or one for gate and one for up where their types differ. */
static cu_result run_matrices(const struct launch *l, struct cuda_grouped_args *a, int matrices,
                              uint32_t tiles)
{
    const int together = l->kernels->run_up ? 1 : matrices;
    const struct grid grid = {(uint32_t)together * blocks_of(a->n, MATRIX_TILE), tiles, 1};
    cu_result result = launch_start(l, l->kernels->run, grid, MATRIX_THREADS, MATRIX_ROOM_MOST, a);
    if (result || !l->kernels->run_up)
        return result;
    a->w[0] = a->w[1];
    a->y[0] = a->y[1];
    return launch_start(l, l->kernels->run_up, grid, MATRIX_THREADS, MATRIX_ROOM_MOST, a);
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
    uint8_t *memory = launch_workspace(l);
    float *part = (float *)(void *)(memory + room.parts_at);
    struct cuda_group_args group = {
        .choice = choice_of(l),
        .column = (struct cuda_expert_column *)(void *)(memory + room.columns_at),
        .tile = (struct cuda_expert_tile *)(void *)(memory + room.tiles_at),
        .pairs = room.pairs,
        .tiles = (int32_t)room.tiles,
        .tokens = gate_up};
    struct cuda_grouped_args a = {
        .column = group.column, .tile = group.tile, .rows = rows_of(op), .n = op->n};
    const int matrices = op->single ? 1 : op_weight_least(op);
    for (int i = 0; i < matrices; i++) {
        a.w[i] = launch_matrix(l, i);
        a.y[i] = gate_up && !i ? launch_output(l, 0) : part;
    }
    const uint32_t places = (uint32_t)group.choice.places;
    cu_result result = launch_start(l, l->kernels->group, (struct grid){places, 1, 1}, ROW_THREADS,
                                    places * (uint32_t)sizeof(int32_t), &group);
    if (!result)
        result = launch_pack(l, room.packed, &a.x, &a.x_stride);
    if (!result)
        result = run_matrices(l, &a, matrices, room.tiles);
    struct cuda_expert_parts_args merge = {.choice = group.choice,
                                           .extras = extras_of(l),
                                           .part = part,
                                           .y = launch_output(l, 0),
                                           .n = op->n,
                                           .activation = op->activation};
    const bool by_pair = gate_up || op->expert_slots;
    if (!result)
        result = launch_start(
            l, l->kernels->merge,
            (struct grid){blocks_of(op->n, ROW_THREADS), by_pair ? (uint32_t)room.pairs : l->T, 1},
            ROW_THREADS, 0, &merge);
    return result;
}

cu_result launch_experts(const struct launch *l)
{
    const struct oato_op *op = l->op;
    const bool gate_up = op->kind == OP_EXPERT_GATE_UP;
    const uint32_t pairs = l->T * (uint32_t)op->experts_used;
    if (cuda_takes_matrix(l->d, op, l->r->numerics))
        return run_grouped_experts(l);
    struct cuda_experts_args a = {.y = launch_output(l, 0),
                                  .choice = choice_of(l),
                                  .extras = extras_of(l),
                                  .rows = rows_of(op),
                                  .n = op->n,
                                  .activation = op->activation,
                                  .apart = !gate_up && op->expert_slots};
    for (int i = 0; i < op_weight_least(op); i++)
        a.w[i] = launch_matrix(l, i);
    const cu_result result = launch_pack(l, gate_up ? l->T : pairs, &a.x, &a.x_stride);
    if (result)
        return result;
    const struct grid grid = {blocks_of(op->n, gate_up ? MATVEC_WARPS : MATVEC_ROWS),
                              gate_up || a.apart ? pairs : l->T, 1};
    return launch_start(l, l->kernels->run, grid, MATVEC_WARPS * 32, 0, &a);
}

/* --------------------------------------------------------------------------------- heads -- */

/* Row by row for every number of tokens: these matrices are small. */
cu_result launch_heads(const struct launch *l)
{
    const struct oato_op *op = l->op;
    const uint32_t heads = (uint32_t)op->heads;
    struct cuda_heads_args a = {.w = launch_matrix(l, 0),
                                .y = launch_output(l, 0),
                                .in = launch_input(l, 0),
                                .x = (const uint8_t *)launch_input(l, 0),
                                .x_stride = (uint64_t)op->head_dim * sizeof(float),
                                .n = op->n,
                                .heads = op->heads,
                                .rest = op->head_dim - op->k};
    cu_result result = CU_OK;
    if (l->kernels->pack) {
        struct cuda_pack_args pack = {.x = a.in,
                                      .out = launch_workspace(l),
                                      .stride = cuda_packed_bytes((oato_dtype)op->dtype, op->k),
                                      .k = op->k,
                                      .x_stride = op->head_dim};
        a.x = pack.out;
        a.x_stride = pack.stride;
        const struct grid grid = {blocks_of(op->k, PACK_WARPS * 32), l->T * heads, 1};
        result = launch_start(l, l->kernels->pack, grid, PACK_WARPS * 32, 0, &pack);
    }
    const struct grid grid = {blocks_of(op->n, MATVEC_ROWS), heads, l->T};
    return result ? result : launch_start(l, l->kernels->run, grid, MATVEC_WARPS * 32, 0, &a);
}

/* ----------------------------------------------------------------------------- workspace -- */

/* In this order: the input, which as halves takes no less room than as bytes, what gate is
 * multiplied with, weights with blocks as halves, what cuBLAS has for itself. */
uint64_t cuda_product_workspace(const struct cuda_device *d, const struct oato_op *op, int64_t rows,
                                bool blas)
{
    if (op->dtype == DT_F32)
        return 0;
    if (op_has_experts(op))
        return experts_room(op, rows).bytes;
    if (op->kind == OP_HEAD_MUL_MAT)
        return packed_rows_bytes(op, rows * op->heads);
    if (!blas)
        return packed_rows_bytes(op, rows) + up_bytes(op, rows);
    uint64_t bytes = cuda_packed_rows_bytes(DT_F16, op->k, rows) + up_bytes(op, rows);
    if (cuda_has_blocks((oato_dtype)op->dtype))
        bytes += (uint64_t)halves_rows(d, max_i64(op->n, op->n2), op->k) * (uint64_t)op->k *
                 sizeof(uint16_t);
    return size_align(bytes, BLAS_WORKSPACE_ALIGN) + cuda_blas_workspace_bytes(d);
}
