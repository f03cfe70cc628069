/*
 * session_plan.c - what of a session's model is on which device, and what its plan predicts, as
 * JSON. Nothing of it changes while the session is open.
 */
#include "executor/session.h"

#include <string.h>

/* What a device has of the model. */
struct holding {
    int32_t n[OP_KIND_COUNT]; /* operators of a kind, or parts of them */
    uint64_t ns[OP_KIND_COUNT][PHASE_COUNT];
    int32_t first_layer, last_layer; /* -1: of no layer */
    int32_t streamed;                /* operators whose weights lie elsewhere */
    int32_t kv_layers;
};

static void holding_add(struct holding *h, const struct graph_op *op, int32_t n_layers)
{
    h->n[op->op.kind]++;
    if (op->layer < 0 || op->layer >= n_layers)
        return;
    if (h->first_layer < 0 || op->layer < h->first_layer)
        h->first_layer = op->layer;
    if (op->layer > h->last_layer)
        h->last_layer = op->layer;
}

/* Of device `device` of the plan, whose graph g is; p NULL: of all operators. */
static struct holding holding_of(const struct plan *p, const struct graph *g, int32_t device)
{
    struct holding h = {.first_layer = -1, .last_layer = -1};
    int32_t at = 0, layer = -1; /* costs come in the graph's order */
    for (int32_t i = 0; !p && i < g->n_ops; i++) {
        holding_add(&h, &g->ops[i], g->n_layers);
        h.kv_layers += g->ops[i].op.kind == OP_KV_STORE;
    }
    for (int32_t i = 0; p && i < p->n_costs; i++) {
        const struct plan_cost *c = &p->costs[i];
        for (int32_t n = 0; n < g->n_ops && strcmp(g->ops[at].name, c->op) != 0; n++)
            at = (at + 1) % g->n_ops;
        if (c->device != device)
            continue;
        h.ns[g->ops[at].op.kind][c->phase] += c->ns;
        if (c->phase == PHASE_DECODE)
            holding_add(&h, &g->ops[at], g->n_layers);
    }
    for (int32_t i = 0; p && i < p->n_parts; i++)
        h.streamed += p->parts[i].device == device && p->parts[i].home != device;
    for (int32_t i = 0; p && i < p->n_kv; i++) {
        h.kv_layers += p->kv[i].device == device && p->kv[i].layer != layer;
        layer = p->kv[i].device == device ? p->kv[i].layer : layer;
    }
    return h;
}

static void holding_write(struct holding h, struct text *t)
{
    json_add(t, JSON("kv_layers", h.kv_layers), JSON("streamed", h.streamed));
    if (h.first_layer >= 0)
        json_add(t, JSON("first_layer", h.first_layer), JSON("last_layer", h.last_layer));
    json_open(t, "operators", '[');
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        if (h.n[kind])
            json_add_object(t, NULL, JSON("kind", op_kind_name(kind)), JSON("n", h.n[kind]),
                            JSON("prefill_ns", h.ns[kind][PHASE_PREFILL]),
                            JSON("decode_ns", h.ns[kind][PHASE_DECODE]));
    json_close(t, ']');
}

/* Bytes are what the device has, budgets what the plan was given. p NULL: there is no plan. */
static void device_write(const struct engine_device_stats *d, const struct plan *p,
                         const struct graph *g, struct text *t)
{
    int32_t planned = 0;
    while (p && planned < p->n_devices &&
           (strcmp(p->devices[planned].id, d->info.id) != 0 || p->devices[planned].rank))
        planned++;
    json_open(t, NULL, '{');
    json_add(t, JSON("id", d->info.id), JSON("kind", d->info.kind), JSON("model", d->info.model),
             JSON("memory_bytes", d->memory_bytes), JSON("weight_bytes", d->weight_bytes),
             JSON("kv_bytes", d->kv_bytes));
    if (p && planned < p->n_devices)
        json_add(t, JSON("budget_bytes", p->devices[planned].budget_bytes));
    if (p ? planned < p->n_devices : d->info.is_host)
        holding_write(holding_of(p, g, planned), t);
    json_close(t, '}');
}

static double per_second(double tokens, uint64_t ns)
{
    return ns ? tokens * 1e9 / (double)ns : 0;
}

/* One for each kind of request that the plan is for, with the names that answers' timings have. */
static void predictions_write(const struct plan *p, struct text *t)
{
    const struct plan_request *q = &p->request;
    const bool several = q->n_points > 0;
    json_open(t, "predicted", '[');
    for (int32_t i = 0; i < request_points(q); i++) {
        const struct plan_point point = request_point(q, i);
        const uint64_t prefill_ns = several ? point.prefill_ns : p->prefill_ns;
        const uint64_t decode_ns = several ? point.decode_ns : p->decode_ns;
        json_add_object(
            t, NULL, JSON("prompt_n", point.prompt), JSON("cache_n", point.depth),
            JSON("predicted_n", point.generate), JSON("at_once", q->batch),
            JSON("prompt_per_second", per_second((double)point.prompt * q->batch, prefill_ns)),
            JSON("predicted_per_second", per_second(q->batch, decode_ns)),
            JSON("first_token_ms", (double)prefill_ns * 1e-6));
    }
    json_close(t, ']');
}

oato_status session_describe(const struct session *s, const char *name, struct text *t,
                             struct oato_error *err)
{
    const struct plan *p = s->has_plan ? &s->plan : NULL;
    struct engine_stats stats;
    struct graph fused = {0};
    if (p && plan_apply(p, s->model, &fused, err)) {
        graph_free(&fused);
        return err->status;
    }
    engine_get_stats(s->engine, &stats);
    json_open(t, NULL, '{');
    json_add(t, json_bool("planned", p), JSON("model", name), JSON("kv", dtype_name(stats.kv)),
             JSON("context", stats.context));
    if (p) {
        json_add(t, JSON("solver", p->solver));
        predictions_write(p, t);
    }
    json_open(t, "devices", '[');
    for (int32_t i = 0; i < stats.n_devices; i++)
        device_write(&stats.device[i], p, p ? &fused : &s->model->graph, t);
    json_close(t, ']');
    json_close(t, '}');
    graph_free(&fused);
    return t->failed ? oato_fail_memory(err, t->len, "the plan's description") : OATO_OK;
}
