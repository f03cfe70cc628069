/*
 * export_parts.c - where whole tensors go. Other engines divide none, so one goes where the larger
 * share of it lies in decode, to the host where halves are equal. Rounding up may ask more of a
 * device than its budget: then those of its tensors with the smallest share stay on the host, an
 * operator's companions in its layer with it. What gets lost is a line for each kind of operator,
 * however many layers have it.
 */
#include "planfmt/export_internal.h"

#include <string.h>

/* An operator with weights. */
struct spread {
    const struct graph_op *op;
    const char *what;               /* of its kind: "the FFN" */
    uint64_t homes, streamed;       /* devices with some of it in decode; to which it is streamed */
    double share[PLAN_DEVICES_MAX]; /* of it in their memory */
    uint64_t bytes;                 /* of its tensors */
    int32_t device;                 /* where they go */
    bool left;                      /* that is the host, because they did not fit */
};

/* What operators of a kind are called, by how their names begin behind the layer's. */
static const struct {
    const char *prefix, *what;
} kinds[] = {
    {"ffn_gate_up_exps", "the experts"}, {"ffn_down_exps", "the experts"}, {"ffn_", "the FFN"},
    {"attn_", "the attention"},          {"output", "the output matrix"},  {"", "others"}};

static const char *kind_of(const char *name)
{
    int32_t layer;
    size_t i = 0;
    export_layer_of(name, &layer, &name);
    while (strncmp(name, kinds[i].prefix, strlen(kinds[i].prefix)) != 0)
        i++;
    return kinds[i].what;
}

/* ------------------------------------------------------------------------------- places ---- */

static struct spread spread_of(const struct exporter *x, const struct graph_op *op)
{
    struct spread s = {.op = op, .what = kind_of(op->name), .device = x->host};
    double all = 0;
    for (int32_t i = 0; i < x->plan->n_parts; i++) {
        const struct plan_part *p = &x->plan->parts[i];
        if (p->begin == p->end || strcmp(p->op, op->name) != 0)
            continue;
        if (p->home != p->device)
            s.streamed |= (uint64_t)1 << p->device;
        if (!(p->phases & 1u << PHASE_DECODE))
            continue;
        s.share[p->home] += (double)(p->end - p->begin);
        all += (double)(p->end - p->begin);
    }
    if (all <= 0)
        s.share[x->host] = all = 1;
    for (int32_t d = 0; d < x->plan->n_devices; d++) {
        s.share[d] /= all;
        s.homes |= (uint64_t)(s.share[d] > 0) << d;
    }
    for (int32_t d = 0; d < x->plan->n_devices; d++)
        s.device = s.share[d] > s.share[s.device] ? d : s.device;
    for (int w = 0; w < op->n_weights; w++)
        s.bytes += op->weight[w] ? op->weight[w]->bytes : 0;
    return s;
}

static bool is_divided(const struct spread *s)
{
    return s->homes & (s->homes - 1);
}

/* The divided operator on device d with the smallest share of it there, the last one of equals;
 * NULL: there is none. */
static const struct spread *smallest_share(const struct spread *all, int32_t n, int32_t d)
{
    const struct spread *least = NULL;
    for (int32_t i = 0; i < n; i++)
        if (is_divided(&all[i]) && all[i].device == d &&
            (!least || all[i].share[d] <= least->share[d]))
            least = &all[i];
    return least;
}

/* Takes from device d what its budget does not hold beside the plan's KV and work. */
static void keep_budget(const struct exporter *x, struct spread *all, int32_t n, int32_t d)
{
    const struct plan_device *device = &x->plan->devices[d];
    double planned = 0;
    uint64_t bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        planned += all[i].share[d] * (double)all[i].bytes;
        bytes += all[i].device == d ? all[i].bytes : 0;
    }
    const double others = (double)device->planned_bytes - planned;
    const double room = (double)device->budget_bytes - (others > 0 ? others : 0);
    const struct spread *least;
    while (device->budget_bytes && (double)bytes > room && (least = smallest_share(all, n, d))) {
        const int32_t layer = least->op->layer;
        const double share = least->share[d];
        for (int32_t i = 0; i < n; i++)
            if (is_divided(&all[i]) && all[i].device == d && all[i].op->layer == layer &&
                all[i].share[d] <= share) {
                all[i].device = x->host;
                all[i].left = true;
                bytes -= all[i].bytes;
            }
    }
}

/* ------------------------------------------------------------------------- what is lost ---- */

/* "cuda:0, cuda:1 and cpu:0": the host last. */
static void list_devices(const struct exporter *x, uint64_t devices)
{
    const uint64_t host = (uint64_t)1 << x->host, order[] = {devices & ~host, devices & host};
    int left = __builtin_popcountll(devices);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t d = 0; d < x->plan->n_devices; d++)
            if (order[pass] >> d & 1)
                text_printf(x->lost, "%s%s", x->plan->devices[d].id,
                            --left > 1  ? ", "
                            : left == 1 ? " and "
                                        : "");
}

typedef bool spread_test(const struct spread *s, const struct spread *like);

static bool divided_alike(const struct spread *s, const struct spread *like)
{
    return is_divided(s) && s->homes == like->homes && !strcmp(s->what, like->what);
}

static bool left_alike(const struct spread *s, const struct spread *like)
{
    return s->left && divided_alike(s, like);
}

static bool streamed_alike(const struct spread *s, const struct spread *like)
{
    return s->streamed && s->streamed == like->streamed && !strcmp(s->what, like->what);
}

/* Layers in which a test holds of some operator; *first (may be NULL) is the first of them. */
static int32_t count_layers(const struct spread *all, int32_t n, spread_test *test,
                            const struct spread *like, int32_t *first)
{
    int32_t layers = 0, before = -1;
    for (int32_t i = n - 1; i >= 0; i--) {
        if (!test(&all[i], like))
            continue;
        layers += !layers || all[i].op->layer != before;
        before = all[i].op->layer;
    }
    if (first)
        *first = before;
    return layers;
}

static bool is_first(const struct spread *all, int32_t i, spread_test *test)
{
    for (int32_t j = 0; j < i; j++)
        if (test(&all[j], &all[i]))
            return false;
    return test(&all[i], &all[i]);
}

/* "the FFN of 32 layers", "the output matrix" */
static void add_what(const struct exporter *x, const char *what, int32_t layers, int32_t first)
{
    text_printf(x->lost, "%s", what);
    if (layers > 1)
        text_printf(x->lost, " of %d layers", layers);
    else if (first >= 0 && first < x->n_layers)
        text_printf(x->lost, " of layer %d", first);
}

static void list_divided(const struct exporter *x, const struct spread *all, int32_t n, int32_t i)
{
    int32_t first = -1;
    const int32_t layers = count_layers(all, n, divided_alike, &all[i], &first);
    const int32_t left = count_layers(all, n, left_alike, &all[i], NULL);
    add_what(x, all[i].what, layers, first);
    text_printf(x->lost, ": divided between ");
    list_devices(x, all[i].homes);
    text_printf(x->lost, "; %s can only place whole tensors: placed where the larger share is",
                export_target_names[x->o->target]);
    if (left && layers > 1)
        text_printf(x->lost, ", but %d on %s, because more would exceed the budget", left,
                    export_name(x, x->host));
    else if (left)
        text_printf(x->lost, ", but on %s, because that would exceed the budget",
                    export_name(x, x->host));
    text_printf(x->lost, "\n");
}

static void list_streamed(const struct exporter *x, const struct spread *all, int32_t n, int32_t i)
{
    int32_t first = -1;
    const int32_t layers = count_layers(all, n, streamed_alike, &all[i], &first);
    text_printf(x->lost, "weights of ");
    add_what(x, all[i].what, layers, first);
    text_printf(x->lost, ": streamed to ");
    list_devices(x, all[i].streamed);
    text_printf(x->lost, "; %s has its own rules for that\n", export_target_names[x->o->target]);
}

/* ------------------------------------------------------------------------------------------- */

oato_status export_parts(struct exporter *x, struct oato_error *err)
{
    const struct gguf_tensor *file = gguf_tensor_at(x->model->gguf, 0);
    const size_t ops = (size_t)x->graph.n_ops;
    struct spread *all = arena_alloc(&x->arena, ops + 1, sizeof *all);
    int32_t n = 0;
    uint64_t here = 0, streamed = 0;
    if (!all)
        return oato_fail_memory(err, ops * sizeof *all, "an export");
    for (int32_t i = 0; i < x->graph.n_ops; i++) {
        all[n] = spread_of(x, &x->graph.ops[i]);
        if (x->graph.ops[i].op.kind != OP_EMBED)
            n += all[n].bytes > 0;
        else if (all[n].device != x->host) /* of a tied matrix the lookup says nothing */
            text_printf(x->lost, "%s is looked up on the CPU\n", x->graph.ops[i].name);
    }
    for (int32_t d = 0; d < x->plan->n_devices; d++)
        if (d != x->host)
            keep_budget(x, all, n, d);
    for (int32_t i = 0; i < n; i++) {
        const struct graph_op *op = all[i].op;
        x->used[all[i].device] = true;
        if (op->layer == x->n_layers && op->op.kind == OP_MUL_MAT)
            x->wanted[x->n_layers] = all[i].device;
        for (int w = 0; w < op->n_weights; w++)
            if (op->weight[w])
                x->tensor[op->weight[w] - file] = all[i].device;
        here += all[i].device == x->host ? all[i].bytes : 0;
        streamed += all[i].device == x->host && all[i].streamed ? all[i].bytes : 0;
        if (is_first(all, i, divided_alike))
            list_divided(x, all, n, i);
        if (is_first(all, i, streamed_alike))
            list_streamed(x, all, n, i);
    }
    x->streams = 2 * streamed > here;
    return OATO_OK;
}
