/*
 * executor_internal.h - between the files of the engine: devices.c opens devices, load.c has
 * programs lowered and loads weights, kv.c keeps pages, engine.c steps.
 */
#ifndef OATO_EXECUTOR_INTERNAL_H
#define OATO_EXECUTOR_INTERNAL_H

#include "executor/executor.h"
#include "lowering/lowering.h"

struct engine_device {
    struct oato_device *device;
    struct device_info info;
    const struct lowered_device *lowered; /* its part of the engine's */
    struct oato_weight **weights;         /* parallel to its slots, */
    const void **kept;                    /* as are these: in `prepared`; NULL: to be prepared */
    struct mapped_file prepared;          /* weights that an earlier start kept */
    void *staging;                        /* room for streamed weights */
    uint64_t kv_bytes;
    struct kv_cache *kv;
    void *arena;
    uint64_t arena_bytes;
    uint64_t budget_bytes;                  /* of the plan; 0: what the device has */
    struct program_peer peers[DEVICES_MAX]; /* device: of those that it reaches */
    struct program program[PHASE_COUNT];
    struct compiled *compiled[PHASE_COUNT]; /* NULL: nothing runs here in the phase */
};

/* ---------------------------------------------------------------------------------- pages */

struct kv_seq {
    bool used;
    int32_t length, n_pages;
    int32_t *pages; /* pages_max of the pool */
};

struct kv_undo {
    int32_t seq, index, page; /* the page that stood at `index`; -1: there was none */
};

/* Pages of 64 positions, counted references, sequences with block tables. A step reserves, then
 * commits or rolls back. */
struct kv_pool {
    int32_t n_pages, n_free, n_seqs;
    int32_t *free_list;
    int32_t *references;
    struct kv_seq *seqs;
    int32_t *tables; /* behind seqs[i].pages */
    struct kv_undo *undo;
    int32_t n_undo;
    struct step_page_copy *copies;
    int32_t n_copies;
};

oato_status kv_pool_init(struct kv_pool *p, int32_t pages, int32_t seqs, struct oato_error *err);
void kv_pool_free(struct kv_pool *p);
oato_status kv_seq_create(struct kv_pool *p, int32_t *seq, struct oato_error *err);
oato_status kv_seq_check(const struct kv_pool *p, int32_t seq, struct oato_error *err);
void kv_seq_free(struct kv_pool *p, int32_t seq);
oato_status kv_seq_fork(struct kv_pool *p, int32_t from, int32_t *to, struct oato_error *err);
void kv_seq_truncate(struct kv_pool *p, int32_t seq, int32_t length);
/* Makes [length, length + n) of seq writable; page copies that the step must do first are added
 * to p->copies. */
oato_status kv_reserve(struct kv_pool *p, int32_t seq, int32_t n, struct oato_error *err);
void kv_commit(struct kv_pool *p);
void kv_rollback(struct kv_pool *p);

/* ------------------------------------------------------------------------------ the engine */

struct engine {
    const struct model *model;
    const struct plan *plan; /* or NULL */
    struct graph graph;      /* fused */
    struct engine_device device[DEVICES_MAX];
    const char *device_ids[DEVICES_MAX]; /* for programs, which print and report them */
    int32_t n_devices, host;
    int32_t context, ubatch, max_seqs, max_rows;
    struct lowering_limits limits; /* these, by phase */
    oato_dtype kv_dtype;
    bool deterministic;
    struct placements placements;
    struct lowered lowered;
    int32_t top_logits; /* as asked for; 0: whole rows */
    struct kv_pool pool;
    /* the step descriptor's arrays, sized for the largest step */
    int32_t *ids, *positions, *seq_of, *rows;
    struct step_seq *step_seqs;
    struct timeline *timelines[DEVICES_MAX];
    uint64_t bases[DEVICES_MAX];
    bool phases_alike; /* both phases give a row the same bits on the same devices */
    uint64_t kept_bytes;
    float *kept; /* rows of a mixed step's decode while its prefill runs; NULL: never mixed */
    int32_t *row_number; /* of the rows of a sub-step: which of the step's they are */
    struct result_row {
        const float *data;
        int32_t candidates; /* that data holds; 0: logits */
    } * result;             /* of the last step */
    int32_t n_rows;
    struct step_cores cores; /* of the host and its simulated devices */
    bool failed;             /* a device died: no further step */
    uint64_t load_ns, steps, clock_ns, host_busy_ns;
    uint64_t end_ns; /* of the last step, on the devices' clocks */
};

/* devices.c: opens what the options or the plan name, the host included. */
oato_status devices_open(struct engine *e, const struct engine_options *o, struct oato_error *err);
/* bound[i]: the engine's device that stands for the plan's i-th. A line to warn for each that was
 * another model of device where the plan was made. */
oato_status devices_bind(struct engine *e, const struct engine_options *o, warn_fn warn, void *user,
                         int32_t *bound, struct oato_error *err);

/* load.c: devices, fused graph, placements. Whatever was made is released by engine_close. */
oato_status engine_load(struct engine *e, const struct engine_options *options, warn_fn warn,
                        void *user, struct oato_error *err);
/* Programs of both phases, from what the open devices say of themselves. */
oato_status engine_lower(struct engine *e, struct oato_error *err);
/* Whether a row gets the same bits in both phases, on the same devices: then one program does for
 * both. */
bool engine_phases_alike(const struct engine *e);
/* Checks sums against what devices have, then prepares weights and creates KV and arenas. */
oato_status engine_allocate(struct engine *e, const struct engine_options *options, warn_fn warn,
                            void *user, struct oato_error *err);

/* prepared.c: the prepared weights of a device in a file of `folder` (docs/prepared-format.md).
 * Maps it and points `kept` to their bytes, if there is a good one. A line to warn when there is
 * one that cannot be used. */
void prepared_map(const struct engine *e, struct engine_device *d, const char *folder, warn_fn warn,
                  void *user);
/* Writes it from the weights of d; a line to warn when that fails. */
void prepared_save(const struct engine *e, const struct engine_device *d, const char *folder,
                   warn_fn warn, void *user);

#endif
