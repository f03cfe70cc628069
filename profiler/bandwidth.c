/*
 * bandwidth.c - the rates of a machine: memory read bandwidth of its cores, peak arithmetic of a
 * device.
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
    pthread_mutex_t *gate; /* held until all readers are there or *stop */
    const bool *stop;
    pthread_barrier_t *barrier;
    int runs;
    uint64_t sum; /* so that the reads are wanted */
};

static void *reader_run(void *arg)
{
    struct reader *r = arg;
    pthread_mutex_lock(r->gate);
    const bool stop = *r->stop;
    pthread_mutex_unlock(r->gate);
    if (stop)
        return NULL;
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
    struct host_share host;
    host_share_read("", &host);
    size_t bytes = 4 * (size_t)cache_bytes;
    bytes = bytes < (32u << 20) ? 32u << 20 : bytes > (1u << 30) ? 1u << 30 : bytes;
    if (bytes > host.available_bytes / 4)
        bytes = size_align(host.available_bytes / 4 + 1, 1 << 20);
    if (bytes < 2 * cache_bytes) /* its rate would be the cache's */
        return oato_fail(err, OATO_EFIT,
                         "measuring the memory takes %zu MiB free, four times as much as a cache; "
                         "there are %zu MiB: end other programs, or raise the limit",
                         (size_t)(8 * cache_bytes >> 20), (size_t)(host.available_bytes >> 20));
    int runs = quick ? 3 : READ_RUNS, started = 0;
    threads = threads < 1 ? 1 : threads;
    struct reader *readers = calloc((size_t)threads, sizeof *readers);
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    uint8_t *buffer = pages_alloc(bytes);
    double ns[READ_RUNS];
    oato_status status = OATO_OK;
    pthread_barrier_t barrier;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    bool stop = false;
    if (!readers || !ids || !buffer) {
        status = oato_fail_memory(err, bytes, "measuring the read bandwidth");
        goto out;
    }
    memset(buffer, 1, bytes); /* else all of it is the one zero page */
    if (pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1)) {
        status = oato_fail(err, OATO_EFIT, "cannot create a barrier for %d threads", threads + 1);
        goto out;
    }
    size_t share = bytes / sizeof(line_words) / (size_t)threads;
    pthread_mutex_lock(&gate);
    for (; started < threads; started++) {
        readers[started] =
            (struct reader){.lines = (line_words *)(void *)buffer + share * (size_t)started,
                            .n = share,
                            .gate = &gate,
                            .stop = &stop,
                            .barrier = &barrier,
                            .runs = runs};
        if (pthread_create(&ids[started], NULL, reader_run, &readers[started]))
            break;
    }
    stop = started < threads; /* a barrier would wait for the missing one for good */
    pthread_mutex_unlock(&gate);
    if (stop)
        status = oato_fail(err, OATO_EFIT,
                           "cannot start thread %d of %d to measure memory; use fewer --threads",
                           started + 1, threads);
    for (int run = 0; run < runs && !stop; run++) {
        pthread_barrier_wait(&barrier);
        uint64_t begin = now_ns();
        pthread_barrier_wait(&barrier);
        ns[run] = (double)(now_ns() - begin);
    }
    for (int i = 0; i < started; i++)
        pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&barrier);
    if (!stop)
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
        return oato_fail(err, OATO_EUSAGE, "rows of %d elements do not fit the blocks of type %s",
                         width, dtype_name(dtype));
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
        status = bench_time(b, &(struct op_point){rows, 1, 0, 0}, quick, &row, err);
    if (b && !status)
        *ns = row.median_ns;
    bench_close(b);
    pages_free(data, bytes);
    return status;
}

/* A product that takes so long, or so long to measure, tells what a device computes; a larger one
 * is not tried. */
#define PRODUCT_NS 100e3
#define MEASURE_NS 500000000
enum { WIDTH_MOST = 4096 };

/* The rate of products with one element type; larger ones on a device that is done at once. */
static oato_status product_rate(const struct rig *r, oato_dtype dtype, bool quick,
                                double *flops_per_s, struct oato_error *err)
{
    double ns = 0;
    for (int32_t width = quick ? 512 : 1024, rows = width / 8; width <= WIDTH_MOST;
         width *= 2, rows *= 2) {
        const uint64_t begin = now_ns();
        oato_status status = time_product(r, dtype, width, rows, quick, &ns, err);
        if (status)
            return status;
        if (ns > 0)
            *flops_per_s = fmax(*flops_per_s, 2.0 * width * width * rows * 1e9 / ns);
        if (r->info.is_host || ns <= 0 || ns > PRODUCT_NS || now_ns() - begin > MEASURE_NS)
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
