/*
 * job.c - the answers of a request: made by an HTTP thread, filled by the engine thread. Two own a
 * job, its connection and the engine thread; the second to let go frees it.
 */
#include "server/server_internal.h"
#include "text/thinking.h"

#include <stdlib.h>
#include <string.h>

struct job *job_create(struct instance *m, const struct ask *ask)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    j->instance = m;
    j->ask = *ask;
    j->owners = 1;
    pthread_mutex_init(&j->lock, NULL);
    text_init(&j->out);
    return j;
}

static void choice_free(struct choice *c)
{
    for (size_t i = 0; i < c->n_calls; i++) {
        free(c->calls[i].name);
        text_free(&c->calls[i].arguments);
    }
    free(c->calls);
    free(c->parts);
    free(c->tokens);
    free(c->progress);
    free(c->rows);
    free(c->probs);
    free(c->scores);
    free(c->ids);
    sampler_free(c->sampler);
    thinking_free(c->thinking);
    grammar_state_free(c->follows);
    answer_text_free(&c->told);
    text_free(&c->prompt);
    text_free(&c->stop.held);
    text_free(&c->says);
    text_free(&c->thinks);
    free(c);
}

void job_release(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    const int32_t left = --j->owners;
    pthread_mutex_unlock(&j->lock);
    if (left)
        return;
    for (int32_t i = 0; i < j->n_choices; i++)
        choice_free(j->choices[i]);
    free(j->choices);
    ask_free(&j->ask);
    text_free(&j->out);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

void job_wake(struct job *j)
{
    if (!j->suspended)
        return;
    j->suspended = false;
    MHD_resume_connection(j->connection);
}

/* -------------------------------------------------------------------- what the engine tells --- */

/* What follows is of this kind; a call is a part of its own. */
static void part_note(struct choice *c, enum part_kind kind, size_t from)
{
    if (kind != PART_CALL && c->n_parts && c->parts[c->n_parts - 1].kind == kind)
        return;
    struct part *parts = array_room(c->parts, c->n_parts, &c->parts_cap, sizeof *parts);
    c->failed = c->failed || !parts;
    if (!parts)
        return;
    c->parts = parts;
    parts[c->n_parts++] = (struct part){kind, from};
}

static void on_text(void *user, enum chat_part part, const char *s, size_t n)
{
    struct choice *c = user;
    const bool thinks = part == CHAT_THINKS;
    struct text *to = thinks ? &c->thinks : &c->says;
    if (n)
        part_note(c, thinks ? PART_THINKS : PART_SAYS, to->len);
    text_add(to, s, n);
}

/* Where one call is enough, the others are not told. */
static void on_call(void *user, const char *name)
{
    struct choice *c = user;
    struct call *calls = array_room(c->calls, c->n_calls, &c->calls_cap, sizeof *calls);
    struct call call = {.name = strdup(name)};
    c->beyond = c->job->ask.one_call && c->n_calls;
    text_init(&call.arguments);
    if (calls)
        c->calls = calls;
    c->failed = c->failed || !calls || !call.name;
    if (c->failed || c->beyond) {
        free(call.name);
        return;
    }
    part_note(c, PART_CALL, c->n_calls);
    c->calls[c->n_calls++] = call;
}

static void on_arguments(void *user, const char *s, size_t n)
{
    struct choice *c = user;
    if (!c->failed && !c->beyond)
        text_add(&c->calls[c->n_calls - 1].arguments, s, n);
}

static void on_call_end(void *user, bool whole)
{
    struct choice *c = user;
    if (c->failed || c->beyond)
        return;
    c->calls[c->n_calls - 1].whole = whole;
    c->calls[c->n_calls - 1].ended = true;
    c->failed = c->calls[c->n_calls - 1].arguments.failed;
}

static void on_filter(void *user, const char *s, size_t n, bool last, struct text *out)
{
    struct choice *c = user;
    stop_filter_push(&c->stop, s, n, last, out);
}

static void prompt_decode(struct choice *c)
{
    const char *bytes;
    size_t n;
    for (int32_t i = 0; i < c->n_ids; i++)
        if (tokenizer_piece(c->told.tokenizer, c->ids[i], true, &bytes, &n))
            text_add(&c->prompt, bytes, n);
}

enum { CHOICE_STEPS = 1000 }; /* to make an answer */
enum { ROW_BYTES = 16 };      /* a number of a token's vector, as text and as it is kept */

/* A number in an answer, as text and as it is kept; to write it, where an HTTP thread has to. */
enum { SCORE_BYTES = 80, SCORE_STEPS = 100 };

/* Room for the log probabilities of the prompt. All answers to it tell the same: those of the first
 * one. */
static oato_status scores_prepare(struct choice *c, struct oato_error *err)
{
    struct job *j = c->job;
    const size_t n = (size_t)c->n_ids - 1;
    if (!j->ask.echo || !j->ask.sampling.logprobs || !n)
        return OATO_OK;
    if (budget_spend(&j->ask.budget, j->ask.stream ? n * c->per_token * SCORE_STEPS : 0,
                     n * c->per_token * SCORE_BYTES,
                     "echo with logprobs, for so many tokens of prompts and alternatives to each,",
                     err))
        return err->status;
    if (j->n_choices % j->ask.n)
        return OATO_OK;
    c->scores = malloc(n * c->per_token * sizeof *c->scores);
    return c->scores ? OATO_OK
                     : oato_fail_memory(err, n * c->per_token * sizeof *c->scores,
                                        "log probabilities of a prompt");
}

oato_status job_add(struct job *j, int32_t *ids, int32_t n_ids, struct oato_error *err)
{
    const struct session *s = &j->instance->session;
    struct choice **more =
        realloc(j->choices, (size_t)(j->n_choices + 1) * sizeof(struct choice *));
    struct choice *c = calloc(1, sizeof *c);
    if (more)
        j->choices = more;
    if (!more || !c) {
        free(ids);
        free(c);
        return oato_fail_memory(err, sizeof *c, "an answer");
    }
    struct sampler_options sampling = j->ask.sampling;
    sampling.dry.tokenizer = s->tokenizer;
    sampling.scratch = j->instance->scratch;
    sampling.seed += (uint64_t)(j->n_choices % j->ask.n);
    *c = (struct choice){.job = j,
                         .ids = ids,
                         .n_ids = n_ids,
                         .asked_ns = now_ns(),
                         .per_token = 1 + (size_t)j->ask.sampling.top_logprobs};
    c->stop.of = &j->ask.stops;
    c->told = (struct answer_text){.tokenizer = s->tokenizer,
                                   .sink = {on_text, on_call, on_arguments, on_call_end, c},
                                   .filter = on_filter};
    if (j->ask.kind == ASK_NATIVE || j->ask.echo || j->ask.verbose)
        prompt_decode(c);
    const oato_status status = scores_prepare(c, err);
    j->choices[j->n_choices++] = c;
    if (status)
        return status;
    const bool rows = j->ask.kind == ASK_EMBED && j->instance->pooling == POOLING_NONE;
    if (budget_spend(&j->ask.budget, CHOICE_STEPS + (uint64_t)n_ids,
                     sizeof *c + (size_t)n_ids * sizeof *ids + c->prompt.len +
                         sampler_bytes(&sampling) + (rows ? embedding_numbers(c) * ROW_BYTES : 0),
                     "so many answers, or what they look back at,", err))
        return err->status;
    if (j->ask.kind == ASK_EMBED)
        return OATO_OK;
    c->sampler = sampler_create(&sampling, tokenizer_size(s->tokenizer));
    if (!c->sampler || c->prompt.failed)
        return oato_fail_memory(err, 1 << 20, "an answer");
    return constraint_begin(c, err);
}

/* What n of its choices take of the queue: embeddings are of many texts, each of which is one
 * step's work, so that one place is of several. */
static int32_t places(const struct job *j, int32_t n)
{
    enum { TEXTS = 32 };
    return j->ask.kind == ASK_EMBED ? (n + TEXTS - 1) / TEXTS : n;
}

bool loop_submit(struct job *j)
{
    struct instance *m = j->instance;
    const int32_t n = places(j, j->n_choices);
    constraints_share(j);
    pthread_mutex_lock(&m->lock);
    const bool taken =
        !m->stop && m->n_live + n <= m->options->session.engine.seqs + m->options->queue;
    if (taken) {
        j->owners++;
        m->n_live += n;
        m->counts.requests++;
        *m->incoming_end = j;
        m->incoming_end = &j->next;
        pthread_cond_signal(&m->wake);
    }
    pthread_mutex_unlock(&m->lock);
    return taken;
}

/* With the job's lock. A prompt that is computed again is not told of twice. */
static void progress_note(struct choice *c, int32_t fed, uint64_t ns)
{
    const bool more = !c->n_progress || fed > c->progress[c->n_progress - 1].fed;
    if (!c->job->ask.progress || !more || fed > c->n_ids)
        return;
    struct prompt_progress *all =
        array_room(c->progress, c->n_progress, &c->progress_cap, sizeof *all);
    if (!all) {
        c->failed = true;
        return;
    }
    c->progress = all;
    all[c->n_progress++] = (struct prompt_progress){fed, ns};
    job_wake(c->job);
}

void choice_begin(void *user, int32_t cached)
{
    struct choice *c = user;
    struct instance *m = c->job->instance;
    pthread_mutex_lock(&c->job->lock);
    c->begun_ns = now_ns();
    c->cached = cached;
    progress_note(c, cached, c->begun_ns);
    pthread_mutex_unlock(&c->job->lock);
    pthread_mutex_lock(&m->lock);
    m->counts.cached_tokens += (uint64_t)cached;
    pthread_mutex_unlock(&m->lock);
}

void choice_fed(void *user, int32_t fed)
{
    struct choice *c = user;
    pthread_mutex_lock(&c->job->lock);
    progress_note(c, fed, now_ns());
    pthread_mutex_unlock(&c->job->lock);
}

/* What is kept of them until an answer is told as a whole is taken from the request's budget. */
static bool probs_take(struct choice *c)
{
    int32_t n;
    struct oato_error err;
    struct job *j = c->job;
    if (budget_spend(
            &j->ask.budget, 0, c->per_token * (j->ask.stream ? sizeof *c->probs : SCORE_BYTES),
            "the log probabilities of so many tokens, with the alternatives to each,", &err)) {
        job_fail(j, &err, false);
        return false;
    }
    const struct token_prob *p = sampler_probs(c->sampler, &n);
    for (int32_t i = 0; (size_t)i < c->per_token; i++) {
        struct token_prob *more = array_room(c->probs, c->n_probs, &c->probs_cap, sizeof *more);
        if (!more)
            return false;
        c->probs = more;
        more[c->n_probs++] = i < n ? p[i] : (struct token_prob){.id = -1};
    }
    return true;
}

/* A prompt's probabilities come row by row, and only they are kept. */
void choice_score(void *user, const float *row)
{
    struct choice *c = user;
    struct job *j = c->job;
    const int32_t top = j->ask.sampling.top_logprobs, at = c->n_scored;
    const int32_t vocab = (int32_t)min_i64(tokenizer_size(c->told.tokenizer),
                                           j->instance->session.model->shape.vocab);
    if (at >= c->n_ids - 1) /* behind the last one the answer begins */
        return;
    struct token_prob *to = c->scores + (size_t)at * c->per_token;
    const int32_t n = logits_probs(row, vocab, c->ids[at + 1], top, to);
    for (size_t i = (size_t)n; i < c->per_token; i++)
        to[i].id = -1;
    pthread_mutex_lock(&j->lock);
    c->n_scored++;
    pthread_mutex_unlock(&j->lock);
}

/* Whoever adds up the log probabilities of an echo expects one for each token that was drawn: the
 * one that ended the answer, too. */
static void end_note(struct choice *c)
{
    struct job *j = c->job;
    if (!j->ask.echo || !j->ask.sampling.logprobs)
        return;
    pthread_mutex_lock(&j->lock);
    if (probs_take(c))
        c->n_ends = 1;
    else
        c->failed = true;
    pthread_mutex_unlock(&j->lock);
}

bool choice_token(void *user, int32_t id)
{
    struct choice *c = user;
    struct job *j = c->job;
    if (tokenizer_is_end(c->told.tokenizer, id) && !j->ask.ignore_end) {
        end_note(c);
        return false;
    }
    pthread_mutex_lock(&j->lock);
    c->last_ns = now_ns();
    if (!c->n_tokens)
        c->first_ns = c->last_ns;
    if (j->ask.sampling.logprobs && !probs_take(c))
        c->failed = true;
    int32_t *tokens = array_room(c->tokens, c->n_tokens, &c->tokens_cap, sizeof *tokens);
    if (tokens) {
        c->tokens = tokens;
        tokens[c->n_tokens++] = id;
    }
    const size_t thought = c->thinks.len, said = c->says.len;
    c->failed = c->failed || !tokens || !answer_text_push(&c->told, id);
    c->n_thought += c->thinks.len > thought;
    c->late = j->ask.most_ms > 0 && c->says.len > said &&
              c->last_ns - c->first_ns > (uint64_t)j->ask.most_ms * 1000000 &&
              memchr(c->says.data + said, '\n', c->says.len - said);
    if (j->ask.stream)
        job_wake(j);
    pthread_mutex_unlock(&j->lock);
    const bool enough = j->ask.one_call && c->n_calls && c->calls[0].ended;
    return !c->stop.hit && !enough && !c->failed && !c->late;
}

void choice_end(void *user, enum batch_end why)
{
    struct choice *c = user;
    struct job *j = c->job;
    struct instance *m = j->instance;
    slot_note(c); /* before anybody hears of the end */
    pthread_mutex_lock(&j->lock);
    c->failed = !answer_text_end(&c->told, why != BATCH_STOPPED || c->stop.hit || c->late) ||
                c->failed || c->says.failed || c->thinks.failed;
    if (c->failed)
        job_fail_memory(j, c->says.len);
    if (why == BATCH_REFUSED && grammar_state_error(c->follows))
        job_fail(j, grammar_state_error(c->follows), false);
    c->why = why;
    if (!ending_finish(choice_ending(c))) /* no answer: unless it is known why, it was cut */
        job_cut(j, m->now);
    c->ended = true;
    const bool last = ++j->n_ended == j->n_choices;
    const int32_t freed = places(j, j->n_ended) - places(j, j->n_ended - 1);
    if (j->ask.stream || last)
        job_wake(j);
    pthread_mutex_unlock(&j->lock);
    if (why != BATCH_CANCELLED)
        scheduler_ended(m->scheduler, (int32_t)c->n_tokens);
    pthread_mutex_lock(&m->lock);
    m->n_live -= freed;
    m->counts.prompt_tokens += (uint64_t)c->n_ids;
    m->counts.answer_tokens += c->n_tokens;
    if (m->counts.longest < (size_t)c->n_ids + c->n_tokens)
        m->counts.longest = (size_t)c->n_ids + c->n_tokens;
    m->counts.cancelled += why == BATCH_CANCELLED;
    pthread_mutex_unlock(&m->lock);
}

size_t job_numbers(const struct job *j)
{
    size_t n = 0;
    for (int32_t i = 0; i < j->n_choices; i++) {
        const struct choice *c = j->choices[i];
        const bool scored = j->ask.echo && j->ask.sampling.logprobs;
        n += c->n_probs + (c->rows ? embedding_numbers(c) : 0) +
             (scored ? (size_t)c->n_ids * c->per_token : 0);
    }
    return n;
}
