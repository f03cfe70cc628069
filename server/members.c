/*
 * members.c - the members of a request that OpenAI, llama.cpp and vLLM know: one row for each, with
 * the addresses that know it, its types, and what is made of it. It is used, it changes no answer
 * and is accepted, or it would change the answer and is refused by name. null, and a value that
 * asks for nothing, always pass; members without a row are ignored.
 */
#include "server/server_internal.h"

#include <string.h>

enum {
    FLAG = MEMBER_FLAG,
    WHOLE = MEMBER_WHOLE,
    NUMBER = MEMBER_NUMBER,
    TEXT = MEMBER_TEXT,
    LIST = MEMBER_LIST,
    OBJECT = MEMBER_OBJECT,
    ANY = FLAG | NUMBER | TEXT | LIST | OBJECT,
    NATIVE = MEMBER_ON(ASK_NATIVE),
    COMPLETION = MEMBER_ON(ASK_TEXT),
    CHAT = MEMBER_ON(ASK_CHAT),
    EMBED = MEMBER_ON(ASK_EMBED),
    TOKENIZE = MEMBER_ON(ASK_TOKENIZE),
    DETOKENIZE = MEMBER_ON(ASK_DETOKENIZE),
    MESSAGES = MEMBER_ON(ASK_MESSAGES),
    RESPONSES = MEMBER_ON(ASK_RESPONSES),
    OLLAMA = MEMBER_ON(ASK_OLLAMA),
    OPTIONS = MEMBER_ON(ASK_OPTIONS),
    INFILL = MEMBER_ON(ASK_INFILL),
    RERANK = MEMBER_ON(ASK_RERANK),
    QUERY = MEMBER_ON(ASK_QUERY),
    QUERY_MODELS = MEMBER_ON(ASK_QUERY_MODELS),
    QUERY_RESPONSE = MEMBER_ON(ASK_QUERY_RESPONSE),
    QUERY_ITEMS = MEMBER_ON(ASK_QUERY_ITEMS),
    QUERY_SLOTS = MEMBER_ON(ASK_QUERY_SLOTS),
    QUERY_SLOT = MEMBER_ON(ASK_QUERY_SLOT),
    ANSWERS = NATIVE | COMPLETION | CHAT,
    ELSEWHERE = 0, /* read elsewhere */
    MOST = INT32_MAX
};

#define AT(field) offsetof(struct ask, field)
#define SAMPLED(kind, member, option, alias, arg, json, low, high, otherwise, help, more)          \
    {json, ANSWERS | OPTIONS, kind, .at = AT(sampling.member), .least = (low), .most = (high)},

/* What is asked for instead. */
#define SCHEMA "use json_schema or response_format"
#define LEAVE  "leave it out"
#define CHATS  "use /v1/chat/completions"

const struct member members[] = {
    /* used: of several names of one thing the last one decides */
    SAMPLING_OPTIONS(SAMPLED){"max_completion_tokens", ANSWERS, WHOLE, .at = AT(most), .least = -1,
                              .most = MOST},
    {"max_tokens", ANSWERS, WHOLE, .at = AT(most), .least = -1, .most = MOST},
    {"n_predict", ANSWERS, WHOLE, .at = AT(most), .least = -1, .most = MOST},
    {"n", ANSWERS, WHOLE, .at = AT(n), .least = 1, .most = ANSWERS_MAX},
    {"n_cmpl", ANSWERS, WHOLE, .at = AT(n), .least = 1, .most = ANSWERS_MAX},
    {"n_indent", ANSWERS, WHOLE, .at = AT(stops.indent), .least = 0, .most = MOST},
    {"t_max_predict_ms", ANSWERS, WHOLE, .at = AT(most_ms), .least = -1, .most = MOST},
    {"id_slot", ANSWERS, WHOLE, .at = AT(slot), .least = -1, .most = MOST},
    {"stream", ANSWERS, FLAG, .at = AT(stream)},
    {"return_tokens", ANSWERS, FLAG, .at = AT(tokens)},
    {"ignore_eos", ANSWERS, FLAG, .at = AT(ignore_end)},
    {"timings_per_token", ANSWERS, FLAG, .at = AT(timings)},
    {"return_progress", ANSWERS, FLAG, .at = AT(progress)},
    {"post_sampling_probs", ANSWERS, FLAG, .at = AT(sampling.final_probs)},
    {"verbose", ANSWERS, FLAG, .at = AT(verbose)},
    {"echo", COMPLETION, FLAG, .at = AT(echo)},
    /* used, by readers of their own */
    {"prompt", NATIVE | COMPLETION, TEXT | LIST | OBJECT, .at = ELSEWHERE},
    {"prompt", TOKENIZE | OLLAMA | INFILL, TEXT, .at = ELSEWHERE},
    {"messages", CHAT | OLLAMA | MESSAGES, LIST, .at = ELSEWHERE},
    {"seed", ANSWERS | OPTIONS, WHOLE, .at = ELSEWHERE},
    {"stop", ANSWERS | OPTIONS, TEXT | LIST, .at = ELSEWHERE},
    {"logit_bias", ANSWERS, OBJECT | LIST, .at = ELSEWHERE},
    {"logprobs", ANSWERS, FLAG | WHOLE, .least = 0, .most = PROBS_MAX},
    {"top_logprobs", ANSWERS, WHOLE, .least = 0, .most = PROBS_MAX},
    {"n_probs", ANSWERS, WHOLE, .least = 0, .most = PROBS_MAX},
    {"dry_sequence_breakers", ANSWERS, LIST, .at = ELSEWHERE},
    {"grammar", ANSWERS, TEXT, .at = ELSEWHERE},
    {"json_schema", ANSWERS, OBJECT | FLAG, .at = ELSEWHERE},
    {"response_format", ANSWERS, OBJECT, .at = ELSEWHERE},
    {"stream_options", ANSWERS, OBJECT, .at = ELSEWHERE},
    {"response_fields", NATIVE, LIST, .at = ELSEWHERE},
    {"tools", CHAT | OLLAMA | MESSAGES | RESPONSES, LIST, .at = ELSEWHERE},
    {"tool_choice", CHAT | RESPONSES, TEXT | OBJECT, .at = ELSEWHERE},
    {"parallel_tool_calls", CHAT | RESPONSES, FLAG, .at = ELSEWHERE},
    {"chat_template_kwargs", CHAT, OBJECT, .at = ELSEWHERE},
    {"reasoning_effort", CHAT, TEXT, .at = ELSEWHERE},
    {"reasoning_budget_tokens", CHAT, WHOLE, .at = AT(thinks_most), .least = -1, .most = MOST},
    {"thinking_budget_tokens", CHAT, WHOLE, .at = AT(thinks_most), .least = -1, .most = MOST},
    {"thinking_token_budget", CHAT, WHOLE, .at = AT(thinks_most), .least = -1, .most = MOST},
    {"reasoning_budget_message", CHAT, TEXT, .at = ELSEWHERE},
    {"add_generation_prompt", CHAT, FLAG, .at = ELSEWHERE},
    {"continue_final_message", CHAT, FLAG, .at = ELSEWHERE},
    {"input", EMBED, TEXT | LIST | OBJECT, .at = ELSEWHERE},
    {"input", OLLAMA | RESPONSES, TEXT | LIST, .at = ELSEWHERE},
    {"content", EMBED, TEXT | LIST, .at = ELSEWHERE},
    {"encoding_format", EMBED, TEXT, .at = ELSEWHERE},
    {"dimensions", EMBED, WHOLE, .at = AT(dimensions), .least = 1, .most = MOST,
     .most_width = true},
    {"dimensions", OLLAMA, WHOLE, .at = AT(dimensions), .least = 0, .most = MOST,
     .most_width = true},
    {"truncate", EMBED | OLLAMA | RERANK, FLAG, .at = AT(truncate)},
    {"suffix", COMPLETION | OLLAMA, TEXT, .at = ELSEWHERE},
    {"input_prefix", INFILL, TEXT, .at = ELSEWHERE},
    {"input_suffix", INFILL, TEXT, .at = ELSEWHERE},
    {"input_extra", INFILL, LIST, .at = ELSEWHERE},
    {"query", RERANK, TEXT, .at = ELSEWHERE},
    {"documents", RERANK, LIST, .at = ELSEWHERE},
    {"top_n", RERANK, WHOLE, .least = 1, .most = MOST},
    {"return_documents", RERANK, FLAG, .at = ELSEWHERE},
    {"texts", RERANK, LIST, .at = ELSEWHERE},
    {"return_text", RERANK, FLAG, .at = ELSEWHERE},
    {"system", OLLAMA, TEXT, .at = ELSEWHERE},
    {"raw", OLLAMA, FLAG, .at = ELSEWHERE},
    {"format", OLLAMA, TEXT | OBJECT, .at = ELSEWHERE},
    {"think", OLLAMA, FLAG | TEXT, .at = ELSEWHERE},
    {"stream", OLLAMA | MESSAGES | RESPONSES, FLAG, .at = ELSEWHERE},
    {"options", OLLAMA, OBJECT, .at = ELSEWHERE},
    {"logprobs", OLLAMA, FLAG, .at = ELSEWHERE},
    {"top_logprobs", OLLAMA | RESPONSES, WHOLE, .least = 0, .most = PROBS_MAX},
    {"num_predict", OPTIONS, WHOLE, .least = -2, .most = MOST},
    {"content", TOKENIZE, TEXT, .at = ELSEWHERE},
    {"add_special", TOKENIZE, FLAG, .at = ELSEWHERE},
    {"add_special_tokens", TOKENIZE, FLAG, .at = ELSEWHERE},
    {"parse_special", TOKENIZE, FLAG, .at = ELSEWHERE},
    {"with_pieces", TOKENIZE, FLAG, .at = ELSEWHERE},
    {"tokens", DETOKENIZE, LIST, .at = ELSEWHERE},
    /* they change no answer: names, accounts, what only makes it faster or earlier */
    {"model", ~0u, TEXT, .idle = true},
    {"user", ~0u, TEXT, .idle = true},
    {"metadata", ANSWERS | MESSAGES, OBJECT, .idle = true},
    {"safety_identifier", ANSWERS | RESPONSES, TEXT, .idle = true},
    {"service_tier", ANSWERS | MESSAGES | RESPONSES, TEXT, .idle = true},
    {"prediction", CHAT, OBJECT, .idle = true},
    {"prompt_cache_key", ANSWERS | RESPONSES, TEXT, .idle = true},
    {"prompt_cache_retention", ANSWERS | RESPONSES, TEXT, .idle = true},
    {"cache_prompt", ANSWERS, FLAG, .idle = true},
    {"cache_salt", ANSWERS | EMBED, TEXT, .idle = true},
    {"n_cache_reuse", ANSWERS, WHOLE, .idle = true},
    {"n_keep", ANSWERS, WHOLE, .idle = true},
    {"n_discard", ANSWERS, WHOLE, .idle = true},
    {"t_max_prompt_ms", ANSWERS, NUMBER, .idle = true},
    {"samplers", ANSWERS, LIST | TEXT, .idle = true},
    {"adaptive_decay", ANSWERS, NUMBER, .idle = true},
    {"backend_sampling", ANSWERS, FLAG, .idle = true},
    {"sse_ping_interval", ANSWERS, NUMBER, .idle = true},
    {"speculative.n_max", ANSWERS, WHOLE, .idle = true},
    {"speculative.n_min", ANSWERS, WHOLE, .idle = true},
    {"speculative.p_min", ANSWERS, NUMBER, .idle = true},
    {"speculative.type", ANSWERS, TEXT, .idle = true},
    {"spaces_between_special_tokens", ANSWERS, FLAG, .idle = true},
    {"keep_alive", OLLAMA, NUMBER | TEXT, .idle = true},
    {"num_ctx", OPTIONS, WHOLE, .idle = true},
    {"num_keep", OPTIONS, WHOLE, .idle = true},
    {"num_batch", OPTIONS, WHOLE, .idle = true},
    {"num_gpu", OPTIONS, WHOLE, .idle = true},
    {"main_gpu", OPTIONS, WHOLE, .idle = true},
    {"num_thread", OPTIONS, WHOLE, .idle = true},
    {"use_mmap", OPTIONS, FLAG, .idle = true},
    {"use_mlock", OPTIONS, FLAG, .idle = true},
    {"numa", OPTIONS, FLAG, .idle = true},
    {"low_vram", OPTIONS, FLAG, .idle = true},
    {"max_tokens_per_doc", RERANK, WHOLE, .idle = true},
    {"priority", ANSWERS | EMBED, WHOLE, .idle = true},
    {"request_id", ANSWERS | EMBED, TEXT, .idle = true},
    /* OpenAI's: refused */
    {"functions", ANSWERS, LIST, .refused = "use tools"},
    {"function_call", ANSWERS, TEXT | OBJECT, .refused = "use tools and tool_choice",
     .off_text = "none"},
    {"audio", CHAT, OBJECT, .refused = "this server makes no sound"},
    {"modalities", CHAT, LIST, .refused = "answers are text only", .off_text = "text"},
    {"verbosity", CHAT, TEXT, .refused = "ask for it in a message", .off_text = "medium"},
    {"web_search_options", CHAT, OBJECT, .refused = "this server searches nothing", .strict = true},
    {"store", ANSWERS, FLAG, .refused = "this server stores no answers"},
    {"best_of", ANSWERS, WHOLE, .refused = "use n", .off = 1},
    {"suffix", NATIVE | CHAT, TEXT, .refused = "use /v1/completions or /infill"},
    /* Ollama's: refused */
    {"template", OLLAMA, TEXT, .refused = "start with --chat-template-file"},
    {"context", OLLAMA, LIST, .refused = "send messages to /api/chat"},
    {"images", OLLAMA, LIST, .refused = "this server reads no images"},
    {"penalize_newline", OPTIONS, FLAG, .refused = LEAVE, .off_true = true},
    /* llama.cpp's: refused */
    {"lora", ANSWERS, LIST, .refused = "merge it into the model"},
    {"input_prefix", ANSWERS, TEXT, .refused = "use /infill"},
    {"input_suffix", ANSWERS, TEXT, .refused = "use /infill"},
    {"input_extra", ANSWERS, LIST, .refused = "use /infill"},
    {"image_data", ANSWERS | EMBED, LIST, .refused = "this server reads no images"},
    {"adaptive_target", ANSWERS, NUMBER, .refused = "use mirostat"},
    {"min_keep", ANSWERS, WHOLE, .refused = LEAVE},
    {"tfs_z", ANSWERS | OPTIONS, NUMBER, .refused = "use min_p", .off = 1},
    {"penalize_nl", ANSWERS, FLAG, .refused = LEAVE},
    {"grammar_lazy", ANSWERS, FLAG, .refused = "use tools, or a grammar from the start"},
    {"grammar_triggers", ANSWERS, LIST, .refused = "use tools, or a grammar from the start"},
    {"preserved_tokens", ANSWERS, LIST, .refused = LEAVE},
    {"system_prompt", ANSWERS, TEXT | OBJECT, .refused = "put it in front of the prompt"},
    {"parse_tool_calls", ANSWERS, FLAG, .refused = "use tool_choice \"none\"", .off_true = true},
    {"reasoning_format", ANSWERS, TEXT, .refused = "reasoning always comes apart",
     .off_text = "auto deepseek"},
    {"reasoning_in_content", ANSWERS, FLAG, .refused = "reasoning always comes apart"},
    {"thinking_forced_open", ANSWERS, FLAG, .refused = "use chat_template_kwargs"},
    {"reasoning_budget_tokens", NATIVE | COMPLETION, WHOLE, .refused = CHATS, .off = -1},
    {"thinking_budget_tokens", NATIVE | COMPLETION, WHOLE, .refused = CHATS, .off = -1},
    {"reasoning_budget_message", NATIVE | COMPLETION, TEXT, .refused = CHATS},
    {"reasoning_control", ANSWERS, FLAG, .refused = "use reasoning_budget_tokens"},
    {"embd_normalize", EMBED, WHOLE, .refused = "start the server with another --pooling",
     .off = 2},
    /* vLLM's: refused */
    {"echo", NATIVE | CHAT, FLAG, .refused = "use /v1/completions"},
    {"use_beam_search", ANSWERS, FLAG, .refused = LEAVE},
    {"length_penalty", ANSWERS, NUMBER, .refused = LEAVE, .off = 1},
    {"early_stopping", ANSWERS, FLAG | TEXT, .refused = LEAVE},
    {"repetition_penalty", ANSWERS, NUMBER, .refused = "use repeat_penalty", .off = 1},
    {"stop_token_ids", ANSWERS, LIST, .refused = "use stop"},
    {"include_stop_str_in_output", ANSWERS, FLAG, .refused = LEAVE},
    {"min_tokens", ANSWERS, WHOLE, .refused = "use ignore_eos with max_tokens"},
    {"skip_special_tokens", ANSWERS, FLAG, .refused = "use return_tokens and /detokenize",
     .off_true = true},
    {"detokenize", ANSWERS, FLAG, .refused = "use return_tokens", .off_true = true},
    {"add_special_tokens", NATIVE | COMPLETION | EMBED, FLAG, .refused = "send token ids",
     .off_true = true},
    {"add_special_tokens", CHAT, FLAG, .refused = LEAVE},
    {"truncate_prompt_tokens", ANSWERS | EMBED, WHOLE, .refused = "send less", .strict = true},
    {"prompt_logprobs", ANSWERS, WHOLE, .refused = "use echo and logprobs at /v1/completions",
     .strict = true},
    {"allowed_token_ids", ANSWERS, LIST, .refused = "use logit_bias or a grammar"},
    {"bad_words", ANSWERS, LIST, .refused = "use logit_bias with false"},
    {"guided_json", ANSWERS, ANY, .refused = SCHEMA},
    {"guided_regex", ANSWERS, TEXT, .refused = "use json_schema with a pattern, or grammar"},
    {"guided_choice", ANSWERS, LIST, .refused = "use json_schema with an enum, or grammar"},
    {"guided_grammar", ANSWERS, TEXT, .refused = "use grammar"},
    {"guided_decoding_backend", ANSWERS, TEXT, .refused = SCHEMA},
    {"guided_whitespace_pattern", ANSWERS, TEXT, .refused = "use grammar"},
    {"structured_outputs", ANSWERS, OBJECT, .refused = SCHEMA},
    {"structural_tag", ANSWERS, TEXT | OBJECT, .refused = SCHEMA},
    {"logits_processors", ANSWERS, LIST, .refused = "use logit_bias"},
    {"return_tokens_as_token_ids", ANSWERS, FLAG, .refused = "use return_tokens at /completion"},
    {"return_token_ids", ANSWERS, FLAG, .refused = "use return_tokens at /completion"},
    {"kv_transfer_params", ANSWERS, OBJECT, .refused = LEAVE},
    {"vllm_xargs", ANSWERS, OBJECT, .refused = LEAVE},
    {"documents", CHAT, LIST, .refused = "use chat_template_kwargs"},
    {"chat_template", CHAT | EMBED, TEXT, .refused = "start with --chat-template-file"},
    {"mm_processor_kwargs", ANSWERS | EMBED, OBJECT, .refused = "this server reads only text"},
    {"include_reasoning", CHAT, FLAG, .refused = "reasoning always comes apart", .off_true = true},
    {"thinking_token_budget", NATIVE | COMPLETION, WHOLE, .refused = CHATS, .off = -1},
    {"prompt_embeds", NATIVE | COMPLETION, ANY, .refused = "send a text or token ids"},
    {"normalize", EMBED, FLAG, .refused = "use --pooling none and /embeddings", .off_true = true},
    {"embed_dtype", EMBED, TEXT, .refused = LEAVE, .off_text = "float32"},
    {"endianness", EMBED, TEXT, .refused = LEAVE, .off_text = "little native"},
    {"messages", EMBED | TOKENIZE, LIST, .refused = "use /apply-template"},
    {"return_token_strs", TOKENIZE, FLAG, .refused = "use with_pieces"},
    /* Anthropic's messages and OpenAI's responses, which become chats: those that chats have, too,
     * are also looked at there */
    {"system", MESSAGES, TEXT | LIST, .at = ELSEWHERE},
    {"max_tokens", MESSAGES, WHOLE, .least = 0, .most = MOST},
    {"stop_sequences", MESSAGES, LIST, .at = ELSEWHERE},
    {"thinking", MESSAGES, OBJECT, .at = ELSEWHERE},
    {"output_config", MESSAGES, OBJECT, .at = ELSEWHERE},
    {"output_format", MESSAGES, OBJECT, .at = ELSEWHERE},
    {"tool_choice", MESSAGES, OBJECT, .at = ELSEWHERE},
    {"top_k", MESSAGES, WHOLE, .least = -1, .most = MOST},
    {"instructions", RESPONSES, TEXT, .at = ELSEWHERE},
    {"previous_response_id", RESPONSES, TEXT, .at = ELSEWHERE},
    {"max_output_tokens", RESPONSES, WHOLE, .least = 1, .most = MOST},
    {"reasoning", RESPONSES, OBJECT, .at = ELSEWHERE},
    {"text", RESPONSES, OBJECT, .at = ELSEWHERE},
    {"include", RESPONSES, LIST, .at = ELSEWHERE},
    {"truncation", RESPONSES, TEXT, .at = ELSEWHERE},
    {"store", RESPONSES, FLAG, .at = ELSEWHERE},
    {"metadata", RESPONSES, OBJECT, .at = ELSEWHERE},
    {"temperature", MESSAGES | RESPONSES, NUMBER, .least = 0, .most = 100},
    {"top_p", MESSAGES | RESPONSES, NUMBER, .least = 0, .most = 1},
    {"context_management", MESSAGES, OBJECT, .idle = true},
    {"context_management", RESPONSES, LIST, .idle = true},
    {"cache_control", MESSAGES, OBJECT, .idle = true},
    {"diagnostics", MESSAGES, OBJECT, .idle = true},
    {"inference_geo", MESSAGES, TEXT, .idle = true},
    {"speed", MESSAGES, TEXT, .idle = true},
    {"betas", MESSAGES, LIST, .idle = true},
    {"fallbacks", MESSAGES, LIST | TEXT, .idle = true},
    {"prompt_cache_options", RESPONSES, OBJECT, .idle = true},
    {"client_metadata", RESPONSES, OBJECT, .idle = true},
    {"stream_options", RESPONSES, OBJECT, .idle = true},
    {"max_tool_calls", RESPONSES, WHOLE, .idle = true},
    {"raw_scores", RERANK, FLAG, .refused = LEAVE},
    {"container", MESSAGES, TEXT | OBJECT, .refused = "this server runs no code"},
    {"mcp_servers", MESSAGES, LIST, .refused = "let the client call them as tools"},
    {"background", RESPONSES, FLAG, .refused = "wait for the answer, or stream it"},
    {"conversation", RESPONSES, TEXT | OBJECT, .refused = "use previous_response_id"},
    {"prompt", RESPONSES, OBJECT, .refused = "send its text as input"},
    {"moderation", RESPONSES, OBJECT, .refused = "this server moderates nothing"},
    /* behind the ? of an address */
    {"autoload", QUERY, FLAG, .at = ELSEWHERE},
    {"limit", QUERY_MODELS, WHOLE, .least = 1, .most = 1000},
    {"after_id", QUERY_MODELS, TEXT, .at = ELSEWHERE},
    {"before_id", QUERY_MODELS, TEXT, .at = ELSEWHERE},
    {"reload", QUERY_MODELS, FLAG, .refused = "the list is read when the server starts"},
    {"limit", QUERY_ITEMS, WHOLE, .least = 1, .most = 100},
    {"after", QUERY_ITEMS, TEXT, .at = ELSEWHERE},
    {"before", QUERY_ITEMS, TEXT, .at = ELSEWHERE},
    {"order", QUERY_ITEMS, TEXT, .at = ELSEWHERE},
    {"include", QUERY_RESPONSE | QUERY_ITEMS, TEXT,
     .refused = "it goes into the request that makes the response"},
    {"stream", QUERY_RESPONSE, FLAG, .refused = "the response is complete; leave it out"},
    {"starting_after", QUERY_RESPONSE, WHOLE, .refused = "no events are kept; leave it out",
     .strict = true},
    {"include_obfuscation", QUERY_RESPONSE, FLAG, .idle = true},
    {"fail_on_no_slot", QUERY_SLOTS, FLAG, .at = ELSEWHERE},
    {"action", QUERY_SLOT, TEXT, .at = ELSEWHERE},
    {0},
};

oato_status request_members(const json_t *o, enum ask_kind kind, int32_t width, struct ask *ask,
                            struct oato_error *err)
{
    return json_members_read(members, o, MEMBER_ON(kind), width, ask, err);
}

/* What is behind the ? is text; what is not of the row's type stays one, and is refused then. */
static json_t *query_value(const struct member *m, const char *text)
{
    int64_t number;
    const bool yes = !strcmp(text, "true") || !strcmp(text, "1");
    if (m->types & FLAG && (yes || !strcmp(text, "false") || !strcmp(text, "0")))
        return json_boolean(yes);
    if (m->types & (WHOLE | NUMBER) && parse_i64(text, INT64_MIN, INT64_MAX, &number))
        return json_integer(number);
    return text_value(text, strlen(text));
}

oato_status query_members(struct exchange *x, enum ask_kind kind, struct oato_error *err)
{
    const unsigned on = QUERY | MEMBER_ON(kind);
    char list[40];
    if (!MHD_get_connection_values(x->connection, MHD_GET_ARGUMENT_KIND, NULL, NULL))
        return OATO_OK;
    x->query = json_object();
    for (const struct member *m = members; m->name; m++) {
        if (!(m->on & on))
            continue;
        const char *text =
            MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, m->name);
        snprintf(list, sizeof list, "%s[]", m->name); /* as OpenAI's clients send one */
        text =
            text ? text : MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, list);
        if (text && *text)
            json_object_set_new(x->query, m->name, query_value(m, text));
    }
    return json_members_read(members, x->query, on, 0, NULL, err);
}
