/*
 * neurons_import.c - PowerInfer's split of a model into neurons of the GPU and of the CPU. The file
 * is a GGUF whose magic was overwritten with PWRI: per layer `blk.N.gpu_idx`, a 1 for each neuron
 * of the GPU, and in some versions `blk.N.gpu_bucket`, their ids in rising order. It says which
 * neurons are hot, not how hot, so the result has an order but no frequencies.
 *
 * Known bad output of PowerInfer's solver is refused: layers that are missing or out of order, and
 * a split without any neuron, which the solver writes silently when it fails.
 */
#include "planfmt/planfmt_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The file in memory with the magic of a GGUF; free *data. */
static oato_status read_split(const char *path, uint8_t **data, size_t *bytes,
                              struct oato_error *err)
{
    struct mapped_file f;
    oato_status status = file_map(path, &f, err);
    if (status)
        return status;
    *bytes = f.bytes;
    *data = NULL;
    if (f.bytes < 8 || memcmp(f.data, "PWRI", 4) != 0)
        status = oato_fail(err, OATO_EFILE,
                           "%s: not a PowerInfer split: it does not begin with PWRI", path);
    else if (!(*data = malloc(f.bytes)))
        status = oato_fail_memory(err, f.bytes, "a split");
    else {
        memcpy(*data, f.data, f.bytes);
        memcpy(*data, "GGUF", 4);
    }
    file_unmap(&f);
    return status;
}

/* Every layer once and in order, or the sets of some may belong to others. */
static oato_status check_layers(const struct gguf *g, int64_t layers, struct oato_error *err)
{
    int64_t next = 0;
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const int64_t layer = neurons_layer_of(gguf_tensor_at(g, i)->name, "gpu_idx");
        if (layer < 0)
            continue;
        if (layer != next)
            return oato_fail(err, OATO_EFILE,
                             "found blk.%" PRId64 ".gpu_idx where blk.%" PRId64
                             ".gpu_idx was expected: a layer is missing or out of order; make "
                             "the split again",
                             layer, next);
        next++;
    }
    return next == layers
               ? OATO_OK
               : oato_fail(err, OATO_EFILE, "it has %" PRId64 " layers, but the model has %" PRId64,
                           next, layers);
}

static int32_t element(const struct gguf_tensor *t, int64_t i)
{
    int32_t v;
    memcpy(&v, t->data + (size_t)i * sizeof v, sizeof v);
    return v;
}

/* The bucket, where there is one, lists the same neurons. */
static oato_status check_bucket(const struct gguf *g, int32_t layer, const int32_t *order,
                                int32_t hot, struct oato_error *err)
{
    char name[GGUF_MAX_NAME + 1];
    snprintf(name, sizeof name, "blk.%d.gpu_bucket", layer);
    const struct gguf_tensor *t = gguf_tensor(g, name);
    bool same = !t || (t->dtype == DT_I32 && t->n_dims == 1 && t->ne[0] == hot);
    for (int32_t i = 0; t && same && i < hot; i++)
        same = element(t, i) == order[i];
    return same ? OATO_OK
                : oato_fail(err, OATO_EFILE, "%s does not list the neurons of blk.%d.gpu_idx", name,
                            layer);
}

/* The neurons of set `from` become what is known of the layer. */
static oato_status read_layer(const struct gguf *g, int32_t from, struct neurons *out,
                              struct neurons_layer *l, struct oato_error *err)
{
    char name[GGUF_MAX_NAME + 1];
    snprintf(name, sizeof name, "blk.%d.gpu_idx", from);
    const struct gguf_tensor *t = gguf_tensor(g, name);
    if (t->dtype != DT_I32 || t->n_dims != 1 || t->ne[0] > INT32_MAX)
        return oato_fail(err, OATO_EFILE, "%s is not a one-dimensional I32 tensor", name);
    const int32_t n = (int32_t)t->ne[0];
    int32_t *order = arena_alloc(&out->arena, (size_t)n, sizeof *order), filled = 0;
    if (!order)
        return oato_fail_memory(err, t->bytes, "a split");
    for (int32_t want = 1; want >= 0; want--)
        for (int32_t i = 0; i < n; i++) {
            const int32_t v = element(t, i);
            if (v != 0 && v != 1)
                return oato_fail(err, OATO_EFILE, "%s: element %d is %d; allowed: 0, 1", name, i,
                                 v);
            if (v != want)
                continue;
            order[filled++] = i;
            l->ffn_hot += v;
        }
    l->n_ff = n;
    l->ffn_order = order;
    return check_bucket(g, from, order, l->ffn_hot, err);
}

static int compare_as_text(const void *a, const void *b)
{
    char x[16], y[16];
    snprintf(x, sizeof x, "%d", *(const int32_t *)a);
    snprintf(y, sizeof y, "%d", *(const int32_t *)b);
    return strcmp(x, y);
}

static oato_status read_layers(const struct gguf *g, bool text_order, struct neurons *out,
                               struct oato_error *err)
{
    int64_t hot = 0;
    int32_t *layer_of_set = arena_alloc(&out->arena, (size_t)out->n_layers, sizeof *layer_of_set);
    out->layers = arena_alloc(&out->arena, (size_t)out->n_layers, sizeof *out->layers);
    if (!layer_of_set || !out->layers)
        return oato_fail_memory(err, (size_t)out->n_layers * sizeof *out->layers, "a split");
    for (int32_t i = 0; i < out->n_layers; i++)
        layer_of_set[i] = i;
    if (text_order)
        qsort(layer_of_set, (size_t)out->n_layers, sizeof *layer_of_set, compare_as_text);
    for (int32_t i = 0; i < out->n_layers; i++) {
        struct neurons_layer *l = &out->layers[layer_of_set[i]];
        if (read_layer(g, i, out, l, err))
            return err->status;
        hot += l->ffn_hot;
    }
    return hot ? OATO_OK
               : oato_fail(
                     err, OATO_EFILE,
                     "no neuron is on the GPU: PowerInfer's solver failed, or there was no memory");
}

static oato_status read_all(const struct gguf *g, const struct gguf *model, bool text_order,
                            struct neurons *out, uint64_t *capacity_bytes, struct oato_error *err)
{
    struct gguf_string a = {"", 0};
    char key[GGUF_MAX_NAME + 64];
    int64_t layers = 0;
    if (neurons_check_kind(g, "a PowerInfer split", "generic.gpu_index", err) ||
        neurons_read_u64(g, "split.vram_capacity", capacity_bytes, err))
        return err->status;
    gguf_get_string(model, "general.architecture", &a);
    snprintf(key, sizeof key, "%.*s.block_count", (int)min_i64((int64_t)a.len, 64), a.data);
    const struct gguf_value *v = gguf_find(model, key);
    if (!v)
        return oato_fail(err, OATO_EFILE, "%s: key %s is missing", gguf_path(model), key);
    if (gguf_value_check(gguf_path(model), key, v, GGUF_WANT_INTEGER, err))
        return err->status;
    if (!gguf_value_i64(v, 0, &layers) || layers < 1 || layers > INT32_MAX)
        return oato_fail(err, OATO_EFILE, "%s: key %s is not from 1 to %d", gguf_path(model), key,
                         INT32_MAX);
    if (check_layers(g, layers, err))
        return err->status;
    out->n_layers = (int32_t)layers;
    out->structure_hash = gguf_structure_hash(model);
    out->content_hash = gguf_content_hash(model);
    out->source = "powerinfer split";
    if (read_layers(g, text_order, out, err))
        return err->status;
    return neurons_check_model(out, model, err);
}

oato_status neurons_import_powerinfer(const char *path, const struct gguf *model, bool text_order,
                                      struct neurons *out, uint64_t *capacity_bytes,
                                      struct oato_error *err)
{
    uint8_t *data;
    size_t bytes;
    struct gguf *g = NULL;
    neurons_init(out);
    oato_status status = read_split(path, &data, &bytes, err);
    if (status)
        return status;
    status = gguf_open_memory(data, bytes, path, &g, err);
    if (!status) {
        if (gguf_header_only(g))
            status = oato_fail(err, OATO_EFILE, "it has a header but no data");
        else
            status = read_all(g, model, text_order, out, capacity_bytes, err);
        if (status)
            oato_fail_at(err, "%s", path);
        gguf_close(g);
    }
    free(data);
    if (status)
        neurons_free(out);
    return status;
}
