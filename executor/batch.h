/*
 * batch.h - many requests on one engine. A step carries one token of each decoding request and
 * fills the rest of the engine's `ubatch` tokens with pieces of prompts, in order of arrival. How
 * requests share steps affects only speed: each request gets the same tokens as if run alone.
 *
 * batch_create -> batch_add ... -> batch_step while batch_requests -> batch_free. One thread at a
 * time; every callback runs on that thread, inside batch_step, and may call batch_add and
 * batch_cancel.
 *
 * Admission is first come, first served: a request waits until a sequence is free and the KV cache
 * has room for its prompt and the most that it may generate, in addition to everything that
 * admitted requests may still need. An admitted request is therefore never cut short or evicted by
 * another. A request without a limit reserves the whole context and so may run alone.
 */
#ifndef OATO_BATCH_H
#define OATO_BATCH_H

#include "executor/executor.h"

struct batch; /* opaque */

enum batch_end {
    BATCH_STOPPED,   /* on_token returned false: the text is complete */
    BATCH_LIMIT,     /* `most` tokens were generated */
    BATCH_CONTEXT,   /* the context is full */
    BATCH_CANCELLED, /* batch_cancel, or batch_free */
};

struct batch_request {
    const int32_t *ids; /* the prompt, at least one token; borrowed until on_end */
    int32_t n_ids;
    int32_t most; /* maximum tokens to generate; -1: no limit */
    int32_t seq;  /* the caller's sequence to continue, which no other request uses and which shares
                     no pages; kept at the end. -1: a new one, freed at the end */
    struct sampler *sampler; /* borrowed until on_end; receives the prompt and every token */
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
    void *user;
};

/* A step with any prompt tokens counts as prompt; decode_* cover the other steps. */
struct batch_times {
    uint64_t prompt_tokens, prompt_ns, decode_tokens, decode_ns, decode_steps;
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
 * nothing. */
oato_status batch_step(struct batch *b, struct oato_error *err);
void batch_get_times(const struct batch *b, struct batch_times *out);

#endif
