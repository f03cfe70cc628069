/*
 * bench_cuda_others.c - what of a GPU's kernels are no dense products, against the clock: attention
 * over contexts that no cache holds, the choice of candidates, and products with the active neurons
 * of a layer only, of which a list in device memory tells. Of an 8B model; what values are computed
 * with costs nothing.
 */
#include "tests/kernels/bench_cuda.h"

#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_record.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PRIME = 7919 };

static void print_other(struct bench *b, const char *what, double seconds, double bytes,
                        double flops)
{
    char names[OP_KEY_SIZE + 16];
    snprintf(names, sizeof names, "\"op\": \"%s\"", what);
    bench_print(b, names, seconds, bytes, flops);
}

/* ---------------------------------------------------------------------------- operators -- */

/* The program of one record, many times over; of attention each time another layer's. */
static oato_status bench_record(struct bench *b, struct program_record *record,
                                const struct op_size *size, struct kv_cache *kv,
                                const struct step *step, double *seconds, struct oato_error *err)
{
    static struct program_record records[RECORDS_MOST];
    struct oato_device *base = &b->d->base;
    const uint64_t rows = (uint64_t)step->n_tokens;
    const uint64_t in = size_align(rows * (uint64_t)record->in_width[0] * sizeof(float), 256);
    const uint64_t bytes = in + rows * (uint64_t)record->op.n * sizeof(float);
    const uint32_t n = kv && kv->n_layers > RECORDS_LEAST ? (uint32_t)kv->n_layers : RECORDS_LEAST;
    struct program p = {.records = records,
                        .n_records = n,
                        .n_signals = 1,
                        .max_tokens = step->n_tokens,
                        .max_rows = step->n_tokens,
                        .max_seqs = 1,
                        .workspace_bytes = base->ops->workspace_bytes(base, &record->op, size),
                        .kv = kv};
    record->n_in = record->n_out = 1;
    record->out[0] = in;
    record->numerics = rows > NUMERICS_DECODE_ROWS ? NUMERICS_PREFILL : NUMERICS_DECODE;
    for (uint32_t i = 0; i < n; i++) {
        records[i] = *record;
        records[i].kv_layer = kv ? (int32_t)i % kv->n_layers : -1;
        records[i].signal = i + 1 == n;
    }
    oato_status status = base->ops->alloc(base, bytes, &p.arena, err);
    if (!status)
        status = bench_fill(b, p.arena, in, err);
    if (!status)
        status = bench_program(b, &p, step, seconds, err);
    base->ops->free(base, p.arena, bytes);
    return status;
}

static oato_status bench_attention(struct bench *b, const char *key, int32_t tokens,
                                   int32_t context, struct oato_error *err)
{
    struct oato_device *base = &b->d->base;
    struct program_record record = {0};
    struct kv_cache *kv = NULL;
    struct kv_layer_shape layers[RECORDS_MOST];
    char name[OP_KEY_SIZE];
    struct op_size size;
    double seconds = 0;
    oato_op_parse(key, &record.op, &size);
    size.rows = tokens;
    const struct oato_op *op = &record.op;
    record.in_width[0] = op->k;
    const int32_t pages = (context + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS;
    const uint64_t row = 2 * (uint64_t)op->kv_heads * (uint64_t)op->head_dim * sizeof(uint16_t);
    const uint32_t n = bench_copies(b, (uint64_t)context * row, RECORDS_MOST);
    for (uint32_t i = 0; i < n; i++)
        layers[i] = (struct kv_layer_shape){.kv_heads = op->kv_heads, .head_dim = op->head_dim};
    const size_t n_ints = 3 * (size_t)tokens + (size_t)pages;
    int32_t *ints = calloc(n_ints, sizeof *ints);
    if (!ints)
        return oato_fail_memory(err, n_ints * sizeof *ints, "a step");
    int32_t *position = ints + 2 * tokens, *page = position + tokens;
    for (int32_t t = 0; t < tokens; t++) {
        position[t] = context - tokens + t;
        size.kv_positions += position[t] + 1;
    }
    for (int32_t i = 0; i < pages; i++) /* out of order, as if they had been freed and taken */
        page[i] = (int32_t)((int64_t)i * PRIME % pages);
    const struct step_seq seq = {.query_len = tokens, .kv_len = context, .pages = page};
    const struct step step = {.n_tokens = tokens,
                              .n_seqs = 1,
                              .token_id = ints,
                              .token_seq = ints + tokens,
                              .token_position = position,
                              .seq = &seq};
    oato_status status =
        base->ops->kv_create(base, layers, (int)n, (oato_dtype)op->dtype, pages, &kv, err);
    if (!status)
        status = bench_record(b, &record, &size, kv, &step, &seconds, err);
    if (!status)
        print_other(b, oato_op_key(op, &size, name), seconds, (double)context * (double)row,
                    tokens > 1 ? op_flops(op, &size) : 0);
    base->ops->kv_free(base, kv);
    free(ints);
    return status;
}

static oato_status bench_candidates(struct bench *b, const char *key, struct oato_error *err)
{
    struct program_record record = {0};
    struct op_size size;
    const struct step step = {.n_tokens = 1, .n_rows = 1, .n_seqs = 1};
    double seconds = 0;
    oato_op_parse(key, &record.op, &size);
    size.rows = 1;
    record.in_width[0] = record.op.k;
    if (bench_record(b, &record, &size, NULL, &step, &seconds, err))
        return err->status;
    print_other(b, key, seconds, (double)record.op.k * sizeof(float), 0);
    return OATO_OK;
}

/* ------------------------------------------------------------------------ active neurons - */

/* Of a layer and one token: gate and up of the neurons in a list, or what these give to the result;
 * once for each copy of the weights. */
struct sparse {
    cu_function kernel, merge;
    struct cuda_sparse_rows_args rows;
    struct cuda_sparse_sum_args sum;
    uint64_t matrix_bytes;
    uint32_t copies;
};

/* The matrix of that number in the pool. */
static void use_weights(struct cuda_matrix *m, const struct bench *b, uint64_t number,
                        uint64_t matrix_bytes)
{
    uint64_t offset[CUDA_PLANES];
    cuda_layout_planes((oato_dtype)m->dtype, m->rows, m->k, offset);
    for (int p = 0; p < CUDA_PLANES; p++)
        m->plane[p] = (const uint8_t *)(uintptr_t)(b->pool + number * matrix_bytes + offset[p]);
}

static cu_result put_launch(const struct bench *b, cu_function kernel, uint32_t grid_x,
                            uint32_t grid_y, uint32_t threads, void *args)
{
    return b->d->cu->launch(kernel, grid_x, grid_y, 1, threads, 1, 1, 0, b->d->queue.stream,
                            (void *[]){args}, NULL);
}

static oato_status put_rows(const struct bench *b, const void *what, struct oato_error *err)
{
    const struct sparse *s = what;
    struct cuda_sparse_rows_args a = s->rows;
    const uint32_t blocks = blocks_of((int64_t)a.list.most * a.split, MATVEC_WARPS);
    cu_result result = CU_OK;
    for (uint32_t i = 0; i < s->copies && !result; i++) {
        use_weights(&a.w[0], b, 2 * i, s->matrix_bytes);
        use_weights(&a.w[1], b, 2 * i + 1, s->matrix_bytes);
        result = put_launch(b, s->kernel, blocks, 1, MATVEC_WARPS * 32, &a);
    }
    return result ? cuda_fail(b->d->cu, result, b->d->id, "launching sparse_rows", err) : OATO_OK;
}

static oato_status put_sums(const struct bench *b, const void *what, struct oato_error *err)
{
    const struct sparse *s = what;
    struct cuda_sparse_sum_args a = s->sum;
    cu_result result = CU_OK;
    for (uint32_t i = 0; i < s->copies && !result; i++) {
        use_weights(&a.w, b, i, s->matrix_bytes);
        result = put_launch(b, s->kernel, blocks_of(a.w.k, SPARSE_COLUMNS), (uint32_t)a.slices,
                            SPARSE_WARPS * 32, &a);
        if (!result)
            result = put_launch(b, s->merge, blocks_of(a.w.k, ROW_THREADS), 1, ROW_THREADS, &a);
    }
    return result ? cuda_fail(b->d->cu, result, b->d->id, "launching sparse_sum", err) : OATO_OK;
}

/* `matrices` of which are read at once. */
static oato_status time_sparse(struct bench *b, const char *name, bench_put *put, uint64_t matrices,
                               struct sparse *s, struct oato_error *err)
{
    const struct cuda_matrix *m = &s->sum.w;
    const int32_t active = s->sum.list.most;
    const uint64_t bytes = matrices * s->matrix_bytes * (uint64_t)active / (uint64_t)m->rows;
    const uint64_t room = b->pool_bytes / (matrices * s->matrix_bytes);
    char text[64];
    double seconds = 0;
    if (!room)
        return OATO_OK;
    snprintf(text, sizeof text, "%s_%s", name, dtype_name((oato_dtype)m->dtype));
    cu_result result = cuda_kernel(b->d, text, &s->kernel);
    if (!result)
        result = cuda_kernel(b->d, "sparse_merge", &s->merge);
    if (result)
        return cuda_fail(b->d->cu, result, b->d->id, text, err);
    s->copies = bench_copies(b, bytes, room < RECORDS_MOST ? (uint32_t)room : RECORDS_MOST);
    if (bench_graph(b, put, s, &seconds, err))
        return err->status;
    snprintf(text, sizeof text, "%s/%s/k%" PRId32 "/%" PRId32 " of %" PRId32, name,
             dtype_name((oato_dtype)m->dtype), m->k, active, m->rows);
    print_other(b, text, seconds / s->copies, (double)bytes, 0);
    return OATO_OK;
}

/* The list of neurons, spread evenly, then what the kernels read and write: in one piece of memory,
 * all zeros. */
static oato_status bench_sparse(struct bench *b, oato_dtype dtype, int32_t k, int32_t neurons,
                                int32_t active, struct oato_error *err)
{
    struct oato_device *base = &b->d->base;
    const struct cuda_matrix matrix = {.rows = neurons, .k = k, .dtype = (int32_t)dtype};
    const int32_t slices = cuda_sparse_slices(k, active);
    const uint64_t list = size_align((uint64_t)(active + 1) * sizeof(int32_t), 256);
    const uint64_t places = size_align((uint64_t)active * sizeof(float), 256);
    const uint64_t row = size_align((uint64_t)k * sizeof(float), 256); /* a packed one is less */
    const uint64_t bytes = list + places + (2 + (uint64_t)slices) * row;
    void *memory = NULL;
    int32_t *index = calloc(bytes, 1);
    if (!index)
        return oato_fail_memory(err, bytes, "a list of neurons");
    for (int32_t i = 0; i < active; i++)
        index[i] = (int32_t)((int64_t)i * neurons / active);
    index[active] = active;
    oato_status status = base->ops->alloc(base, bytes, &memory, err);
    if (!status)
        status = base->ops->upload(base, memory, 0, index, bytes, NULL, err);
    free(index);
    if (status) {
        base->ops->free(base, memory, bytes);
        return status;
    }
    uint8_t *at = memory;
    const struct cuda_row_list chosen = {
        .index = memory, .count = (int32_t *)memory + active, .most = active};
    float *place = (float *)(void *)(at + list), *x = (float *)(void *)(at + list + places);
    float *y = x + row / sizeof *x;
    struct sparse s = {.rows = {.w = {matrix, matrix},
                                .list = chosen,
                                .y = place,
                                .x = (const uint8_t *)x,
                                .gate_up = 1,
                                .split = 1},
                       .sum = {.w = matrix,
                               .list = chosen,
                               .factor = place,
                               .y = y,
                               .partial = y + row / sizeof *y,
                               .slices = slices},
                       .matrix_bytes = cuda_layout_bytes(dtype, neurons, k)};
    status = time_sparse(b, "sparse_rows", put_rows, 2, &s, err);
    if (!status)
        status = time_sparse(b, "sparse_sum", put_sums, 1, &s, err);
    base->ops->free(base, memory, bytes);
    return status;
}

/* --------------------------------------------------------------------------------- whole - */

oato_status bench_others(struct bench *b, struct oato_error *err)
{
    static const struct {
        int32_t tokens, context;
    } sizes[] = {{1, 512}, {1, 4096}, {1, 32768}, {512, 512}, {512, 4096}};
    static const oato_dtype types[] = {DT_Q4_0, DT_F16};
    static const int32_t percent[] = {5, 10, 25};
    const char *attention = b->quick ? "attention/F16/h4/g2/d64" : "attention/F16/h32/g8/d128";
    oato_status status = OATO_OK;
    for (size_t i = 0; i < (b->quick ? 1 : ARRAY_LEN(sizes)) && !status; i++)
        status = bench_attention(b, attention, sizes[i].tokens, sizes[i].context, err);
    for (int wanted = 1; wanted <= 40 && !status; wanted += 39) {
        char key[OP_KEY_SIZE];
        snprintf(key, sizeof key, "top_k/k%d/n%d", b->quick ? 5000 : 128256, 2 * wanted);
        status = bench_candidates(b, key, err);
    }
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t i = 0; i < ARRAY_LEN(percent) && !status; i++) {
            const int32_t k = b->quick ? 256 : 4096, neurons = b->quick ? 512 : 14336;
            status = bench_sparse(b, types[t], k, neurons, neurons * percent[i] / 100, err);
        }
    return status;
}
