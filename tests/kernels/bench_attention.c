/*
 * bench_attention.c - attention against the clock: shapes of models, T tokens after a context, one
 * layer timed from barrier to barrier, layers in turn as in a model, so that decode finds the pages
 * where a model would. The best run counts, because somebody else may use the cores.
 */
#include "tests/kernels/bench_cpu.h"
#include "tests/kernels/test_cpu.h"

enum { MAX_LAYERS = 32, READ_BYTES = 256 << 20 };
#define MAX_CACHE_BYTES ((uint64_t)320 << 20)

static const struct shape {
    const char *name;
    int32_t layers, heads, kv_heads, head_dim;
} shapes[] = {
    {"135M", 30, 9, 3, 64},
    {"1B", 16, 32, 8, 64},
    {"8B", 32, 32, 8, 128},
};

/* Tokens of each sequence, computed at the end of a context. */
static const struct work {
    int32_t seqs, tokens, context;
} works[] = {
    {1, 1, 128}, {1, 1, 512},  {1, 1, 4096}, {1, 2, 4096},  {1, 4, 4096},   {1, 8, 4096},
    {8, 1, 512}, {1, 16, 512}, {1, 64, 512}, {1, 512, 512}, {1, 512, 4096},
};

struct attention_bench {
    struct cpu_context c;
    struct kv_cache kv;
    struct program_record r;
    struct step step;
    struct bench_window window;
    int repeats;
    uint64_t best_ns;
};

static void bench_share(void *arg, int thread)
{
    struct attention_bench *b = arg;
    for (int i = 0; i < b->repeats; i++) {
        struct program_record r = b->r;
        r.kv_layer = i % b->kv.n_layers;
        window_begin(&b->window, thread);
        cpu_run_record(&b->c, &r, &b->step, thread, &b->window.barrier);
        uint64_t ns = window_end(&b->window);
        if (thread == 0 && ns < b->best_ns)
            b->best_ns = ns;
    }
}

static void print_line(const struct attention_bench *b, const struct shape *s, const struct work *w,
                       int threads, int64_t positions, double bandwidth, double peak)
{
    const struct op_size size = {
        .rows = w->seqs * w->tokens, .seqs = w->seqs, .kv_positions = positions};
    const double ns = (double)b->best_ns;
    const double bytes = op_bytes(&b->r.op, &size) / ns, flops = op_flops(&b->r.op, &size) / ns;
    printf("%-7s %-4s %-4s threads %d S %d T %3d kv %4d %10.0f ns %6.1f GB/s %7.1f GFLOP/s",
           b->c.kernels->name, s->name, dtype_name(b->kv.dtype), threads, w->seqs, w->tokens,
           w->context, ns, bytes, flops);
    if (peak > 0 && flops / peak > bytes / bandwidth)
        printf("  %3.0f %% of the multiply peak\n", 100 * flops / peak);
    else
        printf("  %3.0f %% of the bandwidth\n", 100 * bytes / bandwidth);
    fflush(stdout);
}

static void bench_work(struct attention_bench *b, const struct shape *s, const struct work *w,
                       struct cpu_pool *pool, double bandwidth, double peak)
{
    enum { MAX_TOKENS = 512, MAX_SEQS = 8 };
    static int32_t position[MAX_TOKENS], seq_of[MAX_TOKENS];
    const int32_t T = w->seqs * w->tokens, pages = (w->context + 63) / 64;
    const int n = cpu_pool_threads(pool);
    struct step_seq seq[MAX_SEQS];
    int32_t *page = malloc((size_t)(pages * w->seqs) * sizeof *page);
    int64_t positions = 0;
    for (int32_t i = 0; i < pages * w->seqs; i++)
        page[i] = i;
    for (int32_t t = 0; t < T; t++) {
        seq_of[t] = t / w->tokens;
        position[t] = w->context - w->tokens + t % w->tokens;
        positions += position[t] + 1;
    }
    for (int32_t i = 0; i < w->seqs; i++)
        seq[i] = (struct step_seq){.query_begin = i * w->tokens,
                                   .query_len = w->tokens,
                                   .kv_len = w->context,
                                   .pages = page + i * pages};
    b->step = (struct step){.n_tokens = T,
                            .n_seqs = w->seqs,
                            .token_position = position,
                            .token_seq = seq_of,
                            .seq = seq};
    const int32_t width = s->heads * s->head_dim;
    b->r = record_of((struct oato_op){.kind = OP_ATTENTION,
                                      .dtype = (uint16_t)b->kv.dtype,
                                      .k = width,
                                      .n = width,
                                      .heads = s->heads,
                                      .kv_heads = s->kv_heads,
                                      .head_dim = s->head_dim,
                                      .scale = 1 / sqrtf((float)s->head_dim)});
    const uint64_t arena_bytes = (uint64_t)T * (uint64_t)width * 2 * sizeof(float);
    float *arena = pages_alloc(arena_bytes);
    random_floats(arena, (int64_t)T * width);
    b->c.arena = (uint8_t *)arena;
    b->r.out[0] = (uint64_t)T * (uint64_t)width * sizeof(float);
    struct op_size size = {.rows = T, .seqs = w->seqs, .kv_positions = positions};
    b->c.workspace_bytes = cpu_workspace_bytes(b->c.kernels, &b->r.op, &size, n);
    b->c.workspace = pages_alloc(b->c.workspace_bytes);
    b->repeats = T > 64 ? 8 : 4 * b->kv.n_layers;
    b->best_ns = UINT64_MAX;
    window_init(&b->window, n);
    cpu_pool_run(pool, bench_share, b);
    print_line(b, s, w, n, positions, bandwidth, peak);
    pages_free(b->c.workspace, b->c.workspace_bytes);
    pages_free(arena, arena_bytes);
    free(page);
}

/* A cache of one sequence's 4096 positions and its layers, as many as fit; eight short sequences
 * have room in it too. */
static bool cache_fill(struct attention_bench *b, const struct shape *s, oato_dtype dtype)
{
    static struct kv_layer_shape layers[MAX_LAYERS];
    static uint64_t offsets[MAX_LAYERS];
    for (int i = 0; i < MAX_LAYERS; i++)
        layers[i] = (struct kv_layer_shape){.kv_heads = s->kv_heads, .head_dim = s->head_dim};
    b->kv = (struct kv_cache){.n_layers = s->layers,
                              .pages = 64,
                              .dtype = dtype,
                              .layers = layers,
                              .layer_offset = offsets};
    if (!kv_cache_layout(&b->kv, &b->kv.bytes))
        return false;
    while (b->kv.bytes > MAX_CACHE_BYTES) {
        b->kv.n_layers /= 2;
        kv_cache_layout(&b->kv, &b->kv.bytes);
    }
    enum { PATTERN = 8192 };
    uint8_t pattern[PATTERN * 4];
    random_elements(dtype, pattern, PATTERN);
    const struct dtype_info *d = dtype_info((int)dtype);
    const uint64_t step = PATTERN / (uint64_t)d->block_elems * (uint64_t)d->block_bytes;
    b->kv.data = pages_alloc(b->kv.bytes);
    for (uint64_t i = 0; i < b->kv.bytes; i += step)
        memcpy(b->kv.data + i, pattern, i + step < b->kv.bytes ? step : b->kv.bytes - i);
    return true;
}

static bool wanted(const char *filter, const char *name)
{
    return !filter || !strcmp(filter, "all") || !strcmp(filter, name);
}

void bench_attention(const char *level, const char *model, const char *dtype, int threads)
{
    static const oato_dtype dtypes[] = {DT_F16, DT_Q8_0, DT_F32};
    struct attention_bench b = {0};
    struct cpu_pool *pool;
    struct oato_error err;
    if (cpu_pool_create(threads > 0 ? threads : cpu_physical_cores(), &pool, &err))
        return;
    const double bandwidth = bench_bandwidth(pool, READ_BYTES, 0);
    printf("read bandwidth %.1f GB/s\n", bandwidth);
    for (size_t i = ARRAY_LEN(isas); i-- > 1;) {
        b.c.kernels = kernels_named(isas[i]);
        if (!b.c.kernels || !wanted(level, isas[i]))
            continue;
        const double peak = bench_peak(pool, isas[i], PEAK_F32);
        printf("%s: multiply peak %.0f GFLOP/s float32\n", isas[i], peak);
        for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
            for (size_t m = 0; m < ARRAY_LEN(shapes); m++) {
                if (!wanted(dtype, dtype_name(dtypes[d])) || !wanted(model, shapes[m].name) ||
                    !cache_fill(&b, &shapes[m], dtypes[d]))
                    continue;
                b.c.kv = &b.kv;
                for (size_t w = 0; w < ARRAY_LEN(works); w++)
                    bench_work(&b, &shapes[m], &works[w], pool, bandwidth, peak);
                pages_free(b.kv.data, b.kv.bytes);
            }
        }
    }
    cpu_pool_free(pool);
}
