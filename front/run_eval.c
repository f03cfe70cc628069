/*
 * run_eval.c - the verbs that judge a model: perplexity as llama.cpp defines it (windows of the
 * context size, the second half of each is scored), raw logits of token ids, and tokens of a text.
 */
#include "front/run.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 128, DEFAULT_WINDOW = 512 };

void bos_warn(const struct tokenizer *t, const struct run_args *a, const char *text, size_t n,
              int flags)
{
    if (n && tokenizer_begins(t, text, n, flags))
        warn_line(program_warn, NULL,
                  "%s begins with the token that stands in front of every text, which is added "
                  "anyway; it is taken once, leave it out",
                  a->file        ? a->file
                  : a->n_prompts ? "the prompt"
                                 : "standard input");
}

/* ------------------------------------------------------------------------------ perplexity */

struct score {
    const int32_t *ids; /* of the chunk being fed */
    int32_t n, vocab;
    double nll;
    uint64_t count;
};

static void score_rows(void *user, const float *logits, int32_t first, int32_t rows)
{
    struct score *s = user;
    for (int32_t i = 0; i < rows && first + i + 1 < s->n; i++) {
        const float *row = logits + (size_t)i * (size_t)s->vocab;
        s->nll -= (double)row[s->ids[first + i + 1]] - logits_log_sum(row, s->vocab);
        s->count++;
    }
}

static oato_status window_score(struct session *s, int32_t seq, int32_t *ids, int32_t window,
                                struct score *score, struct oato_error *err)
{
    int32_t half = window / 2;
    oato_status status = engine_seq_truncate(s->engine, seq, 0, err);
    if (!status)
        status = engine_feed(s->engine, seq, ids, half, LOGITS_NONE, NULL, NULL, err);
    score->ids = ids + half;
    score->n = window - half;
    if (!status)
        status = engine_feed(s->engine, seq, ids + half, window - half, LOGITS_ALL, score_rows,
                             score, err);
    return status;
}

static oato_status score_text(struct session *s, const struct run_args *a, int32_t *ids,
                              size_t n_ids, struct oato_error *err)
{
    int32_t window = a->open.engine.context, seq, bos = tokenizer_bos(s->tokenizer);
    bool add_bos = n_ids && ids[0] == bos; /* the model expects BOS at the start of each window */
    size_t windows = n_ids / (size_t)window;
    struct score score = {.vocab = s->model->shape.vocab};
    struct progress progress;
    if (windows && a->compare)
        return compare_text(s, a, ids, n_ids, err);
    if (windows == 0)
        return oato_fail(err, OATO_EUSAGE,
                         "the text has %zu tokens, less than one window of %d; use a longer text "
                         "or a smaller -c",
                         n_ids, window);
    oato_status status = engine_seq_create(s->engine, &seq, err);
    progress_begin(&progress, "perplexity", (double)windows);
    for (size_t i = 0; i < windows && !status && !oato_interrupted; i++) {
        int32_t *w = ids + i * (size_t)window;
        if (add_bos)
            w[0] = bos;
        status = window_score(s, seq, w, window, &score, err);
        progress_update(&progress, (double)i + 1, NULL);
        if (!status)
            printf("[%zu]%.4f,%s", i + 1, exp(score.nll / (double)score.count),
                   i + 1 == windows ? "\n" : "");
        fflush(stdout);
    }
    progress_end(&progress);
    if (status || oato_interrupted) {
        putchar('\n');
        return status;
    }
    printf("perplexity %.4f\n", exp(score.nll / (double)score.count));
    return stdout_check(err);
}

oato_status run_perplexity(const struct run_args *given, struct oato_error *err)
{
    struct run_args a = *given;
    struct session s = {0};
    struct text text;
    int32_t *ids = NULL;
    size_t n = 0;
    if (!a.file)
        return oato_fail(err, OATO_EUSAGE, "no text given; use -f FILE");
    if (!a.open.engine.context)
        a.open.engine.context = DEFAULT_WINDOW;
    if (a.open.engine.context < 4)
        return oato_fail(err, OATO_EUSAGE, "a window of %d tokens is too short; use -c 4 or more",
                         a.open.engine.context);
    a.open.engine.rows = a.open.engine.context < 2 * ROWS ? a.open.engine.context : ROWS;
    oato_status status = text_read_file(a.file, TEXT_EXACT, &text, err);
    if (!status)
        status = session_open(&s, &a.open, SESSION_TOKENIZER, err);
    if (!status && !s.done) {
        bos_warn(s.tokenizer, &a, text.data, text.len, TOKENIZE_ADD_BOS);
        status = tokenizer_encode(s.tokenizer, or_empty(text.data), text.len, TOKENIZE_ADD_BOS,
                                  &ids, &n, err);
        if (!status)
            status = score_text(&s, &a, ids, n, err);
    }
    free(ids);
    text_free(&text);
    front_ends(status, err);
    session_close(&s);
    return status;
}

/* ---------------------------------------------------------------------------------- logits */

static oato_status ids_parse(const char *list, int32_t **ids, int32_t *n, struct oato_error *err)
{
    *n = 0;
    *ids = malloc((strlen(list) / 2 + 1) * sizeof **ids);
    if (!*ids)
        return oato_fail_memory(err, strlen(list), "token ids");
    for (const char *p = list; *p;) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        while (isspace((unsigned char)*end))
            end++;
        if (end == p || errno || v < 0 || v > INT32_MAX || (*end && *end != ',')) {
            free(*ids);
            *ids = NULL;
            return oato_fail(err, OATO_EUSAGE, "--ids wants numbers like 1,2,3, not '%.40s'", p);
        }
        (*ids)[(*n)++] = (int32_t)v;
        p = end + (*end == ',');
    }
    return OATO_OK;
}

struct logits_out {
    struct outfile file;
    size_t row_bytes;
    oato_status status;
    struct oato_error *err;
};

static void write_rows(void *user, const float *logits, int32_t first, int32_t rows)
{
    struct logits_out *o = user;
    (void)first;
    if (!o->status)
        o->status = outfile_write(&o->file, logits, (size_t)rows * o->row_bytes, o->err);
}

oato_status run_logits(const struct run_args *given, struct oato_error *err)
{
    struct run_args a = *given;
    struct session s = {0};
    struct logits_out out = {.err = err};
    int32_t *ids = NULL, n = 0, seq;
    if (!a.ids || !a.output)
        return oato_fail(err, OATO_EUSAGE, "logits wants --ids 1,2,3 and -o FILE");
    if (a.open.choice.mtp && a.open.plan)
        return oato_fail(err, OATO_EUSAGE,
                         "plans do not place the block that --mtp asks for; leave --plan out");
    oato_status status = ids_parse(a.ids, &ids, &n, err);
    if (!status && !n)
        status = oato_fail(err, OATO_EUSAGE, "--ids is empty");
    if (!status) {
        if (!a.open.engine.context)
            a.open.engine.context = n;
        a.open.engine.rows = n < ROWS ? n : ROWS;
        status = session_open(&s, &a.open, 0, err);
    }
    if (!status && !s.done)
        status = engine_seq_create(s.engine, &seq, err);
    if (!status && !s.done)
        status = outfile_open(&out.file, a.output, err);
    if (!status && !s.done) {
        out.row_bytes = (size_t)s.model->shape.vocab * sizeof(float);
        status = engine_feed(s.engine, seq, ids, n, LOGITS_ALL, write_rows, &out, err);
        if (out.status)
            status = out.status; /* the file is already deleted */
        else if (status)
            outfile_abort(&out.file);
        else
            status = outfile_commit(&out.file, err);
    }
    free(ids);
    front_ends(status, err);
    session_close(&s);
    return status;
}

/* -------------------------------------------------------------------------------- tokenize */

static oato_status token_print(const struct tokenizer *t, int32_t id, struct oato_error *err)
{
    const char *bytes;
    size_t n;
    struct text shown;
    text_init(&shown);
    if (tokenizer_piece(t, id, true, &bytes, &n))
        text_add_json(&shown, bytes, n);
    oato_status status =
        shown.failed ? oato_fail_memory(err, shown.len, "the text of a token") : OATO_OK;
    if (!status)
        printf("%6d  \"%s\"\n", id, or_empty(shown.data));
    text_free(&shown);
    return status;
}

oato_status run_tokenize(const struct run_args *a, struct oato_error *err)
{
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct text text;
    int32_t *ids = NULL;
    size_t n = 0;
    text_init(&text);
    if (a->file ? a->n_prompts != 0 : a->n_prompts != 1)
        return oato_fail(err, OATO_EUSAGE, "tokenize wants one text: -p TEXT or -f FILE");
    oato_status status = OATO_OK;
    if (a->file)
        status = text_read_file(a->file, TEXT_EXACT, &text, err);
    else
        text_add(&text, a->prompts[0], strlen(a->prompts[0]));
    if (text.failed)
        status = oato_fail_memory(err, text.len, "the text");
    if (!status)
        status = gguf_open(a->open.model, &g, err);
    if (!status)
        status = tokenizer_create(g, &t, err);
    const int flags = a->no_special ? 0 : TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL;
    if (!status) {
        bos_warn(t, a, text.data, text.len, flags);
        status = tokenizer_encode(t, or_empty(text.data), text.len, flags, &ids, &n, err);
    }
    if (!status) {
        for (size_t i = 0; i < n && !status; i++) {
            if (a->only_ids)
                printf("%s%d", i ? " " : "", ids[i]);
            else
                status = token_print(t, ids[i], err);
        }
        if (a->only_ids)
            putchar('\n');
        if (!status)
            status = stdout_check(err);
    }
    free(ids);
    text_free(&text);
    tokenizer_free(t);
    gguf_close(g);
    return status;
}
