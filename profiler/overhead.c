/*
 * overhead.c - the cost of submitting a step and waiting for its end beyond its records, and of
 * launching one record; and from times of whole layers what a record costs beyond its operator.
 */
#include "profiler/profiler_internal.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define ADDS_UP       0.1 /* plans are to be right within 0.15 */
#define SHORT_NS      3e5
#define OVERHEAD_MOST 0.25 /* more is not what a program costs, but what others took */

enum {
    WIDTH = 64,
    RECORDS_MOST = 64,
    LAUNCH_ROWS = 32, /* more than of steps whose records a device keeps as one launch */
};

/* A step of n small records; times->n is 0 where they are not supported. */
static oato_status time_small(const struct rig *r, uint32_t n, int32_t rows, int32_t repeats,
                              struct rig_times *times, struct oato_error *err)
{
    const struct program_record small = rig_addition(WIDTH, rows);
    const uint64_t bytes = rig_addition_bytes(WIDTH, rows);
    const struct rig_effort effort = {repeats, repeats, 20000000};
    const struct op_point at = {rows, 1, 0, 0};
    struct program_record records[RECORDS_MOST];
    struct program p = {0};
    times->n = 0;
    if (!r->device->ops->supports(r->device, &small.op))
        return OATO_OK;
    if (rig_alloc(r, bytes, &p.arena, err))
        return err->status;
    for (uint32_t i = 0; i < n; i++)
        records[i] = small;
    const oato_status status = rig_time(r, &p, records, n, false, &at, &effort, times, err);
    r->device->ops->free(r->device, p.arena, bytes);
    return status;
}

enum { CHAIN_WIDTH = 1024, CHAINS = 3, CHAIN_MOST = 4 };

/* A marker, then n additions each of which reads what the one before it made. */
static oato_status time_chain(const struct rig *r, uint32_t n, bool quick, double *ns,
                              struct oato_error *err)
{
    const int32_t repeats = r->declared ? 1 : quick ? 16 : 64;
    const struct rig_effort effort = {repeats, repeats, 100000000};
    const struct op_point at = {1, 1, 0, 0};
    const uint64_t each = rig_addition_bytes(CHAIN_WIDTH, 1) / 3, bytes = each * (CHAIN_MOST + 2);
    struct program_record records[CHAIN_MOST + 1];
    struct rig_times times = {.n = 0};
    struct program p = {0};
    if (rig_alloc(r, bytes, &p.arena, err))
        return err->status;
    for (uint32_t i = 0; i <= n; i++) {
        records[i] = rig_addition(CHAIN_WIDTH, 1);
        records[i].in[0] = i ? (i - 1) * each : 0;
        records[i].in[1] = (CHAIN_MOST + 1) * each;
        records[i].out[0] = i ? i * each : each;
    }
    const oato_status status = rig_time(r, &p, records, n + 1, true, &at, &effort, &times, err);
    if (!status)
        *ns = quantile(times.inner_ns, times.n, 0.5);
    r->device->ops->free(r->device, p.arena, bytes);
    return status;
}

oato_status unit_overhead(const struct rig *r, bool quick, double *ns, struct oato_error *err)
{
    double x = 0, y = 0, xx = 0, xy = 0;
    *ns = 0;
    for (int i = 0; i < CHAINS; i++) {
        const uint32_t n = 1u << i;
        double chain_ns = 0;
        if (time_chain(r, n, quick, &chain_ns, err))
            return err->status;
        x += n;
        y += chain_ns;
        xx += (double)n * n;
        xy += n * chain_ns;
    }
    const double slope = (CHAINS * xy - x * y) / (CHAINS * xx - x * x);
    *ns = fmax((y - fmax(slope, 0) * x) / CHAINS, 0);
    return OATO_OK;
}

oato_status step_overhead(const struct rig *r, bool quick, double *ns, struct oato_error *err)
{
    struct rig_times times;
    *ns = 0;
    oato_status status = time_small(r, 2, 1, r->declared ? 1 : quick ? 32 : 200, &times, err);
    if (!status && times.n) {
        double whole = quantile(times.whole_ns, times.n, 0.5);
        double inner = quantile(times.inner_ns, times.n, 0.5);
        *ns = whole > 2 * inner ? whole - 2 * inner : 0;
    }
    return status;
}

uint64_t rss_bytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*u %llu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

oato_status library_measure(struct rig *r, uint64_t before, struct oato_error *err)
{
    double ignored;
    if (r->info.is_host || r->declared)
        return OATO_OK;
    const oato_status status = device_rates(r, true, &ignored, &ignored, err);
    const uint64_t after = rss_bytes();
    r->library_bytes = after > before ? after - before : 0;
    return status;
}

oato_status launch_time(const struct rig *r, bool quick, double *ns, struct oato_error *err)
{
    struct rig_times times;
    *ns = 0;
    oato_status status = time_small(r, RECORDS_MOST, LAUNCH_ROWS, quick ? 8 : 50, &times, err);
    if (!status && times.n)
        *ns = quantile(times.inner_ns, times.n, 0.5) / (RECORDS_MOST - 1);
    return status;
}

/* ---------------------------------------------------------------------- of whole layers ---- */

/* What the layers take beyond the sum of their rows, in the middle one of all times. */
static double beyond_ns(struct layers_times *t, int which)
{
    const struct layers_time *last = &t->last[which];
    return last->records ? quantile(t->mean_ns[which], t->n, 0.5) - last->sum_ns : 0;
}

bool layers_add_up(const struct rig *rig, const struct layers_times *t)
{
    const struct layers_time *last = &t->last[LAYERS_DECODE];
    const double beyond = t->together_ns - last->sum_ns;
    return !last->records || last->sum_ns < SHORT_NS || (rig->leaves_out && beyond > 0) ||
           fabs(beyond) < ADDS_UP * t->together_ns;
}

bool layers_beside_others(const struct rig *rig, struct layers_times *t)
{
    const struct layers_time *last = &t->last[LAYERS_DECODE];
    const double beyond = beyond_ns(t, LAYERS_DECODE);
    return !rig->declared && last->records && last->sum_ns >= SHORT_NS && beyond > 0 &&
           last->sum_ns + beyond > (1 + ADDS_UP) * t->together_ns;
}

/* What is beyond the operators in a decode step is spread over its records; what is still beyond
 * them in a prompt's steps over the time of the rows that these have more: whoever computes only
 * the small operators of a prompt is not charged for what the large ones displace. */
void layers_overheads(const struct rig *rig, struct layers_times *t, struct profile_device *d)
{
    const struct layers_time *decode = &t->last[LAYERS_DECODE];
    const double most_ns = rig->leaves_out ? INFINITY : OVERHEAD_MOST * decode->sum_ns;
    double more_ns = 0, sum_ns = 0, rows_ns = 0, ns = fmin(beyond_ns(t, LAYERS_DECODE), most_ns);
    if (ns > 0)
        d->record_overhead_ns = readable_ns(ns / decode->records);
    for (int j = 0; j < JOIN_COUNT; j++)
        d->join_ns[j] = readable_ns(decode->join_ns[j]);
    for (int i = LAYERS_PROMPT; i < LAYERS_COUNT; i++) {
        const struct layers_time *last = &t->last[i];
        if (last->records)
            more_ns += beyond_ns(t, i) - d->record_overhead_ns * last->records;
        sum_ns += last->records ? last->sum_ns : 0;
        rows_ns += last->records ? last->more_ns : 0;
    }
    more_ns = fmin(more_ns, OVERHEAD_MOST * sum_ns);
    if (more_ns > 0)
        d->rows_overhead = round(more_ns / rows_ns * 1e4) / 1e4;
}
