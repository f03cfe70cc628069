/*
 * auto_together.c - several models on the same devices: what each may use of them. Where all fit
 * together the accelerators' memory is split in eighths. The search begins with a split by size and
 * moves an eighth from one model to another for as long as the times that the solver predicts for
 * all of them, added up, become less. Each plan that is tried is kept like any other one
 * (auto_kept.c), so that the next start only reads them.
 */
#include "front/auto_internal.h"

#include <string.h>

enum { TOGETHER_MOST = 4, PARTS = SHARE_PARTS };

struct together {
    const struct session_args *session;
    struct auto_model *models;
    int32_t n;
    struct model *open[TOGETHER_MOST];
    uint64_t host_bytes;
    struct device_budget all[DEVICES_MAX]; /* of the devices, when one model has them alone */
    bool is_host[DEVICES_MAX];
    int32_t n_all;
    /* Plans that were tried, by their share */
    struct tried {
        bool known, fits;
        uint64_t ns, host; /* of the workload; bytes */
    } tried[TOGETHER_MOST][PARTS + 1];
};

static void budgets_set(const struct together *t, struct auto_plan *p, int32_t share)
{
    p->n_budgets = t->n_all;
    p->share = share;
    for (int32_t d = 0; d < t->n_all; d++) {
        p->budgets[d] = t->all[d];
        if (!t->is_host[d])
            p->budgets[d].bytes = t->all[d].bytes / PARTS * (uint64_t)share;
    }
}

/* The plan of a model that has such a share. Only an end that somebody asks for is an error. */
static oato_status share_try(struct together *t, int32_t i, int32_t share, struct oato_error *err)
{
    struct tried *x = &t->tried[i][share];
    struct session_args args = *t->session;
    struct auto_plan plan = t->models[i].plan;
    struct plan made;
    bool asked;
    if (x->known)
        return OATO_OK;
    args.model = t->models[i].path;
    plan.shares = plan.quiet = true;
    budgets_set(t, &plan, share);
    const oato_status status = auto_plan_for(&plan, &args, t->open[i], NULL, &made, &asked, err);
    x->known = true;
    x->fits = !status;
    if (status)
        return status == OATO_NEGATIVE || oato_interrupted ? status : OATO_OK;
    x->ns = made.objective_ns;
    for (int32_t d = 0; d < made.n_devices; d++)
        for (int32_t k = 0; k < t->n_all; k++)
            if (t->is_host[k] && !strcmp(t->all[k].id, made.devices[d].id))
                x->host += made.devices[d].planned_bytes;
    plan_free(&made);
    return OATO_OK;
}

/* UINT64_MAX: they do not fit together so. */
static oato_status split_try(struct together *t, const int32_t *share, uint64_t *ns,
                             struct oato_error *err)
{
    uint64_t host = 0;
    bool fits = true;
    *ns = 0;
    for (int32_t i = 0; i < t->n; i++) {
        if (share_try(t, i, share[i], err))
            return err->status;
        const struct tried *x = &t->tried[i][share[i]];
        fits = fits && x->fits;
        host += x->host;
        *ns += x->ns;
    }
    if (!fits || host > t->host_bytes)
        *ns = UINT64_MAX;
    return OATO_OK;
}

/* By the bytes of their weights; all parts are given. */
static void split_begin(const struct together *t, int32_t *share)
{
    double bytes[TOGETHER_MOST] = {0}, sum = 0;
    int32_t left = PARTS;
    for (int32_t i = 0; i < t->n; i++) {
        bytes[i] = 1;
        for (size_t k = 0; k < gguf_tensor_count(t->open[i]->gguf); k++)
            bytes[i] += (double)gguf_tensor_at(t->open[i]->gguf, k)->bytes;
        sum += bytes[i];
    }
    for (int32_t i = 0; i < t->n; i++) {
        share[i] = (int32_t)(bytes[i] / sum * PARTS);
        left -= share[i];
    }
    for (int32_t i = 0; left > 0; i = (i + 1) % t->n, left--)
        share[i]++;
}

/* Moves an eighth from one to another where that is better than *ns; *moved says so. */
static oato_status split_move(struct together *t, int32_t *share, uint64_t *ns, bool *moved,
                              struct oato_error *err)
{
    int32_t from = -1, to = -1;
    for (int32_t i = 0; i < t->n * t->n; i++) {
        const int32_t a = i / t->n, b = i % t->n;
        uint64_t other_ns;
        if (a == b || !share[a])
            continue;
        share[a]--;
        share[b]++;
        const oato_status status = split_try(t, share, &other_ns, err);
        share[a]++;
        share[b]--;
        if (status)
            return status;
        if (other_ns < *ns) {
            *ns = other_ns;
            from = a;
            to = b;
        }
    }
    *moved = from >= 0;
    if (*moved) {
        share[from]--;
        share[to]++;
    }
    return OATO_OK;
}

static oato_status split_find(struct together *t, struct oato_error *err)
{
    int32_t share[TOGETHER_MOST] = {0};
    uint64_t ns;
    bool moved = true;
    split_begin(t, share);
    oato_status status = split_try(t, share, &ns, err);
    while (!status && moved)
        status = split_move(t, share, &ns, &moved, err);
    if (status)
        return status;
    if (ns == UINT64_MAX) {
        program_tell("the models do not fit together: one goes for the other");
        return OATO_OK;
    }
    for (int32_t i = 0; i < t->n; i++) {
        t->models[i].plan.shares = true;
        budgets_set(t, &t->models[i].plan, share[i]);
        program_tell("%s has %d/%d of the accelerators' memory", t->models[i].name, share[i],
                     PARTS);
    }
    return OATO_OK;
}

/* What one model alone may use; the host's is the same for all. */
static oato_status devices_see(struct together *t, struct device_budget *devices,
                               int32_t *n_devices, struct oato_error *err)
{
    struct here here;
    char why[160];
    const struct engine_options *e = &t->session->engine;
    oato_status status =
        here_read(e->devices, host_threads(e->threads, why, sizeof why), &here, err);
    *n_devices = 0;
    for (int32_t d = 0; d < here.n && !status; d++) {
        struct device_budget *own = &t->all[t->n_all];
        t->is_host[t->n_all++] = here.info[d].is_host;
        snprintf(own->id, sizeof own->id, "%s", here.info[d].id);
        own->bytes = here_budget(&here, d);
        if (here.info[d].is_host)
            own->bytes = (uint64_t)min_i64((int64_t)own->bytes, (int64_t)t->host_bytes);
        else
            devices[(*n_devices)++] = *own;
    }
    here_free(&here);
    return status;
}

oato_status auto_plan_together(const struct auto_plan *given, const struct session_args *session,
                               struct auto_model *models, int32_t n, uint64_t host_bytes,
                               struct device_budget *devices, int32_t *n_devices,
                               struct oato_error *err)
{
    struct together t = {.session = session, .models = models, .n = n, .host_bytes = host_bytes};
    oato_status status = devices_see(&t, devices, n_devices, err);
    for (int32_t i = 0; i < n && !status; i++) {
        models[i].plan = *given;
        budgets_set(&t, &models[i].plan, PARTS);
    }
    bool all = n > 1 && n <= TOGETHER_MOST && *n_devices;
    for (int32_t i = 0; i < n && all && !status; i++) {
        struct oato_error ignored; /* it is told to who asks for that model */
        all = !model_open_as(models[i].path, &session->choice, &t.open[i], &ignored);
    }
    if (!status && all)
        status = split_find(&t, err);
    for (int32_t i = 0; i < TOGETHER_MOST; i++)
        model_close(t.open[i]);
    return status;
}
