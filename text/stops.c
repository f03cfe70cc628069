/*
 * stops.c - stop words in text that arrives in pieces: an answer ends in front of the first word
 * that it contains, wherever its tokens were cut. A line break with too few blanks behind it is
 * such a word.
 */
#include "text/stops.h"

#include <string.h>

/* The first line break behind which fewer blanks stand than lines must have, or, at the end of what
 * is held, may stand: *open then. Its place; held.len: there is none. */
static size_t line_find(const struct stop_filter *f, bool *open)
{
    const size_t least = (size_t)f->of->indent, n = f->held.len;
    *open = false;
    for (size_t i = 0, blanks = 0; i < n && least; i++) {
        if (f->held.data[i] != '\n')
            continue;
        for (blanks = 0; blanks < least && i + 1 + blanks < n; blanks++)
            if (f->held.data[i + 1 + blanks] != ' ' && f->held.data[i + 1 + blanks] != '\t')
                return i;
        *open = blanks < least;
        if (*open)
            return i;
    }
    return n;
}

/* The first word in what is held. */
static const char *word_find(const struct stop_filter *f, size_t *at)
{
    bool open;
    const size_t line = line_find(f, &open);
    const char *found = line < f->held.len && !open ? "" : NULL;
    *at = line;
    for (int32_t i = 0; i < f->of->n && f->held.len; i++) {
        const char *word = f->of->word[i];
        const char *p = memmem(f->held.data, f->held.len, word, strlen(word));
        if (p && (!found || (size_t)(p - f->held.data) < *at)) {
            found = word;
            *at = (size_t)(p - f->held.data);
        }
    }
    return found;
}

/* Bytes of what is held that begin no word. */
static size_t free_of_words(const struct stop_filter *f)
{
    bool open;
    const size_t line = line_find(f, &open);
    size_t n = open ? line : f->held.len;
    for (int32_t i = 0; i < f->of->n; i++) {
        const char *word = f->of->word[i];
        const size_t most = strlen(word) - 1;
        size_t from = f->held.len > most ? f->held.len - most : 0;
        while (from < n && memcmp(f->held.data + from, word, f->held.len - from) != 0)
            from++;
        n = from < n ? from : n;
    }
    return n;
}

void stop_filter_push(struct stop_filter *f, const char *s, size_t n, bool last, struct text *out)
{
    if (f->hit)
        return;
    if (!f->of->n && !f->of->indent) {
        text_add(out, s, n);
        return;
    }
    size_t passes = 0;
    text_add(&f->held, s, n);
    f->hit = word_find(f, &passes);
    const size_t begins = last ? f->held.len : free_of_words(f);
    if (!f->hit || begins < passes) { /* one in front of it may still become whole */
        f->hit = NULL;
        passes = begins;
    }
    if (!passes)
        return;
    text_add(out, f->held.data, passes);
    f->held.len -= passes;
    memmove(f->held.data, f->held.data + passes, f->held.len);
    out->failed = out->failed || f->held.failed;
}
