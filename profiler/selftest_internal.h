/*
 * selftest_internal.h - what the files of oato-run selftest share: a run (selftest.c), one operator
 * on two devices (selftest_trial.c), which operators there are to try (selftest_cases.c), rates and
 * times (selftest_rates.c), and a sentence (selftest_sentence.c).
 */
#ifndef OATO_SELFTEST_INTERNAL_H
#define OATO_SELFTEST_INTERNAL_H

#include "profiler/profiler_internal.h"

/* ---------------------------------------------------------------------------- one operator - */

/* An operator in a step of equal sequences. Kinds with KV or a state get `before` positions of each
 * sequence in a step of their own first. */
struct trial {
    struct oato_op op;
    enum numerics_choice numerics;
    int32_t rows, seqs, before;
    int variant; /* of what the key does not say, by which a case is found again */
    int n_in, n_out;
    int32_t in_width[RECORD_INPUTS], out_width[RECORD_OUTPUTS];
    bool absent[RECORD_WEIGHTS]; /* optional weights that it goes without */
};

/* Sets what the operator implies: inputs and outputs. */
void trial_shape(struct trial *t);

/* The weights of an operator: made-up ones on the host, prepared on the device that is tested and
 * on the reference. */
struct trial_pair {
    const struct rig *tested, *reference;
    struct weight_source source[RECORD_WEIGHTS];
    struct oato_weight *weight[2][RECORD_WEIGHTS];
    int n;
};
oato_status trial_pair_open(const struct rig *tested, const struct rig *reference,
                            const struct trial *t, struct trial_pair *out, struct oato_error *err);
void trial_pair_close(struct trial_pair *p);

struct trial_result {
    const char *numerics; /* class of the tested device */
    double nmse, limit;   /* of the worst output */
    char wrong[160];      /* what is wrong, for people; "": nothing */
};
/* Runs the operator on both devices with the same numbers. The status is of running it: an error of
 * the device that is tested; wrong numbers are in *out. */
oato_status trial_run(const struct trial_pair *p, const struct trial *t, struct trial_result *out,
                      struct oato_error *err);
/* Of a record on a device that keeps values as F16: its values in an image of float32 as the device
 * has them; and all that came back, `got`, as if they were float32, where `sent` went there in
 * place of `image`. */
void trial_halve(const struct program_record *r, int32_t rows, uint8_t *image);
void trial_widen(const struct program_record *r, int32_t rows, const uint8_t *image,
                 const uint8_t *sent, uint8_t *got);

/* Operators of one kind and shape, which may vary in what the key does not say. */
struct recipe {
    enum op_kind kind;
    const char *shape;                          /* what follows kind and type in the key */
    int variants;                               /* 0: just the one */
    void (*vary)(struct trial *t, int variant); /* NULL: nothing varies */
    bool few_types; /* with some types only: what varies does not depend on them */
};
/* The variant with that type of weights, where the kind has one. False: the type has no such
 * shape, or the operator means nothing. */
bool recipe_trial(const struct recipe *r, oato_dtype dtype, int variant, struct trial *t);
/* `vary` of kinds whose variants other tests try, too. */
void vary_embed(struct trial *t, int variant);
void vary_norm(struct trial *t, int variant);
void vary_scale(struct trial *t, int variant);
void vary_rope(struct trial *t, int variant);
void vary_activation(struct trial *t, int variant);
void vary_attention(struct trial *t, int variant);

/* ----------------------------------------------------------------------------------- a run - */

enum { SELFTEST_CLASSES = 24 };

/* What came of the operators of one kind and type, or of one numerics class. */
struct selftest_count {
    int32_t cases, failed, refused;
    double worst;
};

struct selftest {
    const struct selftest_options *o;
    struct rig rig, reference;
    struct progress progress;
    struct selftest_count count[OP_KIND_COUNT][TYPE_NUMBERS], all;
    struct {
        char name[32];
        struct selftest_count count;
        double limit;
    } class[SELFTEST_CLASSES];
    int n_classes;
    enum op_kind only_kind;   /* OP_NONE: all */
    int only_dtype;           /* -1: all */
    struct text failures;     /* a JSON list without its brackets, */
    struct text failed_lines; /* and lines */
    struct text people, json; /* the report */
};

/* Adds the result of a case, or with NULL that it is refused. */
void selftest_note(struct selftest *s, const struct trial *t, const struct trial_result *r);
/* A case that the device says it can run, and then does not. */
void selftest_note_error(struct selftest *s, const struct trial *t, const char *why);

/* selftest_cases.c: all cases that are asked for. */
oato_status selftest_operators(struct selftest *s, struct oato_error *err);
/* Types that stand for all others where those would take too long. */
bool selftest_few_types(oato_dtype dtype);
/* selftest_rates.c: bandwidth, latency, events; and with options.perf the table of operators. */
oato_status selftest_rates(struct selftest *s, struct oato_error *err);
oato_status selftest_perf(struct selftest *s, struct oato_error *err);
/* selftest_sentence.c: the engine opens the device itself, which must not be open. *right: the
 * device says what the CPU says. */
oato_status selftest_sentence(struct selftest *s, const struct device_info *info, bool *right,
                              struct oato_error *err);

#endif
