/*
 * doctor_model.c - what `oato doctor MODEL.gguf` says: how much of a model fits on each device, and
 * which of its operators the device has kernels for. No weight is read.
 *
 * What fits is counted as weights, in the layout of the device, and the KV of a context, within
 * 90 % of what is free now; oato-plan counts every room that a step needs, too.
 */
#include "front/doctor.h"
#include "models/models.h"

#include <inttypes.h>
#include <string.h>

enum { CONTEXT = 4096 };

#define MIB(bytes) ((double)(bytes) / (1 << 20))

/* Bytes of an operator's weights on a device. */
static uint64_t weights_bytes(const struct oato_device *device, const struct graph_op *o)
{
    uint64_t bytes = 0;
    for (int i = 0; i < o->n_weights; i++) {
        int64_t rows, k;
        if (o->weight[i] && op_weight_shape(&o->op, i, &rows, &k))
            bytes +=
                weight_bytes_of(device, o->weight[i]->dtype, rows, k, op_weight_use_at(&o->op, i));
    }
    return bytes;
}

/* "mul_mat of IQ1_S", once each, of what the device cannot run. */
static int missing_list(const struct oato_device *device, const struct graph *g, struct text *out)
{
    int n = 0;
    for (int i = 0; i < g->n_ops; i++) {
        const struct oato_op op = graph_op_with_kv(&g->ops[i], DT_F16);
        bool told = device->ops->supports(device, &op);
        for (int j = 0; j < i && !told; j++)
            told = g->ops[j].op.kind == op.kind && g->ops[j].op.dtype == g->ops[i].op.dtype;
        if (told)
            continue;
        text_printf(out, "%s%s of %s", n++ ? ", " : "", op_kind_name(op.kind),
                    dtype_name((oato_dtype)op.dtype));
    }
    return n;
}

struct fit {
    uint64_t weights, kv, room; /* bytes */
    int32_t layers;             /* the first ones of the model that fit, with their KV */
};

static struct fit fit_count(const struct oato_device *device, const struct device_info *info,
                            const struct model *m, uint64_t kv)
{
    const struct graph *g = &m->graph;
    const int32_t layers = m->shape.n_layers;
    struct fit f = {.kv = kv, .room = info->free_bytes / 10 * 9};
    uint64_t taken = 0;
    int32_t layer = -1;
    for (int i = 0; i < g->n_ops; i++) {
        const uint64_t bytes = weights_bytes(device, &g->ops[i]);
        f.weights += bytes;
        taken += bytes;
        if (g->ops[i].layer > layer && g->ops[i].layer < layers) { /* the one before is whole */
            f.layers = taken - bytes <= f.room ? layer + 1 : f.layers;
            layer = g->ops[i].layer;
            taken += kv / (uint64_t)layers;
        }
    }
    if (f.weights + kv <= f.room)
        f.layers = layers;
    return f;
}

/* The types of its matrices, in order of appearance. */
static void types_list(const struct gguf *g, struct text *out)
{
    bool seen[DT_COUNT] = {false};
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (t->n_dims < 2 || seen[t->dtype])
            continue;
        seen[t->dtype] = true;
        text_printf(out, "%s%s", out->len ? ", " : "", dtype_name(t->dtype));
    }
}

static void device_judge(struct doctor *d, int i, const struct model *m, uint64_t kv,
                         uint64_t *rooms, uint64_t *needed)
{
    const struct oato_device *device = d->device[i].device;
    const struct device_info *info = &d->device[i].info;
    const struct fit f = fit_count(device, info, m, kv);
    struct text missing;
    text_init(&missing);
    const int n_missing = missing_list(device, &m->graph, &missing);
    *rooms += f.room;
    *needed = info->is_host ? f.weights + f.kv : *needed;
    doctor_line(d, info->id, "%.0f MiB of weights and %.0f of KV, %.0f free: %s", MIB(f.weights),
                MIB(f.kv), MIB(info->free_bytes), f.layers == m->shape.n_layers ? "all fits" : "");
    if (f.layers < m->shape.n_layers)
        doctor_line(d, "", "%d of %d layers fit", f.layers, m->shape.n_layers);
    if (n_missing)
        doctor_line(d, "", "no kernels for %s", missing.data);
    json_add_object(
        &d->json, NULL, JSON("id", info->id), JSON("weight_bytes", f.weights),
        JSON("kv_bytes", f.kv), JSON("room_bytes", f.room), JSON("layers_fit", (uint64_t)f.layers),
        json_bool("fits", f.layers == m->shape.n_layers), JSON("missing", or_empty(missing.data)));
    if (n_missing && info->is_host)
        doctor_problem(d, "model-unsupported", "", "no device runs %s of this model",
                       or_empty(missing.data));
    text_free_part(&missing, &d->people);
}

oato_status doctor_model(struct doctor *d, const char *path, struct oato_error *err)
{
    struct model *m;
    struct text types;
    uint64_t rooms = 0, needed = 0;
    if (model_open(path, &m, err))
        return err->status;
    const struct model_shape *s = &m->shape;
    const int64_t context = s->context_length ? min_i64(s->context_length, CONTEXT) : CONTEXT;
    const uint64_t kv =
        graph_kv_bytes(&m->graph, DT_F16) * (uint64_t)context + graph_state_bytes(&m->graph);
    text_init(&types);
    types_list(m->gguf, &types);
    doctor_line(d, "model", "%s, %d layers, %.0f MiB of %s; KV for %" PRId64 " tokens counted",
                s->architecture, s->n_layers, MIB(gguf_data_bytes(m->gguf)), or_empty(types.data),
                context);
    json_open(&d->json, "model", '{');
    json_add(&d->json, JSON("path", path), JSON("architecture", s->architecture),
             JSON("layers", (uint64_t)s->n_layers), JSON("bytes", gguf_data_bytes(m->gguf)),
             JSON("types", or_empty(types.data)), JSON("context", (uint64_t)context));
    json_open(&d->json, "devices", '[');
    for (int i = 0; i < d->n_devices; i++)
        device_judge(d, i, m, kv, &rooms, &needed);
    json_close(&d->json, ']');
    json_close(&d->json, '}');
    if (needed > rooms)
        doctor_problem(
            d, "model-does-not-fit", "oato-profile --storage FOLDER # then oato-plan",
            "this model needs about %.1f GiB, and %.1f are free on all devices together: "
            "a plan can read the rest from a file at every step",
            MIB(needed) / 1024, MIB(rooms) / 1024);
    if (needed > rooms && d->locked_bytes != UINT64_MAX)
        doctor_advise(
            d, ADVICE_LOCKED_MEMORY,
            d->contained ? "docker run --ulimit memlock=-1 ..."
                         : "sudo prlimit --memlock=unlimited --pid $$",
            "only %.3g MiB may be locked: buffers of weights that are read from a file at "
            "every step are not registered",
            MIB(d->locked_bytes));
    text_free_part(&types, &d->people);
    model_close(m);
    return OATO_OK;
}
