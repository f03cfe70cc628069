/*
 * cuda_launch.c - from a record to its kernels: for each kind of operator which kernels it takes,
 * with what arguments, over what grid (products with matrices: cuda_products.c). Runs on the
 * queue's thread; looks up and allocates nothing.
 */
#include "kernels/cuda/cuda_record.h"

#include <inttypes.h>
#include <string.h>

enum {
    SPLIT_ROWS = 16, /* steps of more rows keep a GPU busy without dividing contexts */
    SPLIT_STEP = 4,  /* grids have room for so many segments more, and captured launches last: */
    SPLIT_PART = 8,  /* of long contexts for an eighth to a quarter more */
    TILE_WARPS_LEAST = 2, /* of a block of attention_tile, however few rows there are */
};
_Static_assert((int)ATTENTION_PAGE == (int)KV_PAGE_POSITIONS, "attention goes page by page");
_Static_assert((int)BATCH_ROOM_Q2_K <= (int)BATCH_ROOM_MOST &&
                   MATVEC_WARPS * FLOAT_ROOM <= BATCH_ROOM_MOST,
               "of batch.cu and batch_float.cu");

static struct cuda_kv_layer kv_layer(const struct launch *l, int32_t i)
{
    const struct kv_cache *kv = l->c->program->kv;
    const struct kv_layer_shape *s = &kv->layers[i];
    return (struct cuda_kv_layer){.data = kv->data + kv->layer_offset[i],
                                  .block_bytes = kv_layer_block_bytes(kv, i, 0),
                                  .v_bytes = kv_layer_block_bytes(kv, i, 1),
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .dtype = (int32_t)kv->dtype,
                                  .v_dim = s->v_in_k  ? s->v_in_k
                                           : s->v_dim ? s->v_dim
                                                      : s->head_dim,
                                  .v_in_k = s->v_in_k != 0,
                                  .window = s->window > 0};
}

/* --------------------------------------------------------------------------- row by row --- */

static cu_result run_norm(const struct launch *l)
{
    const bool adds = l->op->kind == OP_ADD_NORM, heads = l->op->kind == OP_HEAD_NORM;
    struct cuda_norm_args a = {.a = launch_input(l, 0),
                               .y = launch_output(l, adds),
                               .n = heads ? l->op->head_dim : l->op->n,
                               .eps = l->op->eps,
                               .heads = heads ? l->op->heads : 1,
                               .norm = l->op->norm};
    if (!(a.norm & NORM_PLAIN))
        a.w = launch_vector(l, 0);
    if (a.norm & NORM_BIASED)
        a.bias = launch_vector(l, 1);
    if (adds) {
        a.b = launch_input(l, 1);
        a.sum = launch_output(l, 0);
    }
    if (l->kernels->packs) {
        a.packed = launch_workspace(l);
        a.packed_stride = cuda_packed_bytes(DT_Q8_0, a.n);
    }
    return launch_start(l, l->kernels->run, (struct grid){l->T, 1, 1},
                        heads ? ROW_THREADS : NORM_THREADS, 0, &a);
}

static cu_result run_pairwise(const struct launch *l)
{
    static const int32_t what[] = {
        [OP_ADD] = PAIRWISE_ADD,     [OP_BIAS] = PAIRWISE_BIAS,     [OP_SCALE] = PAIRWISE_SCALE,
        [OP_SWIGLU] = PAIRWISE_GATE, [OP_ACTIVATE] = PAIRWISE_GATE, [OP_GATE] = PAIRWISE_SPREAD};
    const uint16_t kind = l->op->kind;
    struct cuda_pairwise_args a = {.a = launch_input(l, 0),
                                   .y = launch_output(l, 0),
                                   .n = l->op->n,
                                   .what = l->op->divides ? PAIRWISE_DIVIDE : what[kind],
                                   .factor = l->op->scale,
                                   .activation = l->op->activation,
                                   .wide = kind == OP_GATE ? l->op->n / l->op->heads : 1};
    if (l->r->n_in > 1)
        a.b = launch_input(l, 1);
    else if (l->r->n_weights)
        a.b = launch_vector(l, 0);
    return launch_start(l, l->kernels->run, (struct grid){blocks_of(a.n, ROW_THREADS), l->T, 1},
                        ROW_THREADS, 0, &a);
}

static cu_result run_scale(const struct launch *l)
{
    if (l->op->temperature == 0)
        return run_pairwise(l);
    struct cuda_temper_args a = {.step = l->c->step,
                                 .x = launch_input(l, 0),
                                 .y = launch_output(l, 0),
                                 .n = l->op->n,
                                 .scale = l->op->scale,
                                 .temperature = l->op->temperature,
                                 .temperature_step = l->op->temperature_step,
                                 .temperature_offset = l->op->temperature_offset};
    return launch_start(l, l->kernels->run, (struct grid){blocks_of(a.n, ROW_THREADS), l->T, 1},
                        ROW_THREADS, 0, &a);
}

static cu_result run_merge(const struct launch *l)
{
    struct cuda_merge_args a = {.y = launch_output(l, 0),
                                .n_in = l->r->n_in,
                                .n = l->op->n,
                                .sums = l->op->kind == OP_MERGE_SUM};
    for (int i = 0; i < a.n_in; i++) {
        a.x[i] = launch_input(l, i);
        a.width[i] = l->r->in_width[i];
    }
    uint32_t rows = l->T;
    if (l->op->kind == OP_SLICE) { /* one input, wider than the output: its columns from there on */
        const int32_t heads = l->op->heads ? l->op->heads : 1; /* as rows of their own */
        a.x[0] += l->op->first;
        a.width[0] /= heads;
        a.n /= heads;
        rows *= (uint32_t)heads;
    }
    return launch_start(l, l->kernels->run, (struct grid){blocks_of(a.n, ROW_THREADS), rows, 1},
                        ROW_THREADS, 0, &a);
}

static cu_result run_embed(const struct launch *l)
{
    struct cuda_embed_args a = {.step = l->c->step,
                                .w = launch_matrix(l, 0),
                                .y = launch_output(l, 0),
                                .scale = l->op->scale,
                                .rows_by_position = l->op->by_position ? l->op->n : 0,
                                .row_offset = l->op->by_position - 1};
    const int64_t units = cuda_has_blocks((oato_dtype)l->op->dtype) ? a.w.k / 32 : a.w.k;
    return launch_start(l, l->kernels->run, (struct grid){blocks_of(units, ROW_THREADS), l->T, 1},
                        ROW_THREADS, 0, &a);
}

static cu_result run_select(const struct launch *l)
{
    struct cuda_select_args a = {
        .step = l->c->step, .x = launch_input(l, 0), .y = launch_output(l, 0), .n = l->op->n};
    return launch_start(l, l->kernels->run, (struct grid){blocks_of(a.n, ROW_THREADS), l->T, 1},
                        ROW_THREADS, 0, &a);
}

static struct cuda_rope_args rope_args(const struct launch *l)
{
    return (struct cuda_rope_args){.step = l->c->step,
                                   .x = launch_input(l, 0),
                                   .y = launch_output(l, 0),
                                   .turn = (const uint64_t *)(uintptr_t)l->kernels->turn,
                                   .heads = l->op->heads,
                                   .head_dim = l->op->head_dim,
                                   .dims = l->op->rope_dims,
                                   .halves = l->op->rope_pairing == ROPE_HALVES,
                                   .magnitude =
                                       l->op->rope_magnitude != 0 ? l->op->rope_magnitude : 1,
                                   .first = l->op->first};
}

static cu_result run_rope(const struct launch *l)
{
    struct cuda_rope_args a = rope_args(l);
    return launch_start(l, l->kernels->run, (struct grid){l->T, 1, 1}, ROW_THREADS, 0, &a);
}

static cu_result run_route(const struct launch *l)
{
    const struct oato_op *op = l->op;
    struct cuda_route_args a = {.logits = launch_input(l, 0),
                                .choice = launch_output(l, 0),
                                .bias = launch_optional(l, 0),
                                .order = launch_optional(l, 1),
                                .scores = op->k,
                                .share = op->route_share ? op->route_share : 1,
                                .used = op->experts_used,
                                .norm = op->route_norm,
                                .score = op->route_score,
                                .groups = op->route_groups,
                                .groups_used = op->route_groups_used,
                                .scale = op->scale};
    a.scored = a.bias || a.groups || op->route_share || a.score != ROUTE_SOFTMAX;
    const uint32_t words = (uint32_t)op->k + blocks_of(op->k, 32) + (uint32_t)op->route_groups;
    return launch_start(l, l->kernels->run, (struct grid){l->T, 1, 1}, 32, words * sizeof(uint32_t),
                        &a);
}

/* ----------------------------------------------------------------------------- sampling --- */

static int32_t top_lists(const struct oato_op *op)
{
    return (int32_t)blocks_of(op->k, TOP_STRETCH);
}

/* The candidates of a list are a power of two. */
static int32_t top_kept_bits(const struct oato_op *op)
{
    int32_t bits = 0;
    while (1 << bits < op->n / 2)
        bits++;
    return bits;
}

static uint64_t top_workspace(const struct oato_op *op, int64_t rows)
{
    return (uint64_t)rows * (uint64_t)top_lists(op) * sizeof(uint64_t) << top_kept_bits(op);
}

static cu_result run_top_k(const struct launch *l)
{
    _Static_assert(TOP_K_MOST <= TOP_STRETCH / 2, "a block merges two lists or more");
    struct cuda_top_args a = {.x = launch_input(l, 0),
                              .y = launch_output(l, 0),
                              .list = launch_workspace(l),
                              .n = l->op->k,
                              .lists = top_lists(l->op),
                              .first = l->op->first,
                              .wanted = l->op->n / 2,
                              .kept_bits = top_kept_bits(l->op)};
    const struct grid lists = {(uint32_t)a.lists, l->T, 1}, rows = {l->T, 1, 1};
    const cu_result result = launch_start(l, l->kernels->run, lists, TOP_THREADS, TOP_SHARED, &a);
    return result ? result : launch_start(l, l->kernels->merge, rows, TOP_THREADS, TOP_SHARED, &a);
}

/* ------------------------------------------------------------------- KV and attention ----- */

static cu_result run_kv_store(const struct launch *l)
{
    struct cuda_rope_store_args a = {.store = {.step = l->c->step,
                                               .k = launch_input(l, 0),
                                               .v = launch_input(l, 1),
                                               .layer = kv_layer(l, l->r->kv_layer),
                                               .tail = l->op->k_tail}};
    if (!l->kernels->joins)
        return launch_start(l, l->kernels->run, (struct grid){l->T, 1, 1}, ROW_THREADS, 0,
                            &a.store);
    const struct launch q = launch_near(l, -2), k = launch_near(l, -1);
    a.q = rope_args(&q);
    a.k = rope_args(&k);
    return launch_start(l, l->kernels->run, (struct grid){(uint32_t)k.op->heads, l->T, 1},
                        ROW_THREADS, (uint32_t)k.op->head_dim * (uint32_t)sizeof(float), &a);
}

static cu_result run_kv_copy(const struct launch *l)
{
    const struct kv_cache *kv = l->c->program->kv;
    cu_result result = CU_OK;
    for (int32_t i = 0; kv && i < kv->n_layers && !result; i++) {
        if (kv->layers[i].state) {
            result = launch_state_copy(l, i);
            continue;
        }
        if (!l->step->n_page_copies || kv->layers[i].staged)
            continue;
        struct cuda_kv_copy_args a = {.step = l->c->step, .layer = kv_layer(l, i)};
        const struct grid grid = {2 * (uint32_t)a.layer.kv_heads, (uint32_t)l->step->n_page_copies,
                                  1};
        result = launch_start(l, l->kernels->run, grid, ROW_THREADS, 0, &a);
    }
    return result;
}

/* Attention's output as the product behind it takes it. */
static uint64_t packed_heads_bytes(const struct oato_op *op, int64_t rows)
{
    return cuda_packed_rows_bytes(DT_Q8_0, op->n, rows);
}

static uint64_t partial_floats(const struct oato_op *op, int64_t rows)
{
    return (uint64_t)rows * (uint64_t)op->heads * (uint64_t)(2 + op_v_dim(op));
}

/* Of the longest context of a step. */
static int64_t step_positions(const struct step *step)
{
    int64_t longest = 0;
    for (int32_t s = 0; step->seq && s < step->n_seqs; s++)
        longest = max_i64(longest, step->seq[s].kv_len);
    return longest;
}

int32_t cuda_step_segments(const struct step *step)
{
    const int64_t pages = (step_positions(step) + ATTENTION_PAGE - 1) / ATTENTION_PAGE;
    int64_t more = SPLIT_STEP;
    if (pages <= 1)
        return (int32_t)pages;
    while (more * SPLIT_PART < pages)
        more *= 2;
    return (int32_t)min_i64((pages + more - 1) / more * more, ATTENTION_SEGMENTS);
}

int32_t cuda_step_spans(const struct step *step)
{
    return (int32_t)blocks_of(step_positions(step), ATTENTION_TILE_SPAN);
}

/* Divided into `segments` if that is wanted and the workspace has room for their results, behind a
 * packed output. */
static struct cuda_attention_args attention_args(const struct launch *l, bool divided,
                                                 int32_t segments)
{
    const uint64_t behind = packed_heads_bytes(l->op, l->T);
    const uint64_t room = (l->d->workspace->bytes - behind) / sizeof(float);
    uint8_t *memory = launch_workspace(l);
    struct cuda_attention_args a = {.step = l->c->step,
                                    .layer = kv_layer(l, l->r->kv_layer),
                                    .q = launch_input(l, 0),
                                    .y = launch_output(l, 0),
                                    .sinks = launch_optional(l, 0),
                                    .heads = l->op->heads,
                                    .scale = l->op->scale,
                                    .soft_cap = l->op->soft_cap,
                                    .alibi = l->op->alibi,
                                    .alibi_first = l->op->first,
                                    .alibi_heads = l->op->alibi_heads,
                                    .window = l->op->window,
                                    .chunked = l->op->chunked,
                                    .seqs = l->c->program->max_seqs};
    if (divided && segments > 1 && partial_floats(l->op, l->T) * (uint64_t)segments <= room) {
        a.segments = segments;
        a.partial = (float *)(void *)(memory + behind);
    }
    return a;
}

bool cuda_takes_tile(const struct oato_op *op, enum numerics_choice choice)
{
    const bool dims = op->head_dim == 64 || op->head_dim == 96 || op->head_dim == 128;
    return choice != NUMERICS_DECODE && op->kind == OP_ATTENTION && dims && !op->window &&
           op_v_dim(op) == op->head_dim && !op->v_in_k && op->soft_cap == 0 && op->alibi == 0 &&
           (op->dtype == DT_F16 || op->dtype == DT_Q8_0);
}

static cu_result merge_segments(const struct launch *l, uint32_t threads,
                                struct cuda_attention_args *a)
{
    return launch_start(l, l->kernels->merge, (struct grid){(uint32_t)l->op->heads, l->T, 1},
                        threads, 0, a);
}

/* Tall tiles read K and V less often; lower ones keep more of the GPU busy. The grid has room for
 * any division of the tokens among sequences, so that a captured launch stays right. */
static cu_result run_tiles(const struct launch *l)
{
    const struct oato_op *op = l->op;
    const int64_t rows = (int64_t)l->T * (op->heads / op->kv_heads);
    uint32_t warps = ATTENTION_TILE_WARPS, busy;
    for (;; warps /= 2) {
        busy = blocks_of(rows, warps * ATTENTION_TILE_ROWS) * (uint32_t)op->kv_heads;
        if (warps == TILE_WARPS_LEAST || busy >= (uint32_t)l->d->multiprocessors * 3 / 4)
            break;
    }
    const uint32_t tile = warps * ATTENTION_TILE_ROWS;
    const int64_t partial = /* a tile of each sequence */
        min_i64(l->T, l->c->program->max_seqs) * (tile - 1);
    const uint32_t blocks = (uint32_t)((rows + partial) / tile) * (uint32_t)op->kv_heads;
    const int32_t spans = cuda_step_spans(l->step);
    struct cuda_attention_args a = attention_args(l, busy < (uint32_t)l->d->multiprocessors, spans);
    cu_result result =
        launch_start(l, l->kernels->run, (struct grid){blocks, a.partial ? (uint32_t)spans : 1, 1},
                     warps * 32, ATTENTION_TILE_SHARED((uint32_t)op->head_dim), &a);
    return result || !a.partial ? result : merge_segments(l, 32, &a);
}

static cu_result run_attention(const struct launch *l)
{
    const struct oato_op *op = l->op;
    if (cuda_takes_tile(op, l->r->numerics))
        return run_tiles(l);
    /* few pages may be more segments than many, which have several pages each */
    const int32_t segments =
        op->window ? (int32_t)min_i64(ATTENTION_SEGMENTS, op->window / KV_PAGE_POSITIONS + 2)
                   : cuda_step_segments(l->step);
    struct cuda_attention_args a = attention_args(l, l->T <= SPLIT_ROWS, segments);
    if (l->kernels->packs) {
        a.packed = launch_workspace(l);
        a.packed_stride = cuda_packed_bytes(DT_Q8_0, op->n);
    }
    struct grid grid = {a.segments ? (uint32_t)a.segments : 1, (uint32_t)op->kv_heads, l->T};
    cu_result result = launch_start(l, l->kernels->run, grid, ATTENTION_THREADS,
                                    cuda_attention_shared(op->head_dim, op_v_dim(op)), &a);
    return result || !a.partial ? result : merge_segments(l, ATTENTION_THREADS, &a);
}

/* -------------------------------------------------------------------------------- kinds --- */

static const struct {
    cu_result (*run)(const struct launch *l);
    const char *kernel; /* "%s": one for each type, which stands there */
    const char *merge;
} kinds[OP_KIND_COUNT] = {
    [OP_EMBED] = {run_embed, "embed", NULL},
    [OP_RMS_NORM] = {run_norm, "rms_norm", NULL},
    [OP_ADD_NORM] = {run_norm, "rms_norm", NULL},
    [OP_HEAD_NORM] = {run_norm, "head_norm", NULL},
    [OP_MUL_MAT] = {launch_product, "matvec_%s", NULL},
    [OP_QKV] = {launch_product, "matvec_%s", NULL},
    [OP_GATE_UP] = {launch_product, "matvec_%s", NULL},
    [OP_EXPERT_GATE_UP] = {launch_experts, "expert_gate_up_%s", NULL},
    [OP_EXPERT_DOWN] = {launch_experts, "expert_down_%s", NULL},
    [OP_HEAD_MUL_MAT] = {launch_heads, "head_rows_%s", NULL},
    [OP_ADD] = {run_pairwise, "pairwise", NULL},
    [OP_BIAS] = {run_pairwise, "pairwise", NULL},
    [OP_SCALE] = {run_scale, "pairwise", NULL},
    [OP_SWIGLU] = {run_pairwise, "pairwise", NULL},
    [OP_ACTIVATE] = {run_pairwise, "pairwise", NULL},
    [OP_GATE] = {run_pairwise, "pairwise", NULL},
    [OP_MERGE] = {run_merge, "merge", NULL},
    [OP_MERGE_SUM] = {run_merge, "merge", NULL},
    [OP_SLICE] = {run_merge, "merge", NULL},
    [OP_SELECT] = {run_select, "select_rows", NULL},
    [OP_ROPE] = {run_rope, "rope", NULL},
    [OP_ROUTE] = {run_route, "route", NULL},
    [OP_KV_STORE] = {run_kv_store, "kv_store", NULL},
    [OP_KV_COPY] = {run_kv_copy, "kv_copy", "state_copy"},
    [OP_CONV] = {launch_state, "conv", NULL},
    [OP_DELTA] = {launch_state, "delta", NULL},
    [OP_SSM] = {launch_state, "ssm", NULL},
    [OP_ATTENTION] = {run_attention, "attention_%s", "attention_merge"},
    [OP_TOP_K] = {run_top_k, "top_k", "top_k_merge"},
    [OP_ACTIVE] = {launch_list, "active_list", NULL},
};

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
    const bool matrix = !strncmp(pattern, "matrix", 6), batch = !strncmp(pattern, "batch", 5);
    if (!result && type && (matrix || batch))
        result = d->cu->function_set(*out, CU_FUNCTION_MAX_DYNAMIC_SHARED,
                                     matrix ? MATRIX_ROOM_MOST : BATCH_ROOM_MOST);
    if (result) {
        char doing[96];
        snprintf(doing, sizeof doing, "finding its kernel %s", name);
        return cuda_fail(d->cu, result, d->far.id, doing, err);
    }
    return OATO_OK;
}

oato_status cuda_record_kernels(const struct cuda_device *d, const struct program_record *r,
                                struct cuda_record *out, struct oato_error *err)
{
    const oato_dtype dtype = (oato_dtype)r->op.dtype;
    const bool product = cuda_takes_rows(&r->op), blocks = cuda_has_blocks(dtype);
    const char *kernel = kinds[r->op.kind].kernel, *merge = kinds[r->op.kind].merge, *group = NULL;
    const char *pack = product && blocks ? "pack_q8" : NULL;
    char tile[32];
    const bool listed = r->op.sparse == SPARSE_PREDICT;
    bool by_rows = product && !op_has_experts(&r->op) && r->op.kind != OP_HEAD_MUL_MAT && !listed;
    const bool skips = r->op.kind == OP_GATE_UP && r->op.sparse && !listed;
    const char *many = by_rows ? "matvec_many_%s" : NULL;
    if (cuda_takes_blas(d, &r->op, r->numerics)) { /* steps of few rows are a decode step's */
        out->blas = true;
        merge = "pairwise";
    } else if (cuda_takes_matrix(d, &r->op, r->numerics)) {
        const bool experts = op_has_experts(&r->op), down = r->op.kind == OP_EXPERT_DOWN;
        kernel = experts ? "matrix_experts_%s" : "matrix_%s";
        by_rows = false;
        many = NULL;
        merge = !experts                      ? "pairwise"
                : down && !r->op.expert_slots ? "expert_sum"
                : down                        ? "expert_apart"
                                              : "expert_gate";
        group = experts ? "expert_groups" : NULL;
        pack = blocks ? "pack_q8" : "pack_%s";
    } else if (listed) {
        kernel = "listed_%s";
    } else if (op_by_columns(&r->op)) {
        kernel = cuda_columns_kernel(dtype, false);
        many = cuda_columns_kernel(dtype, true);
        merge = "columns_merge";
    } else if (r->op.norm && r->op.kind != OP_HEAD_NORM) {
        kernel = "layer_norm";
    } else if (r->op.kind == OP_SCALE && r->op.temperature != 0) {
        kernel = "temper";
    } else if (cuda_takes_tile(&r->op, r->numerics)) {
        snprintf(tile, sizeof tile, "attention_tile_%%s_%d", (int)r->op.head_dim);
        kernel = tile;
        merge = "attention_tile_merge";
    } else if (r->op.kind == OP_ATTENTION && r->op.v_in_k) {
        kernel = "attention_turned_%s";
    }
    cuda_enter(d);
    if (find_kernel(d, kernel, dtype, &out->run, err) ||
        find_kernel(d,
                    skips            ? "sparse_up_%s"
                    : r->op.up_dtype ? kernel
                                     : NULL,
                    op_weight_dtype(&r->op, 1), &out->run_up, err) ||
        find_kernel(d, many, dtype, &out->many, err) ||
        find_kernel(d, by_rows ? "batch_%s" : NULL, dtype, &out->batch, err) ||
        find_kernel(d, merge, dtype, &out->merge, err) ||
        find_kernel(d, group, dtype, &out->group, err) ||
        find_kernel(d, pack, dtype, &out->pack, err) ||
        find_kernel(d, out->blas && blocks ? "halves_%s" : NULL, dtype, &out->halves, err) ||
        find_kernel(d, out->blas ? "pack_%s" : NULL, blocks ? DT_F16 : dtype, &out->pack_blas, err))
        return err->status;
    return OATO_OK;
}

bool cuda_has_kernel(const struct oato_op *op)
{
    return kinds[op->kind].run;
}

uint64_t cuda_op_workspace(const struct cuda_device *d, const struct oato_op *op, int32_t rows,
                           bool blas)
{
    if (op->kind == OP_ATTENTION)
        return packed_heads_bytes(op, rows) +
               partial_floats(op, min_i64(rows, SPLIT_ROWS)) * ATTENTION_SEGMENTS * sizeof(float);
    if (op->kind == OP_TOP_K)
        return top_workspace(op, rows);
    if (op_by_columns(op))
        return cuda_columns_workspace(op, rows);
    return cuda_takes_rows(op) ? cuda_product_workspace(d, op, rows, blas) : 0;
}

static oato_status copy_record(const struct launch *l, struct oato_error *err)
{
    static const char *const doing[] = {[RECORD_UPLOAD] = "uploading a value",
                                        [RECORD_DOWNLOAD] = "downloading a value",
                                        [RECORD_PEER] = "copying a value of another GPU",
                                        [RECORD_PUSH] = "copying a value to another GPU"};
    const struct program *p = l->c->program;
    const struct cuda_driver *cu = l->d->cu;
    const cu_stream stream = l->d->queue.stream;
    const size_t bytes = (size_t)l->T * (size_t)l->r->in_width[0] * sizeof(float);
    const uint64_t from = l->r->in[0], to = l->r->out[0];
    uint8_t *host = p->host_arena;
    const cu_address own = (cu_address)(uintptr_t)p->arena;
    cu_result result;
    if (l->r->kind == RECORD_UPLOAD) {
        result = cu->upload(own + to, host + from, bytes, stream);
    } else if (l->r->kind == RECORD_DOWNLOAD) {
        result = cu->download(host + to, own + from, bytes, stream);
    } else {
        const struct program_peer *peer = &p->peers[l->r->peer];
        const cu_address other = (cu_address)(uintptr_t)peer->arena;
        const cu_context context = cuda_of(peer->device)->context;
        result = l->r->kind == RECORD_PUSH
                     ? cu->peer_copy(other + to, context, own + from, l->d->context, bytes, stream)
                     : cu->peer_copy(own + to, l->d->context, other + from, context, bytes, stream);
    }
    return result ? cuda_fail(cu, result, l->d->far.id, doing[l->r->kind], err) : OATO_OK;
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
    if (l.kernels->waits || (pages ? !step->n_page_copies && !step->n_state_copies : !rows))
        return OATO_OK;
    if (r->kind == RECORD_SWAP)
        return cuda_swap(d, c, index, rows, err);
    if (r->kind != RECORD_RUN)
        return copy_record(&l, err);
    const cu_result result = kinds[r->op.kind].run(&l);
    if (!result)
        return OATO_OK;
    snprintf(doing, sizeof doing, "running %s", oato_op_key(&r->op, NULL, key));
    return result == CUDA_BLAS_FAILED ? cuda_blas_fail(d, doing, err)
                                      : cuda_fail(d->cu, result, d->far.id, doing, err);
}
