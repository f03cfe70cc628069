/*
 * bench_cpu.c - the matrix kernels against the clock. A product of 4096 x 2048 is run many times,
 * each timed from barrier to barrier; the best counts, because somebody else may use the cores.
 * Up to 16 columns the weights are taken in turn from copies larger than the caches together, as
 * in decode; beyond, where arithmetic is the limit, one copy serves.
 */
#include "tests/kernels/bench_cpu.h"
#include "tests/kernels/test_cpu.h"

enum {
    ROWS = 4096,
    K = 2048,
    COLD_COLUMNS = 16,
    COLD_BYTES = 128 << 20,
    MAX_COPIES = 64,
    READ_BYTES = 256 << 20
};

struct bench {
    struct cpu_context c;
    struct program_record r;
    struct step step;
    struct bench_window window;
    struct oato_weight copy[MAX_COPIES], *table[MAX_COPIES];
    enum numerics_choice numerics;
    int copies, repeats;
    uint64_t best_ns;
};

static void bench_share(void *arg, int thread)
{
    struct bench *b = arg;
    for (int i = 0; i < b->repeats; i++) {
        struct program_record r = b->r;
        r.weight[0] = (uint32_t)(i % b->copies);
        window_begin(&b->window, thread);
        cpu_run_record(&b->c, &r, &b->step, thread, &b->window.barrier);
        uint64_t ns = window_end(&b->window);
        if (thread == 0 && ns < b->best_ns)
            b->best_ns = ns;
    }
}

/* Weights of the type, as many copies as are needed. */
static uint8_t *weights_fill(struct bench *b, const struct cpu_kernels *k, oato_dtype dtype,
                             uint64_t *bytes)
{
    size_t row = 0;
    dtype_row_bytes(dtype, K, &row);
    const uint64_t one = cpu_prepared_bytes(k, dtype, ROWS, K, WEIGHT_MATRIX);
    b->copies = (int)min_i64(MAX_COPIES, (int64_t)(COLD_BYTES / one + 1));
    *bytes = one * (uint64_t)b->copies;
    uint8_t *raw = malloc(row * ROWS), *prepared = pages_alloc(*bytes);
    random_elements(dtype, raw, (int64_t)ROWS * K);
    struct weight_source s = {.data = raw, .dtype = dtype, .k = K, .n = ROWS, .row_end = ROWS};
    for (int i = 0; i < b->copies; i++) {
        b->copy[i] = (struct oato_weight){.dtype = dtype,
                                          .rows = ROWS,
                                          .k = K,
                                          .data = prepared + one * (uint64_t)i,
                                          .bytes = one};
        b->table[i] = &b->copy[i];
        if (i)
            memcpy(prepared + one * (uint64_t)i, prepared, one);
        else
            cpu_convert_rows(k, &s, 0, ROWS, (uint8_t *)(uintptr_t)b->copy[0].data);
    }
    free(raw);
    return prepared;
}

/* A shared machine's bandwidth changes from second to second: it is measured beside each product
 * that memory can limit. */
static void bench_product(struct bench *b, oato_dtype dtype, int32_t T, struct cpu_pool *pool,
                          double peak)
{
    const int n = cpu_pool_threads(pool), copies = b->copies;
    const double before = T > COLD_COLUMNS ? 0 : bench_bandwidth(pool, READ_BYTES, 0);
    const uint64_t arena_bytes = (uint64_t)T * (ROWS + K) * sizeof(float);
    float *arena = pages_alloc(arena_bytes);
    random_floats(arena, (int64_t)T * K);
    b->step = (struct step){.n_tokens = T, .n_rows = T, .n_seqs = 1};
    b->r = record_of(
        (struct oato_op){.kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = K, .n = ROWS});
    b->r.numerics = (uint8_t)b->numerics;
    b->r.out[0] = (uint64_t)T * K * sizeof(float);
    struct op_size size = {.rows = T, .seqs = 1};
    b->c.arena = (uint8_t *)arena;
    b->c.weights = b->table;
    b->c.workspace_bytes = cpu_workspace_bytes(b->c.kernels, &b->r.op, &size, n);
    b->c.workspace = pages_alloc(b->c.workspace_bytes);
    b->repeats = T > 64 ? 6 : T > COLD_COLUMNS ? 20 : 200;
    b->copies = T > COLD_COLUMNS ? 1 : copies;
    b->best_ns = UINT64_MAX;
    window_init(&b->window, n);
    cpu_pool_run(pool, bench_share, b);
    b->copies = copies;
    const double bandwidth =
        T > COLD_COLUMNS ? 0 : fmax(before, bench_bandwidth(pool, READ_BYTES, 0));
    const double ns = (double)b->best_ns;
    const double bytes = (double)b->copy[0].bytes / ns, flops = 2.0 * ROWS * K * T / ns;
    printf("%-7s %-5s %-6s threads %d T %3d %12.0f ns %7.1f GB/s %8.1f GFLOP/s", b->c.kernels->name,
           dtype_name(dtype), cpu_matrix_class(b->c.kernels, dtype, b->numerics)->numerics, n, T,
           ns, bytes, flops);
    if (peak > 0 && (T > COLD_COLUMNS || flops / peak > bytes / bandwidth))
        printf("  %3.0f %% of the multiply peak\n", 100 * flops / peak);
    else
        printf("  %3.0f %% of the %.1f GB/s read\n", 100 * bytes / bandwidth, bandwidth);
    fflush(stdout);
    pages_free(b->c.workspace, b->c.workspace_bytes);
    pages_free(arena, arena_bytes);
}

static bool wanted(const char *filter, const char *name)
{
    return !filter || !strcmp(filter, "all") || !strcmp(filter, name);
}

/* What the numerics class multiplies with. */
static enum peak_kind peak_of_class(const char *numerics)
{
    static const struct {
        const char *begins;
        enum peak_kind kind;
    } rows[] = {{"i14", PEAK_INT16}, {"u8", PEAK_INT8}, {"bf16", PEAK_BF16}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (!strncmp(numerics, rows[i].begins, strlen(rows[i].begins)))
            return rows[i].kind;
    return PEAK_F32;
}

void bench_matrices(const char *level, const char *dtype, int threads)
{
    static const int32_t columns[] = {1, 2, 4, 6, 8, 12, 16, 17, 24, 32, 33, 48, 64, 128, 512};
    static struct bench b;
    struct cpu_pool *pool;
    struct oato_error err;
    if (cpu_pool_create(threads > 0 ? threads : cpu_physical_cores(), &pool, &err))
        return;
    for (size_t i = ARRAY_LEN(isas); i-- > 0;) {
        b.c.kernels = kernels_named(isas[i]);
        const bool emulated = strstr(isas[i], "emulated"); /* its time says nothing: if asked for */
        if (!b.c.kernels || !wanted(emulated && !level ? "" : level, isas[i]))
            continue;
        double peak[PEAK_KINDS];
        for (int kind = 0; kind < PEAK_KINDS; kind++)
            peak[kind] = bench_peak(pool, isas[i], (enum peak_kind)kind);
        printf("%s: multiply peak %.0f GOP/s int8, %.0f int16, %.0f GFLOP/s float32, %.0f bf16\n",
               isas[i], peak[PEAK_INT8], peak[PEAK_INT16], peak[PEAK_F32], peak[PEAK_BF16]);
        for (size_t d = 0; d < ARRAY_LEN(matrix_types); d++) {
            const oato_dtype type = matrix_types[d];
            if (!wanted(dtype, dtype_name(type)))
                continue;
            uint64_t bytes;
            uint8_t *prepared = weights_fill(&b, b.c.kernels, type, &bytes);
            for (int choice = 0; choice < NUMERICS_CHOICES; choice++) {
                const struct matrix_class *class = cpu_matrix_class(b.c.kernels, type, choice);
                if (choice && class == cpu_matrix_class(b.c.kernels, type, NUMERICS_DECODE))
                    continue;
                b.numerics = (enum numerics_choice)choice;
                const enum peak_kind kind = peak_of_class(class->numerics);
                for (size_t c = 0; c < ARRAY_LEN(columns); c++)
                    if (b.c.kernels != &cpu_kernels_ref || columns[c] <= 8)
                        bench_product(&b, type, columns[c], pool, peak[kind]);
            }
            pages_free(prepared, bytes);
        }
    }
    cpu_pool_free(pool);
}
