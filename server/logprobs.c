/*
 * logprobs.c - log probabilities in answers: of the tokens of an answer, and with "echo" of those
 * of its prompt, whose rows are made small as they come (job.c, choice_score).
 */
#include "server/server_internal.h"

#include <math.h>
#include <string.h>

/* A part of a character is told by its bytes, as OpenAI does, so that such tokens differ; mark: in
 * front of them. */
static void name_add(struct text *t, const char *key, const struct instance *m, int32_t id,
                     const char *mark)
{
    const struct gguf_string s = token_bytes(m, id);
    if (utf8_is_text(s.data, s.len)) {
        json_add_slice(t, key, s.data, s.len);
        return;
    }
    json_key(t, key);
    text_printf(t, "\"%s", mark);
    for (size_t i = 0; i < s.len; i++)
        text_printf(t, "\\\\x%02x", (unsigned char)s.data[i]);
    text_printf(t, "\"");
}

static void prob_add(struct text *t, const struct job *j, const struct token_prob *p)
{
    json_add(t, JSON("id", p->id));
    name_add(t, "token", j->instance, p->id, "");
    if (j->ask.sampling.final_probs)
        json_add(t, JSON("prob", exp((double)p->logprob)));
    else
        json_add(t, JSON("logprob", (double)p->logprob));
    token_bytes_add(t, j->instance, "bytes", p->id);
}

void probs_add(struct text *t, const char *key, const struct choice *c, size_t first, size_t n)
{
    const struct job *j = c->job;
    json_open(t, key, '[');
    for (size_t i = first; i < first + n; i++) {
        const struct token_prob *p = c->probs + i * c->per_token;
        json_open(t, NULL, '{');
        prob_add(t, j, p);
        json_open(t, j->ask.sampling.final_probs ? "top_probs" : "top_logprobs", '[');
        for (size_t k = 1; k < c->per_token && p[k].id >= 0; k++) {
            json_open(t, NULL, '{');
            prob_add(t, j, p + k);
            json_close(t, '}');
        }
        json_close(t, ']');
        json_close(t, '}');
    }
    json_close(t, ']');
}

json_t *probs_value(const struct choice *c, size_t first, size_t n)
{
    struct text t;
    if (!c->job->ask.sampling.logprobs || !n)
        return json_array();
    text_init(&t);
    probs_add(&t, NULL, c, first, n);
    return json_value_take(&t);
}

/* ---------------------------------------------------------------- the form of completions --- */

/* The tokens of an event or of a whole answer: those of the prompt, if any, then some of the
 * answer's. */
struct listed {
    const struct choice *c;
    const struct choice *prompt; /* whose prompt is listed; NULL: none */
    size_t n_prompt, first, n;
};

/* Of token i: itself, then the most likely ones; NULL: nothing is in front of it. */
static const struct token_prob *probs_of(const struct listed *l, size_t i)
{
    if (i < l->n_prompt)
        return i ? l->prompt->scores + (i - 1) * l->prompt->per_token : NULL;
    return l->c->probs + (l->first + i - l->n_prompt) * l->c->per_token;
}

static int32_t id_of(const struct listed *l, size_t i)
{
    return i < l->n_prompt ? l->prompt->ids[i] : probs_of(l, i)->id;
}

/* With all digits, so that a token and its own entry among the most likely ones are equal. NULL: it
 * has none. */
static void logprob_add(struct text *t, const struct token_prob *p)
{
    if (p)
        text_printf(t, "%.9g", isfinite(p->logprob) ? (double)p->logprob : -9999.0);
    else
        text_printf(t, "null");
}

static bool same_name(const struct instance *m, int32_t a, int32_t b)
{
    const struct gguf_string x = token_bytes(m, a), y = token_bytes(m, b);
    return x.len == y.len && !memcmp(x.data, y.data, x.len);
}

/* The most likely tokens, and the token itself, which may not be one of them, by their texts: of
 * several with the same text the most likely one. */
static void top_add(struct text *t, const struct choice *c, const struct token_prob *p)
{
    const struct instance *m = c->job->instance;
    size_t n = 1;
    if (!p) {
        json_key(t, NULL);
        logprob_add(t, NULL);
        return;
    }
    while (n < c->per_token && p[n].id >= 0)
        n++;
    json_open(t, NULL, '{');
    for (size_t k = 1; k <= n; k++) {
        const struct token_prob *one = k < n ? p + k : p;
        bool listed = false;
        for (size_t i = 1; i < k && !listed; i++)
            listed = same_name(m, p[i].id, one->id);
        if (listed)
            continue;
        name_add(t, NULL, m, one->id, "bytes:");
        text_printf(t, ":");
        logprob_add(t, one);
    }
    json_close(t, '}');
}

static void text_probs_add(struct text *t, struct choice *c, const struct listed *l)
{
    const struct instance *m = c->job->instance;
    const size_t n = l->n_prompt + l->n;
    json_open(t, "tokens", '[');
    for (size_t i = 0; i < n; i++)
        name_add(t, NULL, m, id_of(l, i), "bytes:");
    json_close(t, ']');
    json_open(t, "token_logprobs", '[');
    for (size_t i = 0; i < n; i++) {
        json_key(t, NULL);
        logprob_add(t, probs_of(l, i));
    }
    json_close(t, ']');
    json_open(t, "top_logprobs", '[');
    for (size_t i = 0; i < n; i++) {
        const struct token_prob *p = probs_of(l, i);
        top_add(t, i < l->n_prompt ? l->prompt : c, p);
    }
    json_close(t, ']');
    json_open(t, "text_offset", '[');
    for (size_t i = 0; i < n; i++) {
        const struct gguf_string s = token_bytes(m, id_of(l, i));
        json_add(t, JSON(NULL, utf8_place_take(&c->place, s.data, s.len)));
    }
    json_close(t, ']');
}

void logprobs_add(struct text *t, struct choice *c, const struct choice *prompt, size_t first,
                  size_t n)
{
    json_key(t, "logprobs");
    if (!c->job->ask.sampling.logprobs || (!prompt && !n && c->job->ask.stream)) {
        text_printf(t, "null");
        return;
    }
    text_printf(t, "{");
    if (c->job->ask.kind == ASK_CHAT)
        probs_add(t, "content", c, first, n);
    else
        text_probs_add(t, c,
                       &(struct listed){c, prompt, prompt ? (size_t)prompt->n_ids : 0, first, n});
    json_close(t, '}');
}
