/*
 * fim.c - what stands between two texts: llama.cpp's /infill, and the `suffix` of /v1/completions
 * and Ollama's /api/generate. The model's own marks are put around the texts: prefix, suffix,
 * middle (PSM), or suffix, prefix (SPM) where the model knows no mark of the middle. In front of
 * them, as far as there is room, stand other files. Texts are only texts: no mark in them counts as
 * one.
 */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

enum mark { PRE, SUF, MID, REPOSITORY, FILE_MARK, MARKS };

/* By model family, where the file does not name the tokens. */
static const char *const families[][MARKS] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<filename>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-repo>", NULL},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", NULL, NULL},    /* DeepSeek */
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL, NULL}, /* GLM */
    {"<|prefix|>", "<|suffix|>", "<|middle|>", NULL, NULL},                /* Falcon H1 */
    {"<PRE>", "<SUF>", "<MID>", NULL, NULL},
    {"▁<PRE>", "▁<SUF>", "▁<MID>", NULL, NULL}, /* CodeLlama */
    {"[PREFIX]", "[SUFFIX]", NULL, NULL, NULL}, /* Codestral: SPM */
};

static const char *const keys[][2] = {
    [PRE] = {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"},
    [SUF] = {"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"},
    [MID] = {"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"},
    [REPOSITORY] = {"tokenizer.ggml.fim_rep_token_id", NULL},
    [FILE_MARK] = {"tokenizer.ggml.fim_sep_token_id", NULL},
};

/* The one token that the text is; -1: it is none. */
static int32_t token_of(const struct instance *m, const char *text)
{
    struct oato_error ignored;
    const char *bytes;
    int32_t *ids = NULL, id = -1;
    size_t n = 0, length;
    if (text &&
        !tokenizer_encode(m->session.tokenizer, text, strlen(text), TOKENIZE_PARSE_SPECIAL, &ids,
                          &n, &ignored) &&
        n == 1 && tokenizer_piece(m->session.tokenizer, ids[0], true, &bytes, &length) &&
        length == strlen(text) && !memcmp(bytes, text, length))
        id = ids[0];
    free(ids);
    return id;
}

/* -1 where there is no such mark. False: the model does not fill in. */
static bool marks_find(const struct instance *m, int32_t marks[MARKS])
{
    int64_t id;
    for (int i = 0; i < MARKS; i++) {
        marks[i] = -1;
        for (int k = 0; k < 2 && marks[i] < 0; k++)
            if (keys[i][k] && gguf_get_i64(m->session.model->gguf, keys[i][k], &id) && id >= 0 &&
                id < m->session.model->shape.vocab)
                marks[i] = (int32_t)id;
    }
    for (size_t f = 0; f < ARRAY_LEN(families) && (marks[PRE] < 0 || marks[SUF] < 0); f++)
        for (int i = 0; i < MARKS; i++)
            marks[i] = token_of(m, families[f][i]);
    return marks[PRE] >= 0 && marks[SUF] >= 0;
}

bool fim_is_known(const struct instance *m)
{
    int32_t marks[MARKS];
    return marks_find(m, marks);
}

/* ------------------------------------------------------------------------------ the prompt --- */

/* Appends the tokens of a text to a list of ids; in front of an empty one stands the BOS. */
static oato_status text_put(struct exchange *x, json_t *list, const char *s, size_t n,
                            struct oato_error *err)
{
    const int flags = json_array_size(list) || n ? 0 : TOKENIZE_ADD_BOS;
    int32_t *ids = NULL;
    size_t count = 0;
    oato_status status = tokenizer_encode_within(x->instance->session.tokenizer, s, n, flags,
                                                 &x->budget, &ids, &count, err);
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    return status;
}

static oato_status json_put(struct exchange *x, json_t *list, int32_t mark, const json_t *text,
                            struct oato_error *err)
{
    if (mark >= 0)
        json_array_append_new(list, json_integer(mark));
    return json_string_length(text)
               ? text_put(x, list, json_string_value(text), json_string_length(text), err)
               : OATO_OK;
}

/* The other files: {"filename", "text"} each, and where the model has a mark for files, this one's
 * last. */
static oato_status files_put(struct exchange *x, json_t *list, const int32_t marks[MARKS],
                             const json_t *files, struct oato_error *err)
{
    static const char snippet[] = "\n\n--- snippet ---\n\n";
    const bool named = marks[FILE_MARK] >= 0;
    const json_t *file;
    size_t i;
    oato_status status = OATO_OK;
    if (named && marks[REPOSITORY] >= 0 && json_array_size(files)) {
        json_array_append_new(list, json_integer(marks[REPOSITORY]));
        status = text_put(x, list, "project\n", 8, err);
    }
    json_array_foreach(files, i, file)
    {
        const json_t *name = json_object_get(file, "filename"),
                     *text = json_object_get(file, "text");
        if (!json_is_string(text) || (name && !json_is_string(name)))
            return oato_fail(err, OATO_EUSAGE,
                             "input_extra wants a list of objects with a filename and a text");
        json_t *head = named ? json_sprintf("%s\n", name ? json_string_value(name) : "file")
                             : json_string(snippet);
        if (!status)
            status = json_put(x, list, marks[FILE_MARK], head, err);
        if (!status)
            status = json_put(x, list, -1, text, err);
        json_decref(head);
    }
    if (named && json_array_size(files) && !status)
        status = json_put(x, list, marks[FILE_MARK], NULL, err);
    return named && json_array_size(files) && !status ? text_put(x, list, "current\n", 8, err)
                                                      : status;
}

/* The last of the files' tokens, so that an answer has room, too. */
static void files_cut(const struct exchange *x, json_t *files, const json_t *wanted, size_t behind)
{
    const int64_t context = x->instance->context, most = json_integer_value(wanted);
    const int64_t answer = most > 0 ? most : context / 4;
    const int64_t room = max_i64(0, context - answer - (int64_t)behind - 1);
    const int64_t n = (int64_t)json_array_size(files);
    json_t *kept = json_array();
    for (int64_t i = n > room ? n - room : 0; i < n; i++)
        json_array_append(kept, json_array_get(files, (size_t)i));
    json_array_clear(files);
    json_array_extend(files, kept);
    json_decref(kept);
}

static oato_status prompt_make(struct exchange *x, json_t *request, const json_t *before,
                               const json_t *prompt, const json_t *after, const json_t *files,
                               struct oato_error *err)
{
    int32_t marks[MARKS];
    json_t *all = json_array(), *extra = json_array(), *own = json_array();
    x->unsupported = !marks_find(x->instance, marks);
    oato_status status =
        x->unsupported ? oato_fail(err, OATO_EUSAGE,
                                   "%.100s has no tokens for filling in (prefix, suffix, middle); "
                                   "ask a model that was trained for it",
                                   x->instance->name)
                       : OATO_OK;
    if (!status)
        status = files_put(x, extra, marks, files, err);
    if (!status && marks[MID] < 0)
        status = json_put(x, own, marks[SUF], after, err);
    if (!status)
        status = json_put(x, own, marks[PRE], before, err);
    if (!status)
        status = json_put(x, own, -1, prompt, err);
    if (!status && marks[MID] >= 0)
        status = json_put(x, own, marks[SUF], after, err);
    if (!status && marks[MID] >= 0)
        status = json_put(x, own, marks[MID], NULL, err);
    files_cut(x, extra, json_object_get(request, "n_predict"), json_array_size(own));
    if (!status)
        status = text_put(x, all, "", 0, err);
    json_array_extend(all, extra);
    json_array_extend(all, own);
    json_decref(extra);
    json_decref(own);
    json_object_set_new(request, "prompt", all);
    return status;
}

oato_status fim_prompt(struct exchange *x, json_t *request, const json_t *prefix,
                       const json_t *suffix, struct oato_error *err)
{
    return prompt_make(x, request, prefix, NULL, suffix, NULL, err);
}

/* ------------------------------------------------------------------------------ requests ----- */

oato_status fim_suffix(struct exchange *x, struct oato_error *err)
{
    json_t *prompt = json_object_get(x->json, "prompt");
    json_t *suffix = json_object_get(x->json, "suffix");
    if (!json_string_length(suffix)) /* what is no text, too: members.c */
        return OATO_OK;
    if (!json_is_string(prompt))
        return oato_fail(err, OATO_EUSAGE, "suffix goes with a prompt that is one text");
    json_incref(prompt);
    const oato_status status = fim_prompt(x, x->json, prompt, suffix, err);
    json_decref(prompt);
    return status;
}

static oato_status infill_request(struct exchange *x, struct oato_error *err)
{
    static const char *const own[] = {"input_prefix", "input_suffix", "input_extra"};
    json_t *o = x->json, *prompt = json_object_get(o, "prompt");
    if (request_members(o, ASK_INFILL, 0, NULL, err))
        return err->status;
    json_incref(prompt);
    const oato_status status =
        prompt_make(x, o, json_object_get(o, own[0]), prompt, json_object_get(o, own[1]),
                    json_object_get(o, own[2]), err);
    json_decref(prompt);
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        json_object_del(o, own[i]);
    return status;
}

const struct dialect dialect_infill = {.kind = ASK_NATIVE,
                                       .request = infill_request,
                                       .whole = native_whole,
                                       .events = native_events,
                                       .failed = error_event,
                                       .error = error_json,
                                       .stream_type = "text/event-stream"};
