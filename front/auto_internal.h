/*
 * auto_internal.h - shared by auto.c (what to do), auto_machine.c (what is here) and auto_kept.c
 * (what was kept).
 */
#ifndef OATO_AUTO_INTERNAL_H
#define OATO_AUTO_INTERNAL_H

#include "front/auto.h"
#include "profiler/profiler.h"

/* ------------------------------------------------------------------------- auto.c --- */

/* The plan for a model: one that is kept, or a new one. failed as plan_maker has it; *asked: what
 * failed is an option of the user's. */
oato_status auto_plan_for(struct auto_plan *given, const struct session_args *a,
                          const struct model *m, const struct oato_error *failed, struct plan *out,
                          bool *asked, struct oato_error *err);

/* ----------------------------------------------------------------- auto_machine.c --- */

struct here {         /* this machine, and those of its devices that are to be used */
    struct text list; /* their specs, as for --devices */
    int32_t n;
    struct device_info info[DEVICES_MAX];
    struct text what;          /* a line "NAME: VALUE" for all that times depend on */
    struct profile_machine of; /* its strings are those of `fingerprint` */
    struct profile fingerprint;
};

/* list NULL: all that are found, but for those that cannot be opened. Opens the devices for a
 * moment. */
oato_status here_read(const char *list, int32_t threads, struct here *out, struct oato_error *err);
void here_free(struct here *h);
/* What a plan may use of a device now: 90 % of what is free. */
uint64_t here_budget(const struct here *h, int32_t device);
/* As if so much were free that this is the budget of each device that is named. */
void here_limit(struct here *h, const struct device_budget *budgets, int32_t n);

/* --------------------------------------------------------------------- auto_kept.c --- */

struct plan_store { /* where profile and plan of a model are */
    struct text profile, plan, stamp, lock;
    int lock_fd; /* -1: not locked */
};

/* `key`: what the plan is asked for; sets the paths. OATO_EFIT: memory. */
oato_status plan_store_paths(struct plan_store *k, const struct here *h, uint64_t structure_hash,
                             const char *key, struct oato_error *err);
void plan_store_free(struct plan_store *k);
/* Waits for others that measure or plan, but not for long. */
void plan_store_lock(struct plan_store *k);
void plan_store_unlock(struct plan_store *k);
/* Loads the plan if it is for this model and machine as they are now. Else false; `why` says what
 * changed, and is empty where there is no plan. */
bool plan_store_load(const struct plan_store *k, const struct here *h, const struct model *m,
                     uint64_t neurons_hash, struct plan *out, struct text *why);
/* Whether what the plan takes still fits into what is free, and clearly more is not; why as above.
 */
bool plan_store_fits(const struct plan *p, const struct here *h, struct text *why);
/* A cache that cannot be written is warned about. */
void plan_store_save(const struct plan_store *k, const struct here *h, const struct plan *p,
                     uint64_t neurons_hash);

#endif
