/*
 * answer_cut.h - an answer in parts, for tests: cut as it arrives in pieces.
 */
#ifndef OATO_ANSWER_CUT_H
#define OATO_ANSWER_CUT_H

#include "text/chat_internal.h"

#include <stdlib.h>
#include <string.h>

struct answer_parts {
    struct text text[2]; /* by enum chat_part */
    struct text calls;   /* members of a JSON array: ["name",{..}]; that of a call that is not whole
                            ends in .. */
    struct text arguments; /* of the call that is arriving */
    int n_whole, n_cut;
    bool calling;
};

static inline void parts_text(void *user, enum chat_part part, const char *s, size_t n)
{
    struct answer_parts *p = user;
    if (p->calling)
        abort();
    text_add(&p->text[part], s, n);
}

static inline void parts_call(void *user, const char *name)
{
    struct answer_parts *p = user;
    if (!name[0] || p->calling)
        abort();
    p->calling = true;
    text_printf(&p->calls, "%s[\"%s\",", p->calls.len ? "," : "", name);
}

static inline void parts_arguments(void *user, const char *s, size_t n)
{
    struct answer_parts *p = user;
    if (!p->calling || !n)
        abort();
    text_add(&p->arguments, s, n);
}

/* Whatever the answer, the arguments of a whole call are an object on one line. */
static inline void parts_call_end(void *user, bool whole)
{
    struct answer_parts *p = user;
    const struct text *a = &p->arguments;
    if (!p->calling || (whole && (a->len < 2 || a->data[0] != '{' || a->data[a->len - 1] != '}' ||
                                  memchr(a->data, '\n', a->len))))
        abort();
    p->calling = false;
    p->n_whole += whole;
    p->n_cut += !whole;
    text_add(&p->calls, or_empty(a->data), a->len);
    text_printf(&p->calls, whole ? "]" : "..]");
    p->arguments.len = 0;
}

/* The program of a chat template, the prompt, and the answer in pieces of so many bytes, which is
 * cut behind them or ends there. Free the parts. */
static inline oato_status answer_cut(struct gguf_string program, struct gguf_string prompt,
                                     struct gguf_string answer, size_t piece, bool is_cut,
                                     struct answer_parts *p, struct oato_error *err)
{
    struct chat_reader *r;
    const struct chat_sink sink = {parts_text, parts_call, parts_arguments, parts_call_end, p};
    *p = (struct answer_parts){0};
    oato_status status = chat_reader_of(program, CHAT_FORM_OWN, prompt, &sink, &r, err);
    for (size_t i = 0; !status && i < answer.len; i += piece)
        chat_reader_push(r, answer.data + i, answer.len - i < piece ? answer.len - i : piece);
    if (!status)
        status = chat_reader_end(r, is_cut, err);
    chat_reader_free(r);
    return status;
}

static inline void answer_parts_free(struct answer_parts *p)
{
    text_free(&p->text[CHAT_SAYS]);
    text_free(&p->text[CHAT_THINKS]);
    text_free(&p->calls);
    text_free(&p->arguments);
}

#endif
