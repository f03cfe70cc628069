/*
 * export.h - plans for other engines.
 */
#ifndef OATO_EXPORT_H
#define OATO_EXPORT_H

#include "planfmt/planfmt.h"

enum export_target { EXPORT_LLAMA_CPP, EXPORT_IK_LLAMA_CPP, EXPORT_KTRANSFORMERS, EXPORT_TARGETS };
extern const char *const export_target_names[EXPORT_TARGETS]; /* values of --to */

struct export_name {
    char id[16];      /* device of the plan */
    const char *name; /* its memory there: "CUDA0", "RPC0[127.0.0.1:50052]", "cuda:0" */
};

struct export_options {
    enum export_target target;
    const struct export_name *names; /* default: CPU for the host, CUDA1 for cuda:1 */
    int32_t n_names;
};

/* Appends to `command` what makes another engine place weights and KV as planned: a shell command
 * that starts llama.cpp's server, or the YAML rules that ktransformers takes with
 * --optimize_config_path. Appends to `lost` a line for each thing that cannot be expressed; fusions
 * and numerics are left to the engine. Other engines place whole tensors: a split tensor goes where
 * its larger share is in decode, or to the host if the shares are equal or a device's budget would
 * be exceeded. OATO_EUSAGE when a device in use has no name in the other engine. */
oato_status plan_export(const struct plan *p, const struct model *m, const struct export_options *o,
                        struct text *command, struct text *lost, struct oato_error *err);

#endif
