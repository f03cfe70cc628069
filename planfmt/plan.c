/*
 * plan.c - the plan in memory: creation, files, and the checks that do not depend on the model.
 * Both encoder and decoder make these checks, so nothing is written that could not be read back.
 * plan_apply.c checks what depends on the model.
 */
#include "planfmt/planfmt_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

void plan_init(struct plan *p)
{
    memset(p, 0, sizeof *p);
    arena_init(&p->arena);
}

void plan_free(struct plan *p)
{
    arena_free(&p->arena);
    memset(p, 0, sizeof *p);
}

bool plan_classes_have(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *s = list; s && *s;) {
        const size_t len = strcspn(s, "+");
        if (len == n && !memcmp(s, name, n))
            return true;
        s += len + (s[len] == '+');
    }
    return false;
}

/* -------------------------------------------------------------------------------- checks --- */

static oato_status check_devices(const struct plan *p, oato_status status, struct oato_error *err)
{
    if (p->n_devices < 0 || p->n_devices > PLAN_DEVICES_MAX)
        return oato_fail(err, status, "%d devices; allowed: 0 to %d", p->n_devices,
                         PLAN_DEVICES_MAX);
    for (int32_t i = 0; i < p->n_devices; i++) {
        const struct plan_device *d = &p->devices[i];
        if (!memchr(d->id, 0, sizeof d->id) || !memchr(d->kind, 0, sizeof d->kind) ||
            !memchr(d->model, 0, sizeof d->model) || !memchr(d->spec, 0, sizeof d->spec))
            return oato_fail(err, status, "device %d: a string is not terminated", i);
        if (!profile_device_id_ok(d->id, d->kind))
            return oato_fail(err, status,
                             "device %d: id '%s' must be its kind, '%s', a colon and a "
                             "number",
                             i, d->id, d->kind);
        if (d->rank < 0)
            return oato_fail(err, status, "device %d: rank %d; allowed: from 0", i, d->rank);
        const int32_t rank = i ? p->devices[i - 1].rank : 0, host = i ? p->devices[i - 1].host : 0;
        if (d->rank < rank || d->rank > rank + (i > 0) || d->host < host ||
            d->host > host + (i > 0) || (d->rank == rank && d->host != host))
            return oato_fail(err, status,
                             "device %d: rank %d on host %d follows rank %d on host %d; ranks and "
                             "hosts must be numbered from 0, in order",
                             i, d->rank, d->host, rank, host);
        for (int32_t j = 0; j < i; j++)
            if (p->devices[j].rank == d->rank && !strcmp(p->devices[j].id, d->id))
                return oato_fail(err, status, "devices %d and %d are both '%s' of rank %d", j, i,
                                 d->id, d->rank);
    }
    return OATO_OK;
}

static bool device_exists(const struct plan *p, int32_t device)
{
    return device >= 0 && device < p->n_devices;
}

static oato_status check_parts(const struct plan *p, oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_parts; i++) {
        const struct plan_part *t = &p->parts[i];
        const char *op = or_empty(t->op);
        if (!*op)
            return oato_fail(err, status, "part %d: no operator", i);
        if ((unsigned)t->axis >= AXIS_COUNT)
            return oato_fail(err, status, "part %d ('%.80s'): axis %d; allowed: 0 to %d", i, op,
                             (int)t->axis, AXIS_COUNT - 1);
        if (t->begin < 0 || t->end < t->begin)
            return oato_fail(err, status, "part %d ('%.80s'): range %lld to %lld", i, op,
                             (long long)t->begin, (long long)t->end);
        if (!t->phases || t->phases >> PHASE_COUNT)
            return oato_fail(err, status, "part %d ('%.80s'): phases %#x; allowed: 1 to %#x", i, op,
                             t->phases, (1u << PHASE_COUNT) - 1);
        if (!device_exists(p, t->device) || (t->home != HOME_FILE && !device_exists(p, t->home)))
            return oato_fail(err, status,
                             "part %d ('%.80s'): device %d with home %d, of %d devices", i, op,
                             t->device, t->home, p->n_devices);
    }
    return OATO_OK;
}

static oato_status check_kv(const struct plan *p, oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_kv; i++) {
        const struct plan_kv *k = &p->kv[i];
        if (k->layer < 0 || k->head_begin < 0 || k->head_end <= k->head_begin)
            return oato_fail(err, status, "KV range %d: layer %d, heads %d to %d", i, k->layer,
                             k->head_begin, k->head_end);
        if (!device_exists(p, k->device))
            return oato_fail(err, status, "KV range %d: device %d of %d", i, k->device,
                             p->n_devices);
    }
    return OATO_OK;
}

static oato_status check_sparse(const struct plan *p, oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_sparse; i++) {
        const struct plan_sparse *s = &p->sparse[i];
        if (s->layer < 0 || (i && s->layer <= s[-1].layer))
            return oato_fail(err, status, "sparse layer %d: number %d; they must ascend from 0", i,
                             s->layer);
        if (s->predicts == 2)
            return oato_fail(
                err, status,
                "sparse layer %d: neurons found by signs, which this version no longer "
                "does; run oato-plan again",
                i);
        if (s->predicts > 1)
            return oato_fail(err, status, "sparse layer %d: predicts %u; allowed: 0 and 1", i,
                             s->predicts);
        const float most = s->predicts ? 0 : FLT_MAX;
        if (!(s->threshold >= 0 && s->threshold <= most))
            return oato_fail(err, status, "sparse layer %d: threshold %g; allowed: 0 to %g", i,
                             (double)s->threshold, (double)most);
        if (p->n_devices < 32 && s->dense >> p->n_devices)
            return oato_fail(err, status, "sparse layer %d: dense on devices %#x of %d", i,
                             s->dense, p->n_devices);
    }
    return OATO_OK;
}

static oato_status check_inputs(const struct plan *p, oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_inputs; i++) {
        const struct plan_input *s = &p->inputs[i];
        if (!*or_empty(s->tensor) || !(s->threshold >= 0 && s->threshold <= FLT_MAX) ||
            !(s->silent >= 0 && s->silent <= 1))
            return oato_fail(err, status,
                             "input %d: matrix '%.80s', threshold %g, share %g; allowed: from 0, "
                             "and 0 to 1",
                             i, or_empty(s->tensor), (double)s->threshold, (double)s->silent);
    }
    return OATO_OK;
}

/* Accelerators sum all or nothing: a program says where. */
static oato_status check_joined(const struct plan *p, oato_status status, struct oato_error *err)
{
    bool good = p->n_sums == 1 && plan_ranks(p) > 1;
    for (int32_t r = 0; r < plan_ranks(p); r++) {
        int accelerators = 0;
        for (int32_t i = 0; i < p->n_devices; i++)
            accelerators += p->devices[i].rank == r && !p->devices[i].is_host;
        good = good && accelerators == 1;
    }
    return good ? OATO_OK
                : oato_fail(
                      err, status,
                      "sums by accelerators: allowed for ranks with one accelerator each, and for "
                      "sums of all sizes");
}

static oato_status check_sums(const struct plan *p, oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_sums; i++) {
        const struct sum_choice *s = &p->sums[i];
        if (i >= SUM_CHOICES || (i && (s->bytes <= s[-1].bytes || s->wire != s[-1].wire)) ||
            (unsigned)s->way >= SUM_WAYS || !sum_wire_ok(s->wire, 0) ||
            (s->way && s->wire != DT_F32))
            return oato_fail(err, status,
                             "sum %d: %llu bytes, way %u, wire %d; at most %d choices, rising "
                             "bytes, one type: F32, or F16 or Q8_0 by way 0",
                             i, (unsigned long long)s->bytes, s->way, (int)s->wire, SUM_CHOICES);
    }
    for (int32_t i = 0; i < p->n_sums; i++)
        if (p->sums[i].way == SUM_ACCELERATORS)
            return check_joined(p, status, err);
    return OATO_OK;
}

static oato_status check_kernels(const struct plan *p, oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_kernels; i++) {
        const struct plan_kernels *k = &p->kernels[i];
        if (!device_exists(p, k->device) || (i && k->device <= k[-1].device))
            return oato_fail(err, status, "kernels %d: device %d of %d; in rising order", i,
                             k->device, p->n_devices);
    }
    return OATO_OK;
}

static const char *level_string(struct plan *p, const char *s)
{
    return arena_strndup(&p->arena, or_empty(s), strlen(or_empty(s)));
}

bool plan_put_kernels(struct plan *p, int32_t device, const struct profile *from)
{
    const int32_t at = profile_device_index(from, p->devices[device].id);
    if (at < 0 || (!*or_empty(from->devices[at].isa) && !*or_empty(from->devices[at].layout)))
        return true;
    if (!p->n_kernels)
        p->kernels = arena_alloc(&p->arena, (size_t)p->n_devices, sizeof *p->kernels);
    if (!p->kernels)
        return false;
    struct plan_kernels *k = &p->kernels[p->n_kernels++];
    k->device = device;
    k->isa = level_string(p, from->devices[at].isa);
    k->layout = level_string(p, from->devices[at].layout);
    return k->isa && k->layout;
}

const struct plan_kernels *plan_kernels(const struct plan *p, int32_t device)
{
    for (int32_t i = 0; i < p->n_kernels; i++)
        if (p->kernels[i].device == device)
            return &p->kernels[i];
    return NULL;
}

int32_t plan_ranks(const struct plan *p)
{
    return p->n_devices ? p->devices[p->n_devices - 1].rank + 1 : 1;
}

bool plan_joins(const struct plan *p)
{
    return p->n_sums && p->sums[0].way == SUM_ACCELERATORS;
}

oato_dtype plan_wire(const struct plan *p)
{
    return p->n_sums && p->devices[p->n_devices - 1].host ? p->sums[0].wire : DT_F32;
}

const struct plan_sparse *plan_skips(const struct plan_sparse *sparse, int32_t n, int32_t layer)
{
    for (int32_t i = 0; i < n; i++)
        if (sparse[i].layer == layer)
            return &sparse[i];
    return NULL;
}

/* ------------------------------------------------------------------------------- points --- */

struct plan_point request_point(const struct plan_request *q, int32_t i)
{
    return q->n_points > 0 ? q->points[i]
                           : (struct plan_point){.prompt = q->prompt,
                                                 .generate = q->generate,
                                                 .weight = POINTS_WEIGHT};
}

void request_set_points(struct plan_request *q, const struct plan_point *points,
                        const double *weights, int32_t n)
{
    double all = 0, prompt = 0, generate = 0;
    int64_t left = POINTS_WEIGHT;
    int32_t most = 0;
    for (int32_t i = 0; i < n; i++)
        all += weights[i];
    for (int32_t i = 0; i < n; i++) {
        q->points[i] = points[i];
        q->points[i].weight = (uint32_t)max_i64(llround(weights[i] / all * POINTS_WEIGHT), 1);
        left -= q->points[i].weight;
        most = weights[i] > weights[most] ? i : most;
    }
    q->points[most].weight += (uint32_t)left; /* what rounding left or took */
    for (int32_t i = 0; i < n; i++) { /* of what is stored, so that a plan's points give the same */
        prompt += q->points[i].prompt * (q->points[i].weight / (double)POINTS_WEIGHT);
        generate += q->points[i].generate * (q->points[i].weight / (double)POINTS_WEIGHT);
    }
    q->n_points = n;
    q->prompt = prompt > 0 ? (int32_t)fmax(prompt, 1) : 0;
    q->generate = generate > 0 ? (int32_t)fmax(generate, 1) : 0;
}

static oato_status check_points(const struct plan *p, oato_status status, struct oato_error *err)
{
    const struct plan_request *q = &p->request;
    uint64_t all = 0;
    if (q->n_points < 0 || q->n_points > REQUEST_POINTS_MAX)
        return oato_fail(err, status, "%d points; allowed: 0 to %d", q->n_points,
                         REQUEST_POINTS_MAX);
    for (int32_t i = 0; i < q->n_points; i++) {
        const struct plan_point *t = &q->points[i];
        all += t->weight;
        if (t->prompt < 0 || t->generate < 0 || t->depth < 0 || !t->weight)
            return oato_fail(err, status,
                             "point %d: prompt %d, generate %d, depth %d: none may be negative; "
                             "weight %u: not 0",
                             i, t->prompt, t->generate, t->depth, t->weight);
    }
    if (q->n_points && all != POINTS_WEIGHT)
        return oato_fail(err, status, "points: weights are %llu together; must be %d",
                         (unsigned long long)all, POINTS_WEIGHT);
    return OATO_OK;
}

static oato_status check_rest(const struct plan *p, oato_status status, struct oato_error *err)
{
    const struct plan_request *q = &p->request;
    if (q->prompt < 0 || q->generate < 0 || q->context < 0 || q->batch < 0 || q->ubatch < 0)
        return oato_fail(err, status,
                         "request: prompt %d, generate %d, context %d, batch %d, ubatch %d: none "
                         "may be negative",
                         q->prompt, q->generate, q->context, q->batch, q->ubatch);
    if (q->kv != DT_F16 && q->kv != DT_F32 && q->kv != DT_Q8_0)
        return oato_fail(err, status,
                         "request: KV of type %d; allowed: %d (F16), %d (F32), %d (Q8_0)",
                         (int)q->kv, DT_F16, DT_F32, DT_Q8_0);
    if ((unsigned)q->objective >= OBJECTIVE_COUNT)
        return oato_fail(err, status, "request: objective %d of %d", (int)q->objective,
                         OBJECTIVE_COUNT);
    for (int32_t i = 0; i < p->n_fusions; i++)
        if (!*or_empty(p->fusions[i].name) || !*or_empty(p->fusions[i].op))
            return oato_fail(err, status, "fusion %d: no name or no operator", i);
    for (int32_t i = 0; i < p->n_choices; i++)
        if (!*or_empty(p->choices[i].option))
            return oato_fail(err, status, "choice %d: no name", i);
    for (int32_t i = 0; i < p->n_alternatives; i++)
        if (!*or_empty(p->alternatives[i].option))
            return oato_fail(err, status, "alternative %d: no option", i);
    for (int32_t i = 0; i < p->n_costs; i++) {
        const struct plan_cost *c = &p->costs[i];
        if (!*or_empty(c->op) || (unsigned)c->phase >= PHASE_COUNT || !device_exists(p, c->device))
            return oato_fail(err, status, "cost %d: operator '%.80s', phase %d, device %d of %d", i,
                             or_empty(c->op), (int)c->phase, c->device, p->n_devices);
    }
    return OATO_OK;
}

static oato_status check_caches(const struct plan *p, oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_caches; i++) {
        const struct plan_cache *c = &p->caches[i];
        if (!*or_empty(c->op) || !device_exists(p, c->device) || c->slots < 1 || c->margin < 0 ||
            c->hits < 0 || c->hits > 1000000)
            return oato_fail(err, status,
                             "cache %d: operator '%.80s', device %d of %d, %d slots, margin %d, %d "
                             "hits of 1000000",
                             i, or_empty(c->op), c->device, p->n_devices, c->slots, c->margin,
                             c->hits);
    }
    return OATO_OK;
}

oato_status plan_validate(const struct plan *p, oato_status status, struct oato_error *err)
{
    if (p->n_parts < 0 || p->n_kv < 0 || p->n_fusions < 0 || p->n_caches < 0 || p->n_costs < 0 ||
        p->n_baselines < 0 || p->n_sparse < 0 || p->n_inputs < 0 || p->n_sums < 0 ||
        p->n_kernels < 0 || p->n_choices < 0 || p->n_alternatives < 0)
        return oato_fail(err, status, "a negative count");
    if (check_devices(p, status, err) || check_parts(p, status, err) || check_kv(p, status, err) ||
        check_caches(p, status, err) || check_sparse(p, status, err) ||
        check_inputs(p, status, err) || check_sums(p, status, err) ||
        check_kernels(p, status, err) || check_points(p, status, err) || check_rest(p, status, err))
        return status;
    return OATO_OK;
}
