/*
 * stops.h - stop words: an answer ends in front of the first one that it contains.
 */
#ifndef OATO_STOPS_H
#define OATO_STOPS_H

#include "base/base.h"

enum { STOPS_MAX = 16 };

struct stops {
    char *word[STOPS_MAX]; /* of malloc; none is empty */
    int32_t n;
};
/* Looks for the words in text that arrives in pieces, and holds back what may begin one. */
struct stop_filter {
    const struct stops *of;
    struct text held;
    const char *hit; /* the word that was found: nothing passes any more */
};
/* Appends to out the text that no word touches; last: nothing follows, so nothing is held back. */
void stop_filter_push(struct stop_filter *f, const char *s, size_t n, bool last, struct text *out);

#endif
