/*
 * export.c - a plan for another engine: finds the device of every tensor and every layer's KV, and
 * the target's file (a row of `targets`) writes it out. What all targets share is here: names of
 * devices, layers in ascending order of devices, and the list of what cannot be expressed.
 */
#include "planfmt/exporter_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const char *const export_target_names[EXPORT_TARGETS] = {"llama.cpp", "ik_llama.cpp",
                                                         "ktransformers"};

static const struct target {
    const char *host,
        *accelerator;      /* names of memories there: of cpu:0 and, by number, of cuda:N */
    export_layers *layers; /* NULL: they depend on the tensors */
    oato_status (*run)(struct exporter *x, struct oato_error *err);
} targets[EXPORT_TARGETS] = {{"CPU", "CUDA", export_llama_cpp_layers, export_llama_cpp},
                             {"CPU", "CUDA", export_llama_cpp_layers, export_llama_cpp},
                             {"cpu", "cuda:", NULL, export_ktransformers}};

const char *export_name(const struct exporter *x, int32_t device)
{
    return x->names[device] ? x->names[device] : x->plan->devices[device].id;
}

/* "cuda:1" is CUDA1 and the host's memory CPU, unless told otherwise. */
static const char *find_name(struct exporter *x, const struct plan_device *d)
{
    const struct target *target = &targets[x->o->target];
    for (int32_t i = 0; i < x->o->n_names; i++)
        if (!strcmp(x->o->names[i].id, d->id))
            return x->o->names[i].name;
    if (!strcmp(d->kind, "cpu"))
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
    const uint64_t positions = size_align((size_t)q->context, 256); /* llama.cpp's steps */
    for (int32_t i = 0; i < x->graph.n_ops; i++) {
        const struct graph_op *op = &x->graph.ops[i];
        size_t row;
        if (op->op.kind == OP_KV_STORE &&
            dtype_row_bytes(q->kv, (int64_t)op->op.kv_heads * op->op.head_dim, &row))
            x->kv[op->kv_layer] = 2 * row * positions;
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

/* ------------------------------------------------------------------------- layers' devices - */

oato_status export_choose(struct exporter *x, const int32_t *device_of_rank, int32_t ranks,
                          int32_t n, const int32_t *cost, struct oato_error *err)
{
    int32_t *sum = arena_alloc(&x->arena, (size_t)ranks, sizeof *sum); /* up to the last layer */
    int32_t *from = arena_alloc(&x->arena, (size_t)(n + 1) * (size_t)ranks, sizeof *from);
    if (!sum || !from)
        return oato_fail_memory(err, (size_t)n * sizeof *sum, "an export");
    for (int32_t i = 0; i <= n; i++) {
        int32_t best = 0; /* of the ranks up to r, after the layers before */
        for (int32_t r = 0; r < ranks; r++) {
            best = sum[r] <= sum[best] ? r : best;
            from[i * ranks + r] = best;
        }
        for (int32_t r = ranks - 1; i < n && r >= 0; r--)
            sum[r] = sum[from[i * ranks + r]] + cost[i * ranks + r];
    }
    int32_t rank = from[n * ranks + ranks - 1];
    for (int32_t i = n - 1; i >= 0; i--) {
        x->layer[i] = device_of_rank[rank];
        rank = from[i * ranks + rank];
    }
    return OATO_OK;
}

void export_list_lost_kv(const struct exporter *x)
{
    for (int32_t i = 0, n; i < x->n_layers; i += n) {
        for (n = 1; i + n < x->n_layers && x->wanted[i + n] == x->wanted[i] &&
                    x->layer[i + n] == x->layer[i];)
            n++;
        if (x->wanted[i] != x->layer[i])
            text_printf(x->lost, "KV of layers %d to %d is planned on %s; it will be on %s\n", i,
                        i + n - 1, export_name(x, x->wanted[i]), export_name(x, x->layer[i]));
    }
}

/* -------------------------------------------------------------------------------- groups --- */

bool export_layer_of(const char *name, int32_t *layer, const char **rest)
{
    if (strncmp(name, "blk.", 4) != 0 || !isdigit((unsigned char)name[4]))
        return false;
    char *end;
    *layer = (int32_t)strtol(name + 4, &end, 10);
    *rest = end + 1;
    return *end == '.';
}

bool export_planned(const struct exporter *x, size_t t, int32_t *layer, const char **rest)
{
    *rest = gguf_tensor_at(x->model->gguf, t)->name;
    *layer = x->n_layers;
    return x->tensor[t] != NOWHERE &&
           (!export_layer_of(*rest, layer, rest) || *layer < x->n_layers);
}

void export_escape(struct text *t, const char *name)
{
    for (; *name; name++)
        text_printf(t, *name == '.' ? "\\." : "%c", *name);
}

void export_groups_free(struct tensor_group *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        text_free(&all[i].layers);
    free(all);
}

bool export_same_layers(const struct tensor_group *a, const struct tensor_group *b)
{
    return a->device == b->device && a->key == b->key && a->layers.len == b->layers.len &&
           (!a->layers.len || !strcmp(a->layers.data, b->layers.data));
}

static void add_to_group(struct tensor_group *all, size_t *n, const struct tensor_group *like,
                         int32_t layer)
{
    size_t i = 0;
    while (i < *n && (strcmp(all[i].name, like->name) != 0 || all[i].device != like->device ||
                      all[i].key != like->key || !all[i].layers.len != (layer < 0)))
        i++;
    if (i == *n) {
        all[(*n)++] = *like;
        text_init(&all[i].layers);
    }
    if (layer >= 0)
        text_printf(&all[i].layers, "%s%d", all[i].layers.len ? "|" : "", layer);
}

oato_status export_group(const struct exporter *x, export_take *take, struct tensor_group **out,
                         size_t *n, struct oato_error *err)
{
    const size_t tensors = gguf_tensor_count(x->model->gguf);
    struct tensor_group *all = calloc(tensors + 1, sizeof *all);
    bool failed = !all;
    *out = all;
    *n = 0;
    for (int pass = 0; all && pass < 2; pass++)
        for (size_t t = 0; t < tensors; t++) {
            struct tensor_group like = {.name = gguf_tensor_at(x->model->gguf, t)->name};
            int32_t layer = -1;
            const bool of_layer = export_layer_of(like.name, &layer, &like.name);
            if (of_layer == (pass == 0) && take(x, t, &like))
                add_to_group(all, n, &like, of_layer ? layer : -1);
        }
    for (size_t i = 0; i < *n; i++)
        failed = failed || all[i].layers.failed;
    return failed ? oato_fail_memory(err, tensors * sizeof *all, "an export") : OATO_OK;
}

/* ------------------------------------------------------------------------------------------- */

oato_status plan_export(const struct plan *p, const struct model *m, const struct export_options *o,
                        struct text *command, struct text *lost, struct oato_error *err)
{
    struct exporter x = {.plan = p, .model = m, .o = o, .command = command, .lost = lost};
    const size_t tensors = gguf_tensor_count(m->gguf), devices = (size_t)p->n_devices;
    while (x.host < p->n_devices && strcmp(p->devices[x.host].kind, "cpu") != 0)
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
