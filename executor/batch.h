/*
 * batch.h - many requests on one engine. A step carries one token of each decoding request and
 * fills the rest of the engine's `ubatch` tokens with pieces of prompts, in order of arrival. Who
 * decodes is not to wait for a step that was made wide for a prompt alone: beside a decoding
 * request prompts get at most BATCH_BESIDE tokens, unless weights are streamed for them, which
 * takes as long for few tokens as for many. How requests share steps affects only speed: each
 * request gets the same tokens as if run alone.
 *
 * batch_create -> batch_add ... -> batch_step while batch_requests -> batch_free. One thread at a
 * time; every callback runs on that thread, inside batch_step, and may call batch_add and
 * batch_cancel.
 *
 * Without a schedule, admission is first come, first served: a request waits until a sequence is
 * free and the KV cache has room for its prompt and the most that it may generate, in addition to
 * everything that admitted requests may still need. An admitted request is therefore never cut
 * short or evicted by another. A request without a limit reserves the whole context and so may run
 * alone.
 *
 * A token whose constraint takes long to look at (SAMPLER_MORE) does not hold up the others: its
 * request sits out steps, each of which works on it for a few milliseconds at most.
 *
 * Where prompts last (engine_options.prompt_cache) a request whose prompt is being read runs, but
 * is not fed until that is in memory; what was computed is copied for the thread that writes,
 * between steps and a few pieces at a time.
 *
 * A schedule (batch_options) decides instead before every step who runs, and may take the KV cache
 * of a running request away: swap it out to host memory, or drop it, to be computed again from the
 * prompt and the answer so far. No token is sampled twice. Computed again, an answer is fed as a
 * prompt is: its further tokens are the same where both phases have the same arithmetic, as on one
 * CPU and with engine_options.deterministic.
 */
#ifndef OATO_BATCH_H
#define OATO_BATCH_H

#include "executor/executor.h"
#include "text/sampler.h"

struct batch;   /* opaque */
struct batched; /* a request of it */

enum batch_end {
    BATCH_STOPPED,   /* on_token returned false, or the sampler allows no token: the text is over */
    BATCH_LIMIT,     /* `most` tokens were generated */
    BATCH_CONTEXT,   /* the context is full */
    BATCH_CANCELLED, /* batch_cancel, or batch_free */
    BATCH_REFUSED,   /* the sampler's constraint cannot go on, and knows why (SAMPLER_FAILED) */
};

/* Where a request is. */
enum batch_state { BATCH_WAITING, BATCH_RUNNING, BATCH_SWAPPED };

/* What a schedule wants of it. What is impossible (no sequence or no pages are free) is left for a
 * later step. */
enum batch_action {
    BATCH_KEEP,     /* stays as it is */
    BATCH_RUN,      /* waiting or swapped: takes part in steps from now on */
    BATCH_SWAP_OUT, /* running: its KV and state go to host memory, until it runs again */
    BATCH_EVICT,    /* running or swapped: its KV is dropped; it waits, and is computed again */
};

/* What a schedule keeps with a request from step to step; zeros at first. */
struct batch_memo {
    int64_t charged;   /* of its tokens */
    int32_t preempted; /* times */
};

/* A request before a step, for the schedule. */
struct batch_view {
    uint64_t id;
    void *user; /* of the request */
    enum batch_state state;
    int32_t prompt, generated; /* tokens */
    int32_t most;              /* of batch_request */
    int32_t fed; /* of prompt + generated: how many are in its KV; a waiting one's are fed first */
    int32_t length; /* positions that it holds, running or swapped */
    /* Of a running one, set by batch_view_measure: zeros until then */
    int32_t pages;       /* that it alone holds: what taking them frees; swapped: what it needs */
    uint64_t bytes;      /* that swapping it out, or back in, copies */
    int32_t extents;     /* in so many pieces */
    bool pinned;         /* on a sequence of the caller's: always runs */
    uint64_t arrived_ns; /* now_ns() of batch_add */
    uint64_t service_ns; /* its share of the steps that it took part in */
    enum batch_action action; /* for the schedule to set; BATCH_KEEP */
    struct batch_memo *memo;  /* for the schedule to change */
    /* Of batch.c: to be left alone */
    const struct batch *batch;
    struct batched *request;
};
/* Sets pages, bytes and extents of a running request. It looks at each of its pages: to be called
 * only when that matters. */
void batch_view_measure(struct batch_view *v);

enum { BATCH_BESIDE = 512 };

struct batch_room {
    int32_t pages, pages_free; /* of KV_PAGE_POSITIONS positions */
    int32_t seqs;              /* that may run at a time */
    int32_t ubatch;            /* tokens of the next step */
    uint64_t now_ns;
};

/* What a preemption or its end took, for those who predict it. */
enum batch_restore { RESTORE_SWAP_OUT, RESTORE_SWAP_IN, RESTORE_RECOMPUTE, RESTORE_KINDS };
struct batch_restored {
    void *user; /* of the request */
    enum batch_restore what;
    int32_t tokens; /* positions */
    uint64_t bytes;
    int32_t extents;
    uint64_t ns; /* RECOMPUTE: its share of the steps */
};

struct batch_request {
    const int32_t *ids; /* the prompt, at least one token; copied */
    int32_t n_ids;
    int32_t most; /* maximum tokens to generate; -1: no limit */
    int32_t seq;  /* the caller's sequence to continue, which no other request uses and which shares
                     no pages; kept at the end. -1: a new one, freed at the end */
    struct sampler *sampler; /* borrowed until on_end; receives the prompt and every token; NULL:
                                there is no answer, and on_row gets hidden states, with
                                engine_options.embeddings or .states */
    /* When its prompt begins to be computed, which so many of its tokens need not be
     * (engine_seq_begin). Once; NULL: nobody wants to know. */
    void (*on_begin)(void *user, int32_t cached);
    /* After each step that computed a piece of its prompt: so many of its tokens are in the KV
     * cache. NULL: nobody wants to know. */
    void (*on_fed)(void *user, int32_t fed);
    /* The row of each token of the prompt, once, in their order, before any token of the answer:
     * logits, or without a sampler, where `most` is 0, hidden states. Nothing of the prompt is
     * taken from what the KV cache has already, and a step computes no more of it than its rows of
     * logits (engine_options.rows) allow. */
    void (*on_row)(void *user, const float *row);
    /* Called for each generated token. Returns false when the token ends the answer; it is then not
     * part of the answer. */
    bool (*on_token)(void *user, int32_t id);
    /* The last call for a request. If it ran on the caller's sequence, engine_seq_length tells what
     * that now holds. */
    void (*on_end)(void *user, enum batch_end why);
    void *user;
};

struct batch_options {
    int32_t context; /* maximum positions of one request; 0: as many as the engine has */
    /* Called before every step, even one that has nothing to do: the place to add requests that
     * arrived and to cancel abandoned ones. May be NULL. */
    void (*before_step)(void *user, struct batch *b);
    /* Sets the actions of n requests and may reorder them: prompts are fed in that order, and when
     * pages run short the last ones pause first. If nobody could go on, the last one of several is
     * evicted. NULL: admission as above, and nobody is preempted. */
    void (*schedule)(void *user, struct batch_view *v, int32_t n, const struct batch_room *room);
    void (*restored)(void *user, const struct batch_restored *r); /* may be NULL */
    void *user;
};

/* A step with any prompt tokens counts as prompt; decode_* cover the other steps. */
struct batch_times {
    uint64_t prompt_tokens, prompt_ns, decode_tokens, decode_ns, decode_steps;
    uint64_t steps, inputs; /* of either kind, and the requests that took part in them */
    uint64_t evictions, recomputed_tokens, swaps_out, swaps_in, swapped_bytes;
};

/* The engine is borrowed until batch_free. */
oato_status batch_create(struct engine *e, const struct batch_options *options, struct batch **out,
                         struct oato_error *err);
/* Ends the remaining requests with BATCH_CANCELLED. */
void batch_free(struct batch *b);

/* Adds a copy of *r; *id (may be NULL) gets its id. Nothing is added on OATO_EFIT (the context
 * cannot hold the prompt) or OATO_EUSAGE (a token is outside the vocabulary). */
oato_status batch_add(struct batch *b, const struct batch_request *r, uint64_t *id,
                      struct oato_error *err);
/* Ends the request at the next step; no effect if it has already ended. */
void batch_cancel(struct batch *b, uint64_t id);
/* Requests that have not ended, waiting ones included. */
int32_t batch_requests(const struct batch *b);

/* One step: ends cancelled requests, admits waiting ones, computes at most `ubatch` tokens,
 * samples. After an error all requests are as before the step, except those that ended. Allocates
 * nothing, except for a row that a sampler keeps (SAMPLER_MORE). */
oato_status batch_step(struct batch *b, struct oato_error *err);
/* For a thread that has no step to make: copies some of the prompts that are to be kept
 * (engine_keep_some). */
enum engine_keeping batch_keep(struct batch *b);
void batch_get_times(const struct batch *b, struct batch_times *out);

#endif
