/*
 * bench_cuda.c - oato-bench-cuda: the kernels of a GPU against the clock, and against what it
 * reaches when it only copies memory. Prints one JSON object; scripts/bench-gpu makes tables. The
 * matrix products are here, what else a step does is in bench_cuda_others.c.
 *
 * A product is put many times behind each other into one graph, each time with other weights, until
 * these exceed every cache, as in decode; the graph's time is divided. So neither launches from the
 * host nor its clock's coarseness count, and what a product needs beside its main kernel (packing
 * its input) does. Products of one row whose input is packed are measured again behind a norm that
 * packs it for all of them, as in decode. Weights are random bytes: what they mean costs nothing.
 *
 * Products that cuBLAS can compute too are measured a second time with it.
 */
#include "tests/kernels/bench_cuda.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    RECORDS_MANY = 4, /* of a product that arithmetic limits */
    ROUNDS = 3,       /* the best counts: somebody else may use the GPU */
    CHUNK_BYTES = 16 << 20,
};

struct shape {
    int32_t k, n;
};

/* The products that are measured, whole and as a quick trial. */
struct products {
    const struct shape *shapes;
    const int32_t *rows;
    size_t n_shapes, n_rows;
};

#define TYPE(type, ...) DT_##type,
static const oato_dtype all_types[] = {WEIGHT_TYPES(TYPE)};
#undef TYPE
/* Of a model of 8B, down to its output. */
static const struct shape shapes_8b[] = {
    {4096, 4096}, {4096, 14336}, {14336, 4096}, {4096, 128256}};
static const int32_t rows_8b[] = {1, 4, 8, 16, 128, 512};
static const struct products whole = {shapes_8b, rows_8b, ARRAY_LEN(shapes_8b), ARRAY_LEN(rows_8b)};

static const struct shape shapes_quick[] = {{256, 192}};
static const int32_t rows_quick[] = {1, 4, 32};
static const struct products quick = {shapes_quick, rows_quick, ARRAY_LEN(shapes_quick),
                                      ARRAY_LEN(rows_quick)};

/* ------------------------------------------------------------------------------- clock --- */

/* Puts the graph on the stream; without one, a copy of one half of the pool to the other. */
static cu_result put_round(const struct bench *b, cu_graph_exec exec)
{
    const struct cuda_driver *cu = b->d->cu;
    const uint64_t half = b->pool_bytes / 2;
    return exec ? cu->graph_launch(exec, b->d->queue.stream)
                : cu->copy(b->pool, b->pool + half, half, b->d->queue.stream);
}

static cu_result time_rounds(const struct bench *b, cu_graph_exec exec, int rounds, double *seconds)
{
    const uint64_t begin = now_ns();
    cu_result result = CU_OK;
    for (int i = 0; i < rounds && !result; i++)
        result = put_round(b, exec);
    if (!result)
        result = b->d->cu->stream_synchronize(b->d->queue.stream);
    *seconds = (double)(now_ns() - begin) * 1e-9;
    return result;
}

/* Seconds of a round: the best of several stretches behind one that does not count. */
static cu_result time_of_round(const struct bench *b, cu_graph_exec exec, double *best)
{
    double seconds;
    cu_result result = time_rounds(b, exec, 1, &seconds);
    if (!result)
        result = time_rounds(b, exec, 1, &seconds);
    const double wanted = seconds > 0 ? b->least_s / seconds : 0;
    const int rounds = wanted < 1 ? 1 : wanted > 1000 ? 1000 : (int)wanted + 1;
    *best = seconds;
    for (int i = 0; i < ROUNDS && !result; i++) {
        result = time_rounds(b, exec, rounds, &seconds);
        if (seconds / rounds < *best)
            *best = seconds / rounds;
    }
    return result;
}

static oato_status capture(const struct bench *b, bench_put *put, const void *what,
                           cu_graph_exec *out, struct oato_error *err)
{
    const struct cuda_driver *cu = b->d->cu;
    const cu_stream stream = b->d->queue.stream;
    cu_graph graph = NULL;
    oato_status status = put(b, what, err);
    if (status)
        return status;
    cu_result result = cu->stream_synchronize(stream);
    if (!result)
        result = cu->capture_begin(stream, CU_CAPTURE_THREAD_LOCAL);
    if (!result) {
        status = put(b, what, err);
        result = cu->capture_end(stream, &graph);
    }
    if (!result && !status)
        result = cu->graph_instantiate(out, graph, 0);
    if (graph)
        cu->graph_destroy(graph);
    return status   ? status
           : result ? cuda_fail(cu, result, b->d->far.id, "making a graph", err)
                    : OATO_OK;
}

oato_status bench_graph(const struct bench *b, bench_put *put, const void *what, double *seconds,
                        struct oato_error *err)
{
    cu_graph_exec exec = NULL;
    if (capture(b, put, what, &exec, err))
        return err->status;
    const cu_result result = time_of_round(b, exec, seconds);
    b->d->cu->graph_exec_destroy(exec);
    return result ? cuda_fail(b->d->cu, result, b->d->far.id, "running a graph", err) : OATO_OK;
}

/* A program's step; kernels overlap where a decode step's do. */
struct running {
    struct compiled *c;
    const struct step *step;
};

static oato_status put_records(const struct bench *b, const void *what, struct oato_error *err)
{
    const struct running *r = what;
    const bool short_step = r->step->n_tokens <= NUMERICS_DECODE_ROWS;
    oato_status status = OATO_OK;
    b->d->queue.chain = b->d->overlaps && short_step ? CHAIN_BEGINS : CHAIN_NONE;
    for (uint32_t i = 0; i < r->c->program->n_records && !status; i++)
        status = cuda_run_record(b->d, r->c, i, r->step, err);
    b->d->queue.chain = CHAIN_NONE;
    return status;
}

oato_status bench_program(const struct bench *b, const struct program *p, const struct step *step,
                          double *seconds, struct oato_error *err)
{
    struct oato_device *base = &b->d->far.base;
    struct running r = {.step = step};
    oato_status status = base->ops->compile(base, p, 0, &r.c, err);
    if (status)
        return status;
    cuda_enter(b->d);
    status = cuda_step_upload(b->d, r.c, step, err);
    if (!status)
        status = bench_graph(b, put_records, &r, seconds, err);
    *seconds /= p->n_records;
    base->ops->release(base, r.c);
    return status;
}

oato_status bench_fill(const struct bench *b, void *to, uint64_t bytes, struct oato_error *err)
{
    struct oato_device *base = &b->d->far.base;
    float *x = malloc(bytes);
    if (!x)
        return oato_fail_memory(err, bytes, "rows");
    for (uint64_t i = 0; i < bytes / sizeof *x; i++)
        x[i] = (float)(i * 2654435761u % 4093) * 0x1p-11f - 1.0f;
    const oato_status status = base->ops->upload(base, to, 0, x, bytes, NULL, err);
    free(x);
    return status;
}

uint32_t bench_copies(const struct bench *b, uint64_t bytes, uint32_t most)
{
    return 1 + (uint32_t)min_i64((int64_t)(b->cold_bytes / bytes), most - 1);
}

void bench_print(struct bench *b, const char *names, double seconds, double bytes, double flops)
{
    printf("%s\n  {%s, \"ns\": %.0f, \"bytes\": %.0f, \"bytes_per_s\": %.4g, \"of_copy\": %.4f, "
           "\"flops_per_s\": %.4g}",
           b->first ? "" : ",", names, seconds * 1e9, bytes, bytes / seconds,
           bytes / seconds / b->copy_bytes_per_s, flops / seconds);
    b->first = false;
    fflush(stdout);
}

/* ------------------------------------------------------------------------------ products - */

struct product {
    struct program_record records[1 + RECORDS_MOST]; /* a norm, then the product */
    struct oato_weight weight[1 + RECORDS_MOST], *weights[1 + RECORDS_MOST]; /* the norm's, too */
    struct program program;                                                  /* without the norm */
    struct step step;
    uint64_t bytes; /* of one weight, prepared */
    uint32_t copies;
};

static void fill_product(struct product *p, const struct bench *b, oato_dtype dtype,
                         struct shape shape, int32_t rows, enum numerics_choice numerics)
{
    const bool many = rows > NUMERICS_DECODE_ROWS;
    const int64_t room = min_i64((int64_t)(b->pool_bytes / p->bytes), RECORDS_MOST);
    p->copies = bench_copies(b, p->bytes, (uint32_t)room);
    p->program = (struct program){.records = p->records + 1,
                                  .n_records = many ? RECORDS_MANY : RECORDS_LEAST,
                                  .n_signals = 1,
                                  .max_tokens = rows,
                                  .max_rows = rows,
                                  .max_seqs = 1,
                                  .weights = p->weights,
                                  .n_weights = 1 + p->copies};
    if (!many && p->copies > RECORDS_LEAST)
        p->program.n_records = p->copies;
    p->step = (struct step){.n_tokens = rows, .n_rows = rows, .n_seqs = 1};
    for (uint32_t i = 0; i < p->copies; i++) {
        p->weight[i] = (struct oato_weight){.dtype = dtype,
                                            .use = WEIGHT_MATRIX,
                                            .rows = shape.n,
                                            .k = shape.k,
                                            .bytes = p->bytes,
                                            .data = (void *)(uintptr_t)(b->pool + i * p->bytes)};
        p->weights[i] = &p->weight[i];
    }
    const uint64_t in_bytes = size_align((uint64_t)rows * (uint64_t)shape.k * sizeof(float), 256);
    for (uint32_t i = 0, copy = 0; i < p->program.n_records;
         i++, copy = copy + 1 < p->copies ? copy + 1 : 0)
        p->records[1 + i] = (struct program_record){
            .op = {.kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = shape.k, .n = shape.n},
            .n_in = 1,
            .n_out = 1,
            .n_weights = 1,
            .numerics = (uint8_t)numerics,
            .kv_layer = -1,
            .signal = i + 1 == p->program.n_records,
            .weight = {copy},
            .in_width = {shape.k},
            .in = {in_bytes},
            .out = {2 * in_bytes}};
    p->records[0] = (struct program_record){
        .op = {.kind = OP_RMS_NORM, .k = shape.k, .n = shape.k, .eps = 1e-5f},
        .n_in = 1,
        .n_out = 1,
        .n_weights = 1,
        .kv_layer = -1,
        .weight = {p->copies},
        .in_width = {shape.k},
        .out = {in_bytes}};
    p->weight[p->copies] = (struct oato_weight){.dtype = DT_F32,
                                                .use = WEIGHT_VECTOR,
                                                .rows = 1,
                                                .k = shape.k,
                                                .bytes = (uint64_t)shape.k * sizeof(float),
                                                .data = (void *)(uintptr_t)b->pool};
    p->weights[p->copies] = &p->weight[p->copies];
}

/* Of one product, where a norm packs the input of all; its time counts. */
static oato_status time_packed(const struct bench *b, const struct product *p, double *seconds,
                               struct oato_error *err)
{
    struct program program = p->program;
    const uint32_t n = program.n_records++;
    program.records = p->records;
    const oato_status status = bench_program(b, &program, &p->step, seconds, err);
    *seconds *= (double)(n + 1) / n;
    return status;
}

/* packed_seconds: 0 where nothing packs its input. */
static void print_case(struct bench *b, const struct product *p, int32_t rows, double seconds,
                       double packed_seconds)
{
    char key[OP_KEY_SIZE], names[3 * OP_KEY_SIZE], packed[64] = "";
    const struct program_record *r = &p->records[1];
    const struct oato_op *op = &r->op;
    if (packed_seconds > 0)
        snprintf(packed, sizeof packed, ", \"packed_ns\": %.0f, \"packed_of_copy\": %.4f",
                 packed_seconds * 1e9, (double)p->bytes / packed_seconds / b->copy_bytes_per_s);
    snprintf(names, sizeof names,
             "\"op\": \"%s\", \"type\": \"%s\", \"k\": %" PRId32 ", \"n\": %" PRId32
             ", \"rows\": %" PRId32 ", \"class\": \"%s\"%s",
             oato_op_key(op, NULL, key), dtype_name((oato_dtype)op->dtype), op->k, op->n, rows,
             cuda_numerics(&b->d->far.base, op, (enum numerics_choice)r->numerics), packed);
    bench_print(b, names, seconds, (double)p->bytes, 2.0 * op->k * op->n * rows);
}

static oato_status bench_product(struct bench *b, oato_dtype dtype, struct shape shape,
                                 int32_t rows, enum numerics_choice numerics,
                                 struct oato_error *err)
{
    static struct product p;
    struct oato_device *base = &b->d->far.base;
    void *arena = NULL;
    double seconds = 0, packed_seconds = 0;
    p.bytes = size_align(weight_bytes_of(base, dtype, shape.n, shape.k, WEIGHT_MATRIX), 256);
    if (!p.bytes || p.bytes > b->pool_bytes)
        return OATO_OK;
    fill_product(&p, b, dtype, shape, rows, numerics);
    const uint64_t in_bytes = p.records[1].in[0], out_at = p.records[1].out[0];
    const uint64_t bytes = out_at + (uint64_t)rows * (uint64_t)shape.n * sizeof(float);
    oato_status status = base->ops->alloc(base, bytes, &arena, err);
    for (int i = 0; i < 2 && !status; i++)
        status = bench_fill(b, (uint8_t *)arena + i * in_bytes, in_bytes, err);
    p.program.arena = arena;
    if (!status)
        status = bench_program(b, &p.program, &p.step, &seconds, err);
    if (!status && rows == 1 && cuda_has_blocks(dtype))
        status = time_packed(b, &p, &packed_seconds, err);
    if (!status)
        print_case(b, &p, rows, seconds, packed_seconds);
    base->ops->free(base, arena, bytes);
    return status;
}

/* By our kernels, then by a library if there is one for it. */
static oato_status bench_classes(struct bench *b, oato_dtype dtype, struct shape shape,
                                 int32_t rows, struct oato_error *err)
{
    const struct oato_op op = {
        .kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = shape.k, .n = shape.n};
    if (rows <= NUMERICS_DECODE_ROWS)
        return bench_product(b, dtype, shape, rows, NUMERICS_DECODE, err);
    oato_status status = bench_product(b, dtype, shape, rows, NUMERICS_PREFILL, err);
    if (!status && cuda_takes_blas(b->d, &op, NUMERICS_LIBRARY))
        status = bench_product(b, dtype, shape, rows, NUMERICS_LIBRARY, err);
    return status;
}

/* ------------------------------------------------------------------------------- whole --- */

/* Random weights, and how fast they are copied. */
static oato_status prepare_pool(struct bench *b, struct oato_error *err)
{
    struct oato_device *base = &b->d->far.base;
    uint64_t z = 1;
    uint64_t *chunk = malloc(CHUNK_BYTES);
    if (!chunk)
        return oato_fail_memory(err, CHUNK_BYTES, "weights");
    for (size_t i = 0; i < CHUNK_BYTES / sizeof *chunk; i++) /* Knuth's MMIX generator */
        chunk[i] = z = z * 6364136223846793005u + 1442695040888963407u;
    void *pool = NULL;
    oato_status status = far_place(base, b->pool_bytes, NULL, &pool, err);
    b->pool = (cu_address)(uintptr_t)pool;
    for (uint64_t at = 0; at < b->pool_bytes && !status; at += CHUNK_BYTES)
        status = base->ops->upload(base, (void *)(uintptr_t)b->pool, at, chunk,
                                   (uint64_t)min_i64(CHUNK_BYTES, (int64_t)(b->pool_bytes - at)),
                                   NULL, err);
    free(chunk);
    if (status)
        return status;
    double seconds = 0;
    cuda_enter(b->d);
    const cu_result result = time_of_round(b, NULL, &seconds);
    b->copy_bytes_per_s = (double)b->pool_bytes / seconds; /* half is read, half written */
    return result ? cuda_fail(b->d->cu, result, b->d->far.id, "copying memory", err) : OATO_OK;
}

/* `types`: "" for all, or some, separated by commas. */
static bool is_wanted(const char *types, oato_dtype dtype)
{
    const char *name = dtype_name(dtype);
    const size_t length = strlen(name);
    for (const char *at = types; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && !strncmp(at, name, length))
            return true;
    return !*types;
}

static oato_status bench_all(struct bench *b, const char *types, struct oato_error *err)
{
    const struct products *wanted = b->quick ? &quick : &whole;
    if (prepare_pool(b, err))
        return err->status;
    struct device_info info;
    int cublas = 0;
    b->d->far.base.ops->info(&b->d->far.base, &info);
    if (!cuda_blas_usable(b->d) || b->d->blas.library->get_version(b->d->blas.handle, &cublas))
        fprintf(stderr, "oato-bench-cuda: no cuBLAS of CUDA 12 or newer here: install the CUDA "
                        "toolkit, or set OATO_CUDA_BLAS to the path of libcublas.so\n");
    printf("{\"device\": \"%s\", \"isa\": \"%s\", \"multiprocessors\": %d, \"driver\": %d,\n"
           " \"cublas\": %d, \"copy_bytes_per_s\": %.4g, \"cases\": [",
           info.model, info.isa, b->d->multiprocessors, b->d->cu->version, cublas,
           b->copy_bytes_per_s);
    b->first = true;
    oato_status status = OATO_OK;
    for (size_t t = 0; t < ARRAY_LEN(all_types); t++)
        for (size_t s = 0; s < wanted->n_shapes && is_wanted(types, all_types[t]); s++)
            for (size_t r = 0; r < wanted->n_rows && !status; r++)
                status = bench_classes(b, all_types[t], wanted->shapes[s], wanted->rows[r], err);
    printf("\n ],\n \"others\": [");
    b->first = true;
    if (!status)
        status = bench_others(b, err);
    printf("\n ]}\n");
    return status;
}

static const char help[] =
    "Usage: oato-bench-cuda [OPTIONS]\n"
    "Times the kernels of a GPU; prints JSON.\n"
    "      --device N     which GPU (default 0)\n"
    "      --types LIST   products with these types of weights only, as Q4_0,F16\n"
    "      --quick        tiny products, once: whether it works, not how fast it is\n"
    "  -h, --help         this text\n"
    "Exit status: 0 done, 2 usage, 5 no GPU, or one that failed.\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"types", required_argument, NULL, 't'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct bench b = {.pool_bytes = 2560ull << 20, .cold_bytes = 256 << 20, .least_s = 4e-3};
    const char *types = "";
    int64_t index = 0;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;)
        switch (c) {
        case 'd':
            if (!parse_i64(optarg, 0, DEVICES_MAX, &index)) {
                fprintf(stderr, "oato-bench-cuda: --device %s: a number from 0\n", optarg);
                return OATO_EUSAGE;
            }
            break;
        case 't': types = optarg; break;
        case 'q':
            b = (struct bench){.quick = true, .pool_bytes = 1 << 20, .cold_bytes = 128 << 10};
            break;
        case 'h': fputs(help, stdout); return 0;
        default: return OATO_EUSAGE;
        }
    struct oato_error err;
    struct oato_device *base = NULL;
    const struct device_options none = {0};
    oato_status status = cuda_device_ops.open((int)index, "", &none, &base, &err);
    if (!status) {
        b.d = cuda_of(base);
        status = bench_all(&b, types, &err);
        far_free(&b.d->far.base, (void *)(uintptr_t)b.pool, b.pool_bytes);
        base->ops->close(base);
    }
    if (status)
        fprintf(stderr, "oato-bench-cuda: %s\n", err.text);
    return (int)status;
}
