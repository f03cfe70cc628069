/*
 * operators.c - the operators of a model on one device: passes over their rows, whole layers beside
 * the sum of their rows, and what contradicts itself.
 */
#include "profiler/measuring_internal.h"

#include <math.h>
#include <string.h>

enum { CONTEXT_SHOWN = 512, PASSES = 3 /* at least */ };

void run_clock(struct run *r, struct rig *rig, enum device_clock clock)
{
    struct oato_error why;
    const bool good = rig_clock(rig, clock, &why);
    if (rig->clock == CLOCK_WORKS || clock == CLOCK_WORKS)
        rig->leaves_out = good && rig->device->ops->measure;
    rig->clock = clock;
    if (good || rig->told)
        return;
    rig->told = true;
    warn_line(r->warn, r->user,
              "%s: operator times include the gaps between kernels, because the device's "
              "own records are not available: %s",
              rig->info.id, why.text);
}

static oato_status take_row(struct run *r, const struct profile_row *row, struct oato_error *err)
{
    return passes_add(&r->passes, row) ? OATO_OK : oato_fail_memory(err, sizeof *row, "rows");
}

/* What the passes so far say; again after each, but counted once. */
static oato_status put_rows(struct run *r, bool count, bool disturbed, struct oato_error *err)
{
    const struct pass *first = &r->passes.pass[0];
    for (int32_t i = 0; i < first->n; i++) {
        struct profile_row row = passes_middle(&r->passes, &first->rows[i]);
        int32_t before = r->p->n_rows;
        row.disturbed = row.supported && (row.disturbed || disturbed);
        if (!profile_put(r->p, &row))
            return oato_fail_memory(err, sizeof *first->rows, "the profile");
        r->report->rows_new += r->p->n_rows > before;
        r->report->rows_replaced += r->p->n_rows == before && count;
    }
    return OATO_OK;
}

/* All points of one case on one device. What does not fit is skipped and said once. */
static oato_status measure_case(struct run *r, const struct rig *rig, const struct op_case *c,
                                struct oato_error *err)
{
    struct op_point points[POINTS_MAX];
    int32_t n = rig_points(rig, c, r->o, r->m->shape.context_length, points), skipped = 0;
    char key[OP_KEY_SIZE], reason[sizeof err->text] = "";
    struct op_bench *bench = NULL;
    oato_op_key(&c->op, NULL, key);
    if (!n) /* a context too short for prompts */
        return OATO_OK;
    if (c->op.kind == OP_CONVERT && !device_values(rig->device)) {
        r->done += n; /* there is nothing to convert */
        return OATO_OK;
    }
    if (!rig->device->ops->supports(rig->device, &c->op)) {
        struct profile_row row = {
            .device = rig->index, .op = c->op, .size = op_point_size(&c->op, &points[0])};
        r->done += n;
        return take_row(r, &row, err);
    }
    oato_status status = OATO_OK;
    bool opened = false;
    for (int32_t i = 0; i < n; i++) {
        struct profile_row row;
        const struct op_size size = op_point_size(&c->op, &points[i]);
        const struct profile_row *known =
            kept_row(&r->kept, rig->index, &c->op, &size, r->passes.n);
        if (known) {
            if ((status = take_row(r, known, err)))
                break;
            progress_update(&r->progress, ++r->done, key);
            continue;
        }
        if (!opened)
            status = bench_open(rig, c, &bench, err);
        opened = true;
        if (!status)
            status = bench_time(bench, &points[i], r->o->quick, &row, err);
        if (!status)
            status = take_row(r, &row, err);
        if (status == OATO_EFIT && ++skipped) {
            if (!reason[0])
                snprintf(reason, sizeof reason, "%s", err->text);
            status = bench ? OATO_OK : status;
        } else if (status) {
            break;
        }
        progress_update(&r->progress, ++r->done, key);
    }
    bench_close(bench);
    if (r->passes.n > 1)
        return status == OATO_EFIT ? OATO_OK : status;
    r->report->rows_skipped += skipped;
    if (skipped)
        warn_line(r->warn, r->user, "%s: %s skipped at %d of %d sizes: %s", rig->info.id, key,
                  skipped, n, reason);
    return status == OATO_EFIT ? OATO_OK : status;
}

void warn_if_busy(const struct run *r, const struct rig *rig)
{
    int32_t n = 0, disturbed = 0;
    for (int32_t i = 0; i < r->p->n_rows; i++) {
        n += r->p->rows[i].device == rig->index;
        disturbed += r->p->rows[i].device == rig->index && r->p->rows[i].disturbed;
    }
    if (disturbed)
        warn_line(r->warn, r->user, "%s: %d of %d rows are marked as disturbed" BUSY, rig->info.id,
                  disturbed, n);
}

/* The context at which whole layers are run: one that attention was timed at. */
static int32_t shown_context(const struct run *r)
{
    struct op_point points[POINTS_MAX];
    for (int32_t i = 0; i < r->set.n; i++) {
        const struct op_case *c = &r->set.cases[i];
        if (c->op.kind != OP_ATTENTION)
            continue;
        int32_t n = op_points(c, r->o, r->m->shape.context_length, points);
        int32_t best = points[0].context;
        for (int32_t j = 0; j < n && points[j].rows == 1; j++)
            if (points[j].context <= CONTEXT_SHOWN && points[j].context > best)
                best = points[j].context;
        return best;
    }
    return 1;
}

static bool is_late(const struct run *r)
{
    return r->late_ns && now_ns() > r->late_ns;
}

static oato_status measure_cases(struct run *r, struct rig *rig, struct oato_error *err)
{
    oato_status status = OATO_OK;
    run_clock(r, rig, CLOCK_WORKS);
    for (int32_t i = 0; i < r->set.n && !status; i++) {
        if (oato_interrupted)
            status = oato_fail(err, OATO_NEGATIVE, "interrupted");
        else if (is_late(r))
            r->cut = true;
        else if (!r->o->only_new || !r->had[i])
            status = measure_case(r, rig, &r->set.cases[i], err);
        if (!status)
            status = storage_now_and_then(r->storage, err);
        if (!status && kept_due(&r->kept)) {
            status = kept_add(&r->kept, &r->passes, rig->index, err);
            status = status ? status : kept_save(&r->kept, r->p, err);
        }
    }
    run_clock(r, rig, CLOCK_USUAL);
    return status;
}

static oato_status measure_layers(const struct run *r, const struct rig *rig,
                                  struct layers_times *t, struct oato_error *err)
{
    const struct op_point at[LAYERS_COUNT] = {
        {1, 1, shown_context(r), 0}, {128, 1, 128, 0}, {512, 1, 512, 0}};
    struct layers *layers;
    oato_status status = layers_open(rig, r->m, r->o->kv, &layers, err);
    for (int i = 0; i < LAYERS_COUNT && !status; i++) {
        status = layers_measure(layers, r->p, &at[i], r->o->quick, &t->last[i], err);
        t->mean_ns[i][t->n] = t->last[i].mean_ns;
        if (status == OATO_EFIT) /* without room the sum of the rows has to do */
            status = OATO_OK;
    }
    layers_close(layers);
    if (status)
        return status;
    const double now_ns = t->last[LAYERS_DECODE].together_ns;
    t->together_ns = t->n ? fmin(t->together_ns, now_ns) : now_ns;
    t->n++;
    return OATO_OK;
}

int least_passes(const struct run *r, const struct rig *rig)
{
    return r->o->quick || rig->declared ? 1 : PASSES;
}

/* Passes over the operators, more of them when the rows do not add up. */
static oato_status measure_passes(struct run *r, struct rig *rig, struct layers_times *t,
                                  struct oato_error *err)
{
    const int least = least_passes(r, rig);
    while (r->passes.n < least || (r->passes.n < PASSES_MAX && !r->cut && !layers_add_up(rig, t))) {
        const double done = r->done;
        const bool first = !r->passes.n;
        r->passes.n++;
        oato_status status = measure_cases(r, rig, err);
        if (r->passes.n > least)
            r->done = done;            /* beyond what was expected */
        r->cut = r->cut || is_late(r); /* whole layers take long, too */
        if (!status)
            status = put_rows(r, first, false, err);
        if (!status && r->passes.n > r->kept.passes[rig->index])
            r->kept.passes[rig->index] = r->passes.n;
        progress_update(&r->progress, r->done, "whole layers");
        run_clock(r, rig, CLOCK_PASSES);
        if (!status && !r->cut) /* else rows are missing, or time is */
            status = measure_layers(r, rig, t, err);
        run_clock(r, rig, CLOCK_USUAL);
        if (status)
            return status;
    }
    return OATO_OK;
}

static oato_status settle_rows(struct run *r, struct rig *rig, struct oato_error *err)
{
    int32_t n = 0, again = 0;
    progress_update(&r->progress, r->done, "contradictions");
    const oato_status status =
        doubts_settle(rig, r->p, &r->set, r->o, r->m->shape.context_length, &n, &again, err);
    if (!status && n)
        warn_line(r->warn, r->user,
                  "%s: %d rows are faster than its rate of reading memory allows, also when "
                  "measured again (%d were)" BUSY,
                  rig->info.id, n, again);
    return status;
}

oato_status measure_operators(struct run *r, struct rig *rig, struct oato_error *err)
{
    struct profile_device *d = &r->p->devices[rig->index];
    struct layers_times t = {0};
    d->record_overhead_ns = d->rows_overhead = 0;
    memset(d->join_ns, 0, sizeof d->join_ns);
    oato_status status = measure_passes(r, rig, &t, err);
    run_clock(r, rig, CLOCK_PASSES);
    for (int i = 0; !status && !r->cut && i < LAYERS_AGAIN && layers_beside_others(rig, &t); i++)
        status = measure_layers(r, rig, &t, err);
    run_clock(r, rig, CLOCK_USUAL);
    if (!status && !r->cut && !layers_add_up(rig, &t)) {
        status = put_rows(r, false, true, err);
        warn_line(r->warn, r->user,
                  "%s: the operators of a step add up to %.2f ms, but together take %.2f ms" BUSY,
                  rig->info.id, t.last[LAYERS_DECODE].sum_ns / 1e6, t.together_ns / 1e6);
    }
    struct oato_error none;
    if (kept_add(&r->kept, &r->passes, rig->index, &none) && !status)
        status = oato_fail(err, none.status, "%s", none.text);
    passes_free(&r->passes);
    if (status || r->cut)
        return status;
    layers_overheads(rig, &t, d);
    d->contradicts = layers_beside_others(rig, &t);
    if (d->contradicts)
        warn_line(r->warn, r->user,
                  "%s: the overhead of a record only holds while others use the machine: a step "
                  "takes %.2f ms undisturbed, but most of them more" BUSY,
                  rig->info.id, t.together_ns / 1e6);
    return settle_rows(r, rig, err);
}
