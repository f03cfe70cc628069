/*
 * export_parts.c - where whole tensors go. Other engines split no tensor, so each goes where its
 * larger share is in decode, to the host if shares are equal. Rounding up, and KV that follows its
 * layer, may exceed a device's budget: then the tensors with the smallest share there stay on the
 * host, with their companions in the layer, and after them whole tensors. Some engines give the
 * first layers to the host. Layers of the same shape are interchangeable: they swap places until
 * the plan has that form. Losses are listed in one line per kind of operator, however many layers
 * have it.
 */
#include "planfmt/exporter_internal.h"

#include <string.h>

/* A tensor of an operator. */
struct spread {
    const struct graph_op *op;
    const char *what; /* of its kind: "the FFN" */
    const struct gguf_tensor *tensor;
    const char *name;         /* of the tensor, behind "blk.N." */
    int32_t layer;            /* of the tensor: a fused norm's operator is of the one before */
    uint64_t homes, streamed; /* devices with some of it in decode; to which it is streamed */
    double share[PLAN_DEVICES_MAX]; /* of it in their memory */
    int32_t device;                 /* where it goes */
    bool left;                      /* that is the host, because it did not fit */
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
        const int32_t home = p->home == HOME_FILE ? x->host : p->home;
        if (home != p->device)
            s.streamed |= (uint64_t)1 << p->device;
        if (!(p->phases & 1u << PHASE_DECODE))
            continue;
        s.share[home] += (double)(p->end - p->begin);
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

/* What the layers' KV on a device takes. */
static double kv_on(const struct exporter *x, const int32_t *layer, int32_t d)
{
    double bytes = 0;
    for (int32_t i = 0; i < x->n_layers; i++)
        bytes += layer[i] == d ? (double)x->kv[i] : 0;
    return bytes;
}

/* llama.cpp's compute buffer on a device. An estimate: 128 MiB were measured for an 8B model with
 * 512 tokens a step, 258.5 MiB where the logits of all of them are computed there, too. */
static double compute_buffer(const struct exporter *x, int32_t d)
{
    const struct model_shape *shape = &x->model->shape;
    const double layer = 16.0 * shape->width, output = (double)shape->width + shape->vocab;
    const bool logits = x->wanted[x->n_layers] == d && output > layer;
    const struct plan_request *q = &x->plan->request;
    const double tokens = q->ubatch < q->context ? q->ubatch : q->context;
    return 4.0 * tokens * (logits ? output : layer);
}

/* A whole tensor to keep from device d: the smallest one that is enough, else the largest, of
 * equals the first; the attention, which is where its KV is, and the output last. */
static struct spread *next_whole(const struct exporter *x, struct spread *all, int32_t n, int32_t d,
                                 double too_many)
{
    struct spread *best = NULL;
    for (int32_t i = 0; i < n; i++) {
        struct spread *s = &all[i];
        if (s->device != d)
            continue;
        const bool last = s->op->layer >= x->n_layers || strstr(s->what, "attention"),
                   enough = (double)s->tensor->bytes >= too_many;
        const bool best_last =
                       best && (best->op->layer >= x->n_layers || strstr(best->what, "attention")),
                   best_enough = best && (double)best->tensor->bytes >= too_many;
        if (!best || (last != best_last       ? best_last
                      : enough != best_enough ? enough
                      : enough                ? s->tensor->bytes < best->tensor->bytes
                                              : s->tensor->bytes > best->tensor->bytes))
            best = s;
    }
    return best;
}

/* Takes from device d what its budget does not hold beside the KV there and the plan's work. */
static oato_status keep_budget(const struct exporter *x, struct spread *all, int32_t n, int32_t d,
                               bool layers_known, struct oato_error *err)
{
    const struct plan_device *device = &x->plan->devices[d];
    double planned = 0, bytes = 0;
    if (!device->budget_bytes)
        return OATO_OK;
    for (int32_t i = 0; i < n; i++) {
        planned += all[i].share[d] * (double)all[i].tensor->bytes;
        bytes += all[i].device == d ? (double)all[i].tensor->bytes : 0;
    }
    double others = (double)device->planned_bytes - planned; /* KV and work */
    others = others > 0 ? others : 0;
    if (layers_known) { /* KV is where its layer is */
        const double kv = kv_on(x, x->layer, d), work = others - kv_on(x, x->wanted, d),
                     buffer = compute_buffer(x, d);
        if (bytes <= 0 && kv <= 0)
            return OATO_OK;
        others = kv + (work > buffer ? work : buffer);
    }
    const double room = (double)device->budget_bytes - others;
    const struct spread *least;
    while (bytes > room && (least = smallest_share(all, n, d))) {
        const int32_t layer = least->op->layer;
        const double share = least->share[d];
        for (int32_t i = 0; i < n; i++)
            if (is_divided(&all[i]) && all[i].device == d && all[i].op->layer == layer &&
                all[i].share[d] <= share) {
                all[i].device = x->host;
                all[i].left = true;
                bytes -= (double)all[i].tensor->bytes;
            }
    }
    for (struct spread *s; bytes > room && (s = next_whole(x, all, n, d, bytes - room));) {
        s->device = x->host;
        s->left = true;
        bytes -= (double)s->tensor->bytes;
    }
    return bytes <= room + 1
               ? OATO_OK
               : oato_fail(
                     err, OATO_EFIT,
                     "%s would need %.1f MiB of %s for KV and activations alone, but its budget "
                     "is %.1f MiB; run oato-plan again with a smaller --context or --ubatch",
                     export_target_names[x->o->target], others / 0x1p20, device->id,
                     (double)device->budget_bytes / 0x1p20);
}

/* ---------------------------------------------------------------------------- alike layers - */

/* The tensor of this name in another layer. */
static struct spread *find_alike(struct spread *all, int32_t n, int32_t layer, const char *name)
{
    for (int32_t i = 0; i < n; i++)
        if (all[i].layer == layer && !strcmp(all[i].name, name))
            return &all[i];
    return NULL;
}

/* Same tensors, and no more than a quarter of the bytes apart: quantised files give some layers
 * better types. */
static bool are_alike(struct spread *all, int32_t n, int32_t a, int32_t b)
{
    double bytes_a = 0, bytes_b = 0;
    int32_t more = 0;
    for (int32_t i = 0; i < n; i++) {
        more -= all[i].layer == b;
        if (all[i].layer != a)
            continue;
        const struct spread *other = find_alike(all, n, b, all[i].name);
        if (!other)
            return false;
        more++;
        bytes_a += (double)all[i].tensor->bytes;
        bytes_b += (double)other->tensor->bytes;
    }
    return !more && bytes_a < 1.25 * bytes_b && bytes_b < 1.25 * bytes_a;
}

/* The host's layers before those of accelerators, these in their order. */
static int32_t rank_of(const struct exporter *x, int32_t layer)
{
    return x->wanted[layer] == x->host ? -1 : x->wanted[layer];
}

/* The placements of two tensors, not the tensors. */
static void exchange_placement(struct spread *a, struct spread *b)
{
    const struct spread was = *a;
    a->homes = b->homes;
    a->streamed = b->streamed;
    a->device = b->device;
    memcpy(a->share, b->share, sizeof a->share);
    b->homes = was.homes;
    b->streamed = was.streamed;
    b->device = was.device;
    memcpy(b->share, was.share, sizeof b->share);
}

static void exchange(struct exporter *x, struct spread *all, int32_t n, int32_t a, int32_t b)
{
    for (int32_t i = 0; i < n; i++)
        if (all[i].layer == a)
            exchange_placement(&all[i], find_alike(all, n, b, all[i].name));
    const int32_t wanted = x->wanted[a];
    x->wanted[a] = x->wanted[b];
    x->wanted[b] = wanted;
}

/* Sorts layers by the device of their KV, where all are alike. A sidecar's are not. */
static void sort_layers(struct exporter *x, struct spread *all, int32_t n)
{
    int32_t exchanged = 0;
    for (int32_t i = 1; i < x->n_layers; i++)
        if (x->plan->neurons_hash || !are_alike(all, n, 0, i))
            return;
    for (int32_t i = 1; i < x->n_layers; i++) {
        int32_t k = i;
        for (; k > 0 && rank_of(x, k - 1) > rank_of(x, k); k--)
            exchange(x, all, n, k - 1, k);
        exchanged += k < i;
    }
    if (exchanged)
        text_printf(x->lost,
                    "the order of layers: %d of them swapped places with others of the same "
                    "shape, so that the first ones have their KV on %s\n",
                    exchanged, export_name(x, x->host));
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

/* What an operator can lose. */
enum loss { DIVIDED, STREAMED, LEFT_WHOLE, LOSSES };

static const struct {
    const char *before, *how; /* "weights of" an operator, "streamed to" devices */
} loss_words[LOSSES] = {
    {"", "divided between"}, {"weights of ", "streamed to"}, {"some of ", "planned on"}};

static bool loses(const struct spread *s, enum loss loss)
{
    return loss == DIVIDED    ? is_divided(s)
           : loss == STREAMED ? s->streamed != 0
                              : s->left && !is_divided(s);
}

static uint64_t devices_lost(const struct spread *s, enum loss loss)
{
    return loss == STREAMED ? s->streamed : s->homes;
}

/* Whether one line covers both. */
static bool lose_alike(const struct spread *s, const struct spread *like, enum loss loss)
{
    return loses(s, loss) && devices_lost(s, loss) == devices_lost(like, loss) &&
           !strcmp(s->what, like->what);
}

/* Layers that lose like `like`, or those of them that were left on the host; *first (may be NULL)
 * is the first of them. */
static int32_t count_layers(const struct spread *all, int32_t n, const struct spread *like,
                            enum loss loss, bool left, int32_t *first)
{
    int32_t layers = 0, before = -1;
    for (int32_t i = n - 1; i >= 0; i--) {
        if (!lose_alike(&all[i], like, loss) || (left && !all[i].left))
            continue;
        layers += !layers || all[i].op->layer != before;
        before = all[i].op->layer;
    }
    if (first)
        *first = before;
    return layers;
}

/* "the FFN of 32 layers: divided between cuda:0 and cpu:0; ...", once for all that lose alike. */
static void list_loss(const struct exporter *x, const struct spread *all, int32_t n,
                      const struct spread *s, enum loss loss)
{
    const char *engine = export_target_names[x->o->target], *host = export_name(x, x->host);
    int32_t first;
    for (const struct spread *before = all; before < s; before++)
        if (lose_alike(before, s, loss))
            return;
    if (!loses(s, loss))
        return;
    const int32_t layers = count_layers(all, n, s, loss, false, &first);
    const int32_t left = count_layers(all, n, s, loss, true, NULL);
    text_printf(x->lost, "%s%s", loss_words[loss].before, s->what);
    if (layers > 1)
        text_printf(x->lost, " of %d layers", layers);
    else if (first >= 0 && first < x->n_layers)
        text_printf(x->lost, " of layer %d", first);
    text_printf(x->lost, ": %s ", loss_words[loss].how);
    list_devices(x, devices_lost(s, loss));
    if (loss == DIVIDED)
        text_printf(x->lost, "; %s can only place whole tensors: placed where the larger share is",
                    engine);
    if (loss == STREAMED)
        text_printf(x->lost, "; %s has its own rules for that", engine);
    else if (loss == LEFT_WHOLE)
        text_printf(x->lost, "; on %s, because that would exceed the budget", host);
    else if (left && layers > 1)
        text_printf(x->lost, ", but %d on %s, because more would exceed the budget", left, host);
    else if (left)
        text_printf(x->lost, ", but on %s, because that would exceed the budget", host);
    text_printf(x->lost, "\n");
}

/* ------------------------------------------------------------------------------------------- */

static bool is_output(const struct exporter *x, const struct spread *s)
{
    return s->op->layer == x->n_layers && s->op->op.kind == OP_MUL_MAT;
}

oato_status export_parts(struct exporter *x, export_layers *choose, struct oato_error *err)
{
    const struct gguf_tensor *file = gguf_tensor_at(x->model->gguf, 0);
    size_t most = 1;
    for (int32_t i = 0; i < x->graph.n_ops; i++)
        most += (size_t)x->graph.ops[i].n_weights;
    struct spread *all = arena_alloc(&x->arena, most, sizeof *all);
    int32_t n = 0;
    uint64_t here = 0, streamed = 0;
    if (!all)
        return oato_fail_memory(err, most * sizeof *all, "an export");
    for (int32_t i = 0; i < x->graph.n_ops; i++) {
        const struct graph_op *op = &x->graph.ops[i];
        struct spread s = spread_of(x, op);
        if (op->op.kind == OP_EMBED && s.device != x->host) /* of a tied matrix it says nothing */
            text_printf(x->lost, "%s is looked up on the CPU\n", op->name);
        for (int w = 0; w < op->n_weights && op->op.kind != OP_EMBED; w++) {
            if (!op->weight[w] || (w && op->weight[w] == op->weight[w - 1]))
                continue;
            s.tensor = op->weight[w];
            s.name = s.tensor->name;
            s.layer = -1;
            export_layer_of(s.name, &s.layer, &s.name);
            all[n++] = s;
        }
    }
    if (choose) {
        sort_layers(x, all, n);
        for (int32_t i = 0; i < n; i++)
            if (is_output(x, &all[i]))
                x->wanted[x->n_layers] = all[i].device;
        if (choose(x, err))
            return err->status;
    }
    for (int32_t d = 0; d < x->plan->n_devices; d++)
        if (d != x->host && keep_budget(x, all, n, d, choose, err))
            return err->status;
    for (int32_t i = 0; i < n; i++) {
        x->used[all[i].device] = true;
        if (is_output(x, &all[i]))
            x->wanted[x->n_layers] = all[i].device;
        x->tensor[all[i].tensor - file] = all[i].device;
        here += all[i].device == x->host ? all[i].tensor->bytes : 0;
        streamed += all[i].device == x->host && all[i].streamed ? all[i].tensor->bytes : 0;
        for (int loss = 0; loss < LOSSES; loss++)
            list_loss(x, all, n, &all[i], (enum loss)loss);
    }
    x->streams = 2 * streamed > here;
    return OATO_OK;
}
