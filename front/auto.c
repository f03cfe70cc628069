/*
 * auto.c - see auto.h: what is kept holds, or is measured and planned again. Nobody asked for a
 * plan, so a failure to make one is a warning and the CPU runs everything; what was asked for, such
 * as a device, fails instead.
 */
#include "front/auto_internal.h"

#include <stdlib.h>
#include <string.h>

/* Operators are timed for so long at most; opening devices, links and storage come on top. */
#define MEASURE_SECONDS 15.0

/* A plan in the making. */
struct making {
    const struct auto_plan *given;
    const struct session_args *args;
    const struct model *m;
    int32_t threads; /* that were asked for, as far as there are so many; 0: none were */
    struct here here;
    struct plan_store kept;
    struct neurons neurons; /* beside the model, or given */
    const struct neurons *follows;
    struct planner_options options;
    struct workload workload;
    uint32_t open; /* OPEN_KV ... */
    struct text key;
    bool measured, asked; /* asked: what failed is an option of the user's */
};

static uint64_t sidecar_hash(const struct making *x)
{
    return x->follows ? neurons_hash(x->follows) : 0;
}

/* ------------------------------------------------------------------------- the request --- */

static oato_status take_workload(struct making *x, struct oato_error *err)
{
    const char *name = x->given->workload ? x->given->workload : "mixed";
    struct plan_request *q = &x->options.request;
    const struct plan_point *point = &x->given->point;
    if (point->prompt || point->generate) {
        q->prompt = point->prompt;
        q->generate = point->generate;
        if (point->depth)
            request_set_points(q, point, &(double){1}, 1);
        return OATO_OK;
    }
    x->workload.name = workload_find(name);
    x->options.workload = &x->workload;
    x->asked = true;
    if (!x->workload.name && !strchr(name, '.') && !strchr(name, '/'))
        return oato_fail(err, OATO_EUSAGE,
                         "--workload: '%.60s' is not mixed, chat, code, rag or a FILE.yaml", name);
    const oato_status status = x->workload.name ? OATO_OK : workload_load(name, &x->workload, err);
    x->asked = status != OATO_OK;
    return status;
}

/* What oato-plan would be asked for. */
static oato_status request_make(struct making *x, struct oato_error *err)
{
    const struct engine_options *e = &x->args->engine;
    struct planner_options *o = &x->options;
    planner_options_init(o);
    o->any_ubatch = !e->ubatch;
    o->request.ubatch = e->ubatch ? e->ubatch : o->request.ubatch;
    o->request.context = e->context ? e->context : o->request.context;
    o->request.batch = e->seqs > 1 ? e->seqs : 1;
    o->request.kv = e->kv_given ? e->kv : DT_F16;
    o->request.deterministic = e->deterministic;
    o->sparse = e->sparse;
    x->open = OPEN_CACHE | (e->kv_given ? 0 : OPEN_KV) | (e->context ? 0 : OPEN_CONTEXT);
    return take_workload(x, err);
}

/* Of all that the command line may change; what this machine may change is in the stamp. */
static oato_status key_make(struct making *x, struct oato_error *err)
{
    const struct plan_request *q = &x->options.request;
    const struct sparse_choice *s = &x->options.sparse;
    struct text *t = &x->key;
    text_printf(t, "context %d batch %d kv %d deterministic %d threads %d open %u", q->context,
                q->batch, (int)q->kv, q->deterministic, x->args->engine.threads, x->open);
    text_printf(t, " ubatch %d activation %s sparse %d %d %.9g %d %.9g",
                x->options.any_ubatch ? 0 : q->ubatch, or_empty(x->args->choice.ffn_activation),
                s->given, (int)s->mode, (double)s->threshold, s->skips_inputs, (double)s->input);
    if (!x->options.workload)
        text_printf(t, " prompt %d generate %d depth %d", q->prompt, q->generate,
                    x->given->point.depth);
    else if (x->workload.name)
        text_printf(t, " workload %s", x->workload.name);
    for (int32_t i = 0; x->options.workload && !x->workload.name && i < x->workload.n; i++)
        text_printf(t, " point %d %d %d %.9g", x->workload.points[i].prompt,
                    x->workload.points[i].generate, x->workload.points[i].depth,
                    x->workload.weights[i]);
    for (int32_t i = 0; x->args->engine.devices && i < x->here.n; i++)
        text_printf(t, " %s", x->here.info[i].id);
    if (x->given->shares)
        text_printf(t, " share %d of %d", x->given->share, SHARE_PARTS);
    else if (x->given->n_budgets)
        text_printf(t, " of several");
    return t->failed ? oato_fail_memory(err, t->len, "a key") : OATO_OK;
}

static oato_status begin(struct making *x, struct oato_error *err)
{
    const struct engine_options *e = &x->args->engine;
    char why[160];
    struct oato_error none = {0};
    x->asked = e->devices || x->args->neurons;
    x->threads = host_threads(e->threads, why, sizeof why); /* the session says why */
    oato_status status = here_read(e->devices, x->threads, &x->here, err);
    if (!status)
        here_limit(&x->here, x->given->budgets, x->given->n_budgets);
    if (!status && !neurons_open(x->m->gguf, x->args->neurons, &x->neurons, &none))
        x->follows = &x->neurons;
    if (!status && x->args->neurons && !x->follows) {
        *err = none;
        status = none.status;
    }
    if (!status)
        x->asked = false;
    if (!status)
        status = request_make(x, err);
    x->options.neurons = x->follows;
    if (!status)
        status = key_make(x, err);
    return status ? status
                  : plan_store_paths(&x->kept, &x->here, gguf_structure_hash(x->m->gguf),
                                     or_empty(x->key.data), err);
}

/* ------------------------------------------------------------------------- the profile --- */

static const char *name_of_model(const struct model *m)
{
    const char *path = gguf_path(m->gguf), *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static oato_status measure(struct making *x, struct profile *p, struct oato_error *err)
{
    struct profiler_report report;
    struct oato_error kept;
    const char *ids[DEVICES_MAX];
    double seconds = 0;
    const enum sparse_mode mode = x->args->engine.sparse.mode;
    const struct profiler_options o = {
        .devices = x->here.list.data,
        .threads = x->threads,
        .kv = x->options.request.kv,
        .quick = true,
        .only_new = !x->given->again,
        .seconds = MEASURE_SECONDS,
        .sparse =
            mode == SPARSE_THRESHOLD || mode == SPARSE_ABOVE || x->args->engine.sparse.skips_inputs,
        .neurons = x->follows,
    };
    for (int32_t i = 0; i < x->here.n; i++)
        ids[i] = x->here.info[i].id;
    oato_status status = profiler_missing(p, x->m, &o, ids, x->here.n, &seconds, err);
    if (status || !seconds)
        return status;
    program_tell("measuring this machine for %s, about %.0f s; once", name_of_model(x->m), seconds);
    status = profiler_measure(p, x->m, &o, NULL, NULL, &report, err);
    if (!status && profile_save(p, x->kept.profile.data, &kept))
        warn_line(program_warn, NULL, "the profile is used but not kept: %s", kept.text);
    x->measured = !status;
    return status;
}

/* A profile that is damaged, or another machine's, is as good as none. */
static oato_status profile_make(struct making *x, struct profile *p, struct oato_error *err)
{
    for (bool replace = x->given->again;; replace = true) {
        oato_status status = profiler_begin(x->kept.profile.data, replace, p, NULL, NULL, err);
        if (!status)
            status = measure(x, p, err);
        if (!status)
            return OATO_OK;
        profile_free(p);
        const bool file = status == OATO_EFILE || status == OATO_EUSAGE || status == OATO_EIO;
        if (replace || !file)
            return status;
    }
}

/* ---------------------------------------------------------------------------- the plan --- */

/* The plan as a file has it: a planner's borrows from its problem, profile and model. */
static oato_status plan_own(const struct making *x, const struct plan *made, struct plan *out,
                            struct oato_error *err)
{
    uint8_t *data = NULL;
    size_t bytes = 0;
    oato_status status = plan_encode(made, &data, &bytes, err);
    if (!status)
        status = plan_load_memory(data, bytes, x->kept.plan.data, out, err);
    free(data);
    return status;
}

static oato_status plan_new(struct making *x, const struct oato_error *failed, struct plan *out,
                            struct oato_error *err)
{
    struct planner_options *o = &x->options;
    struct problem *problem = NULL;
    struct profile p;
    struct plan made;
    oato_status status = profile_make(x, &p, err);
    if (status)
        return status;
    const size_t named = failed && failed->status == OATO_EFIT ? strcspn(failed->text, " ") : 0;
    o->n_budgets = 0;
    for (int32_t d = 0; d < x->here.n; d++) {
        struct device_budget *b = &o->budgets[o->n_budgets++];
        snprintf(b->id, sizeof b->id, "%s", x->here.info[d].id);
        b->bytes = here_budget(&x->here, d);
        /* what was said to be free was not enough there */
        if (named == strlen(b->id) + 1 && !strncmp(failed->text, b->id, named - 1))
            b->bytes = b->bytes / 4 * (uint64_t)(4 - x->given->failures);
    }
    char devices[SOLVER_DEVICES * sizeof o->budgets[0].id];
    size_t n = 0;
    for (int32_t d = 0; d < o->n_budgets; d++)
        n += (size_t)snprintf(devices + n, sizeof devices - n, "%s%s", d ? "," : "",
                              o->budgets[d].id);
    o->devices = devices;
    o->deadline_ns = ilp_deadline(o->time_limit_s);
    status = workload_set(x->m, &p, o, err);
    if (!status)
        status = planner_plan(x->m, &p, o, x->open, &made, &problem, err);
    if (!status) {
        status = plan_own(x, &made, out, err);
        plan_free(&made);
    }
    if (!status && x->measured && problem_disturbed(problem))
        program_tell("the machine was busy while it was measured; --replan measures again when it "
                     "is quiet");
    if (problem)
        problem_free(problem);
    profile_free(&p);
    if (!status)
        plan_store_save(&x->kept, &x->here, out, sidecar_hash(x));
    return status;
}

static void tell(const struct plan *p)
{
    struct text t;
    text_init(&t);
    report_plan_brief(p, &t);
    for (char *line = t.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        program_tell("%s", line);
    }
    text_free(&t);
}

static bool kept_holds(struct making *x, struct plan *out, struct text *why)
{
    why->len = 0;
    if (!plan_store_load(&x->kept, &x->here, x->m, sidecar_hash(x), out, why))
        return false;
    if (plan_store_fits(out, &x->here, why))
        return true;
    plan_free(out);
    return false;
}

static oato_status plan_find(struct making *x, const struct oato_error *failed, struct plan *out,
                             struct oato_error *err)
{
    struct text why;
    text_init(&why);
    oato_status status = begin(x, err);
    bool holds = !status && !failed && !x->given->again && kept_holds(x, out, &why);
    if (!status && !holds) {
        plan_store_lock(&x->kept);
        /* others may have made it meanwhile */
        holds = !failed && !x->given->again && kept_holds(x, out, &why);
        if (failed || (!holds && why.len))
            program_tell("planning again: %s", failed ? failed->text : why.data);
        if (!holds)
            status = plan_new(x, failed, out, err);
        plan_store_unlock(&x->kept);
    }
    text_free(&why);
    if (!status && !x->given->quiet)
        tell(out);
    return status;
}

oato_status auto_plan_for(struct auto_plan *given, const struct session_args *a,
                          const struct model *m, const struct oato_error *failed, struct plan *out,
                          bool *asked, struct oato_error *err)
{
    struct making *x = calloc(1, sizeof *x);
    *asked = true;
    if (!x)
        return oato_fail_memory(err, sizeof *x, "planning");
    given->failures += failed != NULL;
    x->given = given;
    x->args = a;
    x->m = m;
    x->kept.lock_fd = -1;
    text_init(&x->key);
    const oato_status status = plan_find(x, failed, out, err);
    *asked = x->asked;
    plan_store_free(&x->kept);
    here_free(&x->here);
    neurons_free(&x->neurons);
    text_free(&x->key);
    free(x);
    return status;
}

static bool make_plan(void *user, const struct session_args *a, const struct model *m,
                      const struct oato_error *failed, struct plan *out, struct oato_error *err)
{
    bool asked;
    const oato_status status = auto_plan_for(user, a, m, failed, out, &asked, err);
    if (status && !asked && status != OATO_NEGATIVE && !oato_interrupted) {
        warn_line(program_warn, NULL, "no plan could be made, so the CPU runs everything: %s",
                  err->text);
        err->status = OATO_OK;
    }
    return !status;
}

oato_status auto_plan_use(struct auto_plan *a, struct session_args *session, struct oato_error *err)
{
    const char *word = getenv("OATO_PLAN");
    const bool none = word && !strcmp(word, "none");
    if (word && *word && !none)
        return oato_fail(err, OATO_EUSAGE, "OATO_PLAN is '%.40s'; the only value is none", word);
    if (a->off && session->plan)
        return oato_fail(err, OATO_EUSAGE, "give --plan FILE or --no-plan, not both");
    if (session->plan || a->off || (none && !a->again) || session->engine.map ||
        session->choice.mtp || session->engine.sparse.mode == SPARSE_DENSE)
        return OATO_OK;
    session->make_plan = make_plan;
    session->make_user = a;
    return OATO_OK;
}
