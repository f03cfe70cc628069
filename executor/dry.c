/*
 * dry.c - DRY ("don't repeat yourself", p-e-w 2024): a token that would make the text repeat n
 * tokens that it had before loses multiplier * base^(n - allowed) of its logit. A repetition does
 * not reach across a breaker, a text such as the end of a line.
 */
#include "executor/dry.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dry {
    struct dry_options o;
    char *breaker[DRY_BREAKERS];
    size_t longest; /* bytes of a breaker */
    struct text tail;
    int32_t *ring; /* of the last o.last tokens */
    int32_t n, at, vocab;
    int32_t unbroken; /* tokens behind the last breaker */
    int32_t *latest;  /* scratch: the ring's tokens, the latest one first */
    int32_t *alike;   /* scratch: how many of `latest` from i on are as those from 0 on */
    float *penalty;   /* of each token; zeros but for those of `latest` */
};

static bool breakers_copy(struct dry *d)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const bool none_given = !d->o.n_breakers;
    const int32_t n = none_given ? (int32_t)ARRAY_LEN(usual) : d->o.n_breakers;
    for (int32_t i = 0; i < n; i++) {
        d->breaker[i] = strdup(none_given ? usual[i] : d->o.breaker[i]);
        if (!d->breaker[i])
            return false;
        const size_t length = strlen(d->breaker[i]);
        d->longest = length > d->longest ? length : d->longest;
    }
    return true;
}

struct dry *dry_create(const struct dry_options *o, int32_t vocab)
{
    struct dry *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->o = *o;
    d->vocab = vocab;
    const size_t last = (size_t)o->last;
    d->ring = malloc(last * sizeof *d->ring);
    d->latest = malloc(last * sizeof *d->latest);
    d->alike = malloc(last * sizeof *d->alike);
    d->penalty = calloc((size_t)vocab, sizeof *d->penalty);
    if (breakers_copy(d) && d->ring && d->latest && d->alike && d->penalty)
        return d;
    dry_free(d);
    return NULL;
}

void dry_free(struct dry *d)
{
    if (!d)
        return;
    for (int32_t i = 0; i < DRY_BREAKERS; i++)
        free(d->breaker[i]);
    text_free(&d->tail);
    free(d->ring);
    free(d->latest);
    free(d->alike);
    free(d->penalty);
    free(d);
}

/* Whether a breaker ends in the text of this token. */
static bool breaks(struct dry *d, int32_t id)
{
    const char *bytes;
    size_t n;
    bool found = false;
    const size_t before = d->tail.len;
    if (!d->longest || !d->o.tokenizer || !tokenizer_piece(d->o.tokenizer, id, true, &bytes, &n))
        return false;
    text_add(&d->tail, bytes, n);
    if (d->tail.failed)
        return false;
    for (int32_t i = 0; i < DRY_BREAKERS && d->breaker[i]; i++) {
        const size_t length = strlen(d->breaker[i]);
        const size_t from = before >= length ? before - length + 1 : 0; /* what ends later */
        found = found || (length && d->tail.len > from &&
                          memmem(d->tail.data + from, d->tail.len - from, d->breaker[i], length));
    }
    if (d->tail.len >= d->longest) {
        const size_t kept = d->longest - 1;
        memmove(d->tail.data, d->tail.data + d->tail.len - kept, kept);
        d->tail.len = kept;
    }
    return found;
}

void dry_accept(struct dry *d, int32_t id)
{
    d->ring[d->at] = id;
    d->at = (d->at + 1) % d->o.last;
    d->n += d->n < d->o.last;
    d->unbroken = breaks(d, id) ? 0 : (int32_t)min_i64((int64_t)d->unbroken + 1, d->o.last);
}

/* The Z algorithm on `latest`. */
static void alike_find(struct dry *d)
{
    int32_t from = 0, to = 0;
    for (int32_t i = 1; i < d->n; i++) {
        int32_t same = i < to ? (int32_t)min_i64(to - i, d->alike[i - from]) : 0;
        while (i + same < d->n && d->latest[same] == d->latest[i + same])
            same++;
        d->alike[i] = same;
        if (i + same > to) {
            from = i;
            to = i + same;
        }
    }
}

const float *dry_penalties(struct dry *d)
{
    const struct dry_options *o = &d->o;
    for (int32_t i = 0; i < d->n; i++)
        d->latest[i] = d->ring[(d->at - 1 - i + o->last) % o->last];
    alike_find(d);
    for (int32_t i = 1; i < d->n; i++) {
        const int64_t n = min_i64(d->alike[i], d->unbroken);
        if (n < 1 || n < o->allowed)
            continue;
        const double by = o->multiplier * pow(o->base, (double)(n - o->allowed));
        float *to = &d->penalty[d->latest[i - 1]]; /* what came next that time */
        *to = fmaxf(*to, (float)fmin(by, FLT_MAX / 4));
    }
    return d->penalty;
}

void dry_clear(struct dry *d)
{
    for (int32_t i = 0; i < d->n; i++)
        d->penalty[d->latest[i]] = 0;
}
