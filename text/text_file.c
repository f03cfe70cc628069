/*
 * text_file.c - the one reader of texts that people and programs write: prompts, chats, grammars,
 * schemas, templates, lists, logs. Editors put a byte-order mark in front and end lines in three
 * ways; neither is part of what was meant.
 */
#include "text/text.h"

#include <string.h>

static oato_status text_unmark(const char *name, struct text *t, struct oato_error *err)
{
    const char *s = t->data;
    size_t n = t->len;
    if (!t->len || text_mark_skip(name, &s, &n, err))
        return t->len ? err->status : OATO_OK;
    memmove(t->data, s, n);
    t->len = n;
    t->data[n] = 0;
    return OATO_OK;
}

/* Where a stream ended before its end. */
static oato_status read_failed(const char *name, struct oato_error *err)
{
    oato_fail(err, OATO_EIO, "%s: %s", name, strerror(errno));
    if (oato_interrupted) /* by whoever was to type it, who knows */
        err->text[0] = 0;
    return err->status;
}

oato_status text_read_file(const char *path, enum text_ends ends, struct text *out,
                           struct oato_error *err)
{
    const bool in = !strcmp(path, "-");
    const char *name = in ? "standard input" : path;
    text_init(out);
    FILE *f = in ? stdin : stream_open(path, "r");
    if (!f)
        return oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
    char block[16384];
    for (size_t n; !out->failed && (n = fread(block, 1, sizeof block, f)) > 0;)
        text_add(out, block, n);
    oato_status status = OATO_OK;
    if (ferror(f))
        status = read_failed(name, err);
    else if (out->failed)
        status = oato_fail_memory(err, out->len, name);
    else
        status = text_unmark(name, out, err);
    if (!in)
        fclose(f);
    if (!status && out->len && ends == TEXT_LINES) {
        text_ends_unify(out->data, &out->len);
        out->data[out->len] = 0;
    }
    if (status)
        text_free(out);
    return status;
}

oato_status text_read_line(struct text_lines *l, struct text *out, struct oato_error *err)
{
    int c;
    out->len = 0;
    while ((c = getc(l->from)) != EOF) {
        const bool second = c == '\n' && l->cr;
        l->cr = c == '\r';
        if (second) /* of a pair whose first ended the line already */
            continue;
        const char byte = (char)c;
        if (c == '\n' || c == '\r')
            break;
        text_add(out, &byte, 1);
    }
    text_add(out, "", 0); /* an empty line has an address, too */
    if (out->failed)
        return oato_fail_memory(err, out->len, l->name);
    if (c == EOF && ferror(l->from))
        return read_failed(l->name, err);
    if (!l->n && text_unmark(l->name, out, err))
        return err->status;
    l->n++;
    return c == EOF && !out->len ? OATO_NEGATIVE : OATO_OK;
}
