/*
 * swaps.c - how long sums of ranks take that accelerators make by themselves (SUM_ACCELERATORS):
 * programs of exchanges and additions, as lowering makes them, on one device of each rank.
 */
#include "profiler/profiler_internal.h"

#include <stdlib.h>
#include <string.h>

/* The rank's device of those that its host has beside the processor, if there is one for each. */
static bool seat_find(struct collective *ranks, const char *devices, char spec[256])
{
    char specs[DEVICES_MAX][256];
    int32_t host[RANKS_MAX], number = 0, sharers = 0;
    const int32_t own = collective_rank(ranks);
    struct oato_error ignored;
    collective_hosts(ranks, host);
    for (int32_t r = 0; r < collective_ranks(ranks); r++) {
        number += r < own && host[r] == host[own];
        sharers += host[r] == host[own];
    }
    const int n = devices ? device_split(devices, specs, DEVICES_MAX, &ignored) : 0;
    for (int i = 0; i < n; i++) {
        const bool is_host = device_is_host(specs[i]);
        sharers -= !is_host;
        if (!is_host && !number--)
            memcpy(spec, specs[i], sizeof specs[i]);
    }
    return n > 0 && !sharers;
}

static uint64_t arena_bytes(const struct swaps *s)
{
    return (uint64_t)(s->n_ranks + 1) * s->part_bytes;
}

static oato_status device_take(struct swaps *s, const char *spec, struct oato_error *err)
{
    if (device_open(spec, 0, NULL, &s->device, err))
        return err->status;
    if (!s->device->ops->join)
        return oato_fail(err, OATO_EDEVICE, "%s cannot join other ranks", spec);
    return s->device->ops->alloc(s->device, arena_bytes(s), &s->arena, err);
}

void swaps_close(struct swaps *s)
{
    if (s->arena)
        s->device->ops->free(s->device, s->arena, arena_bytes(s));
    if (s->device)
        s->device->ops->close(s->device);
    s->arena = NULL;
    s->device = NULL;
}

oato_status swaps_open(struct collective *ranks, const char *devices, int32_t width, int32_t tokens,
                       struct swaps *s, warn_fn warn, void *user, struct oato_error *err)
{
    char spec[256];
    struct oato_error why = {.status = OATO_OK};
    *s = (struct swaps){.part_bytes = (uint64_t)width * (uint64_t)tokens * sizeof(float),
                        .width = width,
                        .rank = collective_rank(ranks),
                        .n_ranks = collective_ranks(ranks)};
    const float one = s->n_ranks <= RECORD_INPUTS && seat_find(ranks, devices, spec) ? 1 : 0;
    float all = 0;
    oato_status status = collective_reduce(ranks, &one, &all, 1, DT_F32, err);
    if (status || (int32_t)all < s->n_ranks)
        return status;
    status = collective_agree(ranks, device_take(s, spec, &why), &why);
    if (!status)
        status = s->device->ops->join(s->device, ranks, &why);
    if (!status)
        return OATO_OK;
    swaps_close(s);
    if (!s->rank)
        warn_line(warn, user, "sums by accelerators are not measured: %s", why.text);
    return OATO_OK;
}

static struct program_record record_of(enum record_kind kind, int32_t width)
{
    struct program_record r = {.kind = (uint8_t)kind,
                               .op = {.dtype = DT_F32, .k = width, .n = width},
                               .n_in = 1,
                               .n_out = 1,
                               .parts = 1,
                               .kv_layer = -1,
                               .graph_op = UINT32_MAX,
                               .in_width = {width}};
    for (int i = 0; i < RECORD_WEIGHTS; i++)
        r.weight[i] = UINT32_MAX;
    return r;
}

/* One sum: an exchange with each other rank, and the addition in order of rank. */
static uint32_t sum_put(const struct swaps *s, struct program_record *r, uint32_t value)
{
    const int32_t width = s->width;
    struct program_record add = record_of(RECORD_RUN, width);
    uint32_t n = 0;
    add.op.kind = OP_MERGE_SUM;
    add.op.k = width * s->n_ranks;
    add.n_in = (uint8_t)s->n_ranks;
    add.out[0] = (uint64_t)s->n_ranks * s->part_bytes;
    add.value = value;
    for (int32_t i = 0; i < s->n_ranks; i++) {
        add.in_width[i] = width;
        add.in[i] = (uint64_t)i * s->part_bytes;
        if (i == s->rank)
            continue;
        r[n] = record_of(RECORD_SWAP, width);
        r[n].value = value;
        r[n].peer = (uint8_t)i;
        r[n].in[0] = (uint64_t)s->rank * s->part_bytes;
        r[n++].out[0] = add.in[i];
    }
    r[n++] = add;
    return n;
}

/* One step on all ranks. */
static oato_status run_once(const struct swaps *s, const struct program *p, int32_t tokens,
                            double *ns, struct oato_error *err)
{
    const struct device_ops *ops = s->device->ops;
    const struct op_point point = {.rows = tokens, .seqs = 1};
    struct timeline *timeline = ops->timeline(s->device);
    struct compiled *c;
    struct rig_step step;
    *ns = 0;
    if (rig_step_create(&point, 0, &step, err))
        return err->status;
    oato_status status = ops->compile(s->device, p, 0, &c, err);
    if (!status) {
        const uint64_t begin_ns = now_ns();
        step.timelines[0] = timeline;
        step.base[0] = atomic_load(&timeline->value);
        step.step.timeline = step.timelines;
        step.step.timeline_base = step.base;
        status = ops->submit(s->device, c, &step.step, err);
        if (!status)
            status = ops->finish(s->device, err);
        *ns = (double)(now_ns() - begin_ns);
        ops->release(s->device, c);
    }
    rig_step_free(&step);
    return status;
}

oato_status swaps_time(const struct swaps *s, uint64_t bytes, int32_t calls, double *ns,
                       struct oato_error *err)
{
    const int32_t tokens = (int32_t)(bytes / sizeof(float) / (uint64_t)s->width);
    const size_t most = (size_t)calls * (size_t)s->n_ranks;
    struct program_record *records = calloc(most, sizeof *records);
    struct program p = {.records = records,
                        .n_signals = 1,
                        .max_tokens = tokens,
                        .max_rows = tokens,
                        .max_seqs = 1,
                        .arena = s->arena};
    if (!records)
        return oato_fail_memory(err, most * sizeof *records, "a program");
    for (int32_t i = 0; i < calls; i++)
        p.n_records += sum_put(s, records + p.n_records, (uint32_t)i);
    const oato_status status = run_once(s, &p, tokens, ns, err);
    *ns /= calls;
    free(records);
    return status;
}
