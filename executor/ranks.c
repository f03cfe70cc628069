/*
 * ranks.c - an engine whose plan divides the model between ranks (kernels/ranks/collective.h). Rank
 * 0 alone has sequences: it decides what a step does and sends the filled step descriptor to the
 * others, which run their own programs by it. A page id, or a slot of state, means the same on
 * every rank, so they need no bookkeeping of their own.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

/* A message is a head, of a length that everybody knows, and what does not fit into it: decode of
 * a few sequences does, and takes one broadcast. */
enum { HEAD_WORDS = 128 };

enum { WORDS, PHASE, TOKENS, SEQS, ROWS, STATES, PICKS, PAGE_COPIES, STATE_COPIES, FIRST_WORD };

/* Instead of a step's number of tokens: there is none to come. */
enum { TOKENS_END = 0 };

oato_status ranks_check(struct engine *e, struct oato_error *err)
{
    const int32_t planned = e->plan ? plan_ranks(e->plan) : 1;
    const int32_t started = e->options->ranks ? collective_ranks(e->options->ranks) : 1;
    if (started > 1 && planned != started)
        return oato_fail(err, OATO_EUSAGE,
                         "%d ranks were started, but the plan is for %d; start as many, or make a "
                         "plan with oato-plan --ranks %d",
                         started, planned, started);
    if (started > 1)
        e->ranks = e->options->ranks;
    else if (planned > 1)
        warn_line(e->warn, e->user,
                  "the plan is for %d ranks, and this process runs the parts of all; start it with "
                  "mpirun -n %d",
                  planned, planned);
    return OATO_OK;
}

bool ranks_have(const struct engine *e, const struct plan_device *d)
{
    return !e->ranks || d->rank == collective_rank(e->ranks);
}

/* The longest message: a step as large as the engine's limits. */
static size_t words_most(const struct engine *e)
{
    const size_t seqs = (size_t)e->max_seqs, pages = (size_t)kv_pages_of(e->context) + seqs;
    return FIRST_WORD + 3 * (size_t)e->ubatch + (size_t)e->max_states +
           seqs * (4 + 2 * pages + 4 * KV_KINDS + 2);
}

static uint64_t settings_hash(const struct engine *e)
{
    const int32_t own[] = {e->context,  e->ubatch,     e->max_seqs,      e->max_rows,
                           e->kv_dtype, e->embeddings, e->deterministic, e->states};
    return hash_bytes(own, sizeof own);
}

static oato_status plan_hash(const struct plan *p, uint64_t *out, struct oato_error *err)
{
    uint8_t *data;
    size_t bytes;
    const oato_status status = plan_encode(p, &data, &bytes, err);
    if (status)
        return status;
    *out = hash_bytes(data, bytes);
    free(data);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------- steps ---- */

static void words_put(int32_t **at, const void *from, size_t words)
{
    if (words)
        memcpy(*at, from, words * sizeof **at);
    *at += words;
}

static oato_status told_send(struct engine *e, int32_t *end, struct oato_error *err)
{
    int32_t *m = e->message;
    const size_t words = (size_t)(end - m);
    m[WORDS] = (int32_t)words;
    oato_status status = collective_broadcast(e->ranks, m, HEAD_WORDS * sizeof *m, WAITS_EVER, err);
    if (!status && words > HEAD_WORDS)
        status = collective_broadcast(e->ranks, m + HEAD_WORDS, (words - HEAD_WORDS) * sizeof *m,
                                      WAITS_AWAKE, err);
    return status;
}

oato_status ranks_tell(struct engine *e, enum plan_phase phase, const struct step *step,
                       struct oato_error *err)
{
    int32_t *at = e->message + FIRST_WORD;
    if (!e->ranks)
        return OATO_OK;
    e->message[PHASE] = phase;
    e->message[TOKENS] = step->n_tokens;
    e->message[SEQS] = step->n_seqs;
    e->message[ROWS] = step->n_rows;
    e->message[STATES] = step->n_states;
    e->message[PICKS] = step->picks;
    e->message[PAGE_COPIES] = step->n_page_copies;
    e->message[STATE_COPIES] = step->n_state_copies;
    words_put(&at, step->token_id, (size_t)step->n_tokens);
    words_put(&at, step->token_position, (size_t)step->n_tokens);
    words_put(&at, step->token_seq, (size_t)step->n_tokens);
    words_put(&at, step->row, (size_t)step->n_rows);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *s = &step->seq[i];
        const int32_t own[] = {s->query_begin, s->query_len, (int32_t)s->kv_len, s->state};
        const size_t pages = (size_t)kv_pages_of((int32_t)s->kv_len);
        words_put(&at, own, ARRAY_LEN(own));
        words_put(&at, s->pages, pages);
        words_put(&at, s->window_pages, e->pool.window ? pages : 0);
    }
    for (int32_t i = 0; i < step->n_page_copies; i++) {
        const struct step_page_copy *c = &step->page_copy[i];
        words_put(&at, (const int32_t[]){c->from, c->to, c->positions, c->window}, 4);
    }
    for (int32_t i = 0; i < step->n_state_copies; i++)
        words_put(&at, (const int32_t[]){step->state_copy[i].from, step->state_copy[i].to}, 2);
    const oato_status status = told_send(e, at, err);
    e->failed = status != OATO_OK;
    return status;
}

/* The devices that sum. */
static oato_status accelerators_join(struct engine *e, struct oato_error *err)
{
    struct engine_device *d = &e->device[e->placements.sums_on];
    oato_status status = OATO_OK;
    if (!d->device->ops->join)
        status = oato_fail(err, OATO_EDEVICE,
                           "the plan has accelerators sum by themselves, which %s cannot; run "
                           "oato-plan again",
                           d->info.id);
    status = collective_agree(e->ranks, status, err);
    return status ? status : d->device->ops->join(d->device, e->ranks, err);
}

oato_status engine_join(struct engine *e, struct oato_error *err)
{
    int32_t host[RANKS_MAX] = {0};
    uint64_t plan = 0;
    if (!e->ranks)
        return OATO_OK;
    const struct gguf *g = e->model->gguf;
    e->message = calloc(words_most(e) + HEAD_WORDS, sizeof *e->message);
    oato_status status = e->message ? plan_hash(e->plan, &plan, err)
                                    : oato_fail_memory(err, words_most(e), "messages to ranks");
    status = collective_agree(e->ranks, status, err);
    const struct {
        const char *what;
        uint64_t value;
    } same[] = {
        {"version of OATO", hash_bytes(OATO_VERSION, sizeof OATO_VERSION)},
        {"plan", plan},
        {"model's structure", gguf_structure_hash(g)},
        {"model's weights", gguf_content_hash(g)},
        {"context, batch or KV type", settings_hash(e)},
        {"number of tokens to sample from", (uint64_t)e->top_logits},
    };
    for (size_t i = 0; i < ARRAY_LEN(same) && !status; i++)
        status = collective_same(e->ranks, same[i].what, same[i].value, err);
    for (int32_t i = 0; i < e->plan->n_devices; i++)
        host[e->plan->devices[i].rank] = e->plan->devices[i].host;
    if (!status)
        status = collective_agree(
            e->ranks, collective_choose(e->ranks, e->plan->sums, e->plan->n_sums, err), err);
    if (!status)
        status = collective_group(e->ranks, host, err);
    if (!status && plan_joins(e->plan))
        status = accelerators_join(e, err);
    e->leads = !status && !collective_rank(e->ranks);
    return status;
}

void ranks_end(struct engine *e)
{
    struct oato_error ignored;
    if (e->leads && !e->failed && !collective_alive(e->ranks, &ignored)) {
        e->message[TOKENS] = TOKENS_END;
        told_send(e, e->message + FIRST_WORD, &ignored);
    }
    free(e->message);
}

/* -------------------------------------------------------------------------- the others ---- */

static const int32_t *words_take(const int32_t **at, size_t words)
{
    const int32_t *p = *at;
    *at += words;
    return p;
}

/* The step that the message describes; its arrays are the message's. */
static void message_read(struct engine *e, struct step *step)
{
    const int32_t *m = e->message, *at = m + FIRST_WORD;
    *step = (struct step){.n_tokens = m[TOKENS],
                          .n_seqs = m[SEQS],
                          .n_rows = m[ROWS],
                          .n_states = m[STATES],
                          .picks = m[PICKS],
                          .n_page_copies = m[PAGE_COPIES],
                          .n_state_copies = m[STATE_COPIES],
                          .seq = e->step_seqs,
                          .page_copy = e->pool.copies,
                          .state_copy = e->pool.state.copies};
    step->token_id = words_take(&at, (size_t)step->n_tokens);
    step->token_position = words_take(&at, (size_t)step->n_tokens);
    step->token_seq = words_take(&at, (size_t)step->n_tokens);
    step->row = words_take(&at, (size_t)step->n_rows);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        const int32_t *own = words_take(&at, 4);
        const size_t pages = (size_t)kv_pages_of(own[2]);
        struct step_seq *s = &e->step_seqs[i];
        *s = (struct step_seq){
            .query_begin = own[0], .query_len = own[1], .kv_len = own[2], .state = own[3]};
        s->pages = words_take(&at, pages);
        s->window_pages = e->pool.window ? words_take(&at, pages) : NULL;
    }
    for (int32_t i = 0; i < step->n_page_copies; i++) {
        const int32_t *c = words_take(&at, 4);
        e->pool.copies[i] = (struct step_page_copy){c[0], c[1], c[2], c[3]};
    }
    for (int32_t i = 0; i < step->n_state_copies; i++) {
        const int32_t *c = words_take(&at, 2);
        e->pool.state.copies[i] = (struct step_state_copy){c[0], c[1]};
    }
}

oato_status engine_follow(struct engine *e, struct oato_error *err)
{
    int32_t *m = e->message;
    oato_status status = OATO_OK;
    while (!status) {
        struct step step;
        status = collective_broadcast(e->ranks, m, HEAD_WORDS * sizeof *m, WAITS_EVER, err);
        if (!status && m[WORDS] > HEAD_WORDS)
            status =
                collective_broadcast(e->ranks, m + HEAD_WORDS,
                                     (size_t)(m[WORDS] - HEAD_WORDS) * sizeof *m, WAITS_AWAKE, err);
        if (status || m[TOKENS] == TOKENS_END)
            break;
        message_read(e, &step);
        status = step_follow(e, (enum plan_phase)m[PHASE], &step, err);
    }
    return status;
}
