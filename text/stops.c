/*
 * stops.c - stop words in text that arrives in pieces: an answer ends in front of the first word
 * that it contains, wherever its tokens were cut.
 */
#include "text/stops.h"

#include <string.h>

/* The first word in what is held. */
static const char *word_find(const struct stop_filter *f, size_t *at)
{
    const char *found = NULL;
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
    size_t n = f->held.len;
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
    if (!f->of->n) {
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
