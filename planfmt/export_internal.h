/*
 * export_internal.h - what the exports share: export.c (with export_parts.c) reads the plan into
 * `struct exporter`, the file of a target says it in that engine's words and lists what it has no
 * words for.
 */
#ifndef OATO_EXPORT_INTERNAL_H
#define OATO_EXPORT_INTERNAL_H

#include "planfmt/planfmt_internal.h"

enum { NOWHERE = -1 };

struct exporter {
    const struct plan *plan;
    const struct model *model;
    const struct export_options *o;
    struct text *command, *lost;
    struct arena arena;
    struct graph graph; /* fused as planned */
    const char **names; /* of the plan's devices there; NULL: it has none */
    bool *used;         /* has weights or KV */
    int32_t host, n_layers;
    int32_t *wanted; /* planned device of each layer's KV and, behind them, of the output matrix */
    int32_t *layer;  /* device that these get there */
    uint64_t *kv;    /* bytes of each layer's KV */
    int32_t *tensor; /* planned device of each tensor of the file, or NOWHERE */
    bool streams;    /* most of what lies on the host is streamed */
};

const char *export_name(const struct exporter *x, int32_t device);

typedef oato_status export_layers(struct exporter *x, struct oato_error *err);
/* Finds a device for each tensor, and lists what is lost where the plan divides or streams. With
 * choose (may be NULL), which then fills x->layer, alike layers first change places so that those
 * with KV on the host come first, and budgets hold the KV that goes with the layers, too. */
oato_status export_parts(struct exporter *x, export_layers *choose, struct oato_error *err);
/* Gives the first n of the layers and the output devices of ascending ranks, so that the sum of
 * cost[i * ranks + rank] is least; of equal sums that with the highest ranks. */
oato_status export_choose(struct exporter *x, const int32_t *device_of_rank, int32_t ranks,
                          int32_t n, const int32_t *cost, struct oato_error *err);
/* A line for each run of layers whose KV is not where it was planned. */
void export_list_lost_kv(const struct exporter *x);

/* Splits "blk.12.ffn_up.weight"; false for a name that is no layer's. */
bool export_layer_of(const char *name, int32_t *layer, const char **rest);

/* Tensors of one name in several layers for which the same is to be said. */
struct tensor_group {
    const char *name;    /* behind "blk.N."; the whole name of a tensor that is no layer's */
    struct text layers;  /* "3|4|17"; empty: no layer's */
    int32_t device, key; /* as export_take said */
    bool written;        /* for who says it */
};

/* True when something is to be said of tensor t: sets device and key of the group. */
typedef bool export_take(const struct exporter *x, size_t t, struct tensor_group *group);
/* Groups in the order in which the file first has them; tensors that are no layer's last. Free
 * with export_groups_free, after a failure, too. */
oato_status export_group(const struct exporter *x, export_take *take, struct tensor_group **out,
                         size_t *n, struct oato_error *err);
void export_groups_free(struct tensor_group *all, size_t n);
/* Same layers, device and key, so that one line can say both. */
bool export_same_layers(const struct tensor_group *a, const struct tensor_group *b);

/* A target: says the plan in x->command and what is missing in x->lost. */
oato_status export_llama_cpp(struct exporter *x, struct oato_error *err);
export_layers export_llama_cpp_layers;
oato_status export_ktransformers(struct exporter *x, struct oato_error *err);

#endif
