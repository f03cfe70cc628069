/*
 * convert.c - conversions that need no plan: the header-only file of a model, which a team can keep
 * with its plans, and a neurons sidecar from PowerInfer's split.
 */
#include "solver/report_internal.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

enum { REPORT_BYTES = 512 }; /* of what is said of a header, its name apart */

static uint64_t bytes_of_file(const char *path)
{
    struct stat s;
    return stat(path, &s) ? 0 : (uint64_t)s.st_size;
}

oato_status report_header(const char *model, const char *path, bool json, struct text *out,
                          struct oato_error *err)
{
    struct model *m;
    oato_status status = model_open(model, &m, err); /* what can't be planned for is no use */
    if (status)
        return status;
    /* before the file is there: a command that fails must not leave one */
    text_reserve(out, REPORT_BYTES + 6 * strlen(path));
    status = text_status(out, err);
    if (!status)
        status = gguf_save_header(m->gguf, path, err);
    if (!status && json) {
        json_open(out, NULL, '{');
        json_string(out, "header", path);
        json_hash(out, "structure_hash", gguf_structure_hash(m->gguf));
        json_integer(out, "model_bytes", gguf_data_bytes(m->gguf));
        json_integer(out, "header_bytes", bytes_of_file(path));
        json_close(out, '}');
        text_printf(out, "\n");
    } else if (!status) {
        text_printf(out, "%s: %.1f KiB for %.1f MiB of weights, structure %016" PRIx64 "\n", path,
                    (double)bytes_of_file(path) / 1024, as_mib((double)gguf_data_bytes(m->gguf)),
                    gguf_structure_hash(m->gguf));
    }
    model_close(m);
    return status ? status : text_status(out, err);
}

static void import_json(const struct neurons *n, const char *path, uint64_t capacity_bytes,
                        struct text *out)
{
    json_open(out, NULL, '{');
    json_string(out, "neurons", path);
    json_integer(out, "capacity_bytes", capacity_bytes);
    json_open(out, "layers", '[');
    for (int32_t i = 0; i < n->n_layers; i++) {
        json_open(out, NULL, '{');
        json_integer(out, "neurons", (uint64_t)n->layers[i].n_ff);
        json_integer(out, "on_gpu", (uint64_t)n->layers[i].ffn_hot);
        json_close(out, '}');
    }
    json_close(out, ']');
    json_close(out, '}');
    text_printf(out, "\n");
}

static void import_table(const struct neurons *n, const char *path, uint64_t capacity_bytes,
                         struct text *out)
{
    int64_t all = 0, hot = 0;
    double least = 1, most = 0;
    for (int32_t i = 0; i < n->n_layers; i++) {
        const struct neurons_layer *l = &n->layers[i];
        const double share = (double)l->ffn_hot / l->n_ff;
        all += l->n_ff;
        hot += l->ffn_hot;
        least = share < least ? share : least;
        most = share > most ? share : most;
    }
    text_printf(out,
                "%s: %d layers, %" PRId64 " of %" PRId64 " neurons on the GPU (%.1f %%; a layer "
                "%.1f to %.1f %%), chosen for %.1f MiB\n",
                path, n->n_layers, hot, all, 100.0 * (double)hot / (double)all, 100 * least,
                100 * most, as_mib((double)capacity_bytes));
}

oato_status report_import(const char *split, const char *model, bool text_order, const char *path,
                          bool json, struct text *out, struct oato_error *err)
{
    struct gguf *g;
    struct neurons n;
    uint64_t capacity_bytes = 0;
    oato_status status = gguf_open(model, &g, err);
    if (status)
        return status;
    status = neurons_import_powerinfer(split, g, text_order, &n, &capacity_bytes, err);
    if (!status) {
        (json ? import_json : import_table)(&n, path, capacity_bytes, out);
        status = text_status(out, err);
        if (!status)
            status = neurons_save(&n, path, err);
        if (status)
            out->len = 0; /* nothing was imported */
        neurons_free(&n);
    }
    gguf_close(g);
    return status;
}
