/*
 * run_bench.c - the verb bench: tokens per second of prefill and decode, medians over runs after a
 * warm-up, and what the plan predicted against what was measured. With one device the time is real
 * time, with several that of the devices' clocks, so that a simulated device counts with its
 * declared speed.
 */
#include "front/run.h"

#include <stdlib.h>

struct bench {
    struct session session;
    const struct run_args *args;
    int32_t *ids;  /* random tokens, as many as any run needs */
    int32_t *seqs; /* args->batch */
    struct engine_input *inputs;
    bool by_devices;                /* use the devices' clocks, not real time */
    bool deep;                      /* the sequences hold args->depth positions */
    double *prefill_ns, *decode_ns; /* one per iteration */
    /* of the timed decode steps: devices' clock, host's busy time, bytes read from the file */
    uint64_t clock_ns, busy_ns, read_bytes;
};

/* The minimum work per token on any machine: bytes to read and operations (a multiply-add is two).
 * */
struct work {
    uint64_t weight_bytes;         /* per step: every matrix, as stored in the file */
    uint64_t decode_operations;    /* per token, without attention */
    uint64_t prefill_operations;   /* the same, for a token without logits */
    uint64_t attention_operations; /* for each position that a token attends to */
    uint64_t position_bytes;       /* of KV in all layers */
};

static struct work work_of(const struct model *m, oato_dtype kv)
{
    struct work w = {.position_bytes = graph_kv_bytes(&m->graph, kv)};
    for (int32_t i = 0; i < m->graph.n_ops; i++) {
        const struct graph_op *o = &m->graph.ops[i];
        const uint64_t k = (uint64_t)o->op.k, n = (uint64_t)o->op.n;
        if (o->op.kind == OP_MUL_MAT) {
            w.weight_bytes += o->weight[0]->bytes;
            w.decode_operations += 2 * k * n;
            if (m->graph.values[o->out[0]].rows == ROWS_TOKENS)
                w.prefill_operations += 2 * k * n;
        } else if (o->op.kind == OP_ATTENTION) {
            w.attention_operations += 2 * (k + n);
        }
    }
    return w;
}

static oato_status truncate_to(struct bench *b, int32_t length, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < b->args->batch && !status; i++)
        status = engine_seq_truncate(b->session.engine, b->seqs[i], length, err);
    return status;
}

/* Fills every sequence to the requested depth, reusing what an earlier run fed. Other ranks may
 * still compute what this one has fed them, until there are logits. */
static oato_status go_deep(struct bench *b, struct oato_error *err)
{
    const struct run_args *a = b->args;
    oato_status status = truncate_to(b, b->deep ? a->depth : 0, err);
    for (int32_t i = 0; i < a->batch && !status && a->depth; i++) {
        const int32_t there = engine_seq_length(b->session.engine, b->seqs[i]);
        status = engine_feed(b->session.engine, b->seqs[i], b->ids + there, a->depth - there,
                             LOGITS_PICKS, NULL, NULL, err);
    }
    b->deep = !status;
    return status;
}

static double clock_of(const struct bench *b)
{
    struct engine_stats stats;
    if (!b->by_devices)
        return (double)now_ns();
    engine_get_stats(b->session.engine, &stats);
    return (double)stats.clock_ns;
}

static oato_status time_prefill(struct bench *b, double *ns, struct oato_error *err)
{
    oato_status status = truncate_to(b, 0, err);
    b->deep = false;
    const double begin = clock_of(b);
    if (!status)
        status = engine_feed(b->session.engine, b->seqs[0], b->ids, b->args->prefill, LOGITS_PICKS,
                             NULL, NULL, err);
    *ns = clock_of(b) - begin;
    return status;
}

static oato_status time_decode(struct bench *b, double *ns, struct oato_error *err)
{
    const struct run_args *a = b->args;
    oato_status status = go_deep(b, err);
    struct engine_stats before, after;
    engine_get_stats(b->session.engine, &before);
    const double begin = clock_of(b);
    for (int32_t t = 0; t < a->generate && !status && !oato_interrupted; t++) {
        for (int32_t i = 0; i < a->batch; i++)
            b->inputs[i] = (struct engine_input){b->seqs[i], &b->ids[t], 1, LOGITS_PICKS, false};
        status = engine_step(b->session.engine, b->inputs, a->batch, err);
    }
    *ns = clock_of(b) - begin;
    engine_get_stats(b->session.engine, &after);
    b->clock_ns += after.clock_ns - before.clock_ns;
    b->busy_ns += after.host_busy_ns - before.host_busy_ns;
    b->read_bytes += after.stored_read_bytes - before.stored_read_bytes;
    return status;
}

static oato_status time_all(struct bench *b, struct oato_error *err)
{
    const struct run_args *a = b->args;
    struct progress progress;
    oato_status status = OATO_OK;
    double warm_up;
    progress_begin(&progress, "bench", a->repeat + 1);
    for (int32_t i = -1; i < a->repeat && !status && !oato_interrupted; i++) {
        if (a->prefill)
            status = time_prefill(b, i < 0 ? &warm_up : &b->prefill_ns[i], err);
        if (!status && a->generate)
            status = time_decode(b, i < 0 ? &warm_up : &b->decode_ns[i], err);
        if (i < 0)
            b->clock_ns = b->busy_ns = b->read_bytes = 0;
        progress_update(&progress, i + 2, NULL);
    }
    progress_end(&progress);
    return status;
}

/* The share of decode time in which the host was idle, waiting for other devices or for the file.
 */
static double host_idle(const struct bench *b)
{
    return b->clock_ns ? 1 - (double)b->busy_ns / (double)b->clock_ns : 0;
}

/* From the file, in decode. */
static double read_bytes_per_s(const struct bench *b)
{
    return b->clock_ns ? (double)b->read_bytes * 1e9 / (double)b->clock_ns : 0;
}

/* Predicted for the plan's caches of experts, on average. */
static double plan_hits(const struct plan *p)
{
    double hits = 0;
    for (int32_t i = 0; i < p->n_caches; i++)
        hits += p->caches[i].hits * 1e-6 / p->n_caches;
    return hits;
}

/* The plan's prediction, in ns, of the prompt and of a decode step; 0 when the plan was made for
 * other token counts than were measured, or nothing was measured. */
struct prediction {
    double prefill, decode;
};

static struct prediction prediction_of(const struct bench *b)
{
    const struct run_args *a = b->args;
    const struct plan *p = &b->session.plan;
    const struct plan_request *q = &p->request;
    struct prediction x = {0};
    if (!b->session.has_plan)
        return x;
    const int32_t batch = q->batch > 0 ? q->batch : 1;
    for (int32_t i = request_points(q) - 1; i >= 0; i--) {
        const struct plan_point at = request_point(q, i);
        if (a->prefill && a->prefill == at.prompt && !at.depth)
            x.prefill = (double)(q->n_points ? at.prefill_ns : p->prefill_ns);
        /* in the middle of the generation, which is where the mean of its steps is */
        if (a->generate && a->batch == batch &&
            a->depth + a->generate / 2 == at.depth + at.prompt + at.generate / 2)
            x.decode = (double)(q->n_points ? at.decode_ns : p->decode_ns);
    }
    return x;
}

static void report_json(const struct bench *b, double prefill, double decode,
                        const struct engine_stats *stats)
{
    const struct run_args *a = b->args;
    const struct work w = work_of(b->session.model, stats->kv);
    int32_t tokens = a->generate * a->batch;
    uint64_t kv_bytes = 0;
    for (int32_t i = 0; i < stats->n_devices; i++)
        kv_bytes += stats->device[i].kv_bytes;
    printf(
        "{\"prefill\":{\"tokens\":%d,\"tokens_per_s\":%.2f},"
        "\"decode\":{\"tokens\":%d,\"tokens_per_s\":%.2f,\"batch\":%d,\"depth\":%d,"
        "\"host_idle\":%.4f},"
        "\"repeat\":%d,\"load_ns\":%llu,\"peak_rss_bytes\":%llu,\"device\":\"%s\",\"isa\":\"%s\","
        "\"kv_bytes\":%llu,\"work\":{\"weight_bytes\":%llu,\"decode_operations\":%llu,"
        "\"prefill_operations\":%llu,\"attention_operations\":%llu,\"position_bytes\":%llu},"
        "\"predicted\":{",
        a->prefill, prefill > 0 ? a->prefill * 1e9 / prefill : 0, tokens,
        decode > 0 ? tokens * 1e9 / decode : 0, a->batch, a->depth, host_idle(b), a->repeat,
        (unsigned long long)stats->load_ns, (unsigned long long)peak_rss_bytes(),
        stats->device[0].info.model, stats->device[0].info.isa, (unsigned long long)kv_bytes,
        (unsigned long long)w.weight_bytes, (unsigned long long)w.decode_operations,
        (unsigned long long)w.prefill_operations, (unsigned long long)w.attention_operations,
        (unsigned long long)w.position_bytes);
    if (b->session.has_plan) {
        const struct plan *p = &b->session.plan;
        const struct plan_point first = request_point(&p->request, 0);
        printf("\"prompt\":%d,\"prefill_ns\":%lld,\"decode_ns\":%lld", first.prompt,
               (long long)(p->request.n_points ? first.prefill_ns : p->prefill_ns),
               (long long)(p->request.n_points ? first.decode_ns : p->decode_ns));
    }
    const struct prediction x = prediction_of(b);
    printf("},\"measured\":{\"clock\":\"%s\",\"prefill_ns\":%.0f,\"decode_ns\":%.0f},"
           "\"predicted_over_measured\":{",
           !b->by_devices                     ? "wall"
           : b->args->open.engine.timing_only ? "devices, timing only"
                                              : "devices",
           prefill, a->generate ? decode / a->generate : 0);
    if (x.prefill > 0)
        printf("\"prefill\":%.4f%s", x.prefill / prefill, x.decode > 0 ? "," : "");
    if (x.decode > 0)
        printf("\"decode\":%.4f", x.decode / (decode / a->generate));
    printf("},\"memory\":[");
    for (int32_t i = 0; i < stats->n_devices; i++) {
        const struct engine_device_stats *d = &stats->device[i];
        printf(
            "%s{\"device\":\"%s\",\"model\":\"%s\",\"allocated_bytes\":%llu,\"weight_bytes\":%llu,"
            "\"kv_bytes\":%llu,\"work_bytes\":%llu,\"staging_bytes\":%llu,"
            "\"page_locked_bytes\":%llu}",
            i ? "," : "", d->info.id, d->info.model, (unsigned long long)d->memory_bytes,
            (unsigned long long)d->weight_bytes, (unsigned long long)d->kv_bytes,
            (unsigned long long)(d->memory_bytes - d->weight_bytes - d->kv_bytes),
            (unsigned long long)d->staging_bytes, (unsigned long long)d->locked_bytes);
    }
    fputc(']', stdout);
    if (stats->experts.caches)
        printf(",\"experts\":{\"caches\":%d,\"slots\":%d,\"choices\":%llu,\"hits\":%.4f,"
               "\"predicted_hits\":%.4f,\"refills\":%llu,\"bytes\":%llu}",
               stats->experts.caches, stats->experts.slots,
               (unsigned long long)stats->experts.choices, expert_hits(&stats->experts),
               plan_hits(&b->session.plan), (unsigned long long)stats->experts.refills,
               (unsigned long long)stats->experts.bytes);
    if (stats->stored_bytes)
        printf(",\"storage\":{\"bytes\":%llu,\"read_bytes\":%llu,\"decode_bytes_per_s\":%.0f}",
               (unsigned long long)stats->stored_bytes,
               (unsigned long long)stats->stored_read_bytes, read_bytes_per_s(b));
    printf("}\n");
}

static void report_prediction(const struct bench *b, double prefill, double decode)
{
    const struct prediction x = prediction_of(b);
    const struct plan_request *q = &b->session.plan.request;
    const struct plan_point first = request_point(q, 0);
    const double step = decode / b->args->generate;
    if (!b->session.has_plan)
        return;
    printf("predicted / measured");
    if (x.prefill > 0)
        printf("  prefill %.3f / %.3f ms = %.3f", x.prefill * 1e-6, prefill * 1e-6,
               x.prefill / prefill);
    if (x.decode > 0)
        printf("  decode %.3f / %.3f ms a step = %.3f", x.decode * 1e-6, step * 1e-6,
               x.decode / step);
    if (!(x.prefill > 0) || !(x.decode > 0))
        printf("  (the plan is for --prompt %d --generate %d --depth %d --batch %d)", first.prompt,
               first.generate, first.depth + first.prompt, q->batch > 0 ? q->batch : 1);
    puts(!b->by_devices ? ""
         : b->args->open.engine.timing_only
             ? ", by the clocks of the devices; simulated ones computed nothing"
             : ", by the clocks of the devices");
}

static void report_experts(const struct bench *b, const struct engine_expert_stats *x)
{
    if (x->caches)
        printf("experts  %d slots in %d caches, %.1f %% of %llu choices found theirs there "
               "(predicted %.1f %%), %llu replaced\n",
               x->slots, x->caches, 100 * expert_hits(x), (unsigned long long)x->choices,
               100 * plan_hits(&b->session.plan), (unsigned long long)x->refills);
}

static void report_storage(const struct bench *b, double decode, const struct engine_stats *stats)
{
    const double bytes = read_bytes_per_s(b) * decode * 1e-9 / b->args->generate;
    if (stats->stored_bytes && decode > 0)
        printf(
            "storage  %.1f MiB a step from the file, %.2f GB/s, %.1f %% of decode waiting for it\n",
            bytes / (1 << 20), read_bytes_per_s(b) / 1e9, 100 * host_idle(b));
}

static void report_text(const struct bench *b, double prefill, double decode,
                        const struct engine_stats *stats)
{
    const struct run_args *a = b->args;
    if (a->prefill)
        printf("prefill  %5d tokens  %9.2f tokens/s\n", a->prefill, a->prefill * 1e9 / prefill);
    if (a->generate) {
        printf("decode   %5d tokens  %9.2f tokens/s", a->generate * a->batch,
               a->generate * a->batch * 1e9 / decode);
        if (b->by_devices)
            printf(", the host idle for %.1f %% of it", 100 * host_idle(b));
        putchar('\n');
    }
    report_prediction(b, prefill, decode);
    report_experts(b, &stats->experts);
    report_storage(b, decode, stats);
    for (int32_t i = 0; i < stats->n_devices; i++)
        if (is_stand_in(stats->device[i].info.model))
            printf("%s is a %s: these speeds say nothing about hardware\n",
                   stats->device[i].info.id, stats->device[i].info.model);
    printf("load     %.2f s, peak memory %.1f MiB, %s (%s)\n", (double)stats->load_ns * 1e-9,
           (double)peak_rss_bytes() / (1 << 20), stats->device[0].info.model,
           stats->device[0].info.isa);
}

static oato_status bench_open(struct bench *b, struct oato_error *err)
{
    const struct run_args *a = b->args;
    int32_t longest = a->prefill > a->depth + a->generate ? a->prefill : a->depth + a->generate;
    b->ids = malloc(((size_t)longest + 1) * sizeof *b->ids);
    b->seqs = calloc((size_t)a->batch, sizeof *b->seqs);
    b->inputs = calloc((size_t)a->batch, sizeof *b->inputs);
    b->prefill_ns = calloc((size_t)a->repeat, sizeof *b->prefill_ns);
    b->decode_ns = calloc((size_t)a->repeat, sizeof *b->decode_ns);
    if (!b->ids || !b->seqs || !b->inputs || !b->prefill_ns || !b->decode_ns)
        return oato_fail_memory(err, (size_t)longest * sizeof *b->ids, "the bench");
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < a->batch && !status; i++)
        status = engine_seq_create(b->session.engine, &b->seqs[i], err);
    uint64_t state = 1; /* any tokens will do, but the same in every run */
    for (int32_t i = 0; i < longest; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b->ids[i] = (int32_t)((state >> 33) % (uint64_t)b->session.model->shape.vocab);
    }
    return status;
}

/* Sizes that were not given come from the plan, so that its prediction matches what is measured. */
static oato_status bench_sizes(struct run_args *a, struct oato_error *err)
{
    struct plan_request q = {.prompt = 512, .generate = 64, .batch = 1};
    struct plan_point first = request_point(&q, 0);
    int32_t depth = 0;
    if (a->open.plan) {
        struct plan p;
        if (plan_load(a->open.plan, &p, err))
            return err->status;
        q = p.request;
        first = request_point(&q, 0);
        depth = first.depth + first.prompt;
        plan_free(&p);
    }
    a->prefill = a->prefill < 0 ? first.prompt : a->prefill;
    a->generate = a->generate < 0 ? first.generate : a->generate;
    a->batch = a->batch >= 0 ? a->batch : q.batch > 0 ? q.batch : 1;
    a->depth = a->depth < 0 ? depth : a->depth;
    return OATO_OK;
}

/* The cache must hold every sequence at its longest. */
static oato_status bench_context(struct run_args *a, struct oato_error *err)
{
    const int64_t page = KV_PAGE_POSITIONS;
    const int64_t decode = kv_pages_of((int64_t)a->depth + a->generate) * page * a->batch;
    int64_t need = max_i64(a->prefill, decode);
    if (a->open.make_plan) /* requests that are planned for decode behind their prompts */
        need = max_i64(need,
                       kv_pages_of(max_i64(a->prefill, a->depth) + a->generate) * page * a->batch);
    if (need > INT32_MAX / 2)
        return oato_fail(err, OATO_EUSAGE,
                         "%lld positions do not fit in a KV cache; use a smaller -p, -d, -n or -b",
                         (long long)need);
    if (!a->open.engine.context)
        a->open.engine.context = (int32_t)max_i64(need, page);
    a->open.engine.seqs = a->batch;
    a->plans.point = (struct plan_point){.prompt = a->prefill, .generate = a->generate};
    if (a->depth > a->prefill)
        a->plans.point.depth = a->depth - a->prefill;
    a->open.make_user = &a->plans; /* this copy of them */
    return OATO_OK;
}

oato_status run_bench(const struct run_args *given, struct oato_error *err)
{
    struct run_args a = *given;
    struct bench b = {.args = &a};
    a.open.sampling.temperature = 0; /* the most likely token alone is looked for */
    oato_status status = bench_sizes(&a, err);
    if (!status)
        status = bench_context(&a, err);
    if (!status)
        status = session_open(&b.session, &a.open, SESSION_CANDIDATES, err);
    if (!status && !b.session.done) {
        struct engine_stats stats;
        engine_get_stats(b.session.engine, &stats);
        b.by_devices = stats.n_devices > 1;
        status = bench_open(&b, err);
        if (!status)
            status = time_all(&b, err);
        engine_get_stats(b.session.engine, &stats); /* with the hits of caches */
        if (!status && !oato_interrupted) {
            double prefill = a.prefill ? quantile(b.prefill_ns, a.repeat, 0.5) : 0;
            double decode = a.generate ? quantile(b.decode_ns, a.repeat, 0.5) : 0;
            if (a.json)
                report_json(&b, prefill, decode, &stats);
            else
                report_text(&b, prefill, decode, &stats);
            status = stdout_check(err);
        }
    }
    front_ends(status, err);
    session_close(&b.session);
    free(b.ids);
    free(b.seqs);
    free(b.inputs);
    free(b.prefill_ns);
    free(b.decode_ns);
    return status;
}
