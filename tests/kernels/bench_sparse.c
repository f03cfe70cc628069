/*
 * bench_sparse.c - a sparse FFN against our own dense one: gate, up and down of 4096 x 14336, one
 * token, at several shares of active neurons. The two take turns, because a shared machine's speed
 * changes from second to second; the ratio is that of the best times, and the median of the pairs.
 * The bound is what the bytes allow: all of gate, and of up and down what is active, 1/3 + 2a/3.
 */
#include "tests/kernels/bench_cpu.h"
#include "tests/kernels/test_cpu.h"

enum { WIDTH = 4096, NEURONS = 14336, PAIRS = 31 };

enum { GATE, UP, DOWN, UP_ROWS, DOWN_COLUMNS, WEIGHTS };

struct ffn {
    struct cpu_context c;
    struct oato_weight *weight[WEIGHTS];
    struct program_record up[2], down[2]; /* dense, sparse */
    struct step step;
    struct bench_window window;
    int which;
    uint64_t ns, up_ns; /* up_ns: of these, gate and up */
};

static void ffn_share(void *arg, int thread)
{
    struct ffn *f = arg;
    window_begin(&f->window, thread);
    const uint64_t begin_ns = now_ns();
    cpu_run_record(&f->c, &f->up[f->which], &f->step, thread, &f->window.barrier);
    cpu_barrier_wait(&f->window.barrier);
    if (thread == 0)
        f->up_ns = now_ns() - begin_ns;
    cpu_run_record(&f->c, &f->down[f->which], &f->step, thread, &f->window.barrier);
    const uint64_t ns = window_end(&f->window);
    if (thread == 0)
        f->ns = ns;
}

static double ffn_time(struct ffn *f, struct cpu_pool *pool, int which)
{
    f->which = which;
    cpu_pool_run(pool, ffn_share, f);
    return (double)f->ns;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

/* Only the clock counts: one random matrix serves for all three. */
static void weights_prepare(struct ffn *f, oato_dtype dtype)
{
    size_t row = 0;
    dtype_row_bytes(dtype, WIDTH, &row);
    uint8_t *raw = pages_alloc(row * NEURONS);
    random_elements(dtype, raw, (int64_t)WIDTH * NEURONS);
    for (int i = 0; i < WEIGHTS; i++) {
        const bool down = i == DOWN || i == DOWN_COLUMNS;
        struct weight_source s = {.data = raw,
                                  .dtype = dtype,
                                  .k = down ? NEURONS : WIDTH,
                                  .n = down ? WIDTH : NEURONS,
                                  .use = i == UP_ROWS        ? WEIGHT_ROWS
                                         : i == DOWN_COLUMNS ? WEIGHT_COLUMNS
                                                             : WEIGHT_MATRIX};
        s.row_end = s.n;
        struct oato_weight *w = calloc(1, sizeof *w);
        *w = (struct oato_weight){.dtype = dtype, .use = s.use, .rows = s.n, .k = s.k};
        w->bytes = cpu_source_bytes(f->c.kernels, &s);
        w->data = pages_alloc(w->bytes);
        cpu_prepare_rows(f->c.kernels, &s, w, 0, s.n);
        f->weight[i] = w;
    }
    pages_free(raw, row * NEURONS);
}

static struct program_record record(struct oato_op op, int first, int n, uint64_t in, uint64_t out)
{
    struct program_record r = record_of(op);
    r.in[0] = in;
    r.out[0] = out;
    r.n_weights = (uint8_t)n;
    r.weight[0] = (uint32_t)first;
    return r;
}

/* Dense and sparse records, on x, h and y of the arena. */
static void records_make(struct ffn *f, oato_dtype dtype)
{
    const uint64_t h = WIDTH * sizeof(float), y = h + NEURONS * sizeof(float);
    struct oato_op up = {.kind = OP_GATE_UP,
                         .dtype = (uint16_t)dtype,
                         .k = WIDTH,
                         .n = NEURONS,
                         .activation = ACT_NONE};
    struct oato_op down = {.kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = NEURONS, .n = WIDTH};
    for (int sparse = 0; sparse < 2; sparse++) {
        up.sparse = down.sparse = sparse;
        f->up[sparse] = record(up, GATE, 2, 0, h);
        f->up[sparse].weight[1] = sparse ? UP_ROWS : UP;
        f->down[sparse] = record(down, sparse ? DOWN_COLUMNS : DOWN, 1, h, y);
    }
}

/* Gates in order of size, by which a threshold gives any share of active neurons. */
static double *gates_sorted(struct ffn *f, oato_dtype dtype)
{
    const struct oato_op op = {
        .kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = WIDTH, .n = NEURONS};
    const struct program_record r = record(op, GATE, 1, 0, WIDTH * sizeof(float));
    double *size = malloc(NEURONS * sizeof *size);
    cpu_run_alone(&f->c, &r, &f->step);
    for (int i = 0; i < NEURONS; i++)
        size[i] = (double)fabsf(floats(f->c.arena)[WIDTH + i]);
    qsort(size, NEURONS, sizeof *size, by_size);
    return size;
}

static void ffn_bench(struct ffn *f, oato_dtype dtype, struct cpu_pool *pool)
{
    static const int shares[] = {100, 80, 50, 30, 20, 10, 5};
    const int threads = cpu_pool_threads(pool);
    double *size = gates_sorted(f, dtype);
    for (size_t s = 0; s < ARRAY_LEN(shares); s++) {
        const double a = shares[s] / 100.0;
        const int silent = (int)((1 - a) * NEURONS);
        double dense[PAIRS], sparse[PAIRS], ratio[PAIRS], up[PAIRS];
        f->up[1].op.threshold = silent ? (float)size[silent - 1] : -1;
        for (int i = -1; i < PAIRS; i++) {
            const double one = ffn_time(f, pool, 0), other = ffn_time(f, pool, 1);
            if (i < 0)
                continue;
            dense[i] = one;
            sparse[i] = other;
            up[i] = (double)f->up_ns;
            ratio[i] = one / other;
        }
        const double bound = 1 / (1.0 / 3 + 2 * a / 3), got = median(ratio, PAIRS);
        const double dense_ns = median(dense, PAIRS), sparse_ns = median(sparse, PAIRS);
        const double up_ns = median(up, PAIRS);
        printf("%-7s %-5s threads %d active %3d %%  dense %7.0f us, sparse %7.0f us (up "
               "%7.0f), pairs: %.2f x, %3.0f %% of the bytes' %.2f x\n",
               f->c.kernels->name, dtype_name(dtype), threads, shares[s], dense_ns / 1e3,
               sparse_ns / 1e3, up_ns / 1e3, got, 100 * got / bound, bound);
        fflush(stdout);
    }
    free(size);
}

void bench_sparse(const char *level, const char *dtype, int threads)
{
    static const oato_dtype types[] = {DT_Q4_0, DT_F16, DT_Q8_0, DT_Q4_K, DT_Q6_K};
    struct cpu_pool *pool;
    struct oato_error err;
    if (cpu_pool_create(threads > 0 ? threads : cpu_physical_cores(), &pool, &err))
        return;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct ffn f = {.c.kernels = kernels_named(level ? level : "avx512"),
                        .step = {.n_tokens = 1, .n_rows = 1, .n_seqs = 1}};
        if (!f.c.kernels || (dtype ? strcmp(dtype, dtype_name(types[i])) != 0 : i > 1))
            continue;
        const uint64_t arena = (2 * WIDTH + NEURONS) * sizeof(float), work = (uint64_t)64 << 20;
        f.c.arena = pages_alloc(arena);
        f.c.workspace = pages_alloc(work);
        f.c.workspace_bytes = work;
        f.c.weights = f.weight;
        random_floats(floats(f.c.arena), WIDTH);
        window_init(&f.window, cpu_pool_threads(pool));
        weights_prepare(&f, types[i]);
        records_make(&f, types[i]);
        ffn_bench(&f, types[i], pool);
        for (int w = 0; w < WEIGHTS; w++) {
            pages_free((void *)(uintptr_t)f.weight[w]->data, f.weight[w]->bytes);
            free(f.weight[w]);
        }
        pages_free(f.c.arena, arena);
        pages_free(f.c.workspace, work);
    }
    cpu_pool_free(pool);
}
