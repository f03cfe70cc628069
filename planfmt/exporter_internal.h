/*
 * exporter_internal.h - what the exports share: export.c (with export_parts.c) reads the plan into
 * `struct exporter`, and the file of each target writes it in that engine's syntax and lists what
 * that syntax cannot express.
 */
#ifndef OATO_EXPORTER_INTERNAL_H
#define OATO_EXPORTER_INTERNAL_H

#include "planfmt/export.h"
#include "planfmt/planfmt_internal.h"

enum { NOWHERE = -1 };

struct exporter {
    const struct plan *plan;
    const struct model *model;
    const struct export_options *o;
    struct text *command, *lost;
    struct arena arena;
    struct graph graph; /* fused as planned */
    const char **names; /* the plan's devices as the engine calls them; NULL: no name */
    bool *used;         /* has weights or KV */
    int32_t host, n_layers;
    int32_t *wanted; /* planned device of each layer's KV, followed by that of the output matrix */
    int32_t *layer;  /* device that these get in the other engine */
    uint64_t *kv;    /* bytes of each layer's KV */
    int32_t *tensor; /* planned device of each tensor of the file, or NOWHERE */
    bool streams;    /* most of the weights on the host are streamed */
};

const char *export_name(const struct exporter *x, int32_t device);

typedef oato_status export_layers(struct exporter *x, struct oato_error *err);
/* Finds a device for each tensor, and lists what is lost where the plan splits or streams a tensor.
 * With choose (may be NULL), which fills x->layer, layers of the same shape first swap places so
 * that those with KV on the host come first, and budgets include the KV that follows its layer. */
oato_status export_parts(struct exporter *x, export_layers *choose, struct oato_error *err);
/* Assigns devices of ascending rank to the first n of the layers and the output, so that the sum of
 * cost[i * ranks + rank] is minimal; ties go to the highest ranks. */
oato_status export_choose(struct exporter *x, const int32_t *device_of_rank, int32_t ranks,
                          int32_t n, const int32_t *cost, struct oato_error *err);
/* Lists each run of layers whose KV is not where it was planned. */
void export_list_lost_kv(const struct exporter *x);

/* Splits "blk.12.ffn_up.weight"; false for a tensor outside of layers. */
bool export_layer_of(const char *name, int32_t *layer, const char **rest);

/* True for a tensor that has a place. *layer: its layer, or n_layers outside of layers; *rest: its
 * name behind the layer's. */
bool export_planned(const struct exporter *x, size_t t, int32_t *layer, const char **rest);
/* Appends the name as a regular expression. */
void export_escape(struct text *t, const char *name);

/* Tensors of one name in several layers that share a line of output. */
struct tensor_group {
    const char *name;    /* after "blk.N."; the whole name of a tensor outside of layers */
    struct text layers;  /* "3|4|17"; empty: outside of layers */
    int32_t device, key; /* as set by export_take */
    bool written;        /* for the caller's use */
};

/* True when tensor t needs a line: sets device and key of its group. */
typedef bool export_take(const struct exporter *x, size_t t, struct tensor_group *group);
/* Groups in file order of their first tensor; tensors outside of layers last. Free with
 * export_groups_free, also after a failure. */
oato_status export_group(const struct exporter *x, export_take *take, struct tensor_group **out,
                         size_t *n, struct oato_error *err);
void export_groups_free(struct tensor_group *all, size_t n);
/* True when one line can cover both: same layers, device and key. */
bool export_same_layers(const struct tensor_group *a, const struct tensor_group *b);

/* A target: writes the plan to x->command and what it cannot express to x->lost. */
oato_status export_llama_cpp(struct exporter *x, struct oato_error *err);
export_layers export_llama_cpp_layers;
oato_status export_ktransformers(struct exporter *x, struct oato_error *err);

#endif
