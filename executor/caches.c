/*
 * caches.c - which experts lie in the slots of the plan's caches. What a step reads (slot_of)
 * changes only between steps, from the choices that they made:
 *
 *   counts    each choice counts 1, and half after CACHE_HALF_LIFE tokens
 *   replacing an expert that was chosen and is not there takes the slot of the one with the lowest
 *             count, if its own is higher by the cache's margin, which is what the copy costs
 *   copying   runs beside the next steps. From when it is asked for until its event has passed the
 *             slot holds nothing, and the host computes both experts
 *
 * A cache fills one slot at a time: choices that arrive meanwhile are counted, so that a slow link
 * brings the experts that are wanted most.
 *
 * A device with the host's layout, which has the host's kernels, gives a token the same bits
 * whatever lies there. One that converts the model's rows computes otherwise: there a token's last
 * bits depend on what had arrived, and --deterministic leaves the cache out.
 */
#include "executor/executor_internal.h"

#include <math.h>
#include <string.h>

#define COUNT_MOST 1e18f /* then all counts are divided by it */

/* The device takes the host's prepared bytes; else rows of the file are converted for it. */
static bool takes_hosts(const struct engine *e, const struct oato_device *d)
{
    const char *has = weight_layout(e->device[e->host].device), *takes = weight_layout(d);
    return has && takes && !strcmp(has, takes);
}

bool caches_possible(const struct engine *e, const struct engine_device *d)
{
    return weight_refills(d->device) && (takes_hosts(e, d->device) || !e->deterministic);
}

static int32_t experts_of(const struct engine *e, const struct lowered_cache *c)
{
    return e->graph.ops[c->op].op.experts;
}

static bool cache_init(struct engine *e, struct expert_cache *x, const struct lowered_cache *c)
{
    const int32_t experts = experts_of(e, c);
    x->lowered = c;
    x->slot_of = arena_alloc(&e->arena, (size_t)experts, sizeof *x->slot_of);
    x->count = arena_alloc(&e->arena, (size_t)experts, sizeof *x->count);
    x->expert_in = arena_alloc(&e->arena, (size_t)c->slots, sizeof *x->expert_in);
    x->coming = -1;
    if (!x->slot_of || !x->count || !x->expert_in)
        return false;
    for (int32_t i = 0; i < experts; i++)
        x->slot_of[i] = i >= c->first && i < c->first + c->slots ? i - c->first : -1;
    for (int32_t i = 0; i < c->slots; i++)
        x->expert_in[i] = c->first + i;
    return true;
}

oato_status caches_init(struct engine *e, struct oato_error *err)
{
    const int32_t n = e->lowered.n_caches;
    if (e->plan && e->plan->n_caches && !n)
        warn_line(e->warn, e->user, "the plan's caches of experts are left out: %s",
                  e->n_devices == 1 ? "there is only one device"
                  : e->deterministic
                      ? "--deterministic, and the device's arithmetic is not the host's"
                      : "the devices cannot replace experts in the host's layout");
    if (!n)
        return OATO_OK;
    e->count_of_step = 1;
    e->caches = arena_alloc(&e->arena, (size_t)n, sizeof *e->caches);
    e->cached = arena_alloc(&e->arena, (size_t)n, sizeof *e->cached);
    for (int32_t i = 0; e->caches && e->cached && i < n; i++) {
        const struct lowered_cache *c = &e->lowered.caches[i];
        if (!cache_init(e, &e->caches[i], c))
            return oato_fail_memory(err, sizeof *e->caches, "a cache of experts");
        e->cached[i] = e->caches[i].slot_of;
        e->experts.caches++;
        e->experts.slots += c->slots;
    }
    return e->caches && e->cached ? OATO_OK
                                  : oato_fail_memory(err, sizeof *e->caches, "caches of experts");
}

/* ------------------------------------------------------------------------------ replacing - */

/* A copy whose event has passed: the next step may read it. */
static void arrival_note(const struct engine *e, struct expert_cache *x)
{
    struct oato_device *d = e->device[x->lowered->device].device;
    struct timeline *t = weight_transfers(d);
    uint64_t clock_ns = 0;
    if (x->coming < 0 || !timeline_reached(t, x->arrival) ||
        !timeline_wait(t, x->arrival, &clock_ns) || (t->simulated && clock_ns > e->end_ns))
        return;
    x->slot_of[x->expert_in[x->coming]] = x->coming;
    x->coming = -1;
}

/* The rows of the expert that is number `nth` of the host's slot. */
static struct weight_source expert_source(const struct engine *e, const struct oato_device *other,
                                          uint32_t here, int64_t nth, int64_t rows)
{
    const struct engine_device *host = &e->device[e->host];
    const struct weight_slot *s = &host->lowered->slots[here];
    const int64_t k = s->col_end - s->col_begin;
    const int64_t row = s->members ? s->members[nth] * rows : s->begin + nth * rows;
    struct weight_source source = {.data = s->tensor->data,
                                   .dtype = s->tensor->dtype,
                                   .k = k,
                                   .n = s->tensor->ne[1] * s->tensor->ne[2],
                                   .row_begin = row,
                                   .row_end = row + rows,
                                   .use = s->use,
                                   .file = s->tensor->file};
    if (!takes_hosts(e, other))
        return source;
    const uint8_t *data = weight_data(host->device, host->weights[here]);
    source.prepared = data + weight_bytes_of(other, source.dtype, nth * rows, k, s->use);
    return source;
}

/* Copies the expert's matrices to the slot. */
static oato_status refill(struct engine *e, struct expert_cache *x, int32_t expert, int32_t slot,
                          struct oato_error *err)
{
    const struct lowered_cache *c = x->lowered;
    const struct engine_device *other = &e->device[c->device];
    for (int i = 0; i < c->n_weights; i++) {
        const int64_t rows = c->weight[i].rows;
        const struct weight_source source =
            expert_source(e, other->device, c->weight[i].here, expert - c->first, rows);
        if (weight_refill(other->device, other->weights[c->weight[i].there], slot * rows, &source,
                          e->end_ns, &x->arrival, err))
            return err->status;
        e->experts.bytes +=
            weight_bytes_of(other->device, source.dtype, rows, source.k, source.use);
    }
    e->experts.refills++;
    return OATO_OK;
}

static int32_t least_wanted(const struct expert_cache *x)
{
    int32_t least = 0;
    for (int32_t i = 1; i < x->lowered->slots; i++)
        if (x->count[x->expert_in[i]] < x->count[x->expert_in[least]])
            least = i;
    return least;
}

/* Asks for the expert unless one that is there is wanted as much. */
static oato_status admit(struct engine *e, struct expert_cache *x, int32_t expert,
                         struct oato_error *err)
{
    const int32_t slot = least_wanted(x), old = x->expert_in[slot];
    const float margin = (float)x->lowered->margin * 1e-3f * e->count_of_step;
    if (x->count[expert] <= x->count[old] + margin)
        return OATO_OK;
    x->slot_of[old] = -1;
    x->expert_in[slot] = expert;
    x->coming = slot;
    return refill(e, x, expert, slot, err);
}

/* The ids that the step's tokens chose, as it left them in the host's memory. */
static oato_status choices_take(struct engine *e, struct expert_cache *x, const struct step *step,
                                struct oato_error *err)
{
    const struct lowered_cache *c = x->lowered;
    const int32_t value = e->graph.ops[c->op].in[1];
    const int32_t n = e->graph.values[value].rows == ROWS_LOGITS ? step->n_rows : step->n_tokens;
    const uint8_t *arena = e->device[e->host].arena;
    const float *choice = (const float *)(const void *)(arena + c->choice_offset);
    int32_t wanted = -1;
    for (int32_t i = 0; i < n * c->used; i++) {
        const int32_t expert = (int32_t)choice[i / c->used * 2 * c->used + i % c->used];
        if (expert < c->first || expert >= c->first + c->held)
            continue;
        e->experts.choices++;
        e->experts.hits += x->slot_of[expert] >= 0;
        x->count[expert] += e->count_of_step;
        if (x->slot_of[expert] < 0 && (wanted < 0 || x->count[expert] > x->count[wanted]))
            wanted = expert;
    }
    arrival_note(e, x);
    return wanted < 0 || x->coming >= 0 || x->slot_of[wanted] >= 0 ? OATO_OK
                                                                   : admit(e, x, wanted, err);
}

/* Counts are sums of what choices count in their step, which grows. */
static void counts_age(struct engine *e, int32_t n)
{
    e->count_of_step *= exp2f((float)n / CACHE_HALF_LIFE);
    if (e->count_of_step < COUNT_MOST)
        return;
    for (int32_t i = 0; i < e->lowered.n_caches; i++)
        for (int32_t k = 0; k < experts_of(e, e->caches[i].lowered); k++)
            e->caches[i].count[k] /= e->count_of_step;
    e->count_of_step = 1;
}

oato_status caches_step(struct engine *e, const struct step *step, struct oato_error *err)
{
    for (int32_t i = 0; i < e->lowered.n_caches; i++)
        if (choices_take(e, &e->caches[i], step, err)) {
            e->failed = true;
            return err->status;
        }
    counts_age(e, step->n_tokens);
    return OATO_OK;
}
