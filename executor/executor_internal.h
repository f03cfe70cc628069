/*
 * executor_internal.h - between the files of the engine: load.c opens devices and weights, lower.c
 * makes programs (with lower_program.c), arena.c places their buffers, kv.c keeps pages, engine.c
 * steps.
 */
#ifndef OATO_EXECUTOR_INTERNAL_H
#define OATO_EXECUTOR_INTERNAL_H

#include "executor/arena.h"
#include "executor/executor.h"

enum { PARTS_MAX = RECORD_INPUTS };

struct placed_part {
    int32_t device; /* of the engine */
    int32_t begin, end;
    bool streamed; /* its weight stays with the host */
};

/* Where one operator runs in one phase: its parts along an axis, in order. */
struct placement {
    int32_t n;
    enum plan_axis axis;
    struct placed_part part[PARTS_MAX];
};

/* A weight of a device: rows [begin, end) and columns [col_begin, col_end) of a tensor for one use,
 * prepared there, or streamed to a place of the staging room. */
struct weight_slot {
    const struct gguf_tensor *tensor;
    enum weight_use use;
    int64_t begin, end, col_begin, col_end;
    bool streamed;           /* then every record has slots of its own */
    uint64_t staging_offset; /* streamed: where in the device's staging room */
    uint64_t bytes;          /* prepared */
    const void *prepared;    /* in the device's file of prepared weights; NULL: to be prepared */
};

struct engine_program {
    struct program program;
    struct program_record *records; /* malloc'ed; program.records points here */
    struct compiled *compiled;
};

struct engine_device {
    struct oato_device *device;
    struct device_info info;
    struct weight_slot *slots;
    struct oato_weight **weights; /* parallel to slots */
    uint32_t n_slots, slots_cap;
    struct mapped_file prepared; /* weights that an earlier start kept */
    uint64_t weight_bytes;
    void *staging;                    /* room for streamed weights, */
    uint64_t staging_bytes;           /* twice those of the record that streams most */
    struct kv_layer_shape *kv_shapes; /* layers whose KV lives here */
    int32_t *kv_slot;                 /* layer of the model -> index in kv_shapes, or -1 */
    int32_t n_kv;
    uint64_t kv_bytes;
    struct kv_cache *kv;
    void *arena;
    uint64_t arena_bytes, workspace_bytes;
    uint64_t budget_bytes;                  /* of the plan; 0: what the device has */
    struct program_peer peers[DEVICES_MAX]; /* device: of those that it reaches */
    struct engine_program phase[PHASE_COUNT];
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
    oato_dtype kv_dtype;
    bool deterministic;
    struct placement *place[PHASE_COUNT]; /* by operator */
    int32_t top_logits;                   /* as asked for; 0: whole rows */
    int32_t candidates[PHASE_COUNT];      /* of a row that the host gets; 0: its logits */
    uint64_t result_offset[PHASE_COUNT];  /* of these rows, in the host's arena */
    int32_t copies[PHASE_COUNT];
    uint64_t copy_bytes[PHASE_COUNT], stream_bytes[PHASE_COUNT];
    struct kv_pool pool;
    /* the step descriptor's arrays, sized for the largest step */
    int32_t *ids, *positions, *seq_of, *rows;
    struct step_seq *step_seqs;
    struct timeline *timelines[DEVICES_MAX];
    uint64_t bases[DEVICES_MAX];
    struct step_cores cores; /* of the host and its simulated devices */
    const float *result;     /* of the last step */
    int32_t n_rows, result_candidates;
    bool failed; /* a device died: no further step */
    uint64_t load_ns, steps, clock_ns, host_busy_ns;
    uint64_t end_ns; /* of the last step, on the devices' clocks */
};

/* load.c: devices, fused graph, placements, weights, KV. Whatever was made is released by
 * engine_close. */
oato_status engine_load(struct engine *e, const struct engine_options *options, warn_fn warn,
                        void *user, struct oato_error *err);
/* Checks sums against what devices have, then prepares weights and creates KV and arenas. */
oato_status engine_allocate(struct engine *e, const struct engine_options *options, warn_fn warn,
                            void *user, struct oato_error *err);

/* prepared.c: the prepared weights of a device in a file of `folder` (docs/prepared-format.md).
 * Maps it and points the slots to their bytes, if there is a good one. A line to warn when there is
 * one that cannot be used. */
void prepared_map(const struct engine *e, struct engine_device *d, const char *folder, warn_fn warn,
                  void *user);
/* Writes it from the weights of d; a line to warn when that fails. */
void prepared_save(const struct engine *e, const struct engine_device *d, const char *folder,
                   warn_fn warn, void *user);

/* Of an operator on a device, over rows of a class: prefill is fast except for the few rows of
 * logits, and by a library where the plan says so. */
enum numerics_choice engine_numerics(const struct engine *e, int32_t device,
                                     const struct oato_op *op, enum plan_phase phase,
                                     enum row_class rows);

/* lower.c: programs of one phase for every device; fills records, arena_bytes and staging_bytes
 * (maximum of both phases), copies and the weight slots that they use. */
oato_status engine_lower(struct engine *e, enum plan_phase phase, struct oato_error *err);
/* Index of the slot that is as `wanted` (bytes and prepared apart), added when new; UINT32_MAX when
 * memory is short. */
uint32_t engine_weight_slot(struct engine_device *d, const struct weight_slot *wanted);
/* What the device prepares, or copies as it is, for a slot. */
struct weight_source engine_weight_source(const struct weight_slot *slot);

#endif
