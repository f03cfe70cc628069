/*
 * profiler.h - measures a machine and what the operators of a model cost on its devices, and puts
 * that into a profile (planfmt/planfmt.h).
 *
 * profiler_begin -> profiler_measure -> profile_save. Nothing is written before the end: a run
 * that fails or is interrupted leaves the file as it was, and what it measured in a file beside it.
 *
 * calibrate counts over text which neurons and experts of a model fire, into a neurons sidecar;
 * neurons_report and neurons_plot show what such a file says.
 */
#ifndef OATO_PROFILER_H
#define OATO_PROFILER_H

#include "executor/executor.h"
#include "executor/restore.h"

enum { PROFILER_CONTEXTS = 16 };

struct profiler_options {
    const char *devices; /* specs to open ("cpu,sim:vram=64MiB"); NULL: cpu */
    int32_t threads;     /* of the cpu device; 0: physical cores */
    oato_dtype kv;       /* F16, Q8_0 or F32: the cache that attention is timed with */
    /* Context lengths at which attention is timed; n_contexts 0: 64, 512, 2048, 4096. Those above
     * the model's context are left out. */
    int32_t contexts[PROFILER_CONTEXTS];
    int32_t n_contexts;
    const char *storage; /* folder to measure reading in; NULL: that of prepared weights */
    bool quick;          /* fewer sizes and repeats */
    bool only_new;       /* operators that a device has rows of are not timed again */
    double seconds;      /* no operator's turn begins later: what is left stays an estimate;
                            0: all are timed */
    bool sparse; /* feed-forward blocks that skip neurons are timed whatever their activation */
    const char *partial; /* file that keeps what an interrupted run measured; NULL: none */
    const struct neurons *neurons; /* whose predictors are timed; NULL: none */
};

/* What profiler_measure did, for the summary. */
struct profiler_report {
    int32_t rows_new, rows_replaced, rows_kept, rows_skipped;
    double seconds;
};

/* Fills the fingerprint of this machine: no host name, serial number or path. */
oato_status machine_read(struct profile *p, struct oato_error *err);
/* What the kernel calls the processor, "": nothing, and those of its instruction sets that matter
 * and may be used, as profiles name them. root: "", or a folder with a /proc of a test's own. */
void machine_processor(const char *root, char cpu[128], char isa[256]);
/* False when a and b are not the same machine; why gets "cores: 8 there, 2 here" (a is there). */
bool machine_same(const struct profile_machine *a, const struct profile_machine *b, char *why,
                  size_t why_bytes);
/* "amd-epyc.profile.yaml" out of the CPU's name. */
void machine_file_name(const struct profile_machine *m, char *out, size_t out_bytes);

/* Fills *p from the file at path if it exists and `replace` is not set (OATO_EFILE when it was
 * measured on another machine); else *p has only this machine's fingerprint. path may be NULL: no
 * file is read. */
oato_status profiler_begin(const char *path, bool replace, struct profile *p, warn_fn warn,
                           void *user, struct oato_error *err);

/* *seconds: about how long profiler_measure with only_new takes on these devices, named by their n
 * ids; 0: the profile has all that the model needs there. */
oato_status profiler_missing(const struct profile *p, const struct model *m,
                             const struct profiler_options *o, const char *const *ids, int32_t n,
                             double *seconds, struct oato_error *err);

/* Opens the devices, measures them, their links to the host and every distinct operator and fused
 * pattern of the model at several sizes. Rows with the same key are replaced, others kept; a
 * device whose declared properties changed loses its old rows. warn gets a line for each operator
 * that did not fit. OATO_NEGATIVE and "interrupted" when oato_interrupted gets set: rows
 * are then in o->partial, from which the next such run takes them; the caller removes it when the
 * profile is saved. */
oato_status profiler_measure(struct profile *p, const struct model *m,
                             const struct profiler_options *o, warn_fn warn, void *user,
                             struct profiler_report *report, struct oato_error *err);

/* ------------------------------------------------------------------------------- sums ---- */

/* A rank's operators are to be timed as they will run: while the other ranks of its host use the
 * memory and the caches. Rank 0 says whether it goes on to measure operators, or fails with this
 * status; all others call beside_first, and those on other cores of its host run decode steps of
 * the model's first layers, if its file has weights, until rank 0 next calls collective_agree.
 * o->threads of a rank are assumed to have cores of their own as far as these go; 0: all cores, so
 * that no rank is beside it. */
oato_status beside_announce(struct collective *ranks, bool measures, oato_status status,
                            struct oato_error *err);
oato_status beside_first(struct collective *ranks, const struct model *m,
                         const struct profiler_options *o, oato_status status,
                         struct oato_error *err);

/* On all ranks of `ranks`, which then are grouped by host: measures their sums, of the sizes that
 * the model has, into rank 0's profile; others have p NULL. Where o->devices has an accelerator for
 * each rank, also those that these make by themselves; warn says why they cannot. */
oato_status sums_measure(struct profile *p, const struct model *model, struct collective *ranks,
                         const struct profiler_options *o, warn_fn warn, void *user,
                         struct oato_error *err);

/* --------------------------------------------------------------------------- restores ---- */

struct restore_report {
    struct restore_quality quality[RESTORE_WAYS]; /* of what the points say */
};

/* Measures what it takes to bring sequences of the model back, with the plan (NULL: on o->devices,
 * as the engine runs it without one), and puts the points into the profile. */
oato_status restores_measure(struct profile *p, const struct model *model, const struct plan *plan,
                             const struct profiler_options *o, warn_fn warn, void *user,
                             struct restore_report *report, struct oato_error *err);

/* ------------------------------------------------------------------------- calibration ---- */

enum { CALIBRATE_TEXTS = 64, CALIBRATE_WINDOW = 512 };
#define CALIBRATE_LEVEL 0.7

struct calibrate_options {
    const char *texts[CALIBRATE_TEXTS]; /* paths */
    int32_t n_texts;
    int32_t threads; /* of the cpu device; 0: physical cores */
    int32_t window;  /* tokens that are read together: from 2 on; 0: CALIBRATE_WINDOW or what the
                        model can read */
    /* A neuron whose activation has no exact zeros fires above this quantile of its layer's
     * |activation|, over the beginning of the text: 0 to 1. */
    double level;
    bool replace;    /* start again even if the file exists */
    bool predictors; /* train predictors of active neurons, too */
};

/* What came of predictors. */
struct predictors_report {
    int32_t layers, without; /* that have one; that were tried and got none */
    char why[256];           /* of the last one without */
    double share; /* of the time of a decode step with oato-run --sparse predict; 0: not known */
};

struct calibrate_report {
    int64_t tokens, tokens_before; /* in the file; of these from an earlier run */
    double seconds;
    struct predictors_report predictors;
};

/* Runs the model over the texts on the CPU and writes what fired to the sidecar at path, once a
 * minute and when oato_interrupted gets set (OATO_NEGATIVE). A file that is there goes on: it must
 * be of the same model, text and options (OATO_EFILE, OATO_EUSAGE). Predictors are trained after
 * counting, with a sample of the text. */
oato_status calibrate(const struct model *m, const struct calibrate_options *o, const char *path,
                      struct calibrate_report *report, struct oato_error *err);

/* The share of the first ones in a falling order that make up `part` of the sum; 0: the sum is 0.
 */
double neurons_share(const float *freq, const int32_t *order, int32_t n, double part);
/* Appends a table for people, or one line of JSON: a row for each layer. */
void neurons_report(const struct neurons *n, const char *path, bool json, struct text *out);
/* Appends an SVG: which share of the activations the most active neurons of each layer cause.
 * OATO_EFILE when the file has no frequencies. */
oato_status neurons_plot(const struct neurons *n, const char *title, struct text *out,
                         struct oato_error *err);

/* ---------------------------------------------------------------------------- self-test -- */

struct selftest_options {
    const char *device; /* spec of one device: "cuda:0", "sim:vram=1GiB" */
    int32_t threads;    /* of the cpu device; 0: physical cores */
    const char *only;   /* "KIND" or "KIND/TYPE": nothing but these operators; NULL: everything */
    const char *model;  /* a GGUF file that says the sentence; NULL: a made-up one */
    bool quick;         /* fewer shapes, rows and repeats */
    bool perf;          /* also a table of what operators take */
};

/* Checks a device against the CPU's reference kernels: what it is, every operator, links and
 * events, a sentence. Both texts are the caller's to free: the summary for people, and the JSON to
 * hand on, without names of hosts, serial numbers and paths. OATO_NEGATIVE: something is wrong with
 * the device, as both say; or the user interrupted, and both are empty. OATO_EDEVICE: it failed;
 * both have what was found until then, and the JSON has the message. Other errors: both are empty.
 */
oato_status selftest_run(const struct selftest_options *o, struct text *people, struct text *json,
                         struct oato_error *err);
/* The name of a file for the report of that spec: "selftest-cuda-0.json". */
void selftest_file_name(const char *device, char *out, size_t out_bytes);

#endif
