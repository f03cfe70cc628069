/*
 * export_names.c - what every export needs: names of targets, devices and tensors, tensors of
 * several layers in one line, and layers in ascending order of devices.
 */
#include "planfmt/exporter_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const char *const export_target_names[EXPORT_TARGETS] = {"llama.cpp", "ik_llama.cpp",
                                                         "ktransformers"};

const char *export_name(const struct exporter *x, int32_t device)
{
    return x->names[device] ? x->names[device] : x->plan->devices[device].id;
}

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
                    x->layer[i + n] == x->layer[i] && !x->kv[i + n] == !x->kv[i];)
            n++;
        if (x->kv[i] && x->wanted[i] != x->layer[i])
            text_printf(x->lost, "KV of layers %d to %d is planned on %s; it will be on %s\n", i,
                        i + n - 1, export_name(x, x->wanted[i]), export_name(x, x->layer[i]));
    }
}

/* -------------------------------------------------------------------------------- groups --- */

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
