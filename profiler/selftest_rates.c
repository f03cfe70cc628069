/*
 * selftest_rates.c - what copies, events and operators of a device take, by the measuring code of
 * the profiler. Declared devices declare their rates; what is told of them is that.
 */
#include "profiler/selftest_internal.h"

#include <stdlib.h>
#include <string.h>

static oato_status interrupted(struct oato_error *err)
{
    return oato_interrupted ? oato_fail(err, OATO_NEGATIVE, "interrupted") : OATO_OK;
}

/* ----------------------------------------------------------------------- copies and events - */

/* A profile of just the host and the device, for what measures links. */
static bool profile_make(struct profile *p, struct rig *r)
{
    profile_init(p);
    p->devices = arena_alloc(&p->arena, 2, sizeof *p->devices);
    if (!p->devices)
        return false;
    p->n_devices = 2;
    p->devices[0].id = "cpu:0";
    p->devices[0].is_host = true;
    p->devices[1].id = r->info.id;
    r->index = 1;
    return true;
}

static void link_add(struct selftest *s, const char *key, const char *title,
                     const struct profile_link *l)
{
    json_add_object(&s->json, key, JSON("bytes_per_s", l->bytes_per_s),
                    JSON("latency_ns", l->latency_ns), JSON("sync_ns", l->sync_ns),
                    JSON("pageable_bytes_per_s", l->pageable_bytes_per_s),
                    JSON("both_bytes_per_s", l->both_bytes_per_s),
                    JSON("stream_bytes_per_s", l->stream_bytes_per_s));
    text_printf(&s->people, "%-10s %.2f GB/s, a copy begins after %.1f us", title,
                l->bytes_per_s * 1e-9, l->latency_ns * 1e-3);
    if (l->both_bytes_per_s > 0)
        text_printf(&s->people, "; %.2f GB/s both ways at once", l->both_bytes_per_s * 1e-9);
    text_printf(&s->people, "\n");
}

static oato_status links_add(struct selftest *s, double *sync_ns, struct oato_error *err)
{
    struct profile p;
    if (!profile_make(&p, &s->rig)) {
        profile_free(&p);
        return oato_fail_memory(err, sizeof *p.devices, "the report");
    }
    const oato_status status = links_measure(&p, &s->rig, s->o->quick, err);
    for (int32_t i = 0; i < p.n_links && !status; i++) {
        const bool to_device = p.links[i].to == s->rig.index;
        link_add(s, to_device ? "to_device" : "to_host", to_device ? "to it" : "from it",
                 &p.links[i]);
        *sync_ns = p.links[i].sync_ns;
    }
    profile_free(&p);
    return status;
}

oato_status selftest_rates(struct selftest *s, struct oato_error *err)
{
    struct rig *r = &s->rig;
    const bool quick = s->o->quick;
    double read = r->info.read_bytes_per_s, flops = r->info.flops_per_s;
    double step_ns = 0, launch_ns = 0, sync_ns = 0;
    oato_status status = OATO_OK;
    progress_begin(&s->progress, "self-test: rates", 1);
    json_open(&s->json, "rates", '{');
    if (!r->declared) {
        rig_clock(r, CLOCK_WORKS, NULL);
        status = device_rates(r, quick, &flops, &read, err);
        rig_clock(r, CLOCK_USUAL, NULL);
    }
    progress_update(&s->progress, 0.3, NULL);
    if (!status && r->info.is_host)
        status = host_read_rate(r->info.threads, r->cache_bytes, quick, &read, err);
    if (!status)
        status = step_overhead(r, quick, &step_ns, err);
    if (!status && rig_is_hardware(r)) {
        rig_clock(r, CLOCK_PASSES, NULL);
        status = launch_time(r, quick, &launch_ns, err);
        rig_clock(r, CLOCK_USUAL, NULL);
    }
    progress_update(&s->progress, 0.5, NULL);
    if (!status)
        status = interrupted(err);
    if (!status)
        text_printf(&s->people, "%-10s %.2f GB/s read, %.3f TFLOP/s%s\n", "memory", read * 1e-9,
                    flops * 1e-12, r->declared ? ", declared" : "");
    if (!status && !r->info.is_host)
        status = links_add(s, &sync_ns, err);
    if (!status)
        text_printf(&s->people,
                    "%-10s a step takes %.1f us more than its records, a launch %.1f us, an event "
                    "%.1f us\n",
                    "events", step_ns * 1e-3, launch_ns * 1e-3, sync_ns * 1e-3);
    json_add(&s->json, JSON("read_bytes_per_s", read), JSON("flops_per_s", flops),
             JSON("step_ns", step_ns), JSON("launch_ns", launch_ns), JSON("event_ns", sync_ns));
    json_close(&s->json, '}');
    progress_end(&s->progress);
    return status;
}

/* ------------------------------------------------------------------------------- operators - */

/* An ordinary operator of the kind and type, with fewer experts than models have. */
static bool perf_op(enum op_kind kind, oato_dtype dtype, struct oato_op *op)
{
    enum { EXPERTS = 8 };
    if (!op_example(kind, dtype, op) || kind == OP_KV_COPY || kind == OP_EXPERT_SUM)
        return false; /* what they do is in the step, not in the operator */
    if (op_has_experts(op))
        op->experts = EXPERTS;
    op->eps = 1e-5f;
    op->rope_base = 10000;
    op->rope_scale = 1;
    op->scale = kind == OP_ATTENTION ? 0.1f : op->scale;
    return op_valid(op);
}

static oato_status perf_weights(struct op_case *c, struct gguf_tensor *t,
                                const struct gguf_tensor **weights, struct oato_error *err)
{
    for (int i = 0; i < c->shape.n_weights; i++) {
        const bool vector = op_weight_use_at(&c->op, i) == WEIGHT_VECTOR;
        int64_t n = 0, k = 0;
        size_t row;
        t[i].dtype = vector ? DT_F32 : op_weight_dtype(&c->op, i);
        if (!op_weight_shape(&c->op, i, &n, &k) || !dtype_row_bytes(t[i].dtype, k, &row))
            return oato_fail(err, OATO_EUSAGE, "weight %d of %s has no shape", i,
                             op_kind_name(c->op.kind));
        t[i].ne[0] = k;
        t[i].ne[1] = n;
        t[i].n_dims = 2;
        t[i].bytes = row * (size_t)n;
        uint8_t *data = pages_alloc(t[i].bytes);
        if (!data)
            return oato_fail_memory(err, t[i].bytes, "made-up weights");
        t[i].data = data;
        random_blocks_fill(t[i].dtype, data, t[i].bytes, 0, 0.02, (uint64_t)i);
        weights[i] = &t[i];
    }
    return OATO_OK;
}

static void perf_add(struct selftest *s, const struct profile_row *row)
{
    char key[OP_KEY_SIZE];
    const double ns = row->median_ns > 0 ? row->median_ns : 1;
    const double gb = op_bytes(&row->op, &row->size) / ns, gf = op_flops(&row->op, &row->size) / ns;
    oato_op_key(&row->op, &row->size, key);
    json_add_object(&s->json, NULL, JSON("operator", key), JSON("numerics", row->numerics),
                    JSON("ns", row->median_ns), JSON("p10_ns", row->p10_ns),
                    JSON("p90_ns", row->p90_ns), JSON("gb_per_s", gb), JSON("gflop_per_s", gf));
    text_printf(&s->people, "  %-44s %-8s %10.2f us %8.2f GB/s %9.2f GFLOP/s\n", key, row->numerics,
                ns * 1e-3, gb, gf);
}

static oato_status perf_case(struct selftest *s, const struct oato_op *op, struct oato_error *err)
{
    enum { CONTEXT = 1024 };
    static const int32_t rows[] = {1, 16, 128};
    struct gguf_tensor tensors[GRAPH_WEIGHTS] = {{.name = ""}};
    const struct gguf_tensor *weights[1][GRAPH_WEIGHTS] = {{NULL}};
    struct trial t = {.op = *op};
    struct op_case c = {.op = *op, .weights = weights, .n_weights = 1};
    struct op_bench *b = NULL;
    trial_shape(&t);
    if (op_in_count(op) == OP_ANY) {
        t.n_in = 2;
        t.in_width[0] = t.in_width[1] = op->kind == OP_MERGE ? op->n / 2 : op->n;
    }
    c.shape = (struct graph_op){.op = *op,
                                .n_in = (uint8_t)t.n_in,
                                .n_out = (uint8_t)t.n_out,
                                .n_weights = (uint8_t)op_weight_least(op)};
    memcpy(c.in_width, t.in_width, (size_t)t.n_in * sizeof *t.in_width);
    memcpy(c.out_width, t.out_width, (size_t)t.n_out * sizeof *t.out_width);
    oato_status status = perf_weights(&c, tensors, weights[0], err);
    if (!status)
        status = bench_open(&s->rig, &c, &b, err);
    for (size_t i = 0; i < (s->o->quick ? 1 : ARRAY_LEN(rows)) && !status; i++) {
        struct profile_row row;
        struct op_point at = {rows[i], 1, 0, 0};
        if (op->kind == OP_ATTENTION)
            at.context = CONTEXT + rows[i];
        else if (op_state_floats(op))
            at.context = rows[i] + 1;
        status = bench_time(b, &at, s->o->quick, &row, err);
        if (!status)
            perf_add(s, &row);
        if (!status)
            status = interrupted(err);
    }
    bench_close(b);
    for (int i = 0; i < GRAPH_WEIGHTS; i++)
        if (tensors[i].data)
            pages_free((void *)(uintptr_t)tensors[i].data, tensors[i].bytes);
    return status;
}

oato_status selftest_perf(struct selftest *s, struct oato_error *err)
{
    oato_status status = OATO_OK;
    progress_begin(&s->progress, "self-test: times", OP_KIND_COUNT);
    json_open(&s->json, "times", '[');
    text_printf(&s->people, "times of operators, weights from memory\n");
    for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT && !status; kind++)
        for (int dtype = 0; dtype < TYPE_NUMBERS && !status; dtype++) {
            struct oato_op op;
            if ((s->o->quick && s->only_dtype < 0 && !selftest_few_types((oato_dtype)dtype)) ||
                (s->only_kind && kind != (int)s->only_kind) ||
                (s->only_dtype >= 0 && dtype != s->only_dtype) ||
                !perf_op((enum op_kind)kind, (oato_dtype)dtype, &op) ||
                !s->rig.device->ops->supports(s->rig.device, &op))
                continue;
            progress_update(&s->progress, kind, op_kind_name(kind));
            status = perf_case(s, &op, err);
            if (status == OATO_EFIT) /* too large for this device: the others are told */
                status = OATO_OK;
        }
    json_close(&s->json, ']');
    progress_end(&s->progress);
    return status;
}
