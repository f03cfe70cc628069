/*
 * bench_sparse.c - a sparse FFN against our own dense one: gate, up and down of 4096 x 14336, one
 * token, at several shares of active neurons; by its own gates, and with their list given. All take
 * turns, because a shared machine's speed changes from second to second; a ratio is the median of
 * the rounds. The bound is what the bytes allow: all of gate, and of up and down what is active,
 * 1/3 + 2a/3; of all three what is listed, a.
 */
#include "tests/kernels/bench_cpu.h"
#include "tests/kernels/test_cpu.h"

enum { WIDTH = 4096, NEURONS = 14336, ROUNDS = 31 };

enum mode { DENSE, GATED, LISTED, MODES };

enum { GATE, UP, DOWN, GATE_ROWS, UP_ROWS, DOWN_COLUMNS, WEIGHTS };

/* Floats of the arena. */
enum { X = 0, H = X + WIDTH, Y = H + NEURONS, LIST = Y + WIDTH, FLOATS = LIST + NEURONS + 1 };

struct ffn {
    struct cpu_context c;
    struct oato_weight *weight[WEIGHTS];
    struct program_record up[MODES], down[MODES];
    struct step step;
    struct bench_window window;
    enum mode mode;
    uint64_t ns, up_ns; /* up_ns: of these, gate and up */
};

static void ffn_share(void *arg, int thread)
{
    struct ffn *f = arg;
    window_begin(&f->window, thread);
    const uint64_t begin_ns = now_ns();
    cpu_run_record(&f->c, &f->up[f->mode], &f->step, thread, &f->window.barrier);
    cpu_barrier_wait(&f->window.barrier);
    if (thread == 0)
        f->up_ns = now_ns() - begin_ns;
    cpu_run_record(&f->c, &f->down[f->mode], &f->step, thread, &f->window.barrier);
    const uint64_t ns = window_end(&f->window);
    if (thread == 0)
        f->ns = ns;
}

static double ffn_time(struct ffn *f, struct cpu_pool *pool, enum mode mode)
{
    f->mode = mode;
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

/* Only the clock counts: one random matrix serves for all. */
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
                                  .use = i == DOWN_COLUMNS ? WEIGHT_COLUMNS
                                         : i >= GATE_ROWS  ? WEIGHT_ROWS
                                                           : WEIGHT_MATRIX};
        s.row_end = s.n;
        struct oato_weight *w = calloc(1, sizeof *w);
        *w = (struct oato_weight){.dtype = dtype, .use = s.use, .rows = s.n, .k = s.k};
        w->bytes = cpu_source_bytes(f->c.kernels, &s);
        w->data = pages_alloc(w->bytes);
        cpu_convert_rows(f->c.kernels, &s, 0, s.n, (uint8_t *)(uintptr_t)w->data);
        f->weight[i] = w;
    }
    pages_free(raw, row * NEURONS);
}

static struct program_record record(struct oato_op op, int first, int in, int out)
{
    struct program_record r = record_of(op);
    r.in[0] = (uint64_t)in * sizeof(float);
    r.in[1] = LIST * sizeof(float);
    r.out[0] = (uint64_t)out * sizeof(float);
    r.n_weights = op.kind == OP_GATE_UP ? 2 : 1;
    r.weight[0] = (uint32_t)first;
    return r;
}

static void records_make(struct ffn *f, oato_dtype dtype)
{
    static const struct {
        int sparse, gate, up, down;
    } of[MODES] = {{SPARSE_OFF, GATE, UP, DOWN},
                   {SPARSE_ABOVE, GATE, UP_ROWS, DOWN_COLUMNS},
                   {SPARSE_PREDICT, GATE_ROWS, UP_ROWS, DOWN_COLUMNS}};
    struct oato_op up = {.kind = OP_GATE_UP,
                         .dtype = (uint16_t)dtype,
                         .k = WIDTH,
                         .n = NEURONS,
                         .activation = ACT_NONE};
    struct oato_op down = {.kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = NEURONS, .n = WIDTH};
    for (int m = 0; m < MODES; m++) {
        up.sparse = of[m].sparse;
        down.sparse = of[m].sparse ? SPARSE_ABOVE : SPARSE_OFF;
        f->up[m] = record(up, of[m].gate, X, H);
        f->up[m].weight[1] = (uint32_t)of[m].up;
        f->down[m] = record(down, of[m].down, H, Y);
    }
}

static double *gates(struct ffn *f, oato_dtype dtype)
{
    const struct oato_op op = {
        .kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = WIDTH, .n = NEURONS};
    const struct program_record r = record(op, GATE, X, H);
    double *size = malloc(NEURONS * sizeof *size);
    cpu_run_alone(&f->c, &r, &f->step);
    for (int i = 0; i < NEURONS; i++)
        size[i] = (double)fabsf(floats(f->c.arena)[H + i]);
    return size;
}

/* A share of the neurons is active: those with the largest gates, by threshold and by list. */
static void share_set(struct ffn *f, const double *gate, const double *sorted, double share)
{
    const int silent = (int)((1 - share) * NEURONS);
    const double threshold = silent ? sorted[silent - 1] : -1;
    float *list = floats(f->c.arena) + LIST;
    *list = 0;
    for (int i = 0; i < NEURONS; i++)
        if (gate[i] > threshold)
            list[1 + (int)(*list)++] = (float)i;
    f->up[GATED].op.threshold = f->up[LISTED].op.threshold = (float)threshold;
}

static void ffn_bench(struct ffn *f, oato_dtype dtype, struct cpu_pool *pool)
{
    static const int shares[] = {100, 80, 50, 30, 20, 10, 5};
    double *gate = gates(f, dtype), *sorted = malloc(NEURONS * sizeof *sorted);
    memcpy(sorted, gate, NEURONS * sizeof *sorted);
    qsort(sorted, NEURONS, sizeof *sorted, by_size);
    for (size_t s = 0; s < ARRAY_LEN(shares); s++) {
        const double a = shares[s] / 100.0;
        const double bound[MODES] = {1, 1 / (1.0 / 3 + 2 * a / 3), 1 / a};
        double time[MODES][ROUNDS], ratio[MODES][ROUNDS], up[MODES][ROUNDS];
        share_set(f, gate, sorted, a);
        for (int i = -1; i < ROUNDS; i++)
            for (enum mode m = DENSE; m < MODES; m++) {
                const int at = i < 0 ? 0 : i; /* the first round is not kept */
                time[m][at] = ffn_time(f, pool, m);
                up[m][at] = (double)f->up_ns;
                ratio[m][at] = time[DENSE][at] / time[m][at];
            }
        printf("%-7s %-5s threads %d active %3d %%  dense %5.0f us", f->c.kernels->name,
               dtype_name(dtype), cpu_pool_threads(pool), shares[s],
               median(time[DENSE], ROUNDS) / 1e3);
        for (enum mode m = GATED; m < MODES; m++) {
            const double got = median(ratio[m], ROUNDS);
            printf(", %s %5.0f us (up %5.0f): %.2f x, %3.0f %% of the bytes' %.2f x",
                   m == GATED ? "exact" : "listed", median(time[m], ROUNDS) / 1e3,
                   median(up[m], ROUNDS) / 1e3, got, 100 * got / bound[m], bound[m]);
        }
        printf("\n");
        fflush(stdout);
    }
    free(gate);
    free(sorted);
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
        const uint64_t arena = FLOATS * sizeof(float), work = (uint64_t)64 << 20;
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
