/*
 * batch_internal.h - shared by batch.c, which makes steps, and batch_schedule.c, which decides who
 * takes part in them.
 */
#ifndef OATO_BATCH_INTERNAL_H
#define OATO_BATCH_INTERNAL_H

#include "executor/batch.h"

struct batched {
    struct batched *next;
    uint64_t id;
    struct batch_request ask; /* its ids are those of `text` */
    int32_t *text;            /* prompt, then answer; room for all of it */
    int32_t n_text;
    int32_t seq;     /* -1: waiting for admission, or swapped */
    int32_t longest; /* once admitted without a schedule: what its sequence may grow to */
    int32_t fed, generated;
    int32_t rows;   /* on_row was called so often */
    bool prompting; /* text is fed as a prompt, until all of it is */
    bool begun;     /* on_begin was called */
    bool again;     /* it was fed before, and evicted */
    bool picking;   /* its sampler goes on with a token; what is fed waits for that */
    bool cancelled, ended;
    enum batch_end why;
    struct engine_fetch *fetch; /* what its prompt begins with is read; until then it is not fed */
    struct engine_saved *saved; /* swapped out */
    uint64_t arrived_ns, service_ns, again_ns;
    struct batch_memo memo;
};

struct batch {
    struct engine *engine;
    struct batch_options options;
    struct batched *first; /* in the order in which they are served */
    uint64_t ids;          /* ids handed out so far */
    int32_t n_requests, vocab, context, ubatch, seqs, pages;
    int32_t beside;              /* tokens of prompts in a step that decodes, too */
    int32_t rows, states;        /* of logits, and of states, that a step has room for */
    int32_t candidates;          /* that a step of any phase gives for LOGITS_PICKS */
    struct engine_input *inputs; /* of a step, seqs */
    struct batched **of;
    struct batch_view *views; /* room for n_views */
    int32_t n_views;
    bool embeddings;  /* rows instead of answers */
    uint64_t step_ns; /* that the last step with inputs took */
    struct batch_times times;
};

/* Rows of its prompt are still to be told. */
static inline bool wants_rows(const struct batched *r)
{
    return r->ask.on_row && r->rows < r->ask.n_ids;
}

/* Decides who runs: by the schedule, or first come, first served. */
oato_status batch_admit(struct batch *b, struct oato_error *err);
/* A running request begins with what is in memory of its text. */
void batch_begin(const struct batch *b, struct batched *r);
/* Drops what it has in the KV cache; it waits and will be computed again. */
void batch_evict(struct batch *b, struct batched *r);
void batch_restore_tell(const struct batch *b, const struct batch_restored *what);

#endif
