/*
 * params.c - what a request asks for. Nothing that a client sends is trusted: types and ranges are
 * checked here, before anything is made of them, and what cannot be honoured is refused by name.
 */
#include "server/server_internal.h"
#include "text/sampling_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ------------------------------------------------------------------------------ zero bytes --- */

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

/* Read by the model as bytes and a length: prompts, and what was said, called and answered before,
 * which clients send back as they have got it. */
static bool is_model_text(const struct json_place *p)
{
    static const char *const prompts[] = {
        "prompt",      "content",   "input", "system",       "instructions",
        "query",       "documents", "texts", "input_prefix", "input_suffix",
        "input_extra", "suffix",    NULL};
    static const char *const said[] = {
        "content", "text", "reasoning_content", "thinking", "output", "prompt_string", NULL};
    static const char *const calls[] = {"arguments", "input", NULL};
    const struct json_place *top = p;
    bool called = false;
    for (; top->in; top = top->in)
        called = called || (top->member && is_one_of(top->member, calls));
    const bool prompt = is_one_of(top->member, prompts);
    return (prompt || !strcmp(top->member, "messages")) &&
           (p == top || called || (p->member ? is_one_of(p->member, said) : prompt));
}

/* JSON may hold zero bytes (\u0000), and so may what the model reads; every other text is handled
 * as a string of C, which ends at the first, and is therefore refused instead of cut. */
static oato_status zeros_check(const json_t *request, struct oato_error *err)
{
    struct text place;
    text_init(&place);
    if (!json_zero_find(request, is_model_text, &place))
        return OATO_OK;
    oato_fail(err, OATO_EUSAGE,
              "%.200s holds a zero byte (\\u0000), which only prompts and the content of messages "
              "may; leave it out",
              or_empty(place.data));
    text_free(&place);
    return err->status;
}

/* ------------------------------------------------------------------------------------ body --- */

json_t *body_parse(struct exchange *x, struct oato_error *err)
{
    json_error_t why;
    if (x->json)
        return x->json;
    const char *text = or_empty(x->body.data);
    size_t n = x->body.len;
    if (text_mark_skip("the request", &text, &n, err)) {
        err->status = OATO_EUSAGE; /* the client's fault */
        return NULL;
    }
    x->json = json_loadb(text, n, JSON_ALLOW_NUL, &why);
    if (!x->json)
        oato_fail(err, OATO_EUSAGE, "the request is no JSON: %.200s at byte %d", why.text,
                  why.position);
    else if (!json_is_object(x->json))
        oato_fail(err, OATO_EUSAGE, "the request is no JSON object");
    return json_is_object(x->json) && !zeros_check(x->json, err) ? x->json : NULL;
}

json_t *body_json(struct exchange *x, struct oato_error *err)
{
    json_t *json = x->json ? x->json : body_parse(x, err);
    body_release(x);
    return json;
}

/* ---------------------------------------------------------------------------- members ----- */

/* OpenAI: "logprobs": true and "top_logprobs" in chats, a number in completions; llama.cpp:
 * n_probs. */
static oato_status probs_read(const json_t *o, struct ask *ask, struct oato_error *err)
{
    struct sampler_options *to = &ask->sampling;
    const json_t *wanted = json_given(o, "logprobs");
    const json_t *most = json_is_number(wanted) ? wanted : json_object_get(o, "n_probs");
    const int32_t top = (int32_t)json_number_value(json_object_get(o, "top_logprobs")),
                  probs = (int32_t)json_number_value(most); /* members.c has their bounds */
    if (top && !probs && (!wanted || json_is_false(wanted)))
        return oato_fail(err, OATO_EUSAGE, "top_logprobs needs logprobs; set it to true, too");
    to->logprobs = probs > 0 || (wanted && !json_is_false(wanted));
    to->top_logprobs = !to->logprobs ? 0 : probs > top ? probs : top;
    return OATO_OK;
}

static oato_status seed_read(const json_t *o, struct ask *ask, struct oato_error *err)
{
    int64_t seed = ask->sampling.seed == UINT64_MAX ? -1 : (int64_t)ask->sampling.seed;
    if (json_int(o, "seed", INT64_MIN, INT64_MAX, &seed, err))
        return err->status;
    ask->sampling.seed = (uint64_t)seed;
    if (seed < 0 && getrandom(&ask->sampling.seed, sizeof ask->sampling.seed, 0) < 0)
        ask->sampling.seed = now_ns();
    ask->sampling.seed &= INT64_MAX;
    return OATO_OK;
}

static void id_make(struct ask *ask)
{
    uint64_t r[2];
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r)
        r[0] = r[1] = now_ns();
    snprintf(ask->id, sizeof ask->id, "%s-%08llx%016llx",
             ask->kind == ASK_CHAT ? "chatcmpl" : "cmpl", (unsigned long long)(r[0] & 0xffffffff),
             (unsigned long long)r[1]);
}

/* Where a request says nothing the command line decides; where the command line limits, it does. */
static void bounds_apply(const struct instance *m, struct ask *ask)
{
    const struct server_options *o = m->options;
    const int32_t most = o->max_tokens;
    if (ask->thinks_most < 0 && ask->kind == ASK_CHAT)
        ask->thinks_most = o->reasoning_most;
    if (!ask->thinks_end)
        ask->thinks_end = o->reasoning_end;
    if (most >= 0 && (ask->most < 0 || ask->most > most))
        ask->most = most;
    sampler_bound(&ask->sampling, m->context);
}

oato_status ask_read(const struct instance *m, const json_t *o, enum ask_kind kind,
                     const struct budget *budget, struct ask *ask, struct oato_error *err)
{
    *ask = (struct ask){.kind = kind,
                        .prompts = "prompt",
                        .budget = *budget,
                        .sampling = m->session.sampling,
                        .most = m->options->n_predict,
                        .thinks_most = -1,
                        .slot = -1,
                        .n = 1,
                        .verbose = m->options->verbose,
                        .created = time(NULL)};
    oato_status status = request_members(o, kind, 0, ask, err);
    const json_t *streaming = json_given(o, "stream_options");
    if (!status && streaming)
        status = json_flag(streaming, "include_usage", &ask->usage, err);
    ask->progress = ask->progress && ask->stream;
    if (!status)
        status = seed_read(o, ask, err);
    if (!status)
        status = stops_read(json_given(o, "stop"), &ask->stops, err);
    if (!status)
        status = dry_breakers_read(json_given(o, "dry_sequence_breakers"), &ask->budget,
                                   &ask->sampling.dry, &ask->breakers, err);
    if (!status)
        status = logit_bias_read(json_given(o, "logit_bias"), m->session.tokenizer, &ask->budget,
                                 &ask->sampling, &ask->bias, err);
    if (!status)
        status = probs_read(o, ask, err);
    if (!status)
        status = constraint_read(o, ask, err);
    ask->thinks_end = json_string_value(json_given(o, "reasoning_budget_message"));
    bounds_apply(m, ask);
    id_make(ask);
    if (status)
        ask_free(ask);
    return status;
}

void ask_free(struct ask *ask)
{
    for (int32_t i = 0; i < ask->stops.n; i++)
        free(ask->stops.word[i]);
    ask->stops.n = 0;
    grammar_free(ask->grammar);
    ask->grammar = NULL;
    free(ask->bias);
    ask->bias = NULL;
    dry_breakers_free(ask->breakers);
    ask->breakers = NULL;
    json_decref(ask->kept);
    ask->kept = NULL;
}

/* ----------------------------------------------------------------------------- prompts ---- */

struct ids {
    int32_t *id;
    size_t n, cap;
    bool ends; /* the next text is the end of a complete one */
};

static oato_status id_add(struct ids *to, int64_t id, const struct instance *m,
                          struct oato_error *err)
{
    int32_t *more = array_room(to->id, to->n, &to->cap, sizeof *more);
    if (!more)
        return oato_fail_memory(err, to->n * sizeof *more, "a prompt");
    to->id = more;
    if (id < 0 || id >= m->session.model->shape.vocab)
        return oato_fail(err, OATO_EUSAGE,
                         "token id %lld is outside the vocabulary of %d; see "
                         "/tokenize",
                         (long long)id, m->session.model->shape.vocab);
    more[to->n++] = (int32_t)id;
    return OATO_OK;
}

/* With so many tokens, or at least so many. */
static oato_status unfit(struct job *j, const char *at_least, size_t n, struct oato_error *err)
{
    const int32_t context = j->instance->context;
    j->n_unfit = n;
    return oato_fail(err, OATO_EFIT,
                     "the %s %s%zu tokens, which exceeds the available context size of %d tokens; "
                     "send less, or start the server with -c %zu or more",
                     j->ask.kind == ASK_EMBED ? "input is too large: it has" : "request has",
                     at_least, n, context, (n + 256) / 256 * 256);
}

oato_status text_fits(struct job *j, size_t bytes, struct oato_error *err)
{
    const size_t longest = j->instance->longest, least = longest ? bytes / longest : 0;
    return least < (size_t)j->instance->context ? OATO_OK : unfit(j, "at least ", least, err);
}

static oato_status text_ids(struct job *j, const json_t *text, struct ids *to,
                            struct oato_error *err)
{
    const struct instance *m = j->instance;
    const size_t fits = m->longest * (size_t)m->context, all = json_string_length(text);
    const size_t bytes =
        j->ask.truncate && fits ? (size_t)min_i64((int64_t)fits, (int64_t)all) : all;
    if (text_fits(j, j->ask.truncate ? 0 : bytes, err))
        return err->status;
    int32_t *ids = NULL;
    size_t n = 0;
    const int flags_wanted =
        TOKENIZE_PARSE_SPECIAL | (to->n ? 0 : TOKENIZE_ADD_BOS) | (to->ends ? TOKENIZE_ADD_EOS : 0);
    oato_status status =
        tokenizer_encode_within(m->session.tokenizer, json_string_value(text), bytes, flags_wanted,
                                &j->ask.budget, &ids, &n, err);
    for (size_t i = 0; i < n && !status; i++)
        status = id_add(to, ids[i], m, err);
    free(ids);
    return status;
}

/* The parts of a message's content, which may only be text. */
static oato_status content_ids(struct job *j, const json_t *content, struct ids *to,
                               struct oato_error *err)
{
    json_t *joined = parts_join(content, "");
    if (!joined)
        return oato_fail(err, OATO_EUSAGE, "%s: content wants parts that are texts",
                         j->ask.prompts);
    const oato_status status = text_ids(j, joined, to, err);
    json_decref(joined);
    return status;
}

/* A text, {"prompt_string": a text}, or a list of texts and token ids. */
static oato_status part_add(struct job *j, const json_t *part, struct ids *to,
                            struct oato_error *err)
{
    if (json_is_object(part)) {
        if (json_given(part, "multimodal_data"))
            return oato_fail(err, OATO_EUSAGE,
                             "%s: multimodal_data is not supported here; this server reads only "
                             "text",
                             j->ask.prompts);
        if (json_is_array(json_given(part, "content")))
            return content_ids(j, json_given(part, "content"), to, err);
        part = json_given(part, "prompt_string");
    }
    if (json_is_string(part))
        return text_ids(j, part, to, err);
    if (json_is_integer(part))
        return id_add(to, json_integer_value(part), j->instance, err);
    return oato_fail(err, OATO_EUSAGE, "%s wants a text, token ids, or a list of them",
                     j->ask.prompts);
}

/* An empty prompt is the BOS token. */
oato_status prompt_ids_add(struct job *j, const int32_t *ids, size_t n, struct oato_error *err)
{
    const struct instance *m = j->instance;
    const int32_t bos = tokenizer_bos(m->session.tokenizer);
    oato_status status = OATO_OK;
    if (!n && bos < 0)
        return oato_fail(err, OATO_EUSAGE,
                         "%s is empty, and the model has no BOS token to begin with",
                         j->ask.prompts);
    if (!n) {
        ids = &bos;
        n = 1;
    }
    if (j->ask.truncate && n >= (size_t)m->context)
        n = (size_t)m->context - 1;
    j->n_unfit = n >= (size_t)m->context ? n : 0;
    if (j->n_unfit)
        return unfit(j, "", n, err);
    for (int32_t k = 0; k < j->ask.n && !status; k++) {
        int32_t *copy = malloc(n * sizeof *copy);
        if (!copy)
            return oato_fail_memory(err, n * sizeof *copy, "a prompt");
        memcpy(copy, ids, n * sizeof *copy);
        status = job_add(j, copy, (int32_t)n, err);
    }
    return status;
}

static oato_status prompt_add(struct job *j, const json_t *prompt, struct oato_error *err)
{
    const bool complete = j->ask.kind == ASK_EMBED;
    struct ids ids = {.ends = complete && !json_is_array(prompt)};
    oato_status status = OATO_OK;
    const json_t *part;
    size_t i;
    if (json_is_array(prompt)) {
        json_array_foreach(prompt, i, part)
        {
            ids.ends = complete && i + 1 == json_array_size(prompt);
            if (!status)
                status = part_add(j, part, &ids, err);
        }
    } else {
        status = part_add(j, prompt, &ids, err);
    }
    if (!status)
        status = prompt_ids_add(j, ids.id, ids.n, err);
    free(ids.id);
    return status;
}

/* A list that has a number is one prompt; else its elements are prompts. */
static bool is_several(const json_t *prompt)
{
    const json_t *part;
    size_t i;
    if (!json_is_array(prompt))
        return false;
    json_array_foreach(prompt, i, part)
    {
        if (json_is_number(part))
            return false;
    }
    return json_array_size(prompt) > 0;
}

oato_status prompts_add(struct job *j, const json_t *prompt, struct oato_error *err)
{
    oato_status status = OATO_OK;
    const json_t *one;
    size_t i;
    if (!prompt || json_is_null(prompt))
        return oato_fail(err, OATO_EUSAGE, "%s is missing; it is required", j->ask.prompts);
    if (!is_several(prompt))
        return prompt_add(j, prompt, err);
    if (j->ask.kind == ASK_EMBED && json_array_size(prompt) > INPUTS_MAX)
        return oato_fail(err, OATO_EUSAGE, "%s may have at most %d texts", j->ask.prompts,
                         INPUTS_MAX);
    if (j->ask.kind != ASK_EMBED && json_array_size(prompt) * (size_t)j->ask.n > ANSWERS_MAX)
        return oato_fail(err, OATO_EUSAGE,
                         "prompt and n ask for more than the %d answers that a request may have",
                         ANSWERS_MAX);
    json_array_foreach(prompt, i, one)
    {
        if (!status)
            status = prompt_add(j, one, err);
    }
    return status;
}
