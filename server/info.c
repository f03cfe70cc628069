/*
 * info.c - what the server tells about itself, for people, monitors and llama.cpp's clients, and
 * tokens of texts.
 */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

enum MHD_Result route_props(struct exchange *x)
{
    const struct instance *m = x->instance;
    const struct server_options *o = m->options;
    struct ask ask = {.sampling = m->session.sampling, .most = o->n_predict};
    size_t n = 0;
    const char *const source = m->template ? chat_template_text(m->template, &n) : "";
    struct text t;
    sampler_bound(&ask.sampling, m->context);
    text_init(&t);
    json_open(&t, NULL, '{');
    json_open(&t, "default_generation_settings", '{');
    json_add(&t, JSON("n_ctx", m->context));
    settings_add(&t, &ask, "params");
    json_close(&t, '}');
    json_add(&t, JSON("total_slots", o->session.engine.seqs),
             JSON("model_alias", (const char *)m->name), JSON("model_path", o->session.model),
             JSON("build_info", SERVER_BUILD));
    json_add_slice(&t, "chat_template", source, n);
    json_add_object(&t, "modalities", json_bool("vision", false), json_bool("audio", false));
    json_close(&t, '}');
    return reply_json(x, &t);
}

/* What /metrics tells: of a name that ends in "_total", or that llama.cpp calls so, a counter. */
struct metric {
    const char *name, *help;
    double value;
};
#define METRIC(name, help, value)                                                                  \
    {                                                                                              \
        name, help, (double)(value)                                                                \
    }

static void metric_add(struct text *t, const struct metric *m)
{
    const bool counts = strstr(m->name, "_total") || strstr(m->name, "n_tokens_max");
    const char *kind = counts ? "counter" : "gauge";
    text_printf(t, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", m->name, m->help, m->name, kind,
                m->name, m->value);
}

enum MHD_Result route_metrics(struct exchange *x)
{
    struct instance *m = x->instance;
    struct engine_prompt_stats kept = {.used = 0};
    struct text t;
    if (m->options->no_metrics)
        return reply_error(x, MHD_HTTP_NOT_IMPLEMENTED, "the server was started with --no-metrics");
    pthread_mutex_lock(&m->lock);
    const struct server_counts c = m->counts;
    const struct seen seen = m->seen;
    const int32_t live = m->n_live, at_once = m->options->session.engine.seqs;
    pthread_mutex_unlock(&m->lock);
    if (atomic_load(&m->state) == INSTANCE_READY)
        engine_prompts(m->session.engine, &kept);
    const double prompt_s = (double)c.times.prompt_ns * 1e-9,
                 decode_s = (double)c.times.decode_ns * 1e-9;
    const struct metric all[] = {
        METRIC("llamacpp:prompt_tokens_total", "Prompt tokens computed.", c.times.prompt_tokens),
        METRIC("llamacpp:prompt_tokens_cached_total", "Prompt tokens that were there already.",
               c.cached_tokens),
        METRIC("llamacpp:prompt_seconds_total", "Time of steps with prompt tokens.", prompt_s),
        METRIC("llamacpp:tokens_predicted_total", "Tokens of answers.",
               c.answer_tokens + seen.generated),
        METRIC("llamacpp:tokens_predicted_seconds_total", "Time of steps that only decode.",
               decode_s),
        METRIC("llamacpp:n_decode_total", "Steps.", c.times.steps),
        METRIC("llamacpp:n_busy_slots_per_decode", "Answers that share a step, on average.",
               c.times.steps ? (double)c.times.inputs / (double)c.times.steps : 0),
        METRIC("llamacpp:n_tokens_max", "Tokens of the longest prompt and answer.", c.longest),
        METRIC("llamacpp:prompt_tokens_seconds", "Prompt tokens per second.",
               prompt_s > 0 ? (double)c.times.prompt_tokens / prompt_s : 0),
        METRIC("llamacpp:predicted_tokens_seconds", "Decoded tokens per second.",
               decode_s > 0 ? (double)c.times.decode_tokens / decode_s : 0),
        METRIC("llamacpp:requests_processing", "Answers that are computed.",
               live < at_once ? live : at_once),
        METRIC("llamacpp:requests_deferred", "Answers that wait for their turn.",
               live < at_once ? 0 : live - at_once),
        METRIC("llamacpp:requests_total", "Requests for answers so far.", c.requests),
        METRIC("llamacpp:answers_cancelled_total", "Answers whose clients went.", c.cancelled),
        METRIC("oato:kv_pages", "Pages of the KV cache, of 64 positions.", seen.pages),
        METRIC("oato:kv_pages_used", "Pages that answers hold.", seen.pages - seen.pages_free),
        METRIC("oato:kv_pages_cached", "Free pages that prompts may begin with.",
               seen.pages_cached),
        METRIC("oato:scheduler_seconds_total", "Time of decisions between steps.",
               c.policy.decide_ns * 1e-9),
        METRIC("oato:predictors_seconds_total", "Of that, time of predicting what restoring takes.",
               c.policy.predict_ns * 1e-9),
        METRIC("oato:requests_swapped", "Answers in host memory.", seen.n_swapped),
        METRIC("oato:swaps_total", "Answers swapped out so far.", c.times.swaps_out),
        METRIC("oato:evictions_total", "Answers whose KV was dropped so far.", c.times.evictions),
        METRIC("oato:recomputed_tokens_total", "Tokens computed again after that.",
               c.times.recomputed_tokens),
        METRIC("oato:prompt_cache_bytes", "Bytes of --prompt-cache's folder.", kept.bytes),
        METRIC("oato:prompt_cache_waiting_bytes", "Bytes that are still to be written.",
               kept.waiting_bytes),
        METRIC("oato:prompt_cache_hits_total", "Prompts that began with what was read.", kept.used),
        METRIC("oato:prompt_cache_read_tokens_total", "Tokens of that.", kept.tokens),
        METRIC("oato:prompt_cache_read_bytes_total", "Bytes read.", kept.read_bytes),
        METRIC("oato:prompt_cache_written_bytes_total", "Bytes written.", kept.written_bytes),
        METRIC("oato:prompt_cache_evictions_total", "Files that made room for others.",
               kept.evicted),
        METRIC("oato:prompt_cache_failures_total", "Files that could not be read or written.",
               kept.failed),
        METRIC("llamacpp:spec_decode_num_draft_tokens_total", "Drafts are not made here: 0.", 0),
        METRIC("llamacpp:spec_decode_num_accepted_tokens_total", "Drafts are not made here: 0.", 0),
        METRIC("llamacpp:spec_decode_num_drafts_total", "Drafts are not made here: 0.", 0),
    };
    text_init(&t);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        metric_add(&t, &all[i]);
    snprintf(x->started, sizeof x->started, "%lld", (long long)m->server->started);
    const enum MHD_Result result =
        t.failed ? MHD_NO
                 : reply(x, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", t.data, t.len);
    text_free(&t);
    return result;
}

/* ------------------------------------------------------------------------------- tokens --- */

/* A part of a character is told by its bytes, as llama.cpp does. */
static void piece_add(struct text *t, const struct instance *m, int32_t id)
{
    const struct gguf_string s = token_bytes(m, id);
    if (utf8_is_text(s.data, s.len))
        json_add_slice(t, "piece", s.data, s.len);
    else
        token_bytes_add(t, m, "piece", id);
}

static void tokens_write(struct text *t, const struct instance *m, const int32_t *ids, size_t n,
                         bool pieces)
{
    json_open(t, "tokens", '[');
    for (size_t i = 0; i < n; i++) {
        if (!pieces) {
            text_printf(t, "%s%d", i ? "," : "", ids[i]);
            continue;
        }
        json_open(t, NULL, '{');
        json_add(t, JSON("id", ids[i]));
        piece_add(t, m, ids[i]);
        json_close(t, '}');
    }
    json_close(t, ']');
}

/* Of an answer, for each token. */
enum { TOKEN_BYTES = 8, PIECE_BYTES = 60 };

/* llama.cpp's form has content, vLLM's a prompt, with special tokens unless it says otherwise. */
enum MHD_Result route_tokenize(struct exchange *x)
{
    const struct instance *m = x->instance;
    struct oato_error err;
    bool parse = true, pieces = false;
    int32_t *ids = NULL;
    size_t n = 0;
    const json_t *o = body_json(x, &err), *content = o ? json_object_get(o, "content") : NULL;
    const bool other = json_is_string(o ? json_object_get(o, "prompt") : NULL);
    bool special = other;
    content = other ? json_object_get(o, "prompt") : content;
    if (!o || request_members(o, ASK_TOKENIZE, 0, NULL, &err) ||
        json_flag(o, "add_special", &special, &err) ||
        json_flag(o, "add_special_tokens", &special, &err) ||
        json_flag(o, "parse_special", &parse, &err) || json_flag(o, "with_pieces", &pieces, &err))
        return reply_failure(x, &err);
    if (json_is_string(content) &&
        tokenizer_encode_within(
            m->session.tokenizer, json_string_value(content), json_string_length(content),
            (special ? TOKENIZE_ADD_SPECIAL : 0) | (parse ? TOKENIZE_PARSE_SPECIAL : 0), &x->budget,
            &ids, &n, &err))
        return reply_failure(x, &err);
    const size_t each = pieces ? PIECE_BYTES : TOKEN_BYTES;
    if (budget_spend(&x->budget, n * each, n * each, "the list of tokens", &err)) {
        free(ids);
        return reply_failure(x, &err);
    }
    struct text t;
    text_init(&t);
    json_open(&t, NULL, '{');
    tokens_write(&t, m, ids, n, pieces);
    if (other)
        json_add(&t, JSON("count", n), JSON("max_model_len", m->context));
    json_close(&t, '}');
    free(ids);
    return reply_json(x, &t);
}

enum MHD_Result route_detokenize(struct exchange *x)
{
    const struct instance *m = x->instance;
    struct oato_error err;
    struct text whole, t;
    const json_t *o = body_json(x, &err), *id;
    const json_t *tokens = o ? json_object_get(o, "tokens") : NULL;
    size_t i;
    if (!o || request_members(o, ASK_DETOKENIZE, 0, NULL, &err))
        return reply_failure(x, &err);
    if (!json_is_array(tokens))
        return reply_error(x, MHD_HTTP_BAD_REQUEST, "tokens wants a list of token ids");
    text_init(&whole);
    json_array_foreach(tokens, i, id)
    {
        const char *bytes;
        size_t n;
        const json_int_t number = json_integer_value(id);
        if (!json_is_integer(id) || number < 0 || number > INT32_MAX ||
            !tokenizer_piece(m->session.tokenizer, (int32_t)number, true, &bytes, &n)) {
            text_free(&whole);
            return reply_error(x, MHD_HTTP_BAD_REQUEST,
                               "tokens wants a list of token ids of the vocabulary");
        }
        if (budget_spend(&x->budget, TOKEN_BYTES + n, 3 * n, "the text of the tokens", &err)) {
            text_free(&whole);
            return reply_failure(x, &err);
        }
        text_add(&whole, bytes, n);
    }
    text_init(&t);
    json_open(&t, NULL, '{');
    json_add_slice(&t, "content", whole.data, whole.len);
    json_add_slice(&t, "prompt", whole.data, whole.len);
    json_close(&t, '}');
    text_free_part(&whole, &t);
    return reply_json(x, &t);
}

static json_t *token_value(const struct instance *m, int32_t id)
{
    const struct gguf_string s = token_bytes(m, id);
    return text_value(s.data, s.len);
}

/* What vLLM tells of its tokenizer: evaluation harnesses then need none of their own. */
enum MHD_Result route_tokenizer(struct exchange *x)
{
    const struct instance *m = x->instance;
    const int32_t bos = tokenizer_bos(m->session.tokenizer);
    int64_t eos;
    json_t *o = json_pack("{s:s, s:i}", "tokenizer_class", "oato", "model_max_length", m->context);
    if (bos >= 0)
        json_object_set_new(o, "bos_token", token_value(m, bos));
    if (gguf_get_i64(m->session.model->gguf, "tokenizer.ggml.eos_token_id", &eos) &&
        eos == (int32_t)eos)
        json_object_set_new(o, "eos_token", token_value(m, (int32_t)eos));
    return reply_value(x, o);
}

/* The text of the prompt for the messages that a request has, or its error. */
static bool prompt_take(struct exchange *x, struct text *prompt, struct oato_error *err)
{
    const struct dialect *d = x->route->dialect;
    text_init(prompt);
    return body_json(x, err) && !(d && d->request(x, err)) &&
           !request_members(x->json, ASK_CHAT, 0, NULL, err) &&
           !chat_prompt(x->instance, x->json, &x->budget, prompt, err);
}

enum MHD_Result route_template(struct exchange *x)
{
    struct oato_error err;
    struct text prompt;
    const bool good = prompt_take(x, &prompt, &err);
    json_t *text = good ? text_value(or_empty(prompt.data), prompt.len) : NULL;
    text_free(&prompt);
    return good ? reply_value(x, json_pack("{s:o}", "prompt", text)) : reply_failure(x, &err);
}

enum MHD_Result route_count(struct exchange *x)
{
    struct oato_error err;
    struct text prompt;
    int32_t *ids = NULL;
    size_t n = 0;
    const bool good =
        prompt_take(x, &prompt, &err) &&
        !tokenizer_encode_within(x->instance->session.tokenizer, or_empty(prompt.data), prompt.len,
                                 TOKENIZE_PROMPT, &x->budget, &ids, &n, &err);
    const bool anthropic = x->route->dialect == &dialect_messages_count;
    text_free(&prompt);
    free(ids);
    return good ? reply_value(x, json_pack("{s:s*, s:I}", "object",
                                           anthropic ? NULL : "response.input_tokens",
                                           "input_tokens", (json_int_t)n))
                : reply_failure(x, &err);
}
