/*
 * executor.h - the engine: lowers a model's graph and a plan to one program per device and phase,
 * and steps them. Sequences keep their KV in pages of 64 positions behind block tables.
 *
 * engine_open -> engine_seq_create -> engine_step ... -> engine_close. One thread at a time.
 */
#ifndef OATO_EXECUTOR_H
#define OATO_EXECUTOR_H

#include "kernels/device.h"
#include "planfmt/planfmt.h"

struct engine; /* opaque */

struct engine_options {
    const char *devices; /* specs to open ("cpu,sim:vram=64MiB"); NULL: those of the plan, or cpu */
    const char *map; /* "sim:0=cpu:0,cuda:1=cuda:0": plan device = opened device; NULL: same id */
    const char *isa; /* forces a level of CPU kernels; NULL: the environment or the best */
    int32_t threads; /* of the cpu device; 0: physical cores but for one a GPU */
    int32_t context; /* positions of KV in all sequences together; 0: the plan's or 4096 */
    int32_t ubatch;  /* most tokens of a step; 0: the plan's or 512 */
    int32_t seqs;    /* most sequences of a step; 0: the plan's batch or 1 */
    int32_t rows;    /* most rows with logits of a step; 0: seqs */
    /* Where all logits are made on a device that is not the host: so many candidates of a row, the
     * largest, are all that leaves it; 0: whole rows */
    int32_t top_logits;
    oato_dtype kv;      /* F16, Q8_0 or F32 */
    bool kv_given;      /* else the plan's, or F16 */
    bool deterministic; /* one numerics class for all phases */
    bool strict;        /* refuse a plan that was made for another machine */
    bool timing_only;   /* simulated devices take their time and compute nothing: for measuring */
    const char *prepared_cache; /* folder that keeps prepared weights; NULL: none */
    /* While weights are prepared: so many of the bytes of a device are; may be NULL. Gets the
     * `user` of engine_open. */
    void (*on_load)(void *user, const char *device, uint64_t bytes, uint64_t of);
};

/* The model and plan (may be NULL: everything on the CPU) are borrowed until engine_close. warn
 * gets one line when the plan was made for another machine. */
oato_status engine_open(const struct model *m, const struct plan *plan,
                        const struct engine_options *options, warn_fn warn, void *user,
                        struct engine **out, struct oato_error *err);
void engine_close(struct engine *e);

/* Gives warn a line for each device that runs slower than it should, and says why. */
void engine_warnings(const struct engine *e, warn_fn warn, void *user);

/* --------------------------------------------------------------------------- sequences ---- */

/* New sequences are empty; ids are small numbers used again after free. */
oato_status engine_seq_create(struct engine *e, int32_t *seq, struct oato_error *err);
void engine_seq_free(struct engine *e, int32_t seq);
/* OATO_EUSAGE when there is no such sequence. */
oato_status engine_seq_check(const struct engine *e, int32_t seq, struct oato_error *err);
/* *to shares the pages of `from` until either writes (copy on write). */
oato_status engine_seq_fork(struct engine *e, int32_t from, int32_t *to, struct oato_error *err);
/* Forgets all positions from `length` on. */
oato_status engine_seq_truncate(struct engine *e, int32_t seq, int32_t length,
                                struct oato_error *err);
int32_t engine_seq_length(const struct engine *e, int32_t seq);
int32_t engine_free_pages(const struct engine *e);

/* ------------------------------------------------------------------------------- steps ---- */

enum engine_logits { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL };

struct engine_input {
    int32_t seq;
    const int32_t *ids; /* appended to the sequence */
    int32_t n;
    enum engine_logits logits;
    bool prompt; /* part of a prompt: prefill's program and arithmetic even if it is one token */
};

/* One step over the inputs (each sequence at most once; together at most ubatch tokens). An input
 * runs by the program and arithmetic of its own phase, decode for one token that is no prompt,
 * prefill for all else: who else is in the step does not change its bits. Rows of logits are
 * numbered in order of the inputs, whatever their phase. After an error the sequences are as before
 * the step. */
oato_status engine_step(struct engine *e, const struct engine_input *inputs, int32_t n,
                        struct oato_error *err);
/* Row of the last step, vocab floats; valid until the next step. NULL when there are candidates
 * instead. */
const float *engine_logits(const struct engine *e, int32_t row);
/* *n candidates of a row, as OP_TOP_K gives them: ids, then logits, both in falling order of the
 * logit. NULL when there is the whole row instead. */
const float *engine_candidates(const struct engine *e, int32_t row, int32_t *n);
/* Feeds n tokens in chunks of at most ubatch; LOGITS_LAST concerns the last token only. on_rows
 * (may be NULL) is called after each chunk with the rows of logits, or of candidates, that it gave:
 * first = index of the first row's token within ids. OATO_NEGATIVE and "interrupted" when
 * oato_interrupted was set meanwhile. */
oato_status
engine_feed(struct engine *e, int32_t seq, const int32_t *ids, int32_t n, enum engine_logits logits,
            void (*on_rows)(void *user, const float *logits, int32_t first, int32_t rows),
            void *user, struct oato_error *err);

/* ------------------------------------------------------------------------- information ---- */

struct engine_device_stats {
    struct device_info info;
    uint64_t weight_bytes, kv_bytes, arena_bytes, workspace_bytes;
    uint64_t staging_bytes; /* room for streamed weights */
};

struct engine_stats {
    int32_t vocab, context, ubatch, seqs;
    oato_dtype kv;
    int32_t n_devices;
    struct engine_device_stats device[DEVICES_MAX];
    int32_t candidates[PHASE_COUNT];    /* of a row, that leave their device; 0: all its logits */
    int32_t copies[PHASE_COUNT];        /* in one step: (value, other device that reads it) pairs */
    uint64_t copy_bytes[PHASE_COUNT];   /* of one row each */
    uint64_t stream_bytes[PHASE_COUNT]; /* of weights that a step copies from the host, prepared */
    uint64_t load_ns;
    uint64_t mapped_bytes; /* of weights that prepared_cache had */
    uint64_t steps;
    uint64_t clock_ns;     /* sum over steps of the longest device clock interval: real time, or the
                              virtual time when a sim device takes part */
    uint64_t host_busy_ns; /* of clock_ns: while the host computed and waited for no other device */
};
void engine_get_stats(const struct engine *e, struct engine_stats *out);
/* Prints the programs of both phases. */
void engine_dump_programs(const struct engine *e, FILE *out);
/* A device of the engine, for error injection in tests; NULL when there is none. */
struct oato_device *engine_borrow_device(struct engine *e, const char *id);

/* ---------------------------------------------------------------------------- sampling ---- */

struct sampler_options {
    float temperature;    /* 0: the most likely token */
    int32_t top_k;        /* 0: off */
    float top_p, min_p;   /* 1 and 0: off */
    float repeat_penalty; /* 1: off */
    int32_t repeat_last;  /* tokens looked back at */
    uint64_t seed;
};
struct sampler;
struct sampler *sampler_create(const struct sampler_options *o, int32_t vocab); /* NULL: memory */
void sampler_free(struct sampler *s);
/* Tells it of a token that is part of the text (prompt or generated). */
void sampler_accept(struct sampler *s, int32_t id);
/* The next token by these logits. Same seed, same logits: same token, on any machine. */
int32_t sampler_next(struct sampler *s, const float *logits);
/* How many of the largest logits of a row decide every token by these options, for an engine's
 * top_logits; 0: all are needed. */
int32_t sampler_candidates(const struct sampler_options *o, int32_t vocab);
/* The token that sampler_next gives for the whole row, by at least so many of its largest: n ids,
 * then their logits, as engine_candidates has them. */
int32_t sampler_next_of(struct sampler *s, const float *candidates, int32_t n);

#endif
