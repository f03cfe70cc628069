/*
 * batch.c - see batch.h. Requests are in one list in the order in which they are served; running
 * ones have a sequence.
 *
 * Invariant without a schedule: the pages that admitted requests may still need are free, so that
 * kv_reserve cannot fail. The exception is a request too large to fit: it is admitted alone and
 * ends when the context is full. With a schedule a step takes what free pages allow.
 */
#include "executor/batch_internal.h"

#include <stdlib.h>
#include <string.h>

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
    b->beside =
        stats.stream_bytes[PHASE_PREFILL] || b->ubatch < BATCH_BESIDE ? b->ubatch : BATCH_BESIDE;
    b->seqs = stats.seqs;
    b->rows = stats.rows;
    b->states = stats.states;
    b->embeddings = stats.embeddings;
    b->candidates =
        (int32_t)min_i64(stats.candidates[PHASE_PREFILL], stats.candidates[PHASE_DECODE]);
    b->pages = engine_free_pages(e);
    b->inputs = calloc((size_t)b->seqs, sizeof *b->inputs);
    b->of = calloc((size_t)b->seqs, sizeof(struct batched *));
    if (!b->inputs || !b->of) {
        batch_free(b);
        return oato_fail_memory(err, (size_t)stats.seqs * sizeof *b->inputs, "a batch");
    }
    *out = b;
    return OATO_OK;
}

static void request_end(struct batched *r, enum batch_end why)
{
    r->ended = true;
    r->why = why;
}

static void request_free(struct batched *r)
{
    engine_saved_free(r->saved);
    free(r->text);
    free(r);
}

/* Removes ended requests from the list and calls their on_end. */
static void sweep(struct batch *b)
{
    for (struct batched **at = &b->first; *at;) {
        struct batched *r = *at;
        if (!r->ended) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        b->n_requests--;
        if (r->fetch)
            engine_fetch_end(r->fetch, -1);
        if (r->seq >= 0 && r->ask.seq < 0) {
            if (!b->embeddings)
                engine_keep(b->engine, r->text, r->fed);
            engine_seq_free(b->engine, r->seq);
        }
        r->ask.on_end(r->ask.user, r->why);
        request_free(r);
    }
}

void batch_free(struct batch *b)
{
    if (!b)
        return;
    for (struct batched *r = b->first; r; r = r->next)
        request_end(r, BATCH_CANCELLED);
    sweep(b);
    free(b->inputs);
    free(b->of);
    free(b->views);
    free(b);
}

/* A sequence of the caller's exists and has no other request. */
static oato_status check_seq(const struct batch *b, int32_t seq, struct oato_error *err)
{
    oato_status status = seq < 0 ? OATO_OK : engine_seq_check(b->engine, seq, err);
    for (const struct batched *r = b->first; r && !status && seq >= 0; r = r->next)
        if (r->ask.seq == seq)
            status = oato_fail(err, OATO_EUSAGE, "sequence %d already has a request", seq);
    return status;
}

/* With room for so many tokens, and for its view. */
static struct batched *request_create(struct batch *b, size_t room)
{
    if (b->n_requests == b->n_views) {
        const int32_t n = b->n_views ? 2 * b->n_views : b->seqs;
        struct batch_view *views = realloc(b->views, (size_t)n * sizeof *views);
        if (!views)
            return NULL;
        b->views = views;
        b->n_views = n;
    }
    struct batched *r = calloc(1, sizeof *r);
    if (r)
        r->text = malloc(room * sizeof *r->text);
    if (r && !r->text) {
        free(r);
        r = NULL;
    }
    return r;
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
    if (ask->sampler ? b->embeddings : !b->states || !ask->on_row || ask->most)
        return oato_fail(err, OATO_EUSAGE, "this engine gives no %s",
                         ask->sampler ? "answers" : "hidden states of such a request");
    if (length > b->context)
        return oato_fail(
            err, OATO_EFIT,
            "the prompt has %lld tokens, but the context holds only %d; use -c %lld or more",
            length, b->context, (length + step - 1) / step * step);
    for (int32_t i = 0; i < ask->n_ids; i++)
        if (ask->ids[i] < 0 || ask->ids[i] >= b->vocab)
            return oato_fail(err, OATO_EUSAGE, "token id %d is outside the vocabulary of %d",
                             ask->ids[i], b->vocab);
    const int32_t most = b->context - (int32_t)before; /* of prompt and answer */
    const size_t room =
        (size_t)min_i64(most + 1, ask->most < 0 ? most + 1 : (int64_t)ask->n_ids + ask->most);
    struct batched *r = request_create(b, room);
    if (!r)
        return oato_fail_memory(err, room * sizeof *r->text, "a request");
    r->id = ++b->ids;
    r->ask = *ask;
    r->seq = -1;
    r->prompting = true;
    r->arrived_ns = now_ns();
    r->n_text = ask->n_ids;
    memcpy(r->text, ask->ids, (size_t)ask->n_ids * sizeof *r->text);
    r->ask.ids = r->text;
    for (int32_t i = 0; i < ask->n_ids && ask->sampler; i++)
        sampler_accept(ask->sampler, ask->ids[i]);
    struct batched **end = &b->first;
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
    for (struct batched *r = b->first; r; r = r->next)
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

/* -------------------------------------------------------------------------------- the step */

struct room {
    int32_t inputs, tokens, pages, paused;
    int32_t most; /* tokens */
    int32_t rows; /* of prompts whose logits are told: what the others may need is set aside */
    int32_t states;
};

/* How many of n tokens free pages allow. */
static int32_t fitting(const struct room *room, int32_t length, int32_t n)
{
    const int64_t most = ((int64_t)kv_pages_of(length) + room->pages) * KV_PAGE_POSITIONS - length;
    return (int32_t)min_i64(n, most);
}

/* What the request needs to go on behind the last token of its text. */
static enum engine_logits logits_wanted(const struct batch *b, const struct batched *r)
{
    const int32_t needs = r->ask.sampler ? sampler_needs(r->ask.sampler) : 0;
    return needs && needs <= b->candidates ? LOGITS_PICKS : LOGITS_LAST;
}

static enum engine_logits rows_kind(const struct batched *r)
{
    return r->ask.sampler ? LOGITS_ALL : LOGITS_STATES;
}

static int32_t *rows_room(struct room *room, const struct batched *r)
{
    return r->ask.sampler ? &room->rows : &room->states;
}

/* Adds at most n tokens of the request to the step. It ends when its context is full, and pauses
 * when no page is left. */
static void take(struct batch *b, struct batched *r, int32_t n, struct room *room)
{
    const int32_t length = engine_seq_length(b->engine, r->seq);
    if (n > b->context - length) {
        request_end(r, BATCH_CONTEXT);
        return;
    }
    n = fitting(room, length, n);
    if (n < 1) {
        room->paused++;
        return;
    }
    const bool whole = r->fed + n == r->n_text && r->ask.most != 0;
    const bool tells = wants_rows(r) && r->fed >= r->rows;
    b->of[room->inputs] = r;
    b->inputs[room->inputs++] = (struct engine_input){r->seq, r->text + r->fed, n,
                                                      tells   ? rows_kind(r)
                                                      : whole ? logits_wanted(b, r)
                                                              : LOGITS_NONE,
                                                      r->prompting};
    room->tokens += n;
    *rows_room(room, r) -= tells ? n : 0;
    room->pages -= kv_pages_of((int64_t)length + n) - kv_pages_of(length);
}

/* How many of its tokens the request's prompt may feed next. What was told before it was evicted
 * needs no rows. */
static int32_t piece(const struct batch *b, const struct batched *r, struct room *room)
{
    int32_t n = (int32_t)min_i64(r->n_text - r->fed, room->most - room->tokens);
    if (wants_rows(r))
        n = (int32_t)min_i64(n, r->fed < r->rows ? r->rows - r->fed : *rows_room(room, r));
    return n > 0 ? engine_seq_piece(b->engine, r->seq, n, r->n_text - r->fed) : 0;
}

/* Decoding requests come first; prompts share the remaining tokens. Returns the number of prompt
 * tokens. */
static int32_t compose(struct batch *b, struct room *room)
{
    room->rows = b->rows;
    room->states = b->states;
    for (const struct batched *r = b->first; r; r = r->next)
        room->rows -= r->seq >= 0 && r->ask.sampler && !wants_rows(r);
    for (struct batched *r = b->first; r; r = r->next)
        if (r->seq >= 0 && !r->prompting && !r->picking)
            take(b, r, 1, room);
    const int32_t decode = room->tokens;
    room->most = decode && b->ubatch > decode + b->beside ? decode + b->beside : b->ubatch;
    for (struct batched *r = b->first; r && room->tokens < room->most; r = r->next) {
        const bool feeds = r->seq >= 0 && r->prompting && !r->picking && !r->fetch;
        const int32_t n = feeds ? piece(b, r, room) : 0;
        if (n)
            take(b, r, n, room);
    }
    return room->tokens - decode;
}

/* No page is left for any running request: the last one makes room for the others, and a single one
 * has filled the whole cache. */
static void make_room(struct batch *b)
{
    struct batched *last = NULL, *only = NULL;
    int32_t running = 0;
    for (struct batched *r = b->first; r; r = r->next) {
        if (r->seq < 0 || r->ended)
            continue;
        running++;
        only = r;
        if (r->ask.seq < 0)
            last = r;
    }
    if (running > 1 && last)
        batch_evict(b, last);
    else if (only)
        request_end(only, BATCH_CONTEXT);
}

/* Steps of a budget, about 10 ns each. A mask of a grammar that people write takes less than
 * PICK_AT_ONCE, which the rows of a step share, and two for each token of the vocabulary; what
 * takes more goes on beside the others' steps, in a PICK_SHARE-th of their time, or where there is
 * nobody else for PICK_ALONE before cancelled requests are looked for. */
enum {
    STEP_NS = 10,
    PICK_AT_ONCE = 100000,
    PICK_LEAST = 20000,
    PICK_ALONE = 500000,
    PICK_SHARE = 8
};

static int32_t sample(const struct batch *b, struct sampler *sampler, int32_t row, int32_t inputs)
{
    int32_t n;
    const float *candidates = engine_candidates(b->engine, row, &n);
    return candidates ? sampler_next_of(sampler, candidates, n)
                      : sampler_begin(sampler, engine_logits(b->engine, row),
                                      PICK_AT_ONCE / (uint64_t)inputs + 2 * (uint64_t)b->vocab);
}

/* What its sampler gave. */
static void token_take(struct batched *r, int32_t id)
{
    r->picking = id == SAMPLER_MORE;
    if (r->picking)
        return;
    if (id == SAMPLER_FAILED) {
        request_end(r, BATCH_REFUSED);
        return;
    }
    if (id < 0 || !r->ask.on_token(r->ask.user, id)) {
        request_end(r, BATCH_STOPPED);
        return;
    }
    sampler_accept(r->ask.sampler, id);
    r->text[r->n_text++] = id;
    r->generated++;
    if (r->ask.most >= 0 && r->generated >= r->ask.most)
        request_end(r, BATCH_LIMIT);
}

/* Goes on with the tokens that take long. */
static void picks_go_on(struct batch *b)
{
    uint64_t picking = 0, others = 0;
    for (const struct batched *r = b->first; r; r = r->next) {
        picking += r->picking;
        others += r->seq >= 0 && !r->picking;
    }
    if (!picking)
        return;
    const uint64_t share = others ? b->step_ns / STEP_NS / PICK_SHARE : PICK_ALONE;
    const uint64_t steps = share / picking < PICK_LEAST ? PICK_LEAST : share / picking;
    for (struct batched *r = b->first; r; r = r->next)
        if (r->picking)
            token_take(r, sampler_go_on(r->ask.sampler, steps));
}

/* Tells the rows of an input, the first of which is `row` of the step; after an eviction those that
 * are computed again are not told again. Returns the row behind. */
static int32_t rows_tell(const struct batch *b, struct batched *r, const struct engine_input *in,
                         int32_t row)
{
    for (int32_t i = r->rows - r->fed > 0 ? r->rows - r->fed : 0; i < in->n; i++, r->rows++)
        r->ask.on_row(r->ask.user, engine_logits(b->engine, row + i));
    return row + in->n;
}

/* After a step: what was fed of a request, and its share of the time. */
static void fed_add(struct batch *b, struct batched *r, const struct engine_input *in, uint64_t ns)
{
    r->fed += in->n;
    r->service_ns += ns;
    r->again_ns += ns;
    if (r->prompting && r->ask.on_fed)
        r->ask.on_fed(r->ask.user, r->fed);
    if (r->prompting && r->again)
        b->times.recomputed_tokens += (uint64_t)in->n;
    if (r->fed < r->n_text || !r->prompting)
        return;
    r->prompting = false;
    if (r->ask.seq < 0 && !b->embeddings)
        engine_keep(b->engine, r->text, r->fed);
    if (r->again)
        batch_restore_tell(b, &(struct batch_restored){.user = r->ask.user,
                                                       .what = RESTORE_RECOMPUTE,
                                                       .tokens = r->fed,
                                                       .ns = r->again_ns});
    r->again = false;
}

static void times_add(struct batch *b, int32_t prompt, const struct room *room, uint64_t ns)
{
    b->times.steps++;
    b->times.inputs += (uint64_t)room->inputs;
    if (prompt) {
        b->times.prompt_tokens += (uint64_t)prompt;
        b->times.prompt_ns += ns;
    } else {
        b->times.decode_tokens += (uint64_t)room->tokens;
        b->times.decode_ns += ns;
        b->times.decode_steps++;
    }
}

/* What is read and written of prompts that last takes so much of the time between two steps that
 * others wait for, and more where nobody does. */
enum { PROMPTS_NS = 1000000, PROMPTS_ALONE_NS = 20000000, FETCH_WAIT_NS = 2000000 };

/* Puts what was read; who has all of it begins. */
static void fetches_go_on(struct batch *b)
{
    bool others = false;
    for (const struct batched *r = b->first; r; r = r->next)
        others = others || (r->seq >= 0 && !r->fetch);
    for (struct batched *r = b->first; r; r = r->next)
        if (r->fetch && !engine_fetch_some(r->fetch, others ? PROMPTS_NS : PROMPTS_ALONE_NS))
            batch_begin(b, r);
}

/* Nobody could be fed: there may be somebody whose prompt is being read. */
static void fetches_wait(const struct batch *b)
{
    for (const struct batched *r = b->first; r; r = r->next)
        if (r->fetch) {
            engine_fetch_wait(r->fetch, FETCH_WAIT_NS);
            return;
        }
}

enum engine_keeping batch_keep(struct batch *b)
{
    return engine_keep_some(b->engine, PROMPTS_ALONE_NS);
}

oato_status batch_step(struct batch *b, struct oato_error *err)
{
    struct room room = {.pages = 0};
    if (b->options.before_step)
        b->options.before_step(b->options.user, b);
    for (struct batched *r = b->first; r; r = r->next)
        if (r->cancelled)
            request_end(r, BATCH_CANCELLED);
    sweep(b);
    oato_status status = batch_admit(b, err);
    if (status)
        return status;
    fetches_go_on(b);
    picks_go_on(b);
    sweep(b);
    const uint64_t begin_ns = now_ns();
    room.pages = engine_free_pages(b->engine);
    const int32_t prompt = compose(b, &room);
    if (room.inputs)
        status = engine_step(b->engine, b->inputs, room.inputs, err);
    else if (room.paused)
        make_room(b);
    else
        fetches_wait(b);
    const uint64_t step_ns = now_ns() - begin_ns;
    b->step_ns = room.inputs ? step_ns : b->step_ns;
    for (int32_t i = 0, row = 0; i < room.inputs && !status; i++) {
        struct batched *r = b->of[i];
        const struct engine_input *in = &b->inputs[i];
        if (in->logits == LOGITS_ALL || in->logits == LOGITS_STATES)
            row = rows_tell(b, r, in, row);
        else
            row += in->logits != LOGITS_NONE;
        fed_add(b, r, in, step_ns * (uint64_t)in->n / (uint64_t)room.tokens);
        if (in->logits != LOGITS_NONE && r->fed == r->n_text && r->ask.most != 0)
            token_take(r, sample(b, r->ask.sampler, row - 1, room.inputs));
        else if (r->fed == r->n_text)
            request_end(r, BATCH_LIMIT); /* nothing was to be generated */
    }
    if (room.inputs && !status)
        times_add(b, prompt, &room, now_ns() - begin_ns);
    sweep(b);
    if (!status)
        engine_keep_some(b->engine, PROMPTS_NS);
    return status;
}
