/*
 * stops.h - stop words: an answer ends in front of the first one that it contains, or in front of
 * a line that is not indented enough.
 */
#ifndef OATO_STOPS_H
#define OATO_STOPS_H

#include "base/base.h"

enum { STOPS_MAX = 64 };

struct stops {
    char *word[STOPS_MAX]; /* of malloc; none is empty */
    int32_t n;
    int32_t indent; /* least blanks of each line but the first; a line that is empty has none */
};
/* Looks for the words in text that arrives in pieces, and holds back what may begin one. */
struct stop_filter {
    const struct stops *of;
    struct text held;
    const char *hit; /* the word that was found, "" for a line: nothing passes any more */
};
/* Appends to out the text that no word touches; last: nothing follows, so nothing is held back. */
void stop_filter_push(struct stop_filter *f, const char *s, size_t n, bool last, struct text *out);

#endif
