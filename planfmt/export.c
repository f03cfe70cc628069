/*
 * export.c - a plan for another engine: finds the device of every tensor and every layer's KV, and
 * the target's file (a row of `targets`) writes it out. What all targets share is here: names of
 * devices, layers in ascending order of devices, and the list of what cannot be expressed.
 */
#include "planfmt/exporter_internal.h"

#include <string.h>

static const struct target {
    const char *host,
        *accelerator;      /* names of memories there: of cpu:0 and, by number, of cuda:N */
    export_layers *layers; /* NULL: they depend on the tensors */
    oato_status (*run)(struct exporter *x, struct oato_error *err);
} targets[EXPORT_TARGETS] = {{"CPU", "CUDA", export_llama_cpp_layers, export_llama_cpp},
                             {"CPU", "CUDA", export_llama_cpp_layers, export_llama_cpp},
                             {"cpu", "cuda:", NULL, export_ktransformers}};

/* "cuda:1" is CUDA1 and the host's memory CPU, unless told otherwise. */
static const char *find_name(struct exporter *x, const struct plan_device *d)
{
    const struct target *target = &targets[x->o->target];
    for (int32_t i = 0; i < x->o->n_names; i++)
        if (!strcmp(x->o->names[i].id, d->id))
            return x->o->names[i].name;
    if (d->is_host)
        return target->host;
    const char *number = strchr(d->id, ':');
    char name[24];
    if (strcmp(d->kind, "cuda") != 0 || !number)
        return NULL;
    int n = snprintf(name, sizeof name, "%s%s", target->accelerator, number + 1);
    return arena_strndup(&x->arena, name, (size_t)n);
}

static oato_status check_options(const struct exporter *x, struct oato_error *err)
{
    for (int32_t i = 0; i < x->o->n_names; i++) {
        int32_t d = 0;
        while (d < x->plan->n_devices && strcmp(x->plan->devices[d].id, x->o->names[i].id) != 0)
            d++;
        if (d == x->plan->n_devices)
            return oato_fail(err, OATO_EUSAGE, "--device-name: the plan has no device '%s'",
                             x->o->names[i].id);
    }
    if (x->host == x->plan->n_devices)
        return oato_fail(err, OATO_EUSAGE, "the plan has no CPU, which %s needs",
                         export_target_names[x->o->target]);
    return OATO_OK;
}

/* Every device that holds something must have a name there. */
static oato_status check_names(const struct exporter *x, struct oato_error *err)
{
    for (int32_t d = 0; d < x->plan->n_devices; d++)
        if (x->used[d] && !x->names[d])
            return oato_fail(
                err, OATO_EUSAGE, "%s has no name for %s; give one with --device-name %s=NAME",
                export_target_names[x->o->target], x->plan->devices[d].id, x->plan->devices[d].id);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------------ KV --- */

static void read_kv(struct exporter *x)
{
    const struct plan_request *q = &x->plan->request;
    const int64_t window = graph_window(&x->graph) * (int64_t)q->batch + q->ubatch;
    for (int32_t i = 0; i < x->graph.n_ops; i++) {
        const struct graph_op *op = &x->graph.ops[i];
        const int64_t positions = op->op.window ? min_i64(window, q->context) : q->context;
        if (op->op.kind == OP_KV_STORE) /* in llama.cpp's steps */
            x->kv[op->kv_layer] = op_kv_bytes(&op->op, q->kv) * size_align((size_t)positions, 256);
    }
    for (int32_t i = 0; i < x->plan->n_kv; i++) {
        const struct plan_kv *kv = &x->plan->kv[i];
        x->used[kv->device] = true;
        if (kv->head_begin == 0)
            x->wanted[kv->layer] = kv->device;
        else if (kv->device != x->wanted[kv->layer])
            text_printf(x->lost, "KV heads %d to %d of layer %d are planned on %s\n",
                        kv->head_begin, kv->head_end, kv->layer, export_name(x, kv->device));
    }
}

/* ------------------------------------------------------------------------------------------- */

oato_status plan_export(const struct plan *p, const struct model *m, const struct export_options *o,
                        struct text *command, struct text *lost, struct oato_error *err)
{
    struct exporter x = {.plan = p, .model = m, .o = o, .command = command, .lost = lost};
    const size_t tensors = gguf_tensor_count(m->gguf), devices = (size_t)p->n_devices;
    while (x.host < p->n_devices && !p->devices[x.host].is_host)
        x.host++;
    if (check_options(&x, err) || plan_check_model(p, m->gguf, err) ||
        plan_apply(p, m, &x.graph, err))
        return err->status;
    oato_status status = OATO_OK;
    arena_init(&x.arena);
    x.n_layers = x.graph.n_layers;
    x.names = arena_alloc(&x.arena, devices + 1, sizeof *x.names);
    x.used = arena_alloc(&x.arena, devices + 1, sizeof *x.used);
    x.wanted = arena_alloc(&x.arena, (size_t)x.n_layers + 1, sizeof *x.wanted);
    x.layer = arena_alloc(&x.arena, (size_t)x.n_layers + 1, sizeof *x.layer);
    x.kv = arena_alloc(&x.arena, (size_t)x.n_layers + 1, sizeof *x.kv);
    x.tensor = arena_alloc(&x.arena, tensors + 1, sizeof *x.tensor);
    if (!x.names || !x.used || !x.wanted || !x.layer || !x.kv || !x.tensor) {
        status = oato_fail_memory(err, tensors * sizeof *x.tensor, "an export");
        goto out;
    }
    for (size_t t = 0; t < tensors; t++)
        x.tensor[t] = NOWHERE;
    for (int32_t i = 0; i <= x.n_layers; i++)
        x.wanted[i] = x.host;
    for (size_t d = 0; d < devices; d++)
        x.names[d] = find_name(&x, &p->devices[d]);
    read_kv(&x);
    if (p->n_caches)
        text_printf(lost, "a cache of experts on %s\n", p->devices[p->caches[0].device].id);
    status = export_parts(&x, targets[o->target].layers, err);
    if (!status)
        status = check_names(&x, err);
    if (!status)
        status = targets[o->target].run(&x, err);
out:
    graph_free(&x.graph);
    arena_free(&x.arena);
    return status;
}
