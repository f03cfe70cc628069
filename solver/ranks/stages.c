/*
 * stages.c - a plan in which each rank has some of the layers, one behind the other: a token
 * passes all of them, and the next chunk of a prompt follows the one before. Between two hosts
 * there is one message a step instead of two sums a layer, so that a slow network costs little; but
 * nothing of a step is divided. A rank's layers are placed on its devices as the plan of one
 * process would place them, divided or streamed; so memory, and not only speed, decides how many it
 * has.
 *
 * The cuts begin in proportion to the ranks' speed and move as long as that makes the plan better.
 */
#include "solver/ranks/ranks_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIED_MOST = 512, ROUNDS = 3 };

/* What the layers [begin, end) take on the devices of a seat. */
struct tried {
    int32_t like, begin, end;
    bool fits;
    double ns[PHASE_COUNT];
};

struct cutting {
    const struct model *m;
    const struct planner_options *given;
    const struct rank_options *o;
    const struct seat *seats;
    const struct graph *g;
    const struct plan *cover; /* whose fusions all ranks have; NULL: not known yet */
    struct tried *tried;      /* TRIED_MOST */
    int32_t n_tried;
    struct oato_error *err;
};

bool plan_has_stages(const struct plan *p)
{
    bool stages = plan_ranks(p) > 1;
    for (int32_t k = 1; k < p->n_parts; k++)
        stages = stages &&
                 (strcmp(p->parts[k].op, p->parts[k - 1].op) != 0 ||
                  p->devices[p->parts[k].device].rank == p->devices[p->parts[k - 1].device].rank);
    return stages;
}

/* Layers that keep each other's KV stay together. */
bool layers_can_be_cut(const struct graph *g, int32_t layer)
{
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int32_t j = 0; j < i; j++)
            if (g->ops[i].kv_layer >= 0 && g->ops[i].kv_layer == g->ops[j].kv_layer &&
                (g->ops[i].layer < layer) != (g->ops[j].layer < layer))
                return false;
    return true;
}

/* ------------------------------------------------------------------------------ a stage --- */

/* Rank r has the layers [cut[r], cut[r + 1]). */
static void stage_options(const struct cutting *x, int32_t rank, int32_t begin, int32_t end,
                          char devices[DEVICES_SIZE], struct planner_options *to)
{
    const struct seat *seat = &x->seats[rank];
    seat_options(seat, x->given, x->cover, devices, to);
    to->layer_begin = begin;
    to->layer_end = end;
    for (int32_t d = 0; d < seat->n; d++) {
        struct device_budget *b = &to->budgets[to->n_budgets++];
        snprintf(b->id, sizeof b->id, "%s", seat->profile->devices[seat->device[d]].id);
        b->bytes = seat_budget(x->o, x->given, x->seats, rank, d);
    }
}

/* NULL: an error. That it does not fit is none. */
static const struct tried *stage_try(struct cutting *x, int32_t rank, int32_t begin, int32_t end)
{
    const int32_t like = x->seats[rank].like;
    struct planner_options o;
    struct problem *p = NULL;
    struct plan plan;
    char devices[DEVICES_SIZE];
    for (int32_t i = 0; i < x->n_tried; i++)
        if (x->tried[i].like == like && x->tried[i].begin == begin && x->tried[i].end == end)
            return &x->tried[i];
    stage_options(x, rank, begin, end, devices, &o);
    if (x->seats[rank].n > 1)
        o.solver = "affinity";
    const oato_status status = planner_make(x->m, x->seats[rank].profile, &o, &plan, &p, x->err);
    if (status && (status != OATO_EFIT || oato_failed_memory(x->err)))
        return NULL;
    x->n_tried = x->n_tried % TRIED_MOST;
    struct tried *t = &x->tried[x->n_tried++];
    *t = (struct tried){.like = like, .begin = begin, .end = end, .fits = !status};
    if (status)
        return t;
    t->ns[PHASE_PREFILL] = (double)p->planned.prefill_ns;
    t->ns[PHASE_DECODE] = (double)p->planned.decode_ns;
    problem_free(p);
    plan_free(&plan);
    return t;
}

/* How good cuts are, the least being best; what does not fit is worse than all that does, by its
 * layers. Messages are the same whatever the cuts, so the stages' own times decide: a token passes
 * all, and chunks of a prompt follow each other by the slowest. Negative: an error. */
static double cuts_try(struct cutting *x, const int32_t *cut)
{
    const struct plan_request *q = &x->given->request;
    const double chunks = fmax(request_prefill_total(q).steps, 1);
    double too_many = 0, slowest_ns = 0, all_ns[PHASE_COUNT] = {0};
    for (int32_t r = 0; r < x->o->ranks; r++) {
        const struct tried *t = stage_try(x, r, cut[r], cut[r + 1]);
        if (!t)
            return -1;
        too_many += t->fits ? 0 : 1 + cut[r + 1] - cut[r];
        slowest_ns = fmax(slowest_ns, t->ns[PHASE_PREFILL] / chunks);
        all_ns[PHASE_PREFILL] += t->ns[PHASE_PREFILL] / chunks;
        all_ns[PHASE_DECODE] += t->ns[PHASE_DECODE];
    }
    const double prefill_ns = all_ns[PHASE_PREFILL] + (chunks - 1) * slowest_ns;
    const struct price price =
        request_price(q, whole_ns(prefill_ns), whole_ns(all_ns[PHASE_DECODE]));
    return too_many > 0 ? too_many * 1e18 : (double)price.objective_ns;
}

/* -------------------------------------------------------------------------------- cuts ---- */

static bool cut_is_allowed(const struct cutting *x, const int32_t *cut, int32_t r, int32_t to)
{
    return to > fmax(cut[r - 1], 0) && to < (r + 1 == x->o->ranks ? x->g->n_layers : cut[r + 1]) &&
           layers_can_be_cut(x->g, to);
}

/* In proportion to speed; false: there are not enough layers between which one can cut. */
static bool cuts_begin(const struct cutting *x, int32_t *cut)
{
    const int32_t ranks = x->o->ranks, layers = x->g->n_layers;
    double all = 0, sum = 0;
    for (int32_t r = 0; r < ranks; r++)
        all += 1 / fmax(x->o->slowness[r], 1e-6);
    cut[0] = -1;
    cut[ranks] = layers + 1;
    for (int32_t r = 1; r < ranks; r++) {
        sum += 1 / fmax(x->o->slowness[r - 1], 1e-6);
        int32_t at = (int32_t)lround(sum / all * layers);
        const int32_t least = r > 1 ? cut[r - 1] + 1 : 1, most = layers - (ranks - r);
        at = at < least ? least : at > most ? most : at;
        while (at < most && !layers_can_be_cut(x->g, at))
            at++;
        if (at < least || !layers_can_be_cut(x->g, at))
            return false;
        cut[r] = at;
    }
    return true;
}

/* Moves each cut by steps that get smaller. */
static oato_status cuts_improve(struct cutting *x, int32_t *cut)
{
    struct ilp_clock clock = {.deadline_ns = ilp_share(x->given->deadline_ns, 2)};
    double best = cuts_try(x, cut);
    for (int32_t step = x->g->n_layers / 4; step >= 1 && best >= 0; step /= 2)
        for (int round = 0, moved = 1; moved && round < ROUNDS && best >= 0; round++) {
            moved = 0;
            for (int32_t r = 1; r < x->o->ranks && best >= 0; r++)
                for (int sign = -1; sign <= 1 && best >= 0 && !ilp_late(&clock); sign += 2) {
                    const int32_t was = cut[r];
                    if (!cut_is_allowed(x, cut, r, was + sign * step))
                        continue;
                    cut[r] = was + sign * step;
                    const double now = cuts_try(x, cut);
                    moved += now < best;
                    cut[r] = now < best ? cut[r] : was;
                    best = now < best ? now : best;
                }
        }
    return best < 0 ? x->err->status : OATO_OK;
}

/* ----------------------------------------------------------------------------- the plan --- */

static int32_t layer_of(const struct graph *g, const char *op, int32_t *at)
{
    for (int32_t n = g->n_ops; n > 0 && strcmp(g->ops[*at].name, op) != 0; n--)
        *at = (*at + 1) % g->n_ops;
    return g->ops[*at].layer;
}

static int32_t members_of(const struct plan_fusion *f)
{
    int i = 0;
    while (strcmp(op_fusions[i].name, f->name) != 0)
        i++;
    return op_fusions[i].n_members;
}

/* Of a layer's last sum with the next one's norm: two values would pass instead of the sum. */
void fusions_cut(const struct graph *g, const int32_t *cut, int32_t ranks, struct plan *cover)
{
    int32_t n = 0, at = 0;
    for (int32_t k = 0; k < cover->n_fusions; k++) {
        const int32_t first = layer_of(g, cover->fusions[k].op, &at),
                      last = g->ops[at + members_of(&cover->fusions[k]) - 1].layer;
        bool whole = true;
        for (int32_t r = 1; r < ranks; r++)
            whole = whole && (first < cut[r]) == (last < cut[r]);
        if (whole)
            cover->fusions[n++] = cover->fusions[k];
    }
    cover->n_fusions = n;
}

static oato_status room_make(struct plan *to, size_t ops, size_t devices, struct oato_error *err)
{
    to->n_devices = to->n_parts = to->n_kv = to->n_costs = to->n_sums = to->n_baselines = 0;
    to->devices = arena_alloc(&to->arena, devices, sizeof *to->devices);
    to->parts = arena_alloc(&to->arena, 2 * ops * devices, sizeof *to->parts);
    to->kv = arena_alloc(&to->arena, ops, sizeof *to->kv);
    return to->devices && to->parts && to->kv
               ? OATO_OK
               : oato_fail_memory(err, ops * devices * sizeof *to->parts, "the plan");
}

/* Adds what the rank's own plan says of its layers. */
static oato_status stage_add(struct plan *to, const struct plan *from, const struct problem *p,
                             int32_t rank, int32_t host, struct oato_error *err)
{
    const int32_t first = to->n_devices;
    int32_t at = 0;
    for (int32_t d = 0; d < from->n_devices; d++) {
        to->devices[to->n_devices] = from->devices[d];
        to->devices[to->n_devices].rank = rank;
        to->devices[to->n_devices++].host = host;
    }
    for (int32_t k = 0; k < from->n_parts; k++) {
        struct plan_part part = from->parts[k];
        layer_of(&p->graph, part.op, &at);
        if (!problem_counts(p, at))
            continue;
        part.op = arena_string(&to->arena, part.op);
        part.device += first;
        part.home += part.home >= 0 ? first : 0;
        to->parts[to->n_parts++] = part;
        if (!part.op)
            return oato_fail_memory(err, 64, "the plan");
    }
    for (int32_t k = 0; k < from->n_kv; k++)
        for (int32_t i = 0; i < p->graph.n_ops; i++)
            if (p->graph.ops[i].op.kind == OP_KV_STORE &&
                p->graph.ops[i].kv_layer == from->kv[k].layer && problem_counts(p, i)) {
                to->kv[to->n_kv] = from->kv[k];
                to->kv[to->n_kv++].device += first;
            }
    return OATO_OK;
}

/* Classes that `more` has and the list has not. */
static const char *classes_join(struct arena *a, const char *list, const char *more)
{
    struct text t;
    text_init(&t);
    text_printf(&t, "%s", or_empty(list));
    for (const char *s = more; s && *s;) {
        char name[64];
        const size_t n = strcspn(s, "+");
        snprintf(name, sizeof name, "%.*s", (int)n, s);
        if (!plan_classes_have(t.data, name))
            text_printf(&t, "%s%s", t.len ? "+" : "", name);
        s += n + (s[n] == '+');
    }
    const char *joined = t.failed ? NULL : arena_string(a, t.data);
    text_free(&t);
    return joined;
}

static oato_status stages_join(struct cutting *x, const int32_t *cut, struct plan *out)
{
    oato_status status = OATO_OK;
    size_t devices = 0;
    for (int32_t r = 0; r < x->o->ranks; r++)
        devices += (size_t)x->seats[r].n;
    plan_init(out);
    for (int32_t r = 0; r < x->o->ranks && !status; r++) {
        struct planner_options o;
        struct problem *p = NULL;
        struct plan own;
        char list[DEVICES_SIZE];
        stage_options(x, r, cut[r], cut[r + 1], list, &o);
        o.deadline_ns = ilp_share(x->given->deadline_ns, x->o->ranks - r);
        status = planner_make(x->m, x->seats[r].profile, &o, &own, &p, x->err);
        if (status) {
            oato_fail_at(x->err, "rank %d", r);
            break;
        }
        if (!r) { /* request, names, fusions */
            *out = own;
            status = room_make(out, (size_t)x->g->n_ops + 1, devices, x->err);
        }
        for (int phase = 0; phase < PHASE_COUNT && !status && r; phase++) {
            out->numerics[phase] =
                classes_join(&out->arena, out->numerics[phase], own.numerics[phase]);
            if (!out->numerics[phase])
                status = oato_fail_memory(x->err, 64, "the plan");
        }
        if (!status)
            status = stage_add(out, &own, p, r, rank_host(x->o, r), x->err);
        out->timed_out = out->timed_out || own.timed_out;
        problem_free(p);
        if (r)
            plan_free(&own);
    }
    if (!status)
        status = ranks_predict(out, x->m, x->o, false, x->err);
    if (status)
        plan_free(out);
    return status;
}

oato_status stages_plan(const struct model *m, const struct planner_options *given,
                        const struct rank_options *o, const struct seat *seats, struct plan *out,
                        struct oato_error *err)
{
    struct cutting x = {.m = m, .given = given, .o = o, .seats = seats, .g = &m->graph, .err = err};
    int32_t cut[SOLVER_DEVICES + 1] = {0};
    struct planner_options first;
    struct plan cover;
    char devices[DEVICES_SIZE];
    if (!cuts_begin(&x, cut))
        return oato_fail(err, OATO_EFIT,
                         "the %d layers cannot be cut between %d ranks; use fewer, or --split "
                         "tensor",
                         m->graph.n_layers, o->ranks);
    x.tried = calloc(TRIED_MOST, sizeof *x.tried);
    if (!x.tried)
        return oato_fail_memory(err, TRIED_MOST * sizeof *x.tried, "the plan");
    stage_options(&x, 0, -1, 0, devices, &first); /* nearly nothing, which fits */
    first.solver = "cpu";
    oato_status status = planner_make(m, seats[0].profile, &first, &cover, NULL, err);
    if (status) {
        oato_fail_at(err, "rank 0");
    } else {
        cover.n_parts = cover.n_kv = cover.n_costs = 0; /* the fusions count */
        x.cover = &cover;
        status = cuts_improve(&x, cut);
        fusions_cut(x.g, cut, o->ranks, &cover);
        if (!status)
            status = stages_join(&x, cut, out);
        plan_free(&cover);
    }
    free(x.tried);
    return status;
}
