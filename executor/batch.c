/*
 * batch.c - see batch.h. Requests are in one list in order of arrival; admitted ones have a
 * sequence.
 *
 * Invariant: the pages that admitted requests may still need are free, so that kv_reserve cannot
 * fail. The exception is a request too large to fit: it is admitted alone and ends when the context
 * is full.
 */
#include "executor/batch.h"

#include <stdlib.h>

struct request {
    struct request *next;
    uint64_t id;
    struct batch_request ask;
    int32_t seq;     /* -1: waiting for admission */
    int32_t longest; /* once admitted: what its sequence may grow to */
    int32_t fed, generated;
    int32_t token; /* sampled, not fed yet */
    bool cancelled, ended;
    enum batch_end why;
};

struct batch {
    struct engine *engine;
    struct batch_options options;
    struct request *first;
    uint64_t ids; /* ids handed out so far */
    int32_t n_requests, vocab, context, ubatch, seqs;
    struct engine_input *inputs; /* of a step, seqs */
    struct request **of;
    struct batch_times times;
};

oato_status batch_create(struct engine *e, const struct batch_options *options, struct batch **out,
                         struct oato_error *err)
{
    struct engine_stats stats;
    struct batch *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b)
        return oato_fail_memory(err, sizeof *b, "a batch");
    engine_get_stats(e, &stats);
    b->engine = e;
    if (options)
        b->options = *options;
    b->vocab = stats.vocab;
    b->context = stats.context;
    if (b->options.context > 0 && b->options.context < b->context)
        b->context = b->options.context;
    b->ubatch = stats.ubatch;
    b->seqs = stats.seqs;
    b->inputs = calloc((size_t)b->seqs, sizeof *b->inputs);
    b->of = calloc((size_t)b->seqs, sizeof(struct request *));
    if (!b->inputs || !b->of) {
        batch_free(b);
        return oato_fail_memory(err, (size_t)stats.seqs * sizeof *b->inputs, "a batch");
    }
    *out = b;
    return OATO_OK;
}

static void request_end(struct request *r, enum batch_end why)
{
    r->ended = true;
    r->why = why;
}

/* Removes ended requests from the list and calls their on_end. */
static void sweep(struct batch *b)
{
    for (struct request **at = &b->first; *at;) {
        struct request *r = *at;
        if (!r->ended) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        b->n_requests--;
        if (r->seq >= 0 && r->ask.seq < 0)
            engine_seq_free(b->engine, r->seq);
        r->ask.on_end(r->ask.user, r->why);
        free(r);
    }
}

void batch_free(struct batch *b)
{
    if (!b)
        return;
    for (struct request *r = b->first; r; r = r->next)
        request_end(r, BATCH_CANCELLED);
    sweep(b);
    free(b->inputs);
    free(b->of);
    free(b);
}

/* A sequence of the caller's exists and has no other request. */
static oato_status check_seq(const struct batch *b, int32_t seq, struct oato_error *err)
{
    oato_status status = seq < 0 ? OATO_OK : engine_seq_check(b->engine, seq, err);
    for (const struct request *r = b->first; r && !status && seq >= 0; r = r->next)
        if (r->ask.seq == seq)
            status = oato_fail(err, OATO_EUSAGE, "sequence %d already has a request", seq);
    return status;
}

oato_status batch_add(struct batch *b, const struct batch_request *ask, uint64_t *id,
                      struct oato_error *err)
{
    if (check_seq(b, ask->seq, err))
        return err->status;
    const long long before = engine_seq_length(b->engine, ask->seq);
    const long long length = before + ask->n_ids, step = 256;
    if (ask->n_ids < 1)
        return oato_fail(err, OATO_EUSAGE, "the prompt has no tokens");
    if (length > b->context)
        return oato_fail(
            err, OATO_EFIT,
            "the prompt has %lld tokens, but the context holds only %d; use -c %lld or more",
            length, b->context, (length + step - 1) / step * step);
    for (int32_t i = 0; i < ask->n_ids; i++)
        if (ask->ids[i] < 0 || ask->ids[i] >= b->vocab)
            return oato_fail(err, OATO_EUSAGE, "token id %d is outside the vocabulary of %d",
                             ask->ids[i], b->vocab);
    struct request *r = calloc(1, sizeof *r), **end = &b->first;
    if (!r)
        return oato_fail_memory(err, sizeof *r, "a request");
    *r = (struct request){.id = ++b->ids, .ask = *ask, .seq = -1};
    for (int32_t i = 0; i < ask->n_ids; i++)
        sampler_accept(ask->sampler, ask->ids[i]);
    while (*end)
        end = &(*end)->next;
    *end = r;
    b->n_requests++;
    if (id)
        *id = r->id;
    return OATO_OK;
}

void batch_cancel(struct batch *b, uint64_t id)
{
    for (struct request *r = b->first; r; r = r->next)
        if (r->id == id)
            r->cancelled = true;
}

int32_t batch_requests(const struct batch *b)
{
    return b->n_requests;
}

void batch_get_times(const struct batch *b, struct batch_times *out)
{
    *out = b->times;
}

/* ------------------------------------------------------------------------------- admission */

/* The final length of its sequence; the last generated token is never fed. */
static int32_t longest(const struct batch *b, const struct request *r)
{
    const int64_t tokens = r->ask.n_ids + max_i64(r->ask.most - 1, 0);
    return r->ask.most < 0
               ? b->context
               : (int32_t)min_i64(b->context, engine_seq_length(b->engine, r->ask.seq) + tokens);
}

static oato_status admit(struct batch *b, struct oato_error *err)
{
    int32_t pages = engine_free_pages(b->engine), running = 0;
    for (const struct request *r = b->first; r; r = r->next) {
        if (r->seq >= 0) {
            pages -= kv_pages_of(r->longest) - kv_pages_of(engine_seq_length(b->engine, r->seq));
            running++;
        }
    }
    for (struct request *r = b->first; r; r = r->next) {
        if (r->seq >= 0)
            continue;
        r->longest = longest(b, r);
        const int32_t wanted =
            kv_pages_of(r->longest) - kv_pages_of(engine_seq_length(b->engine, r->ask.seq));
        if (running && (wanted > pages || running == b->seqs))
            return OATO_OK;
        r->seq = r->ask.seq;
        if (r->seq < 0 && engine_seq_create(b->engine, &r->seq, err)) {
            r->seq = -1; /* the caller's own sequences occupy all for now */
            return running ? OATO_OK : err->status;
        }
        pages -= wanted;
        running++;
    }
    return OATO_OK;
}

/* -------------------------------------------------------------------------------- the step */

struct room {
    int32_t inputs, tokens, pages;
};

/* Adds n tokens of the request to the step; false, and the request ends, when no page is left. */
static bool take(struct batch *b, struct request *r, int32_t n, struct room *room)
{
    const int32_t length = engine_seq_length(b->engine, r->seq);
    const int32_t pages = kv_pages_of((int64_t)length + n) - kv_pages_of(length);
    if (pages > room->pages || n > b->context - length) {
        request_end(r, BATCH_CONTEXT);
        return false;
    }
    const bool prompt = r->fed < r->ask.n_ids;
    const bool sampled = prompt ? r->fed + n == r->ask.n_ids && r->ask.most != 0 : true;
    b->of[room->inputs] = r;
    b->inputs[room->inputs++] =
        (struct engine_input){r->seq, prompt ? r->ask.ids + r->fed : &r->token, n,
                              sampled ? LOGITS_LAST : LOGITS_NONE, prompt};
    room->tokens += n;
    room->pages -= pages;
    return true;
}

/* Decoding requests come first; prompts share the remaining tokens. Returns the number of prompt
 * tokens. */
static int32_t compose(struct batch *b, struct room *room)
{
    for (struct request *r = b->first; r; r = r->next)
        if (r->seq >= 0 && r->fed == r->ask.n_ids)
            take(b, r, 1, room);
    const int32_t decode = room->tokens;
    for (struct request *r = b->first; r && room->tokens < b->ubatch; r = r->next) {
        const int32_t left = r->ask.n_ids - r->fed;
        if (r->seq >= 0 && left)
            take(b, r, (int32_t)min_i64(left, b->ubatch - room->tokens), room);
    }
    return room->tokens - decode;
}

static int32_t sample(const struct batch *b, struct sampler *sampler, int32_t row)
{
    int32_t n;
    const float *candidates = engine_candidates(b->engine, row, &n);
    return candidates ? sampler_next_of(sampler, candidates, n)
                      : sampler_next(sampler, engine_logits(b->engine, row));
}

static void token_take(struct batch *b, struct request *r, int32_t row)
{
    const int32_t id = sample(b, r->ask.sampler, row);
    if (!r->ask.on_token(r->ask.user, id)) {
        request_end(r, BATCH_STOPPED);
        return;
    }
    sampler_accept(r->ask.sampler, id);
    r->token = id;
    r->generated++;
    if (r->ask.most >= 0 && r->generated >= r->ask.most)
        request_end(r, BATCH_LIMIT);
}

oato_status batch_step(struct batch *b, struct oato_error *err)
{
    struct room room = {.pages = 0};
    if (b->options.before_step)
        b->options.before_step(b->options.user, b);
    for (struct request *r = b->first; r; r = r->next)
        if (r->cancelled)
            request_end(r, BATCH_CANCELLED);
    sweep(b);
    oato_status status = admit(b, err);
    if (status)
        return status;
    const uint64_t begin_ns = now_ns();
    room.pages = engine_free_pages(b->engine);
    const int32_t prompt = compose(b, &room);
    if (room.inputs)
        status = engine_step(b->engine, b->inputs, room.inputs, err);
    for (int32_t i = 0, row = 0; i < room.inputs && !status; i++) {
        struct request *r = b->of[i];
        if (b->inputs[i].prompt)
            r->fed += b->inputs[i].n;
        if (b->inputs[i].logits == LOGITS_LAST)
            token_take(b, r, row++);
        else if (r->fed == r->ask.n_ids)
            request_end(r, BATCH_LIMIT); /* nothing was to be generated */
    }
    const uint64_t ns = now_ns() - begin_ns;
    if (prompt && !status) {
        b->times.prompt_tokens += (uint64_t)prompt;
        b->times.prompt_ns += ns;
    } else if (room.inputs && !status) {
        b->times.decode_tokens += (uint64_t)room.tokens;
        b->times.decode_ns += ns;
        b->times.decode_steps++;
    }
    sweep(b);
    return status;
}
