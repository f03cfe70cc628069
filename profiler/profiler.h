/*
 * profiler.h - measures a machine and what the operators of a model cost on its devices, and puts
 * that into a profile (planfmt/planfmt.h).
 *
 * profiler_begin -> profiler_measure -> profile_save. Nothing is written before the end: a run
 * that fails or is interrupted leaves the file as it was.
 */
#ifndef OATO_PROFILER_H
#define OATO_PROFILER_H

#include "kernels/device.h"
#include "planfmt/planfmt.h"

enum { PROFILER_CONTEXTS = 16 };

struct profiler_options {
    const char *devices; /* specs to open ("cpu,sim:vram=64MiB"); NULL: cpu */
    int32_t threads;     /* of the cpu device; 0: physical cores */
    oato_dtype kv;       /* F16, Q8_0 or F32: the cache that attention is timed with */
    /* Context lengths at which attention is timed; n_contexts 0: 64, 512, 2048, 4096. Those above
     * the model's context are left out. */
    int32_t contexts[PROFILER_CONTEXTS];
    int32_t n_contexts;
    bool quick; /* fewer sizes and repeats */
};

/* What profiler_measure did, for the summary. */
struct profiler_report {
    int32_t rows_new, rows_replaced, rows_kept, rows_skipped;
    double seconds;
};

/* Fills the fingerprint of this machine: no host name, serial number or path. */
oato_status machine_read(struct profile *p, struct oato_error *err);
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

/* Opens the devices, measures them, their links to the host and every distinct operator and fused
 * pattern of the model at several sizes. Rows with the same key are replaced, others kept; a
 * device whose declared properties changed loses its old rows. warn gets a line for each operator
 * that did not fit. OATO_NEGATIVE and "interrupted" when oato_interrupted gets set. */
oato_status profiler_measure(struct profile *p, const struct model *m,
                             const struct profiler_options *o, warn_fn warn, void *user,
                             struct profiler_report *report, struct oato_error *err);

#endif
