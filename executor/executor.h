/*
 * executor.h - the engine: lowers a model's graph and a plan to one program per device and phase,
 * and steps them. Sequences keep their KV in pages of 64 positions behind block tables.
 *
 * engine_open -> engine_seq_create -> engine_step ... -> engine_close. One thread at a time.
 */
#ifndef OATO_EXECUTOR_H
#define OATO_EXECUTOR_H

#include "kernels/device.h"
#include "kernels/ranks/collective.h"
#include "planfmt/planfmt.h"

struct engine; /* opaque */
struct engine_stats;

/* Sees an operator of the model's graph, by its index there, that the host ran: `rows` rows of each
 * input and output, valid during the call. What it writes to an output later operators read. */
typedef void engine_observer(void *user, int32_t op, int32_t rows, const float *const *in,
                             float *const *out);

struct engine_options {
    const char *devices; /* specs to open ("cpu,sim:vram=64MiB"); NULL: those of the plan, or cpu */
    const char *map; /* "sim:0=cpu:0,cuda:1=cuda:0": plan device = opened device; NULL: same id */
    const char *isa; /* forces a level of CPU kernels; NULL: the environment or the best */
    int32_t threads; /* of the cpu device; 0: physical cores less one per GPU */
    int32_t context; /* KV positions of all sequences together; 0: the plan's or 4096 */
    int32_t ubatch;  /* max. tokens per step; 0: the plan's or 256 */
    int32_t seqs;    /* max. sequences per step; 0: the plan's batch or 1 */
    int32_t rows;    /* max. rows of logits per step; 0: seqs */
    /* How many candidates (the largest logits) of each row LOGITS_PICKS gives, where one other
     * device, or other ranks, compute logits; 0: always whole rows. The same on all ranks */
    int32_t top_logits;
    oato_dtype kv;      /* F16, Q8_0 or F32 */
    bool kv_given;      /* false: use the plan's type, or F16 */
    bool no_prefixes;   /* engine_seq_begin shares nothing */
    bool embeddings;    /* rows are the model's last hidden states instead of logits */
    bool states;        /* steps may give rows of either (LOGITS_STATES) */
    bool deterministic; /* one numerics class for all phases */
    bool strict;        /* refuse a plan that was made for another machine */
    bool timing_only;   /* simulated devices keep time but compute nothing: for measuring */
    struct sparse_choice sparse;   /* which neurons are skipped */
    const struct neurons *neurons; /* borrowed; where sparse takes thresholds from; NULL: nowhere */
    /* For counting: gets every operator, in order. Without a plan only, and then nothing is fused,
     * so that every value of the graph can be seen. NULL: nobody. observe_user is its first
     * argument. */
    engine_observer *observe;
    void *observe_user;
    /* The ranks between which the plan divides the model, borrowed until engine_close; NULL, or one
     * rank: this process runs all of the plan */
    struct collective *ranks;
    /* folder where prepared weights are saved; NULL: none, or ~/.cache/oato if the plan streams
     * weights from there */
    const char *prepared_cache;
    /* Folder where prompts are kept, for later runs, too, and how many bytes it may hold; NULL:
     * none. OATO_EIO: nothing can be written there. With no_prefixes, with several ranks and where
     * KV stays in a file nothing is kept, and a warning says so */
    const char *prompt_cache;
    uint64_t prompt_cache_bytes;
    bool saves_texts; /* text_file.h will be used */
    /* Progress while weights are prepared: `bytes` of `of` bytes are done on the device. May be
     * NULL. `user` is that of engine_open. */
    void (*on_load)(void *user, const char *device, uint64_t bytes, uint64_t of);
};

/* The model and plan (may be NULL: everything on the CPU) are borrowed until engine_close. warn
 * gets a line for each warning, such as a plan made for another machine. */
oato_status engine_open(const struct model *m, const struct plan *plan,
                        const struct engine_options *options, warn_fn warn, void *user,
                        struct engine **out, struct oato_error *err);
void engine_close(struct engine *e);
/* What engine_open would take of each device for these: the devices are opened for a moment, and no
 * weight is prepared. What is free now does not matter. */
oato_status engine_measure(const struct model *m, const struct plan *plan,
                           const struct engine_options *options, warn_fn warn, void *user,
                           struct engine_stats *out, struct oato_error *err);

/* With several ranks: each calls it once all have opened their engines. OATO_EFILE: model, plan,
 * program or options differ between them. Then rank 0 uses its engine as if it were alone, except
 * that it cannot save sequences, and the others call engine_follow, which runs their parts of its
 * steps and returns when it closes. */
oato_status engine_join(struct engine *e, struct oato_error *err);
oato_status engine_follow(struct engine *e, struct oato_error *err);

/* Calls warn with a line for each device that runs slower than it should, with the reason. */
void engine_warnings(const struct engine *e, warn_fn warn, void *user);

/* --------------------------------------------------------------------------- sequences ---- */

/* New sequences are empty; ids are small numbers, reused after free. */
oato_status engine_seq_create(struct engine *e, int32_t *seq, struct oato_error *err);
void engine_seq_free(struct engine *e, int32_t seq);
/* OATO_EUSAGE when there is no such sequence. */
oato_status engine_seq_check(const struct engine *e, int32_t seq, struct oato_error *err);
/* *to shares the pages and the state of `from` until either writes (copy on write), but not its
 * checkpoints. */
oato_status engine_seq_fork(struct engine *e, int32_t from, int32_t *to, struct oato_error *err);
/* Gives an empty sequence the pages of KV, still there from any sequence, that hold what the first
 * of n ids begin with: whole pages, but at least one token is left to be fed. Returns its length
 * then. Fewer pages where a model's windows are not there any more, or its recurrent state at the
 * end of the last page was not kept: few states are, of what begins more than one text and of the
 * last whole page of each. 0 with engine_options.no_prefixes. */
int32_t engine_seq_begin(struct engine *e, int32_t seq, const int32_t *ids, int32_t n);
/* How many of the next n tokens of a prompt that goes on with `left` should be fed in one step:
 * all, unless the state behind the first of them is to be kept: others begin with these tokens, or
 * they end with the last whole page of a long prompt. */
int32_t engine_seq_piece(const struct engine *e, int32_t seq, int32_t n, int32_t left);
/* Forgets all positions from `length` on. A model with recurrent state goes back to the last of a
 * few checkpoints at or before it, or to 0, and one with windows to 0 when pages that they need
 * there have been given back: engine_seq_length tells how many positions are left, and those after
 * it must be fed again. Checkpoints are made at the end of each prompt input. */
oato_status engine_seq_truncate(struct engine *e, int32_t seq, int32_t length,
                                struct oato_error *err);
/* 0 when there is no such sequence. */
int32_t engine_seq_length(const struct engine *e, int32_t seq);
/* What a sequence holds. */
struct engine_seq_size {
    int32_t length; /* positions */
    int32_t pages;  /* of layers without a window, that no other sequence shares */
    int32_t extents;
    uint64_t bytes; /* that saving it copies, in that many pieces */
};
struct engine_seq_size engine_seq_size(const struct engine *e, int32_t seq);
/* A copy, in host memory, of what a sequence holds on all devices: KV pages and recurrent state,
 * but not the checkpoints. The sequence stays as it is. Free the copy before the engine is closed.
 */
struct engine_saved;
oato_status engine_seq_save(struct engine *e, int32_t seq, struct engine_saved **out,
                            struct oato_error *err);
/* Makes a new sequence of it; any number of times. OATO_EFIT when no sequence, or too few pages,
 * are free: nothing is changed then. */
oato_status engine_seq_restore(struct engine *e, const struct engine_saved *s, int32_t *seq,
                               struct oato_error *err);
struct engine_seq_size engine_saved_size(const struct engine_saved *s);
void engine_saved_free(struct engine_saved *s);
/* ------------------------------------------------------------------- prompts that last ---- */

/* With engine_options.prompt_cache; without it these do nothing. */

/* Whole pages of this text, as far as engine_seq_begin would find them, and the states that are
 * kept behind some, are to be written, if reading them is expected to be faster than computing.
 * Nothing is copied yet but the ids. */
void engine_keep(struct engine *e, const int32_t *ids, int32_t n);
/* Between steps: copies some of that for the thread that writes, for about `ns` nanoseconds, but at
 * least one piece. */
enum engine_keeping {
    KEEP_DONE, /* nothing is left */
    KEEP_MORE, /* to be called again */
    KEEP_FULL  /* not before some has been written */
};
enum engine_keeping engine_keep_some(struct engine *e, uint64_t ns);

/* Has read from the folder what engine_seq_begin would not find in memory of n ids. NULL: nothing,
 * or computing is expected to be faster. */
struct engine_fetch; /* opaque; end it before the engine is closed */
struct engine_fetch *engine_fetch_begin(struct engine *e, const int32_t *ids, int32_t n);
/* Between steps: puts what was read where it belongs, for about `ns` nanoseconds. False: that was
 * all. */
bool engine_fetch_some(struct engine_fetch *f, uint64_t ns);
/* Until there is something to put, or for so long at most. */
void engine_fetch_wait(struct engine_fetch *f, uint64_t most_ns);
/* Frees it. seq: an empty sequence, which then begins with all that is in memory, as by
 * engine_seq_begin, whose result is returned; -1: none. */
int32_t engine_fetch_end(struct engine_fetch *f, int32_t seq);

/* Predicts the nanoseconds of computing so many tokens of a prompt; 0: it does not know yet. NULL,
 * and then: from what prompts took so far. */
typedef double engine_predictor(void *user, int32_t tokens);
void engine_predict(struct engine *e, engine_predictor *predict, void *user);

struct engine_prompt_stats {
    uint64_t used, tokens;              /* fetches that brought something, and their tokens */
    uint64_t bytes, most_bytes, pieces; /* of the folder, of all models */
    uint64_t waiting_bytes;             /* to be written */
    uint64_t written, written_bytes;    /* pieces so far */
    uint64_t read, read_bytes, evicted, failed; /* pieces so far */
    double read_bytes_per_s;
};
/* Any thread. False, and zeros: no prompts are kept. */
bool engine_prompts(const struct engine *e, struct engine_prompt_stats *out);

/* Appends the ids of the devices that hold KV or state: "cpu:0 cuda:0". */
void engine_kv_devices(const struct engine *e, struct text *out);
/* Of layers without a window; those of the others always suffice. */
int32_t engine_free_pages(const struct engine *e);

/* ------------------------------------------------------------------------------- steps ---- */

/* Of which tokens. PICKS: of the last, but candidates suffice; where one input of a phase wants
 * whole rows all get these. STATES: the last hidden states of all, which logits are made of, with
 * engine_options.states or .embeddings; only for inputs that are part of a prompt. */
enum engine_logits { LOGITS_NONE, LOGITS_LAST, LOGITS_PICKS, LOGITS_ALL, LOGITS_STATES };

struct engine_input {
    int32_t seq;
    const int32_t *ids; /* appended to the sequence */
    int32_t n;
    enum engine_logits logits;
    bool prompt; /* part of a prompt: uses prefill's program and arithmetic even for one token */
};

/* One step over the inputs (each sequence at most once; together at most ubatch tokens). An input
 * runs by the program and arithmetic of its own phase (decode for one token that is not part of a
 * prompt, else prefill), so the other inputs of the step do not change its bits. Rows of logits are
 * numbered in order of the inputs, whatever their phase. After an error the sequences are as before
 * the step. */
oato_status engine_step(struct engine *e, const struct engine_input *inputs, int32_t n,
                        struct oato_error *err);
/* A row of logits of the last step, vocab floats; valid until the next step. With
 * engine_options.embeddings, and for LOGITS_STATES, a hidden state, state_width floats. NULL when
 * the step gave candidates instead (LOGITS_PICKS). */
const float *engine_logits(const struct engine *e, int32_t row);
/* *n candidates of a row, as OP_TOP_K makes them: ids, then logits, both by descending logit. NULL
 * when the step gave whole rows instead. */
const float *engine_candidates(const struct engine *e, int32_t row, int32_t *n);
/* Feeds n tokens in chunks of at most ubatch, as a prompt; where that is 1, as decode does. With
 * LOGITS_LAST or _PICKS only the last token gets logits.
 * on_rows (may be NULL) is called after each chunk with its rows of logits or of candidates; first
 * = index of the first row's token within ids. Returns OATO_NEGATIVE with "interrupted" when
 * oato_interrupted gets set. */
oato_status
engine_feed(struct engine *e, int32_t seq, const int32_t *ids, int32_t n, enum engine_logits logits,
            void (*on_rows)(void *user, const float *logits, int32_t first, int32_t rows),
            void *user, struct oato_error *err);

/* ------------------------------------------------------------------------- information ---- */

struct engine_device_stats {
    struct device_info info;
    uint64_t weight_bytes, kv_bytes, arena_bytes, workspace_bytes;
    uint64_t staging_bytes; /* room for streamed weights */
    uint64_t memory_bytes;  /* all of that, and what else the device keeps for the engine */
    uint64_t locked_bytes;  /* of the host: besides, while there is room, page-locked copies of
                               weights that are streamed */
};

/* Of caches of experts (struct plan_cache). */
struct engine_expert_stats {
    int32_t caches, slots;   /* in all of them */
    uint64_t choices, hits;  /* of experts that could be there; hits: that were */
    uint64_t refills, bytes; /* experts that came later, and what was copied for that */
};
/* The share of choices that found their expert in its cache. */
static inline double expert_hits(const struct engine_expert_stats *x)
{
    return x->choices ? (double)x->hits / (double)x->choices : 0;
}

struct engine_stats {
    int32_t vocab, context, ubatch, seqs, rows; /* rows: of logits per step */
    int32_t row_width;                          /* of rows that are no states */
    int32_t states, state_width;                /* rows of states per step; 0: none are given */
    bool embeddings;                            /* as in the options */
    oato_dtype kv;
    int32_t n_devices;
    struct engine_device_stats device[DEVICES_MAX];
    int32_t candidates[PHASE_COUNT];    /* that LOGITS_PICKS gives; 0: whole rows */
    int32_t copies[PHASE_COUNT];        /* per step: (value, other device that reads it) pairs */
    uint64_t copy_bytes[PHASE_COUNT];   /* of one row each */
    uint64_t stream_bytes[PHASE_COUNT]; /* of prepared weights that a step streams from the host, or
                                           from a file to it */
    uint64_t stored_bytes;              /* part of these that is read from the file */
    uint64_t stored_read_bytes; /* what was read from it since engine_open, in whole blocks; ahead
                                   of the next step, too */
    struct engine_expert_stats experts; /* since engine_open */
    /* Of layers without a window; cached: free ones that engine_seq_begin may find */
    int32_t pages, pages_free, pages_cached;
    uint64_t load_ns;
    uint64_t mapped_bytes; /* of weights found in prepared_cache */
    uint64_t clock_ns; /* sum over steps of the longest device clock interval: real time, or virtual
                          time when a sim device takes part */
    uint64_t host_busy_ns; /* part of clock_ns in which the host computed, not waiting for another
                              device or for the file */
};
void engine_get_stats(const struct engine *e, struct engine_stats *out);
/* Prints the programs of both phases. */
void engine_dump_programs(const struct engine *e, FILE *out);
/* The engine's device with that id, for error injection in tests; NULL when there is none. */
struct oato_device *engine_borrow_device(struct engine *e, const char *id);

#endif
