/*
 * bench_cuda_others.c - what of a GPU's kernels are no dense products, against the clock: attention
 * over contexts that no cache holds, the choice of candidates, and products with the active neurons
 * of a layer only, of which a list in device memory tells. Of an 8B model; what values are computed
 * with costs nothing.
 */
#include "tests/kernels/bench_cuda.h"

#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_record.h"
#include "kernels/cuda/cuda_sparse_kernels.h"

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
    struct oato_device *base = &b->d->far.base;
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
    struct oato_device *base = &b->d->far.base;
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
    struct cuda_listed_args listed;
    struct cuda_columns_args columns;
    oato_dtype dtype;
    int32_t active;
    uint64_t bytes; /* of a copy */
    uint32_t copies;
};

/* The matrix at that place. */
static void use_weights(struct cuda_matrix *m, cu_address at)
{
    uint64_t offset[CUDA_PLANES];
    cuda_layout_planes((oato_dtype)m->dtype, m->rows, m->k, offset);
    for (int p = 0; p < CUDA_PLANES; p++)
        m->plane[p] = (const uint8_t *)(uintptr_t)(at + offset[p]);
}

static cu_result put_launch(const struct bench *b, cu_function kernel, uint32_t grid_x,
                            uint32_t grid_y, uint32_t threads, void *args)
{
    return b->d->cu->launch(kernel, grid_x, grid_y, 1, threads, 1, 1, 0, b->d->queue.stream,
                            (void *[]){args}, NULL);
}

static oato_status put_listed(const struct bench *b, const void *what, struct oato_error *err)
{
    const struct sparse *s = what;
    struct cuda_listed_args a = s->listed;
    cu_result result = CU_OK;
    for (uint32_t i = 0; i < s->copies && !result; i++) {
        use_weights(&a.w[0], b->pool + i * s->bytes);
        use_weights(&a.w[1], b->pool + i * s->bytes + s->bytes / 2);
        result = put_launch(b, s->kernel, blocks_of((a.w[0].rows + 1) / 2, MATVEC_WARPS), 1,
                            MATVEC_WARPS * 32, &a);
    }
    return result ? cuda_fail(b->d->cu, result, b->d->far.id, "launching listed", err) : OATO_OK;
}

static oato_status put_columns(const struct bench *b, const void *what, struct oato_error *err)
{
    const struct sparse *s = what;
    struct cuda_columns_args a = s->columns;
    cu_result result = CU_OK;
    for (uint32_t i = 0; i < s->copies && !result; i++) {
        a.w.data = (const uint8_t *)(uintptr_t)(b->pool + i * s->bytes);
        result = put_launch(b, s->kernel, blocks_of(a.w.rows, COLUMNS_ROWS), (uint32_t)a.slices,
                            COLUMNS_WARPS * 32, &a);
        if (!result)
            result = put_launch(b, s->merge, blocks_of(a.w.rows, ROW_THREADS), 1, ROW_THREADS, &a);
    }
    return result ? cuda_fail(b->d->cu, result, b->d->far.id, "launching columns", err) : OATO_OK;
}

/* The first bytes of each copy say which columns share scales. */
static oato_status put_heads(const struct bench *b, const struct sparse *s, struct oato_error *err)
{
    struct oato_device *base = &b->d->far.base;
    const int32_t k = s->columns.w.k, block = columns_form_of(s->dtype)->block;
    const int32_t blocks = cuda_has_blocks(s->dtype) ? k / block : 0;
    const uint64_t bytes = (uint64_t)(blocks + 2) * sizeof(int32_t);
    int32_t *head = calloc(1, bytes);
    if (!head)
        return oato_fail_memory(err, bytes, "blocks of columns");
    head[0] = blocks;
    for (int32_t i = 0; i < blocks; i++)
        head[1 + i] = i * block;
    head[1 + blocks] = k;
    oato_status status = OATO_OK;
    for (uint32_t i = 0; i < s->copies && !status; i++)
        status = base->ops->upload(base, (void *)(uintptr_t)b->pool, i * s->bytes, head, bytes,
                                   NULL, err);
    free(head);
    return status;
}

static oato_status time_sparse(struct bench *b, const char *name, const char *kernel,
                               bench_put *put, struct sparse *s, struct oato_error *err)
{
    const int32_t neurons = s->columns.w.k;
    const uint64_t bytes = s->bytes * (uint64_t)s->active / (uint64_t)neurons;
    const uint64_t room = b->pool_bytes / s->bytes;
    char text[64];
    double seconds = 0;
    if (!room)
        return OATO_OK;
    snprintf(text, sizeof text, kernel, dtype_name(s->dtype));
    cu_result result = cuda_kernel(b->d, text, &s->kernel);
    if (!result)
        result = cuda_kernel(b->d, "columns_merge", &s->merge);
    if (result)
        return cuda_fail(b->d->cu, result, b->d->far.id, text, err);
    s->copies = bench_copies(b, bytes, room < RECORDS_MOST ? (uint32_t)room : RECORDS_MOST);
    if (put_heads(b, s, err) || bench_graph(b, put, s, &seconds, err))
        return err->status;
    snprintf(text, sizeof text, "%s/%s/k%" PRId32 "/%" PRId32 " of %" PRId32, name,
             dtype_name(s->dtype), s->listed.w[0].k, s->active, neurons);
    print_other(b, text, seconds / s->copies, (double)bytes, 0);
    return OATO_OK;
}

/* What the kernels read and write: a list of neurons, spread evenly, then the result of each, which
 * down reads; all else is zeros. */
static oato_status bench_sparse(struct bench *b, oato_dtype dtype, int32_t k, int32_t neurons,
                                int32_t active, struct oato_error *err)
{
    struct oato_device *base = &b->d->far.base;
    const struct cuda_matrix matrix = {.rows = neurons, .k = k, .dtype = (int32_t)dtype};
    const struct oato_weight down = {
        .dtype = dtype, .use = WEIGHT_COLUMNS, .rows = k, .k = neurons};
    const struct columns c = columns_at(&down, 0);
    const int32_t slices = cuda_columns_slices(k, neurons);
    const uint64_t list = size_align((uint64_t)(neurons + 1) * sizeof(float), 256);
    const uint64_t row = size_align((uint64_t)k * sizeof(float), 256); /* a packed one is less */
    const uint64_t bytes = 3 * list + (2 + (uint64_t)slices) * row;
    void *memory = NULL;
    float *given = calloc(bytes, 1);
    if (!given)
        return oato_fail_memory(err, bytes, "a list of neurons");
    given[0] = (float)active;
    for (int32_t i = 0; i < active; i++) {
        const int32_t neuron = (int32_t)((int64_t)i * neurons / active);
        given[1 + i] = (float)neuron;
        given[list / sizeof *given + (uint64_t)neuron] = 1;
    }
    oato_status status = base->ops->alloc(base, bytes, &memory, err);
    if (!status)
        status = base->ops->upload(base, memory, 0, given, bytes, NULL, err);
    free(given);
    if (status) {
        base->ops->free(base, memory, bytes);
        return status;
    }
    float *h = (float *)memory + list / sizeof *h, *y = h + list / sizeof *h;
    float *x = y + list / sizeof *x, *sum = x + row / sizeof *x;
    struct sparse s = {
        .listed = {.w = {matrix, matrix},
                   .list = memory,
                   .y = y,
                   .x = (const uint8_t *)x,
                   .gate_up = 1,
                   .split = 1,
                   .threshold = -1},
        .columns = {.w = {.scales = c.scales,
                          .column = c.column,
                          .rows = k,
                          .k = neurons,
                          .offset = c.form->offset,
                          .has_min = c.form->has_min,
                          .half = c.form->half},
                    .x = h,
                    .y = sum,
                    .partial = sum + row / sizeof *sum,
                    .slices = slices,
                    .tokens = 1},
        .dtype = dtype,
        .active = active,
        .bytes = 2 * cuda_layout_bytes(dtype, neurons, k),
    };
    status = time_sparse(b, "listed", "listed_%s", put_listed, &s, err);
    s.bytes = size_align(columns_bytes(dtype, k, neurons, columns_blocks(dtype, NULL, neurons)),
                         CUDA_PLANE_ALIGN);
    if (!status)
        status = time_sparse(b, "columns", cuda_columns_kernel(dtype, false), put_columns, &s, err);
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
