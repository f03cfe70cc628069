/*
 * executor_internal.h - shared by the engine's files: devices.c opens devices, load.c lowers
 * programs and loads weights, kv.c manages KV pages, engine.c runs steps.
 */
#ifndef OATO_EXECUTOR_INTERNAL_H
#define OATO_EXECUTOR_INTERNAL_H

#include "executor/executor.h"
#include "executor/prompt_store.h"
#include "lowering/lowering.h"

struct engine_device {
    struct oato_device *device;
    struct device_info info;
    const struct lowered_device *lowered; /* its part of engine.lowered */
    struct oato_weight **weights;         /* parallel to lowered->slots */
    void **gathered;             /* parallel to the slots: what streamed weights are read from */
    const void **kept;           /* parallel to the slots: bytes in `prepared`; NULL: prepare */
    struct mapped_file prepared; /* weights saved by an earlier start, */
    char *prepared_path;         /* in this file */
    struct direct_file stored; /* the same file, if weights are streamed from it; path NULL: none */
    uint64_t *hashes;          /* parallel to the slots: of those weights in it */
    void *staging;             /* room for streamed weights */
    void *ring;                /* the host's: weights from the file on their way to the device */
    uint64_t kv_bytes;
    struct kv_cache *kv;
    void *arena;
    uint64_t arena_bytes;
    uint64_t budget_bytes;                  /* from the plan; 0: all of the device's memory */
    struct program_peer peers[DEVICES_MAX]; /* entries with a device are reachable */
    struct program program[PHASE_COUNT];
    struct compiled *compiled[PHASE_COUNT]; /* NULL: nothing runs here in the phase */
};

/* ---------------------------------------------------------------------------------- pages */

/* Layers with a window have pages of their own, fewer. */
enum kv_kind { KV_ALL, KV_WINDOW, KV_KINDS };

/* Pages of positions 64 i .. 64 i + 63 for i from `first` to n - 1; those before were given back.
 */
struct kv_table {
    int32_t first, n;
    int32_t *pages;
};

struct kv_seq {
    bool used;
    bool shares; /* engine_seq_begin was called: its states are kept at the end of pages */
    int32_t length;
    int32_t branch; /* a later prompt may begin there, if the state is kept; 0: not known */
    int32_t state;  /* slot; -1: none yet, as at length 0 */
    struct kv_table table[KV_KINDS];
};

struct kv_undo {
    int32_t seq, kind, index, page; /* the old page at `index`; -1: none */
};

/* prefix.c: the texts of full pages. Empty (no pages): nothing is shared. */
struct prefix_cache {
    struct prefix_page *pages; /* by page of KV_ALL */
    int32_t *tokens;           /* KV_PAGE_POSITIONS of each */
    int32_t *listed;           /* by page of KV_WINDOW: the listed page of the same positions and
                                  text; -1: none. NULL: there are no windows */
    int32_t *buckets;          /* first page of each; -1: none */
    uint32_t n_buckets;
    uint64_t texts; /* numbers given out */
};

/* Slots of recurrent state, shared like pages: what a sequence was at some length is kept by naming
 * its slot once more, and who writes to a shared slot takes another, into which it is copied. */
struct state_pool {
    int32_t n_slots, n_free; /* 0: the model has no state */
    int32_t *free_list, *references;
    struct state_mark { /* a checkpoint; in order of last use */
        int32_t seq;    /* that may be truncated to it; -1: none any more */
        int32_t length, slot;
        uint64_t text; /* of whole pages (prefix.c), behind which others may begin; 0: none */
        bool latest;   /* the next one of the sequence replaces it, */
        bool prompt;   /* unless that is the answer's and this one the prompt's; */
        bool passed;   /* then it was so, and is the first to make room */
    } marks[STATE_CHECKPOINTS];
    int32_t n_marks;
    struct step_state_copy *copies; /* for the step to do first */
    int32_t n_copies;
    struct state_undo {
        int32_t seq, slot;
    } * undo;
    int32_t n_undo;
};

/* KV pages of 64 positions with reference counts, and sequences with block tables. A step reserves
 * pages, then commits or rolls back. */
struct kv_pool {
    /* Free pages are in a list, the next to be taken first. Those whose text may be wanted again
     * come last, the longest unused first. */
    struct kv_pages {
        int32_t n, n_free;
        int32_t first, last, *before, *after; /* -1: none */
        int32_t *references;
    } pages[KV_KINDS];
    struct prefix_cache prefix;
    int32_t window; /* the widest of any layer; 0: there are no pages of KV_WINDOW */
    int32_t n_seqs;
    struct kv_seq *seqs;
    int32_t *tables; /* storage of the sequences' tables */
    struct kv_undo *undo;
    int32_t n_undo;
    struct step_page_copy *copies;
    int32_t n_copies;
    struct state_pool state;
};

/* For steps of at most `tokens` tokens. In the arena, but for the tables, which are large and
 * seldom filled: free them. */
oato_status kv_pool_init(struct kv_pool *p, struct arena *a, int32_t context, int32_t seqs,
                         int32_t tokens, int32_t window, struct oato_error *err);
/* For so many pages of KV_ALL and KV_WINDOW. */
oato_status prefix_init(struct prefix_cache *x, struct arena *a, int32_t pages, int32_t windows,
                        struct oato_error *err);
/* The page that holds these KV_PAGE_POSITIONS tokens behind the text that ends with page `after`
 * (-1: at the beginning); -1: none. */
int32_t prefix_find(const struct prefix_cache *x, int32_t after, const int32_t *ids);
/* Takes note of n tokens that a step has appended to the sequence, whose length is as before the
 * step. mixed: by an arithmetic that other tokens of a prompt would not have. */
void prefix_put(struct prefix_cache *x, const struct kv_seq *s, const int32_t *ids, int32_t n,
                bool mixed);
void prefix_copy(struct prefix_cache *x, int32_t from, int32_t to); /* of a page that goes on */
/* The page of that kind is written anew. */
void prefix_forget(struct prefix_cache *x, int kind, int32_t page);
/* It has positions whose tokens nobody knows. */
void prefix_unknown(struct prefix_cache *x, int32_t page);
bool prefix_holds(const struct prefix_cache *x, int kind, int32_t page); /* it can be found */
/* A page that was just taken holds these tokens behind the text of page `after` (-1: at the
 * beginning), by prefill's arithmetic. */
void prefix_list(struct prefix_cache *x, int32_t page, int32_t after, const int32_t *ids);
/* A page of KV_WINDOW holds the positions of a page's text. */
void prefix_link(struct prefix_cache *x, int32_t page, int32_t window);
/* The number of the text that ends with a page; 0: none. */
uint64_t prefix_text(const struct prefix_cache *x, int32_t page);
/* The page of KV_WINDOW with the same positions as a listed one; -1: it is not there any more. */
int32_t prefix_window(const struct prefix_cache *x, int32_t page);
/* Slots for that many sequences and the checkpoints. */
oato_status state_pool_init(struct state_pool *p, struct arena *a, int32_t seqs,
                            struct oato_error *err);
/* Makes positions [length, length + n) of seq writable; adds page copies that the step must do
 * first to p->copies. */
oato_status kv_reserve(struct kv_pool *p, int32_t seq, int32_t n, struct oato_error *err);
void kv_commit(struct kv_pool *p);
/* Gives an empty sequence as many pages, and a slot if that had one, as one that was saved; their
 * contents are for the caller to fill. Nothing is taken on OATO_EFIT. */
oato_status kv_take(struct kv_pool *p, int32_t seq, const struct kv_seq *saved,
                    struct oato_error *err);
void kv_rollback(struct kv_pool *p);
/* One more block table, or whoever else holds pages, names the page, which may be free. */
void kv_page_share(struct kv_pages *k, int32_t page);
/* A free page, named once and without a text; there must be one. */
int32_t kv_page_take(struct kv_pool *p, int kind);
void kv_page_drop(struct kv_pool *p, int kind, int32_t page); /* it is named once less */
/* The first page that a sequence of that length needs for its next token and those after it, of
 * layers with a window. */
int32_t kv_window_first(const struct kv_pool *p, int32_t length);
/* Gives back those pages that no sequence needs any more. */
void kv_windows_give_back(struct kv_pool *p);
int32_t kv_pages_cached(const struct kv_pool *p); /* free ones with a text */
/* state.c: a slot of its own for a sequence without one. */
void state_take(struct state_pool *p, struct kv_seq *s);
/* What kv_reserve, kv_commit and kv_rollback do, for the sequence's slot. Does nothing where there
 * are no slots. */
void state_reserve(struct state_pool *p, struct kv_seq *s, int32_t seq);
void state_commit(struct state_pool *p);
void state_rollback(struct state_pool *p, struct kv_seq *seqs);
/* Behind a step: keeps the state of a sequence that others may share where a page ends, of others
 * after each input of a prompt. */
void state_keep(struct kv_pool *p, int32_t seq, bool prompt);
/* Whether there is a checkpoint of a text; always where there are no slots. */
bool state_mark_find(const struct state_pool *p, uint64_t text);
/* The slot of that checkpoint; -1: there is none. */
int32_t state_mark_slot(const struct state_pool *p, uint64_t text);
/* A new checkpoint of a text of that length, whose slot the caller fills. */
int32_t state_mark_new(struct state_pool *p, int32_t length, uint64_t text);
/* Gives an empty sequence that state. */
void state_mark_use(struct state_pool *p, struct kv_seq *s, uint64_t text);
void state_fork(struct state_pool *p, const struct kv_seq *from, struct kv_seq *to);
/* Goes back to the last checkpoint at or before the length; returns its length, 0: none. */
int32_t state_truncate(struct state_pool *p, struct kv_seq *s, int32_t seq, int32_t length);

/* -------------------------------------------------------------------------------- experts */

/* A cache of experts while it runs. Arrays by slot and by expert of the layer. */
struct expert_cache {
    const struct lowered_cache *lowered;
    int32_t *slot_of;   /* [experts] what the step reads: the expert's slot; -1: none */
    int32_t *expert_in; /* [slots] expert that is there or on its way; -1: none */
    float *count;       /* [experts] choices, old ones count less */
    int32_t coming;     /* slot that is being filled; -1: none */
    uint64_t arrival;   /* value of the device's transfer event when it is there */
};

/* ------------------------------------------------------------------------------ the engine */

struct engine {
    const struct model *model;
    const struct plan *plan;              /* or NULL */
    const struct engine_options *options; /* of engine_open, while it runs; so are the next two */
    warn_fn warn;
    void *user;         /* of warn and options->on_load */
    struct graph graph; /* fused */
    int32_t spare_ops;  /* behind its operators: lowering_input.n_spare */
    struct engine_device device[DEVICES_MAX];
    const char *device_ids[DEVICES_MAX]; /* for programs to print and report */
    int32_t n_devices, host;
    int32_t context, ubatch, max_seqs, max_rows;
    int32_t max_states;            /* of all rows of a step */
    int32_t state;                 /* lowering_input.state */
    struct lowering_limits limits; /* of all that, by phase */
    oato_dtype kv_dtype;
    bool kv_filed; /* some layer's KV stays in a file */
    bool deterministic, embeddings;
    bool states;              /* of the options */
    engine_observer *observe; /* of the options */
    void *observe_user;
    struct placements placements;
    struct lowered lowered;
    int32_t top_logits; /* as asked for; 0: whole rows */
    struct kv_pool pool;
    /* Layers of each kind on all devices, and the bytes of a page of all of them; the last: states
     * and slots */
    struct kv_layers {
        int32_t n;
        uint64_t page_bytes;
    } kv_layers[KV_KINDS + 1];
    struct arena arena; /* of the pool and of the step descriptor's arrays below, which are sized
                           for the largest step */
    int32_t *ids, *positions, *seq_of, *rows;
    struct step_seq *step_seqs;
    struct timeline *timelines[DEVICES_MAX];
    uint64_t bases[DEVICES_MAX];
    bool phases_alike; /* both phases give a row the same bits on the same devices */
    uint64_t kept_bytes;
    float *kept;   /* a mixed step's decode results while its prefill runs; NULL: steps are never
                      mixed */
    float *merged; /* of each row the candidates of all ranks; NULL: one has them all */
    int32_t *row_number; /* row of a sub-step -> row of the step */
    struct result_row {
        const float *data;
        int32_t candidates; /* number of candidates in data; 0: a row of logits */
    } * result;             /* of the last step */
    int32_t n_rows;
    struct expert_cache *caches; /* as many as lowered.n_caches */
    const int32_t **cached;      /* their slot_of, for steps */
    float count_of_step;         /* what a choice of the next step counts */
    struct engine_expert_stats experts;
    struct step_cores cores;              /* of the host and its simulated devices */
    bool failed;                          /* a device died: no further step */
    struct collective *ranks;             /* NULL: no others */
    bool leads;                           /* rank 0, whose steps the others follow */
    int32_t *message;                     /* ranks.c: a step on its way between ranks */
    struct prompt_identity who;           /* of its prompts; engine 0: none are kept */
    struct prompt_store *prompts;         /* NULL: prompts are not kept in files */
    struct kept_text *keeps, **keeps_end; /* keep.c: texts whose pieces are to be written */
    int32_t n_keeps;
    double prefill_ns;          /* of a token, as measured; 0: not yet */
    double install_ns_byte;     /* of what was read, to where it belongs */
    engine_predictor *predicts; /* of computing; NULL: prefill_ns */
    void *predicts_user;
    struct engine_saved *spare; /* seq_save.c: freed copies of sequences, newest first */
    int32_t n_spare;
    uint64_t load_ns, clock_ns, host_busy_ns;
    uint64_t end_ns; /* of the last step, on the devices' clocks */
};

/* These are steps of engine_open; engine_close releases everything, on failure too.
 * devices.c: opens what the options or the plan name, the host included. */
oato_status devices_open(struct engine *e, struct oato_error *err);
/* bound[i]: index of the engine's device that runs the plan's device i. Warns about each device
 * whose model differs from the plan's. */
oato_status devices_bind(struct engine *e, int32_t *bound, struct oato_error *err);

/* load.c: devices, fused graph, placements. */
oato_status engine_load(struct engine *e, struct oato_error *err);
/* Lowers the programs of both phases, using facts from the open devices. */
oato_status engine_lower(struct engine *e, struct oato_error *err);
/* Whether a row gets the same bits on the same devices in both phases; one program then serves
 * both. */
bool engine_phases_alike(const struct engine *e);
/* Checks that everything fits, then prepares weights and creates KV caches and arenas. */
/* What KV and arenas take, once all else is known; then they are allocated. */
void engine_size(struct engine *e);
oato_status engine_allocate(struct engine *e, struct oato_error *err);

/* seq_save.c: what engine_seq_size needs to know of the layers. */
void seq_sizes_init(struct engine *e);
/* Copies what the sequence's tables and slot name from the devices to host memory (out), in the
 * order of engine_saved, or back. */
oato_status kv_copy(struct engine *e, const struct kv_seq *s, uint8_t *data, bool out,
                    struct oato_error *err);
void spares_free(struct engine *e);

/* keep.c: finds out whose the engine's prompts are, once it can compute, and opens the folder of
 * the options. */
oato_status prompts_open(struct engine *e, struct oato_error *err);
/* Has written what is to be kept, as far as that takes seconds. */
void prompts_close(struct engine *e);
/* Copies a page of KV_ALL (PROMPT_PAGE), of KV_WINDOW or a slot, of all layers, out or in. */
oato_status part_copy(struct engine *e, enum prompt_part part, int32_t page, void *data, bool out,
                      struct oato_error *err);
/* fetch.c: puts a piece of the text of n ids, that end with the page's `ids`, into a page or slot
 * that is free. page: of a PROMPT_PAGE the one before it, of others the one whose text it belongs
 * to; -1: none. Returns the page, which the caller drops, or the slot; -1: a device failed. */
int32_t piece_install(struct engine *e, enum prompt_part part, int32_t page, const int32_t *ids,
                      int32_t n, void *data, struct oato_error *err);
/* Why this engine keeps no prompts; NULL: it can. */
const char *prompts_unable(const struct engine *e);
/* The page or slot that is this part of a listed page's text; -1: it is not there. */
int32_t kv_part(const struct engine *e, enum prompt_part part, int32_t page);
/* kv.c: whether all that the tokens behind the first n pages of a text see is there. */
bool kv_can_begin(const struct kv_pool *p, const int32_t *pages, int32_t n);
/* What computing so many tokens of a prompt is predicted to take. */
double compute_ns(const struct engine *e, int32_t tokens);

/* ranks.c: whether the plan is for as many ranks as there are; sets e->ranks. */
oato_status ranks_check(struct engine *e, struct oato_error *err);
/* Whether the plan's device is opened by this process. */
bool ranks_have(const struct engine *e, const struct plan_device *d);
/* Rank 0, before it runs a step: the others run it, too. */
oato_status ranks_tell(struct engine *e, enum plan_phase phase, const struct step *step,
                       struct oato_error *err);
/* Rank 0: the others need not wait any longer. */
void ranks_end(struct engine *e);

/* step.c. An input runs by its own phase's program, whatever else is in the step. */
enum plan_phase input_phase(const struct engine_input *in);
/* Its rows of logits or states, and those of states beside logits. */
int32_t input_rows(const struct engine_input *in);
int32_t input_states(const struct engine *e, const struct engine_input *in);
/* What is the same in all steps. */
void step_bind(struct engine *e, struct step *step);
/* Fills the descriptor's arrays with the inputs of the phases; pages are reserved already. Rows of
 * states come last. */
void step_fill(struct engine *e, const struct engine_input *inputs, int32_t n, uint32_t phases,
               struct step *step);
/* results.c: rows of the last hidden state in place of logits or beside them. In place of them
 * nothing is computed from the output product on; placements are by index: those of what is left
 * hold. */
oato_status states_choose(struct engine *e, struct oato_error *err);
/* Room for what steps give, once all is lowered. */
oato_status results_prepare(struct engine *e, struct oato_error *err);
/* Notes where the rows of a sub-step are; keep: copied, because another one will overwrite them. */
void results_take(struct engine *e, enum plan_phase phase, const struct step *step, bool keep);

/* engine.c: runs a step that rank 0 has told. */
oato_status step_follow(struct engine *e, enum plan_phase phase, struct step *step,
                        struct oato_error *err);

/* source.c: what a slot's weight is prepared from; kept: its prepared bytes, or NULL to prepare it.
 * The source may read *gathered, which the caller frees after it. */
oato_status slot_source(const struct weight_slot *s, const void *kept, struct weight_source *out,
                        void **gathered, struct oato_error *err);

/* source.c: reads what the slot is prepared from in the background; how many bytes. */
uint64_t slot_prefetch(const struct weight_slot *s);

/* load.c: what each step reads from the file of prepared weights. */
uint64_t stored_bytes(const struct lowered_device *low);
/* The experts of a stored slot, if a step of the host can read some of them alone; else 0. */
uint32_t slot_slices(const struct engine_device *d, const struct weight_slot *s);
void ring_free(const struct engine *e, struct engine_device *d); /* the device uses it no more */
/* What the device needs for the engine. */
struct device_memory engine_memory(const struct engine *e, const struct engine_device *d);
/* That of the host, and what it has read so far. */
void stored_count(const struct engine *e, struct engine_stats *out);

/* caches.c: whether experts can be cached on the device. */
bool caches_possible(const struct engine *e, const struct engine_device *d);
/* Must run before programs are bound. Warns about caches that the plan has and no device can keep.
 */
oato_status caches_init(struct engine *e, struct oato_error *err);
/* After a decode step: counts its choices, takes note of what has arrived, and asks for what should
 * come. */
oato_status caches_step(struct engine *e, const struct step *step, struct oato_error *err);

/* prepared.c: a device's prepared weights in a file of options->prepared_cache
 * (docs/prepared-format.md). Maps a valid file and points `kept` into it; warns about a file that
 * cannot be used. written: prepared_save has just made it. */
void prepared_map(const struct engine *e, struct engine_device *d, bool written);
/* Writes the file from the weights of d, or, before there are any, prepares one after the other for
 * it. */
oato_status prepared_save(const struct engine *e, const struct engine_device *d,
                          struct oato_error *err);

#endif
