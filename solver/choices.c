/*
 * choices.c - what the planner chooses of a request beside its placement: how wide the steps of a
 * prompt are, and the type of KV.
 *
 * A wider step streams weights less often, but takes more memory for activations and workspace. All
 * widths are bounded first, by one linear program each, or two where reading from a file may be
 * faster than what fits into memory. Then the one that promises most is planned for; the others
 * only while their bounds leave more to gain than the gap, and searches for them end where they
 * cannot win. Where the solver has no bounds, all are planned for. The plan's bound is that of all
 * widths: one that has none leaves the plan without.
 */
#include "solver/planning_internal.h"

#include <string.h>

enum { WIDTH_USUAL = 512, WIDTHS = 8, CHOICES_MAX = 8 };

#define GAIN_LEAST 1.05 /* from which on another KV type, context or cache is worth it */

struct width {
    int32_t tokens;
    int64_t bound_ns;    /* no plan of this width is faster; 0: unknown, INT64_MAX: none fits */
    int64_t baseline_ns; /* of a baseline, where the bound is unknown; 0: none fits */
    bool made;           /* or tried in vain */
};

struct widths {
    const struct model *m;
    const struct profile *profile;
    const struct planner_options *o;
    struct width of[WIDTHS];
    int32_t n;
    double gap;
    int64_t enough_ns; /* of the best plan, or the options; 0: any is */
    bool unfit;        /* there was no plan for one of them */
    bool timed_out;
};

/* Up to the usual one, or one that takes a prompt at once. */
static void list_widths(struct widths *x)
{
    const struct plan_request *q = &x->o->request;
    int32_t longest = q->prompt;
    for (int32_t i = 0; i < q->n_points; i++)
        longest = longest > q->points[i].prompt ? longest : q->points[i].prompt;
    do
        x->of[x->n].tokens = x->o->any_ubatch ? WIDTH_LEAST << x->n : q->ubatch;
    while (x->of[x->n++].tokens < (longest > WIDTH_USUAL ? longest : (int32_t)WIDTH_USUAL) &&
           x->o->any_ubatch && x->n < WIDTHS);
}

/* The bound of a problem, from one linear program; 0: unknown. */
static oato_status bound_problem(struct widths *x, struct problem *p, uint64_t deadline_ns,
                                 int32_t *place, int64_t *bound_ns, struct oato_error *err)
{
    const struct ilp_options relaxed = {
        .gap = x->gap, .deadline_ns = deadline_ns, .relax_only = true};
    struct ilp_result r = {.bound_ns = 0};
    *bound_ns = 0;
    if (x->timed_out) /* so would this */
        return OATO_OK;
    const oato_status status = search_placement(p, &relaxed, NULL, place, NULL, &r, err);
    if (status != OATO_NEGATIVE)
        return status;
    *bound_ns = r.bound_ns;
    x->timed_out = r.timed_out;
    return OATO_OK;
}

static oato_status bound_width(struct widths *x, struct width *w, uint64_t deadline_ns,
                               struct oato_error *err)
{
    struct planner_options now = *x->o;
    struct problem *p;
    int64_t filed_ns = 0;
    now.request.ubatch = w->tokens;
    oato_status status = problem_create(x->m, x->profile, &now, &p, err);
    if (status == OATO_EFIT && !oato_failed_memory(err)) {
        w->bound_ns = INT64_MAX;
        return OATO_OK;
    }
    if (status)
        return status;
    x->gap = search_gap(x->o, p);
    int32_t *place = arena_alloc(&p->arena, (size_t)p->instance.n_units + 1, sizeof *place);
    if (!place)
        status = oato_fail_memory(err, sizeof *place, "a placement");
    else
        status = bound_problem(x, p, deadline_ns, place, &w->bound_ns, err);
    if (!status && w->bound_ns && planner_may_store(x->o, x->profile) && storage_may_help(p)) {
        status = storage_open(p, err);
        if (!status)
            status = bound_problem(x, p, deadline_ns, place, &filed_ns, err);
        w->bound_ns = status ? 0 : min_i64(w->bound_ns, filed_ns);
    }
    if (!status && !w->bound_ns && baseline_fit(p, place))
        w->baseline_ns = instance_price(&p->instance, place).objective_ns;
    problem_free(p);
    return status;
}

/* Only the ILP has bounds. Narrow steps are many, which takes time to price: they come last. */
static oato_status bound_widths(struct widths *x, struct oato_error *err)
{
    const uint64_t deadline_ns = ilp_share(x->o->deadline_ns, 3);
    const bool searches = !strcmp(x->o->solver, "auto") || !strcmp(x->o->solver, "ilp");
    oato_status status = OATO_OK;
    for (int32_t i = x->n - 1; i >= 0 && x->n > 1 && searches && !status; i--)
        status = bound_width(x, &x->of[i], ilp_share(deadline_ns, i + 1), err);
    return status;
}

/* Whether the width may be better than what there is: by so much that two searches, each of which
 * ends at the gap, can tell. */
static bool is_open(const struct widths *x, const struct width *w)
{
    const double best_ns = (double)x->enough_ns;
    return !w->made && w->bound_ns != INT64_MAX &&
           (!x->enough_ns || best_ns - (double)w->bound_ns > 2 * x->gap * best_ns);
}

/* Which of two widths that promise the same comes first: the usual one, for plans meet other
 * prompts than they were made for, else the narrower one above it or the wider one below. */
static bool comes_first(const struct width *a, const struct width *b)
{
    const bool wide = a->tokens >= WIDTH_USUAL;
    return wide != (b->tokens >= WIDTH_USUAL) ? wide : wide == (a->tokens < b->tokens);
}

static int64_t promise_ns(const struct width *w)
{
    return w->bound_ns ? w->bound_ns : w->baseline_ns;
}

/* What is planned for next, of those that promise most, as near as searches can tell. Where one did
 * not fit, the narrowest is next. NULL: nothing is open. *left: how many are. */
static struct width *next_width(struct widths *x, int32_t *left)
{
    struct width *first = NULL;
    int64_t least_ns = INT64_MAX;
    *left = 0;
    for (struct width *w = x->of; w < x->of + x->n; w++) {
        *left += is_open(x, w);
        if (is_open(x, w) && promise_ns(w) && promise_ns(w) < least_ns)
            least_ns = promise_ns(w);
    }
    if (x->unfit && is_open(x, x->of))
        return x->of;
    for (struct width *w = x->of; w < x->of + x->n; w++) {
        const bool promises =
            least_ns == INT64_MAX ||
            (promise_ns(w) && (double)promise_ns(w) * (1 - 2 * x->gap) <= (double)least_ns);
        if (is_open(x, w) && promises && (!first || comes_first(w, first)))
            first = w;
    }
    return first;
}

/* Plans for one width and keeps what is better. *known: there is a plan. */
static oato_status plan_width(struct widths *x, struct width *w, int32_t left, struct plan *out,
                              struct problem **problem, bool *known, struct oato_error *err)
{
    struct planner_options now = *x->o;
    struct plan plan;
    struct problem *p = NULL;
    now.request.ubatch = w->tokens;
    now.enough_ns = x->enough_ns;
    if (left > 1)
        now.deadline_ns =
            promise_ns(w) ? ilp_most(x->o->deadline_ns) : ilp_share(x->o->deadline_ns, left);
    w->made = true;
    plan_init(&plan);
    const oato_status status =
        plan_at_width(x->m, x->profile, &now, &plan, problem ? &p : NULL, err);
    if (no_plan(status, err)) {
        x->unfit = x->unfit || status == OATO_EFIT;
        for (int32_t i = 0; i < x->n; i++) /* wider ones take more memory */
            x->of[i].made = x->of[i].made || (w == x->of && status == OATO_EFIT);
        return *known ? OATO_OK : status;
    }
    if (status)
        return status;
    if (plan.bound_ns ||
        planner_weighs_library(NULL, x->profile)) /* else that of the start holds */
        w->bound_ns = (int64_t)plan.bound_ns;
    x->timed_out = x->timed_out || plan.timed_out;
    const bool better = !x->enough_ns || (int64_t)plan.objective_ns < x->enough_ns;
    if (better)
        x->enough_ns = (int64_t)plan.objective_ns;
    plan_keep(out, problem, &plan, p, better, *known);
    *known = *known || better;
    return OATO_OK;
}

/* Notes in the plan that nobody gave the option. */
static oato_status note_choice(struct plan *plan, const char *option, bool chosen,
                               struct oato_error *err)
{
    if (!plan->choices)
        plan->choices = arena_alloc(&plan->arena, CHOICES_MAX, sizeof *plan->choices);
    if (!plan->choices)
        return oato_fail_memory(err, sizeof *plan->choices, "the plan");
    plan->choices[plan->n_choices++] = (struct plan_choice){option, chosen};
    return OATO_OK;
}

/* plan_at_width for the best width that is open. */
static oato_status plan_best_width(const struct model *m, const struct profile *profile,
                                   const struct planner_options *o, struct plan *out,
                                   struct problem **problem, struct oato_error *err)
{
    struct widths x = {.m = m, .profile = profile, .o = o, .enough_ns = o->enough_ns};
    struct ilp_clock clock = {.deadline_ns = o->deadline_ns};
    struct width *w;
    int32_t left;
    int64_t bound_ns = INT64_MAX;
    bool known = false;
    list_widths(&x);
    oato_status status = bound_widths(&x, err);
    if (status)
        return status;
    if (x.of[0].bound_ns == INT64_MAX)
        x.of[0].bound_ns = 0; /* none fits, and the narrowest is to say why */
    while ((!status || no_plan(status, err)) && (w = next_width(&x, &left)) &&
           !(known && ilp_late(&clock)))
        status = plan_width(&x, w, left, out, problem, &known, err);
    if (!known)
        return status ? status : oato_fail(err, OATO_NEGATIVE, "no plan is fast enough");
    for (int32_t i = 0; i < x.n; i++)
        bound_ns = min_i64(bound_ns, x.of[i].bound_ns);
    out->bound_ns = (uint64_t)min_i64(bound_ns, (int64_t)out->objective_ns);
    out->timed_out = x.timed_out || clock.ended;
    return OATO_OK;
}

/* How many times as fast as the plan is predicted what takes so long. */
static double gain_of(const struct plan *p, uint64_t prefill_ns, uint64_t decode_ns)
{
    const struct plan_request *q = &p->request;
    const int64_t to_ns = request_price(q, (int64_t)prefill_ns, (int64_t)decode_ns).objective_ns;
    const int64_t ns = request_price(q, (int64_t)p->prefill_ns, (int64_t)p->decode_ns).objective_ns;
    return to_ns ? (double)ns / (double)to_ns : 1;
}

double alternative_gain(const struct plan *p, const struct plan_alternative *a)
{
    return gain_of(p, a->prefill_ns, a->decode_ns);
}

static bool is_worth(const struct plan *plan, const struct plan *other)
{
    return gain_of(plan, other->prefill_ns, other->decode_ns) >= GAIN_LEAST;
}

/* The objective from which on another plan may be. */
static int64_t worth_ns(const struct plan *plan)
{
    return max_i64((int64_t)((double)plan->objective_ns / GAIN_LEAST), 1);
}

/* As the engine has it (executor/engine.c). */
static bool kv_can_be_small(const struct model *m)
{
    return m->shape.head_dim % 32 == 0;
}

/* F16, or Q8_0 where that is worth it or all that fits. */
static oato_status plan_any_kv(const struct model *m, const struct profile *profile,
                               const struct planner_options *o, struct plan *out,
                               struct problem **problem, struct oato_error *err)
{
    struct planner_options now = *o;
    struct plan plan;
    struct problem *p = NULL;
    struct oato_error ignored;
    plan_init(&plan);
    now.request.kv = DT_F16;
    now.deadline_ns = ilp_share(o->deadline_ns, 2);
    const oato_status status = plan_best_width(m, profile, &now, out, problem, err);
    if (status && !no_plan(status, err))
        return status;
    now.request.kv = DT_Q8_0;
    now.deadline_ns = o->deadline_ns;
    now.enough_ns = status ? o->enough_ns : worth_ns(out);
    if (!kv_can_be_small(m) ||
        plan_best_width(m, profile, &now, &plan, problem ? &p : NULL, &ignored))
        return status;
    plan_keep(out, problem, &plan, p, status || is_worth(out, &plan), !status);
    return OATO_OK;
}

oato_status planner_make(const struct model *m, const struct profile *profile,
                         const struct planner_options *o, struct plan *out,
                         struct problem **problem, struct oato_error *err)
{
    if (o->expert_cache && !o->cache_room)
        return caches_make(m, profile, o, out, problem, err);
    struct planner_options now = *o;
    plan_init(out);
    now.deadline_ns = ilp_sooner(ilp_deadline(o->time_limit_s), o->deadline_ns);
    oato_status status =
        (o->any_kv ? plan_any_kv : plan_best_width)(m, profile, &now, out, problem, err);
    if (status)
        return status;
    if ((o->any_ubatch && note_choice(out, "ubatch", true, err)) ||
        (o->any_kv && note_choice(out, "kv", true, err))) {
        plan_free(out);
        problem_free(problem ? *problem : NULL);
        status = err->status;
    }
    return status;
}

/* -------------------------------------------------------------------- what was not chosen - */

static int32_t kv_layers(const struct plan *p, int32_t d)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_kv; i++)
        n += p->kv[i].device == d;
    return n;
}

/* Whether some of a decode step is the host's work, which more memory elsewhere would make less. */
static bool host_decodes(const struct plan *p)
{
    bool does = false;
    for (int32_t i = 0; i < p->n_costs; i++)
        does =
            does || (p->costs[i].phase == PHASE_DECODE && p->devices[p->costs[i].device].is_host);
    return does;
}

/* In a few words what the other plan has that the plan has not; "": nothing simple. */
static void tell_why(const struct plan *plan, const struct plan *other, char *why, size_t size)
{
    int32_t host = 0, to = -1, slots = 0;
    while (host + 1 < plan->n_devices && !plan->devices[host].is_host)
        host++;
    for (int32_t d = 0; d < other->n_devices; d++)
        if (d != host && kv_layers(other, d) > kv_layers(plan, d))
            to = to < 0 || kv_layers(other, d) > kv_layers(other, to) ? d : to;
    for (int32_t i = 0; i < other->n_caches; i++)
        slots += other->caches[i].slots;
    *why = 0;
    if (plan_is_stored(plan) && !plan_is_stored(other))
        snprintf(why, size, "nothing is then read from a file");
    else if (other->n_caches && !plan->n_caches)
        snprintf(why, size, "%d experts of the host on %s, too", slots,
                 other->devices[other->caches[0].device].id);
    else if (to >= 0 && !kv_layers(other, host))
        snprintf(why, size, "KV then fits on %s", other->devices[to].id);
    else if (to >= 0 && kv_layers(other, to) > kv_layers(plan, to) + 1)
        snprintf(why, size, "KV of %d more layers then fits on %s",
                 kv_layers(other, to) - kv_layers(plan, to), other->devices[to].id);
    else
        snprintf(why, size,
                 other->request.kv != plan->request.kv ? "KV takes half the memory"
                                                       : "less KV is kept");
}

/* The one that gains most comes first. */
static void add_alternative(struct plan *plan, const struct plan_alternative *a,
                            struct oato_error *err)
{
    int32_t at = plan->n_alternatives;
    if (!a->option || !a->why) {
        oato_fail_memory(err, sizeof *a, "the plan");
        return;
    }
    for (; at && alternative_gain(plan, &plan->alternatives[at - 1]) < alternative_gain(plan, a);
         at--)
        plan->alternatives[at] = plan->alternatives[at - 1];
    plan->alternatives[at] = *a;
    plan->n_alternatives++;
}

struct trials {
    const struct model *m;
    const struct profile *profile;
    struct plan *plan;
    struct oato_error *err;
};

/* Plans with these options, which a command line would change by `option`. */
static oato_status try_option(struct trials *x, const char *option, const struct planner_options *o)
{
    struct plan other, *plan = x->plan;
    struct oato_error failed;
    char why[96];
    if (planner_make(x->m, x->profile, o, &other, NULL, &failed)) /* not faster, or there is none */
        return oato_failed_memory(&failed) ? oato_fail_memory(x->err, sizeof other, option)
                                           : OATO_OK;
    if (is_worth(plan, &other)) {
        tell_why(plan, &other, why, sizeof why);
        add_alternative(plan,
                        &(struct plan_alternative){
                            arena_string(&plan->arena, option), arena_string(&plan->arena, why),
                            other.prefill_ns, other.decode_ns, other.request_ns},
                        x->err);
    }
    plan_free(&other);
    return x->err->status;
}

oato_status planner_alternatives(const struct model *m, const struct profile *profile,
                                 const struct planner_options *o, uint32_t open, struct plan *plan,
                                 struct oato_error *err)
{
    const struct plan_request *q = &plan->request;
    const int64_t tokens = ((int64_t)q->prompt + q->generate) * q->batch,
                  context = (int64_t)kv_pages_of((int32_t)tokens) * KV_PAGE_POSITIONS;
    static const char *const names[] = {"kv", "context", "expert-cache"};
    struct trials x = {m, profile, plan, err};
    struct planner_options now = *o;
    char option[32];
    const bool kv = open & OPEN_KV && q->kv == DT_F16 && kv_can_be_small(m),
               shorter = open & OPEN_CONTEXT && !q->n_points && context < q->context &&
                         plan->n_kv && host_decodes(plan), /* a workload has one that is full */
        cache = open & OPEN_CACHE && !o->expert_cache && m->shape.experts && host_decodes(plan);
    err->status = OATO_OK;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (open >> i & 1 && note_choice(plan, names[i], false, err))
            return err->status;
    plan->alternatives = arena_alloc(&plan->arena, ALTERNATIVES_MAX, sizeof *plan->alternatives);
    if (!plan->alternatives)
        return oato_fail_memory(err, sizeof *plan->alternatives, "the plan");
    now.enough_ns = worth_ns(plan);
    now.request = *q; /* its width, too: planned anew, it may be faster still */
    now.any_ubatch = now.any_kv = false;
    if (kv) {
        now.request.kv = DT_Q8_0;
        now.deadline_ns = ilp_share(o->deadline_ns, 1 + shorter + cache);
        try_option(&x, "--kv q8_0", &now);
    }
    if (shorter && !err->status) {
        now.request = *q;
        now.request.context = (int32_t)context;
        now.deadline_ns = ilp_share(o->deadline_ns, 1 + cache);
        snprintf(option, sizeof option, "--context %d", now.request.context);
        try_option(&x, option, &now);
    }
    if (cache && !err->status) {
        now.request = *q;
        now.enough_ns = 0; /* the placement stays as it is */
        now.expert_cache = CACHE_AUTO;
        now.deadline_ns = o->deadline_ns;
        try_option(&x, "--expert-cache auto", &now);
    }
    return err->status;
}

static oato_status note_kernels(struct plan *p, const struct profile *profile,
                                struct oato_error *err)
{
    for (int32_t d = 0; d < p->n_devices; d++)
        if (!plan_put_kernels(p, d, profile))
            return oato_fail_memory(err, sizeof *p->kernels, "a plan");
    return OATO_OK;
}

oato_status planner_plan(const struct model *m, const struct profile *p,
                         const struct planner_options *given, uint32_t open, struct plan *out,
                         struct problem **problem, struct oato_error *err)
{
    struct planner_options o = *given;
    const uint64_t deadline_ns = ilp_deadline(o.time_limit_s);
    if (open)
        o.deadline_ns = ilp_most(deadline_ns);
    oato_status status = planner_make(m, p, &o, out, problem, err);
    if (status)
        return status;
    o.deadline_ns = deadline_ns;
    if (deadline_ns && now_ns() >= deadline_ns)
        open = 0; /* an answer now rather than what options would bring */
    status = planner_alternatives(m, p, &o, open, out, err);
    if (!status)
        status = note_kernels(out, p, err);
    if (!status)
        return OATO_OK;
    if (problem) {
        problem_free(*problem);
        *problem = NULL;
    }
    plan_free(out);
    return status;
}
