/*
 * counting_internal.h - counting which neurons and experts fire: counts.c sees values of a model's
 * graph and adds up, calibrate.c feeds the text and keeps the file.
 */
#ifndef OATO_COUNTING_INTERNAL_H
#define OATO_COUNTING_INTERNAL_H

#include "profiler/profiler.h"

/* The activation of a feed-forward block; a block that runs several times is one. */
struct ffn_count {
    int32_t layer, n;  /* of the file; neurons */
    int32_t runs;      /* of a token through it */
    float threshold;   /* a neuron fires when |activation| is above it */
    uint64_t rows;     /* counted: tokens times runs */
    uint32_t *fires;   /* [n] of these, by neuron */
    int32_t magnitude; /* index in counts.magnitudes */
};

struct expert_count {
    int32_t layer, n, used, runs;
    uint64_t rows;
    uint32_t *chosen; /* [n] */
};

/* Magnitudes that one or more names have in common: inputs of q, k and v. */
struct magnitude_count {
    int64_t *bins; /* [NEURONS_BINS] */
};

struct magnitude_name {
    char name[GGUF_MAX_NAME + 1];
    int32_t magnitude;
};

/* What is counted at an operator of the graph; indices, -1: nothing. */
struct op_count {
    int32_t ffn, experts;
    int32_t input; /* index in magnitudes: its first input is counted */
};

struct counts {
    struct arena arena;
    const struct model *model;
    struct op_count *ops; /* by operator of the model's graph */
    struct ffn_count *ffns;
    struct expert_count *experts;
    struct magnitude_count *magnitudes;
    struct magnitude_name *names;
    int32_t n_ffns, n_experts, n_magnitudes, n_names;
    bool has_zeros; /* silent neurons are exactly 0: thresholds stay 0 */
    const char *activation;
    float *row;            /* as wide as the widest feed-forward block */
    bool only_activations; /* nothing else is counted now, and no neurons */
    bool paused;           /* nothing is counted now */
    int32_t bad_op;        /* the first operator with a number that is not finite; -1: none */
};

/* Finds what there is to count. OATO_EFILE when it is nothing. counts_free it in any case. */
oato_status counts_init(struct counts *c, const struct model *m, struct oato_error *err);
void counts_free(struct counts *c);
/* An engine_observer; user: the counts. */
void counts_observe(void *user, int32_t op, int32_t rows, const float *const *in,
                    float *const *out);
/* Sets all thresholds to that quantile of what was counted, and forgets it. */
void counts_set_thresholds(struct counts *c, double level);
/* Puts what was counted into a sidecar, whose tokens and texts are the caller's. counts: that of
 * magnitudes, too, so that counting can go on. */
oato_status counts_export(const struct counts *c, bool counts, struct neurons *out,
                          struct oato_error *err);
/* Takes over what counts_export put into an unfinished sidecar of this model. OATO_EFILE when it is
 * not all there. */
oato_status counts_import(struct counts *c, const struct neurons *n, struct oato_error *err);

/* Tokens of a text, cut into windows that are read alone. */
struct sample_text {
    const int32_t *ids;    /* of all windows */
    const int64_t *begins; /* of each window, and the end of the last one */
    int64_t n_windows;
    int32_t window; /* the most tokens of one */
};

/* predictors.c: trains predictors of the layers that have none into the sidecar at path, whose
 * counting is done. OATO_EUSAGE: the model's neurons are never silent. OATO_NEGATIVE: interrupted,
 * after some layers. */
oato_status predictors_make(struct counts *counts, const struct sample_text *text,
                            const struct calibrate_options *o, const char *path,
                            struct predictors_report *report, struct oato_error *err);

#endif
