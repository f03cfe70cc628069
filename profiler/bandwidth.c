/*
 * bandwidth.c - the rates of a machine: what its cores read from memory, what a device computes at
 * best, what a link carries in each direction and what waiting for the other side's event costs.
 */
#include "profiler/profiler_internal.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------- reading memory ---- */

typedef uint64_t line_words __attribute__((vector_size(64))); /* a cache line */
enum { PREFETCH_LINES = 32, READ_RUNS = 9 };

struct reader {
    const line_words *lines;
    size_t n;
    pthread_barrier_t *barrier;
    int runs;
    uint64_t sum; /* so that the reads are wanted */
};

static void *reader_run(void *arg)
{
    struct reader *r = arg;
    for (int run = 0; run < r->runs; run++) {
        pthread_barrier_wait(r->barrier);
        line_words a = {0}, b = {0};
        for (size_t i = 0; i + 1 < r->n; i += 2) {
            __builtin_prefetch((const char *)&r->lines[i] + PREFETCH_LINES * 64);
            __builtin_prefetch((const char *)&r->lines[i] + (PREFETCH_LINES + 1) * 64);
            a += r->lines[i];
            b += r->lines[i + 1];
        }
        a += b;
        for (int i = 0; i < 8; i++)
            r->sum += a[i];
        pthread_barrier_wait(r->barrier);
    }
    return NULL;
}

oato_status host_read_rate(int32_t threads, uint64_t cache_bytes, bool quick, double *bytes_per_s,
                           struct oato_error *err)
{
    size_t bytes = 4 * (size_t)cache_bytes;
    bytes = bytes < (32u << 20) ? 32u << 20 : bytes > (1u << 30) ? 1u << 30 : bytes;
    int runs = quick ? 3 : READ_RUNS, started = 0;
    threads = threads < 1 ? 1 : threads;
    struct reader *readers = calloc((size_t)threads, sizeof *readers);
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    uint8_t *buffer = pages_alloc(bytes);
    double ns[READ_RUNS];
    oato_status status = OATO_OK;
    pthread_barrier_t barrier;
    if (!readers || !ids || !buffer) {
        status = oato_fail_memory(err, bytes, "measuring the read bandwidth");
        goto out;
    }
    memset(buffer, 1, bytes); /* else all of it is the one zero page */
    if (pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1)) {
        status = oato_fail(err, OATO_EFIT, "a barrier of %d threads cannot be made", threads + 1);
        goto out;
    }
    size_t share = bytes / sizeof(line_words) / (size_t)threads;
    for (; started < threads; started++) {
        readers[started] =
            (struct reader){.lines = (line_words *)(void *)buffer + share * (size_t)started,
                            .n = share,
                            .barrier = &barrier,
                            .runs = runs};
        if (pthread_create(&ids[started], NULL, reader_run, &readers[started]))
            break;
    }
    if (started < threads) { /* the others wait at the barrier for good: end them there */
        for (int i = 0; i < started; i++) {
            pthread_cancel(ids[i]);
            pthread_join(ids[i], NULL);
        }
        status = oato_fail(err, OATO_EFIT, "thread %d of %d cannot be started; use --threads",
                           started + 1, threads);
        goto out;
    }
    for (int run = 0; run < runs; run++) {
        pthread_barrier_wait(&barrier);
        uint64_t begin = now_ns();
        pthread_barrier_wait(&barrier);
        ns[run] = (double)(now_ns() - begin);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&barrier);
    *bytes_per_s =
        (double)(share * (size_t)threads * sizeof(line_words)) * 1e9 / quantile(ns, runs, 0.5);
out:
    pages_free(buffer, bytes);
    free(readers);
    free(ids);
    return status;
}

/* --------------------------------------------------------------------------- arithmetic ---- */

/* One square product; ns of it at the given number of rows. */
static oato_status time_product(const struct rig *r, oato_dtype dtype, int32_t width, int32_t rows,
                                bool quick, double *ns, struct oato_error *err)
{
    size_t row_bytes;
    if (!dtype_row_bytes(dtype, width, &row_bytes))
        return oato_fail(err, OATO_EUSAGE, "no rows of %d in %s", width, dtype_name(dtype));
    size_t bytes = row_bytes * (size_t)width;
    uint8_t *data = pages_alloc(bytes);
    if (!data)
        return oato_fail_memory(err, bytes, "a matrix");
    memset(data, 0x2c, bytes); /* small normal numbers in every element type */
    struct gguf_tensor tensor = {.name = "",
                                 .dtype = dtype,
                                 .n_dims = 2,
                                 .ne = {width, width, 1, 1},
                                 .data = data,
                                 .bytes = bytes};
    const struct gguf_tensor *weights[1][GRAPH_WEIGHTS] = {{&tensor}};
    struct op_case c = {
        .op = {.kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = width, .n = width},
        .shape = {.n_in = 1, .n_out = 1, .n_weights = 1},
        .in_width = {width},
        .out_width = {width},
        .weights = weights,
        .n_weights = 1};
    c.shape.op = c.op;
    struct op_bench *b = NULL;
    struct profile_row row;
    oato_status status = OATO_OK;
    *ns = 0;
    if (r->device->ops->supports(r->device, &c.op))
        status = bench_open(r, &c, &b, err);
    if (b)
        status = bench_time(b, &(struct op_point){rows, 1, 0}, quick, &row, err);
    if (b && !status)
        *ns = row.median_ns;
    bench_close(b);
    pages_free(data, bytes);
    return status;
}

/* A product that takes so long tells what a device computes; a larger one is not tried. */
#define PRODUCT_NS 100e3
enum { WIDTH_MOST = 4096 };

/* The rate of products with one element type; larger ones on a device that is done at once. */
static oato_status product_rate(const struct rig *r, oato_dtype dtype, bool quick,
                                double *flops_per_s, struct oato_error *err)
{
    double ns = 0;
    for (int32_t width = quick ? 512 : 1024, rows = width / 8; width <= WIDTH_MOST;
         width *= 2, rows *= 2) {
        oato_status status = time_product(r, dtype, width, rows, quick, &ns, err);
        if (status)
            return status;
        if (ns > 0)
            *flops_per_s = fmax(*flops_per_s, 2.0 * width * width * rows * 1e9 / ns);
        if (r->info.is_host || ns <= 0 || ns > PRODUCT_NS)
            break;
    }
    return OATO_OK;
}

oato_status device_rates(const struct rig *r, bool quick, double *flops_per_s,
                         double *read_bytes_per_s, struct oato_error *err)
{
    const int32_t width = quick ? 512 : 1024;
    static const oato_dtype dtypes[] = {DT_F32, DT_F16, DT_Q8_0, DT_Q4_0};
    struct rig cached = *r; /* arithmetic is the limit: one copy of the weights is enough */
    cached.cache_bytes = 0;
    double ns = 0;
    *flops_per_s = *read_bytes_per_s = 0;
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        oato_status status = product_rate(&cached, dtypes[i], quick, flops_per_s, err);
        if (status)
            return status;
    }
    if (r->info.is_host) /* see host_read_rate */
        return OATO_OK;
    if (r->device->ops->read_rate)
        return r->device->ops->read_rate(r->device, read_bytes_per_s, err);
    oato_status status = time_product(r, DT_F16, width, 1, quick, &ns, err);
    if (!status && ns > 0)
        *read_bytes_per_s = 2.0 * width * width * 1e9 / ns;
    return status;
}

/* -------------------------------------------------------------------------------- links ---- */

/* Copies between the host's arena and the device's, one behind the other, as steps have them. */
static oato_status time_copies(const struct rig *r, bool to_device, void *memory, void *host,
                               uint64_t bytes, const struct rig_effort *effort, double *ns,
                               struct oato_error *err)
{
    enum { COPIES = 16 };
    struct program_record records[COPIES + 1];
    struct graph_op shape = {.n_in = 1, .n_out = 1};
    struct rig_times times;
    struct rig_step s;
    oato_status status = rig_step_create(&(struct op_point){1, 1, 0}, 0, &s, err);
    if (status)
        return status;
    for (int i = 0; i <= COPIES; i++) {
        records[i] = rig_record(&shape, &(struct oato_op){.kind = OP_ADD},
                                (int32_t[]){(int32_t)(bytes / sizeof(float))});
        records[i].kind = to_device ? RECORD_UPLOAD : RECORD_DOWNLOAD;
        records[i].signal = i == 0 ? 1 : i == COPIES ? 2 : 0;
    }
    struct program p = {.records = records,
                        .n_records = COPIES + 1,
                        .n_signals = 2,
                        .max_tokens = 1,
                        .max_rows = 1,
                        .max_seqs = 1,
                        .arena = memory,
                        .host_arena = host,
                        .host_arena_bytes = bytes};
    status = rig_run(r, &p, &s, effort, &times, err);
    if (!status)
        *ns = quantile(times.inner_ns, times.n, 0.5) / COPIES;
    rig_step_free(&s);
    return status;
}

oato_status link_rate(const struct rig *r, bool to_device, bool quick, double *latency_ns,
                      double *bytes_per_s, struct oato_error *err)
{
    static const uint64_t sizes[] = {1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
    const int32_t runs = r->declared ? 1 : quick ? 5 : 15;
    const struct rig_effort effort = {runs, runs, 20000000};
    double ns[ARRAY_LEN(sizes)];
    int n = 0;
    struct device_info info;
    r->device->ops->info(r->device, &info);
    uint64_t largest = sizes[ARRAY_LEN(sizes) - 1];
    while (largest > sizes[1] && largest > info.free_bytes / 2)
        largest /= 4;
    uint8_t *host = pages_alloc(largest);
    void *memory = NULL;
    oato_status status = OATO_OK;
    if (!host)
        return oato_fail_memory(err, largest, "measuring a link");
    memset(host, 1, largest);
    status = r->device->ops->alloc(r->device, largest, &memory, err);
    for (size_t i = 0; !status && i < ARRAY_LEN(sizes) && sizes[i] <= largest; i++) {
        status = time_copies(r, to_device, memory, host, sizes[i], &effort, &ns[n], err);
        n += !status;
    }
    if (!status) {
        /* rate: the slope at the large end; latency: what is left of the small ones */
        double slope = (ns[n - 1] - ns[n - 2]) / (double)(sizes[n - 1] - sizes[n - 2]);
        double left[2] = {ns[0] - slope * (double)sizes[0], ns[1] - slope * (double)sizes[1]};
        *bytes_per_s = slope > 0 ? 1e9 / slope : 0;
        *latency_ns = quantile(left, 2, 0.5);
        *latency_ns = *latency_ns > 0 ? *latency_ns : 0;
    }
    if (memory)
        r->device->ops->free(r->device, memory, largest);
    pages_free(host, largest);
    return status;
}

/* ----------------------------------------------------------------- waiting for each other --- */

enum { PINGS = 64, PING_WIDTH = 64 };

/* PINGS small records, each of which waits for the host and answers; ns from the first answer to
 * the last on the device's clock, less the same without waiting. */
static oato_status ping_once(const struct rig *r, struct compiled *c, struct rig_step *s,
                             struct timeline *host, bool answer, double *ns, struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    struct timeline *t = ops->timeline(r->device);
    s->timelines[0] = host;
    s->timelines[1] = t;
    s->base[0] = atomic_load(&host->value);
    s->base[1] = atomic_load(&t->value);
    uint64_t clock = ops->clock_ns(r->device), first = 0;
    s->step.clock_ns = clock;
    oato_status status = ops->submit(r->device, c, &s->step, err);
    if (status)
        return status;
    for (uint64_t i = 1; i <= PINGS; i++) {
        if (answer)
            timeline_signal(host, s->base[0] + i, clock);
        if (!timeline_wait(t, s->base[1] + i, &clock))
            break;
        first = i == 1 ? clock : first;
    }
    *ns = clock > first ? (double)(clock - first) : 0;
    return ops->finish(r->device, err);
}

oato_status link_sync(const struct rig *r, bool quick, double *sync_ns, struct oato_error *err)
{
    enum { RUNS = 9 };
    const struct device_ops *ops = r->device->ops;
    struct oato_op add = {.kind = OP_ADD, .dtype = DT_F32, .k = PING_WIDTH, .n = PING_WIDTH};
    struct graph_op shape = {.n_in = 2, .n_out = 1};
    int runs = r->declared ? 1 : quick ? 3 : RUNS;
    double total[2][RUNS];
    void *memory = NULL;
    struct rig_step s = {0};
    *sync_ns = 0;
    if (!ops->supports(r->device, &add))
        return OATO_OK;
    struct timeline *host = calloc(1, sizeof *host);
    struct program_record *records = calloc(PINGS, sizeof *records);
    if (!host || !records) {
        free(records);
        free(host);
        return oato_fail_memory(err, sizeof *host, "a timeline");
    }
    timeline_init(host);
    oato_status status = rig_step_create(&(struct op_point){1, 1, 0}, 0, &s, err);
    if (!status)
        status = rig_alloc(r, 3 * PING_WIDTH * sizeof(float), &memory, err);
    struct program p = {.records = records,
                        .n_records = PINGS,
                        .n_signals = PINGS,
                        .max_tokens = 1,
                        .max_rows = 1,
                        .max_seqs = 1,
                        .arena = memory};
    for (int waits = 0; waits < 2 && !status; waits++) {
        struct compiled *c = NULL;
        for (uint32_t i = 0; i < PINGS; i++) {
            records[i] = rig_record(&shape, &add, (int32_t[]){PING_WIDTH, PING_WIDTH});
            records[i].in[1] = PING_WIDTH * sizeof(float);
            records[i].out[0] = 2 * PING_WIDTH * sizeof(float);
            records[i].signal = i + 1;
            records[i].n_waits = (uint8_t)waits;
            records[i].wait[0] = (struct record_wait){.device = 0, .ordinal = i + 1};
        }
        status = ops->compile(r->device, &p, 1, &c, err);
        for (int run = 0; run < runs && !status; run++)
            status = ping_once(r, c, &s, host, waits, &total[waits][run], err);
        if (c)
            ops->release(r->device, c);
    }
    if (!status) {
        double ns = quantile(total[1], runs, 0.5) - quantile(total[0], runs, 0.5);
        *sync_ns = ns > 0 ? ns / (2 * (PINGS - 1)) : 0;
    }
    if (memory)
        ops->free(r->device, memory, 3 * PING_WIDTH * sizeof(float));
    rig_step_free(&s);
    free(records);
    free(host);
    return status;
}
