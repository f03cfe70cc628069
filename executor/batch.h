/*
 * batch.h - many requests on one engine. A step carries one token of each request that decodes and,
 * in what is left of the engine's `ubatch` tokens, pieces of prompts in the order of arrival. How
 * requests meet in steps changes speed and nothing else: each gets the tokens that it gets alone.
 *
 * batch_create -> batch_add ... -> batch_step while batch_requests -> batch_free. One thread at a
 * time; every callback runs on it, inside batch_step, and may call batch_add and batch_cancel.
 *
 * Admission is first come, first served: a request waits until there is a sequence for it and until
 * the KV cache holds, beside all that admitted requests may still need, its prompt and the most
 * that it may generate. An admitted request is therefore never cut short or undone by another; one
 * without a limit counts with the whole context and so runs without company.
 */
#ifndef OATO_BATCH_H
#define OATO_BATCH_H

#include "executor/executor.h"

struct batch; /* opaque */

enum batch_end {
    BATCH_STOPPED,   /* on_token said so: the text is complete */
    BATCH_LIMIT,     /* `most` tokens were generated */
    BATCH_CONTEXT,   /* the context is full */
    BATCH_CANCELLED, /* batch_cancel, or batch_free */
};

struct batch_request {
    const int32_t *ids; /* the prompt, at least one token; borrowed until on_end */
    int32_t n_ids;
    int32_t most; /* tokens to generate at most; -1: no limit */
    int32_t seq;  /* the caller's sequence to go on with, of this request alone and without
                     shared pages, kept at the end; -1: a new one, freed at the end */
    struct sampler *sampler; /* borrowed until on_end; is told of the prompt and of every token */
    /* A token was generated. False: it ends the answer and does not belong to it. */
    bool (*on_token)(void *user, int32_t id);
    /* The last call for a request. What a sequence of the caller holds then: engine_seq_length. */
    void (*on_end)(void *user, enum batch_end why);
    void *user;
};

struct batch_options {
    int32_t context; /* most positions of one request; 0: as many as the engine has */
    /* Before every step, also one that turns out to have nothing to do: the place to add requests
     * that arrived and to cancel those whose reader left. May be NULL. */
    void (*before_step)(void *user, struct batch *b);
    void *user;
};

/* A step with prompt tokens in it counts as prompt; decode_tokens are those of the other steps. */
struct batch_times {
    uint64_t prompt_tokens, prompt_ns, decode_tokens, decode_ns, decode_steps;
};

/* The engine is borrowed until batch_free. */
oato_status batch_create(struct engine *e, const struct batch_options *options, struct batch **out,
                         struct oato_error *err);
/* What is left ends as cancelled. */
void batch_free(struct batch *b);

/* Takes a copy of *r; *id (may be NULL) names it. OATO_EFIT when the context cannot hold its
 * prompt, OATO_EUSAGE for a token outside the vocabulary: then it was not added. */
oato_status batch_add(struct batch *b, const struct batch_request *r, uint64_t *id,
                      struct oato_error *err);
/* The request ends at the next step; nothing happens when it has ended already. */
void batch_cancel(struct batch *b, uint64_t id);
/* Requests that have not ended, waiting ones included. */
int32_t batch_requests(const struct batch *b);

/* One step: ends what was cancelled, admits, computes at most `ubatch` tokens, samples. After an
 * error all requests are as before it, but for those that ended. Allocates nothing. */
oato_status batch_step(struct batch *b, struct oato_error *err);
void batch_get_times(const struct batch *b, struct batch_times *out);

#endif
