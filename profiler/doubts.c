/*
 * doubts.c - rows of a profile that contradict the device's own rate of reading memory: an operator
 * of a few rows reads all of its weights, so it takes no less than that rate allows. Either the
 * rate was measured while others used the memory, or the row was while its weights lay in a cache.
 * Both are measured again, within seconds, and what is left is marked, so that plans can say it.
 */
#include "profiler/profiler_internal.h"

#include <math.h>

enum { ROWS_MOST = 4, CACHED_TIMES = 2 /* bench.c's copies exceed the caches so many times */ };
#define OUTRUNS     1.1 /* rates of quiet machines differ by less from one run to the next */
#define BYTES_LEAST (UINT64_C(1) << 18) /* smaller operators stay in a cache while others run */
#define AGAIN_NS    UINT64_C(5000000000)
#define QUICK_NS    UINT64_C(1000000000)

/* Whether the device's rows come from memory at all. */
static bool reads_memory(const struct rig *r)
{
    return !r->declared && (!r->model_bytes || r->model_bytes >= CACHED_TIMES * r->cache_bytes);
}

static bool outruns(const struct profile *p, const struct profile_row *row)
{
    const double rate = p->devices[row->device].read_bytes_per_s;
    const double bytes = op_bytes(&row->op, &row->size);
    return row->supported && !row->op.sparse && row->prepared_bytes &&
           row->size.rows <= ROWS_MOST && bytes >= (double)BYTES_LEAST && rate > 0 &&
           bytes * 1e9 > OUTRUNS * rate * row->median_ns;
}

static int32_t count(const struct rig *r, const struct profile *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_rows; i++)
        n += p->rows[i].device == r->index && outruns(p, &p->rows[i]);
    return n;
}

static void use_clock(struct rig *r, enum device_clock clock)
{
    struct oato_error ignored; /* said when it was first used */
    rig_clock(r, clock, &ignored);
    r->clock = clock;
}

/* What a device can read is the most that it was seen to read. */
static oato_status rate_again(struct rig *r, struct profile_device *d, bool quick,
                              struct oato_error *err)
{
    double flops, rate = 0;
    const oato_status status =
        r->info.is_host ? host_read_rate(r->info.threads, r->cache_bytes, quick, &rate, err)
                        : device_rates(r, quick, &flops, &rate, err);
    d->read_bytes_per_s = fmax(d->read_bytes_per_s, round(rate));
    return status;
}

/* The point of the case that the row is of; false: it is not of this model. */
static bool find_point(const struct profile_row *row, const struct op_set *set,
                       const struct profiler_options *o, int64_t context_length,
                       const struct op_case **c, struct op_point *at)
{
    struct op_point points[POINTS_MAX];
    for (int32_t i = 0; i < set->n; i++) {
        const int32_t n = op_points(&set->cases[i], o, context_length, points);
        for (int32_t j = 0; j < n; j++) {
            const struct op_size size = op_point_size(&set->cases[i].op, &points[j]);
            if (!row_is_of(row, &set->cases[i].op, &size))
                continue;
            *c = &set->cases[i];
            *at = points[j];
            return true;
        }
    }
    return false;
}

static oato_status row_again(const struct rig *r, const struct op_case *c,
                             const struct op_point *at, bool quick, struct profile_row *row,
                             struct oato_error *err)
{
    struct op_bench *bench = NULL;
    struct profile_row again = {.device = 0};
    oato_status status = bench_open(r, c, &bench, err);
    if (!status)
        status = bench_time(bench, at, quick, &again, err);
    if (!status && again.median_ns > row->median_ns) {
        row->median_ns = again.median_ns;
        row->p10_ns = again.p10_ns;
        row->p90_ns = again.p90_ns;
        row->repeats = again.repeats;
        row->disturbed = row->disturbed || again.disturbed;
    }
    bench_close(bench);
    return status == OATO_EFIT ? OATO_OK : status; /* the row stays as it is */
}

static oato_status rows_again(struct rig *r, struct profile *p, const struct op_set *set,
                              const struct profiler_options *o, int64_t context_length,
                              int32_t *again, struct oato_error *err)
{
    const uint64_t end_ns = now_ns() + (o->quick ? QUICK_NS : AGAIN_NS);
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < p->n_rows && !status && now_ns() < end_ns; i++) {
        struct profile_row *row = &p->rows[i];
        const struct op_case *c;
        struct op_point at;
        if (row->device != r->index || !outruns(p, row) ||
            !find_point(row, set, o, context_length, &c, &at))
            continue;
        status = oato_interrupted ? oato_fail(err, OATO_NEGATIVE, "interrupted")
                                  : row_again(r, c, &at, o->quick, row, err);
        ++*again;
    }
    return status;
}

oato_status doubts_settle(struct rig *r, struct profile *p, const struct op_set *set,
                          const struct profiler_options *o, int64_t context_length, int32_t *n,
                          int32_t *again, struct oato_error *err)
{
    oato_status status = OATO_OK;
    const bool reads = reads_memory(r);
    *n = *again = 0;
    if (reads && count(r, p)) {
        use_clock(r, CLOCK_WORKS);
        status = rate_again(r, &p->devices[r->index], o->quick, err);
        if (!status)
            status = rows_again(r, p, set, o, context_length, again, err);
        use_clock(r, CLOCK_USUAL);
    }
    for (int32_t i = 0; i < p->n_rows && !status; i++) {
        struct profile_row *row = &p->rows[i];
        if (row->device != r->index)
            continue;
        row->contradicts = reads && outruns(p, row);
        *n += row->contradicts;
    }
    return status;
}
