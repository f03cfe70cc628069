/*
 * fill_in.c - prompts for what stands between two texts (see text.h). A model that was trained for
 * it has marks for the text before, the text behind and the middle, in this order (PSM), or none
 * for the middle, and then wants what is behind first (SPM). Other files stand in front. Texts are
 * only texts: no mark in them counts as one.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

enum mark { PREFIX, SUFFIX, MIDDLE, REPOSITORY, FILE_MARK };

/* By model family, where the file does not name the tokens. */
static const char *const families[][FILL_IN_MARKS] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", NULL},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-repo>", NULL},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", NULL, NULL},    /* DeepSeek */
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL, NULL}, /* GLM */
    {"<|prefix|>", "<|suffix|>", "<|middle|>", NULL, NULL},                /* Falcon H1 */
    {"<PRE>", "<SUF>", "<MID>", NULL, NULL},
    {"▁<PRE>", "▁<SUF>", "▁<MID>", NULL, NULL}, /* CodeLlama */
    {"[PREFIX]", "[SUFFIX]", NULL, NULL, NULL}, /* Codestral */
};

static const char *const keys[FILL_IN_MARKS][2] = {
    {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"},
    {"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"},
    {"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"},
    {"tokenizer.ggml.fim_rep_token_id", NULL},
    {"tokenizer.ggml.fim_sep_token_id", NULL},
};

/* The one token that the text is; -1: it is none. */
static int32_t token_of(const struct tokenizer *t, const char *text)
{
    struct oato_error ignored;
    const char *bytes;
    int32_t *ids = NULL, id = -1;
    size_t n = 0, length;
    if (text &&
        !tokenizer_encode(t, text, strlen(text), TOKENIZE_PARSE_SPECIAL, &ids, &n, &ignored) &&
        n == 1 && tokenizer_piece(t, ids[0], true, &bytes, &length) && length == strlen(text) &&
        !memcmp(bytes, text, length))
        id = ids[0];
    free(ids);
    return id;
}

bool fill_in_find(const struct tokenizer *t, const struct gguf *g, struct fill_in *out)
{
    int32_t *marks = out->mark;
    int64_t id;
    for (int i = 0; i < FILL_IN_MARKS; i++) {
        marks[i] = -1;
        for (int k = 0; k < 2 && marks[i] < 0; k++)
            if (keys[i][k] && gguf_get_i64(g, keys[i][k], &id) && id >= 0 && id < tokenizer_size(t))
                marks[i] = (int32_t)id;
    }
    for (size_t f = 0; f < ARRAY_LEN(families) && (marks[PREFIX] < 0 || marks[SUFFIX] < 0); f++)
        for (int i = 0; i < FILL_IN_MARKS; i++)
            marks[i] = token_of(t, families[f][i]);
    return marks[PREFIX] >= 0 && marks[SUFFIX] >= 0;
}

struct ids {
    const struct tokenizer *tokenizer;
    struct budget *budget;
    int32_t *id;
    size_t n;
    oato_status status;
    struct oato_error *err;
};

static void ids_add(struct ids *to, const int32_t *ids, size_t n)
{
    int32_t *more = n ? realloc(to->id, (to->n + n) * sizeof *more) : NULL;
    if (n && !more)
        to->status = oato_fail_memory(to->err, (to->n + n) * sizeof *more, "a prompt");
    if (!more)
        return;
    to->id = more;
    memcpy(more + to->n, ids, n * sizeof *ids);
    to->n += n;
}

/* A mark, if it is not -1, and a text behind it. */
static void put(struct ids *to, int32_t mark, const char *s, size_t n, int flags)
{
    int32_t *ids = NULL;
    size_t count = 0;
    if (!to->status && mark >= 0)
        ids_add(to, &mark, 1);
    if (!to->status && (n || flags))
        to->status =
            tokenizer_encode_within(to->tokenizer, s, n, flags, to->budget, &ids, &count, to->err);
    if (!to->status)
        ids_add(to, ids, count);
    free(ids);
}

static void files_put(struct ids *to, const struct fill_in *f, const struct fill_in_file *files,
                      size_t n)
{
    static const char repository[] = "project\n", between[] = "\n\n--- snippet ---\n\n",
                      current[] = "current\n";
    const int32_t mark = f->mark[FILE_MARK];
    if (n && mark >= 0 && f->mark[REPOSITORY] >= 0)
        put(to, f->mark[REPOSITORY], repository, sizeof repository - 1, 0);
    for (size_t i = 0; i < n; i++) {
        put(to, mark, mark < 0 ? between : files[i].name.data,
            mark < 0 ? sizeof between - 1 : files[i].name.len, 0);
        put(to, -1, "\n", mark >= 0, 0);
        put(to, -1, files[i].text.data, files[i].text.len, 0);
    }
    if (n && mark >= 0)
        put(to, mark, current, sizeof current - 1, 0);
}

oato_status fill_in_prompt(const struct tokenizer *t, const struct fill_in *f,
                           const struct fill_in_parts *p, struct budget *budget, int32_t **ids,
                           size_t *n, struct oato_error *err)
{
    const bool middle = f->mark[MIDDLE] >= 0;
    struct ids own = {.tokenizer = t, .budget = budget, .err = err}, files = own, all = own;
    files_put(&files, f, p->files, p->n_files);
    if (!middle)
        put(&own, f->mark[SUFFIX], p->suffix.data, p->suffix.len, 0);
    put(&own, f->mark[PREFIX], p->prefix.data, p->prefix.len, 0);
    put(&own, -1, p->begun.data, p->begun.len, 0);
    if (middle)
        put(&own, f->mark[SUFFIX], p->suffix.data, p->suffix.len, 0);
    if (middle)
        put(&own, f->mark[MIDDLE], NULL, 0, 0);
    put(&all, -1, "", 0, TOKENIZE_ADD_BOS);
    const size_t taken = all.n + own.n, room = p->most > taken ? p->most - taken : 0,
                 cut = files.n > room ? files.n - room : 0;
    oato_status status = files.status ? files.status : own.status ? own.status : all.status;
    if (!status)
        ids_add(&all, files.id + cut, files.n - cut);
    if (!status)
        ids_add(&all, own.id, own.n);
    free(files.id);
    free(own.id);
    *ids = all.id;
    *n = all.n;
    return status ? status : all.status;
}
