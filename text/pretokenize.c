/*
 * pretokenize.c - cuts a text into the pieces within which byte-level BPE may merge.
 *
 * Each model family has its own regular expressions, named in the GGUF by tokenizer.ggml.pre; they
 * are the table in pretokenize_rows.c, and PCRE2 runs them. A row has one or more expressions,
 * applied in turn: each splits every piece that the previous ones left, into matches and the text
 * between matches. An expression sees a piece as if it were the whole text.
 */
#include "text/tokens_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct pretokenizer {
    const char *name;
    pcre2_code *code[PRETOKENIZER_EXPRESSIONS];
    int n;
    bool cuts_before;
};

static const struct pretokenizer_row *row_find(struct gguf_string name, const char **spelt)
{
    for (size_t i = 0; i < n_pretokenizer_rows; i++) {
        for (const char *const *n = pretokenizer_rows[i].names; *n; n++) {
            if (gguf_string_is(name, *n)) {
                *spelt = *n;
                return &pretokenizer_rows[i];
            }
        }
    }
    return NULL;
}

static oato_status fail_unknown(const struct gguf *g, struct gguf_string name,
                                struct oato_error *err)
{
    struct text known;
    text_init(&known);
    for (size_t i = 0; i < n_pretokenizer_rows; i++)
        text_printf(&known, "%s%s", i ? ", " : "", pretokenizer_rows[i].names[0]);
    oato_fail(err, OATO_EFILE,
              "%s: tokenizer.ggml.pre is \"%.*s\", an unknown pre-tokeniser; known: "
              "%s and their aliases",
              gguf_path(g), name.len < 40 ? (int)name.len : 40, name.data,
              known.data ? known.data : "");
    text_free(&known);
    return err->status;
}

oato_status pretokenizer_create(const struct gguf *g, struct pretokenizer **out,
                                struct pretokenizer_traits *traits, struct oato_error *err)
{
    struct gguf_string name;
    if (!gguf_get_string(g, "tokenizer.ggml.pre", &name))
        name = (struct gguf_string){"default", 7};
    const char *spelt;
    const struct pretokenizer_row *row = row_find(name, &spelt);
    if (!row)
        return fail_unknown(g, name, err);

    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return oato_fail_memory(err, sizeof *p, "the pre-tokeniser");
    p->name = spelt;
    p->cuts_before = row->traits.cuts_before;
    for (; p->n < PRETOKENIZER_EXPRESSIONS && row->expressions[p->n]; p->n++) {
        int code;
        PCRE2_SIZE where;
        pcre2_code *c =
            pcre2_compile((PCRE2_SPTR)row->expressions[p->n], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &where, NULL);
        if (!c) {
            oato_fail(err, OATO_EFIT,
                      "PCRE2 rejects expression %d of pre-tokeniser %s at offset %zu (error %d); "
                      "use a PCRE2 built with Unicode support",
                      p->n + 1, spelt, (size_t)where, code);
            pretokenizer_free(p);
            return err->status;
        }
        /* Where compiling to machine code is not possible PCRE2 interprets. */
        (void)pcre2_jit_compile(c, PCRE2_JIT_COMPLETE);
        p->code[p->n] = c;
    }
    *traits = row->traits;
    *out = p;
    return OATO_OK;
}

bool pretokenizer_adds_bos(const struct gguf *g)
{
    struct gguf_string name = {"default", 7};
    const char *spelt;
    (void)gguf_get_string(g, "tokenizer.ggml.pre", &name);
    const struct pretokenizer_row *row = row_find(name, &spelt);
    return row && row->traits.add_bos;
}

void pretokenizer_free(struct pretokenizer *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n; i++)
        pcre2_code_free(p->code[i]);
    free(p);
}

static void span_push(struct span_list *l, size_t end)
{
    uint32_t *ends = array_room(l->ends, l->n, &l->cap, sizeof *ends);
    l->failed = l->failed || !ends;
    if (ends)
        (l->ends = ends)[l->n++] = (uint32_t)end;
}

/* Splits the piece [begin, end) of text. Returns a negative PCRE2 code on failure. */
static int split_piece(const struct pretokenizer *p, int step, struct pretokenize_work *w,
                       pcre2_match_context *limits, const char *text, size_t begin, size_t end)
{
    pcre2_match_data *match = w->match;
    struct span_list *out = &w->spare;
    PCRE2_SPTR piece = (PCRE2_SPTR)text + begin;
    size_t n = end - begin, done = 0, cut = 0;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(match);
    while (done < n) {
        int rc = pcre2_match(p->code[step], piece, n, done, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                             match, limits);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return rc;
        done = at[1];
        if (at[0] > cut)
            span_push(out, begin + at[0]);
        cut = p->cuts_before ? at[0] : done;
        if (!p->cuts_before)
            span_push(out, begin + done);
    }
    if (cut < n)
        span_push(out, end);
    return 0;
}

oato_status pretokenize(const struct pretokenizer *p, struct pretokenize_work *w, const char *text,
                        size_t n, struct oato_error *err)
{
    int rc = 0;
    w->spans.n = 0;
    span_push(&w->spans, n);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    if (!w->match)
        w->match = pcre2_match_data_create(1, NULL);
    if (!limits || !w->match)
        goto out;
    /* The expressions need a few steps a character; the limit is there so that what should not
     * happen ends. */
    pcre2_set_match_limit(limits, 10000000 + (uint32_t)n);
    for (int i = 0; i < p->n && rc == 0; i++) {
        size_t begin = 0;
        w->spare.n = 0;
        for (size_t k = 0; k < w->spans.n && rc == 0; k++) {
            rc = split_piece(p, i, w, limits, text, begin, w->spans.ends[k]);
            begin = w->spans.ends[k];
        }
        struct span_list swap = w->spans;
        w->spans = w->spare;
        w->spare = swap;
    }
out:
    if (!limits || !w->match || w->spans.failed || w->spare.failed)
        oato_fail_memory(err, n, "the pieces of the text");
    else if (rc < 0)
        oato_fail(err, OATO_EUSAGE,
                  "a text of %zu bytes cannot be split by pre-tokeniser %s: PCRE2 error %d (match "
                  "or memory limit exceeded); pass the text in smaller parts",
                  n, p->name, rc);
    bool ok = limits && w->match && !w->spans.failed && !w->spare.failed && rc == 0;
    pcre2_match_context_free(limits);
    return ok ? OATO_OK : err->status;
}

void pretokenize_work_free(struct pretokenize_work *w)
{
    free(w->spans.ends);
    free(w->spare.ends);
    pcre2_match_data_free(w->match);
    *w = (struct pretokenize_work){0};
}
