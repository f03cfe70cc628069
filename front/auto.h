/*
 * auto.h - the plan of whoever gave none: the devices of this machine are found, measured as far as
 * the model needs it, and a plan is made for what is free on them now. Profile and plan are kept
 * (docs/automatic-plans.md) and used again while they hold; what changed is said in a line.
 */
#ifndef OATO_AUTO_H
#define OATO_AUTO_H

#include "executor/session_options.h"
#include "solver/solver.h"

/* What the command line says of it. */
struct auto_plan {
    bool off;             /* --no-plan: everything on the CPU */
    bool again;           /* --replan: measure and plan even if there is a plan */
    const char *workload; /* name or file; NULL: mixed */
    /* The one request to plan for instead; prompt and generate 0: the workload */
    struct plan_point point;
    int32_t failures; /* of plans to load, so far */
    /* Of one of several models, auto_plan_together: what it may use of each device, whatever is
     * free when it is planned for */
    struct device_budget budgets[DEVICES_MAX];
    int32_t n_budgets;
    int32_t share; /* of the accelerators' memory, in parts of SHARE_PARTS; 0 with no others */
    bool shares;   /* it has only that share */
    bool quiet;    /* the plan is not told */
};
enum { SHARE_PARTS = 8 };

/* Rows of an option table: at is the offset of a struct auto_plan, session that of the struct
 * session_args. */
/* clang-format off */
#define AUTO_AT(take, at, member) take, (at) + offsetof(struct auto_plan, member), 0, 0
#define AUTO_OPTIONS(verbs, at, session) \
    {"no-plan", 0, NULL, "everything on the CPU (so does OATO_PLAN=none)", verbs, \
     AUTO_AT(option_flag, at, off)}, \
    {"replan", 0, NULL, "measure and plan again, whatever is kept", verbs, AUTO_AT(option_flag, at, again)}, \
    {"workload", 0, "W", "plan for: mixed (default), chat, code, rag or FILE.yaml", verbs, \
     AUTO_AT(option_text, at, workload)}, \
    {"dry-run", 0, NULL, "stop before the model is loaded", verbs, \
     SESSION_AT(option_flag, session, dry_run, 0, 0)}
/* clang-format on */

/* Has the session make a plan by itself, unless the options rule that out: --plan, --no-plan,
 * OATO_PLAN=none, --map, --sparse dense and --mtp. `a` is borrowed while the session opens.
 * OATO_EUSAGE: options that contradict each other. */
oato_status auto_plan_use(struct auto_plan *a, struct session_args *session,
                          struct oato_error *err);

/* One of several models that one program has, and the plan for it: make_user of its session. */
struct auto_model {
    const char *name, *path;
    struct auto_plan plan;
};

/* Decides what each of n models may use of the devices; they are planned for later, each when it is
 * loaded. Two to four models that fit together share the memory of the accelerators such that they
 * are predicted to take the least time, added up; others have all of it, one for the other. All may
 * use host_bytes of the host together. devices[DEVICES_MAX]: what the accelerators have for
 * models. What cannot be opened or planned for shares nothing and is no error here. */
oato_status auto_plan_together(const struct auto_plan *given, const struct session_args *session,
                               struct auto_model *models, int32_t n, uint64_t host_bytes,
                               struct device_budget *devices, int32_t *n_devices,
                               struct oato_error *err);

/* ------------------------------------------------------------- model_files.c --- */

enum { MODEL_FILES_MOST = 256 };

struct model_files {
    struct auto_model of[MODEL_FILES_MOST]; /* by name */
    int32_t n;
    struct arena arena; /* of the texts */
};

/* list: a folder, or files with commas between. Of a folder its files "*.gguf", and of each folder
 * in it one, by the folder's name; of split models the first part, and no projectors (mmproj),
 * drafters (mtp-) or sidecars (.neurons.gguf). A model's name is its file's, without ".gguf" and
 * "-00001-of-..". OATO_EUSAGE: there is none, or there are too many, or two of one name;
 * OATO_EIO: one cannot be read. */
oato_status model_files_read(struct model_files *f, const char *list, struct oato_error *err);
void model_files_free(struct model_files *f);

#endif
