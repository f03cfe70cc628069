/*
 * dry.c - DRY ("don't repeat yourself", p-e-w 2024): a token that would make the text repeat n
 * tokens that it had before loses multiplier * base^(n - allowed) of its logit. A repetition does
 * not reach across a breaker, a text such as the end of a line.
 */
#include "text/dry.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A text and, as Knuth, Morris and Pratt have it, how much of its beginning stands at the end of
 * its first i bytes, themselves left out. */
struct breaker {
    char *text;
    uint32_t n, *shorter; /* shorter: n + 1 of them */
};

struct dry_breakers {
    struct breaker at[DRY_BREAKERS];
    int32_t n;
};

struct dry {
    struct dry_options o;
    struct dry_breakers *own; /* NULL where they are borrowed */
    const struct dry_breakers *breakers;
    uint32_t begun[DRY_BREAKERS]; /* bytes of each breaker that stand at the end of the text */
    int32_t *ring;                /* of the last o.last tokens */
    int32_t n, at;
    int32_t unbroken; /* tokens behind the last breaker */
    int32_t *latest;  /* scratch: the ring's tokens, the latest one first */
    int32_t *alike;   /* scratch: how many of `latest` from i on are as those from 0 on */
};

/* The text of a breaker; NULL: there are no more. */
static const char *breaker_of(const struct dry_options *o, int32_t i)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    if (!o->n_breakers)
        return i < (int32_t)ARRAY_LEN(usual) ? usual[i] : NULL;
    return i < o->n_breakers ? o->breaker[i] : NULL;
}

size_t dry_breakers_bytes(const struct dry_options *o)
{
    size_t bytes = sizeof(struct dry_breakers);
    const char *text;
    for (int32_t i = 0; (text = breaker_of(o, i)); i++)
        bytes += (strlen(text) + 1) * (1 + sizeof(uint32_t));
    return bytes;
}

/* How many bytes of the breaker stand at the end when this one comes behind those that did. */
static uint32_t go_on(const struct breaker *b, uint32_t begun, char byte)
{
    while (begun && (begun == b->n || b->text[begun] != byte))
        begun = b->shorter[begun];
    return begun + (b->text[begun] == byte);
}

static bool breaker_prepare(struct breaker *b, const char *text)
{
    b->n = (uint32_t)strlen(text);
    b->text = strdup(text);
    b->shorter = calloc((size_t)b->n + 1, sizeof *b->shorter);
    if (!b->text || !b->shorter)
        return false;
    for (uint32_t i = 1; i < b->n; i++)
        b->shorter[i + 1] = go_on(b, b->shorter[i], text[i]);
    return true;
}

struct dry_breakers *dry_breakers_create(const struct dry_options *o)
{
    struct dry_breakers *b = calloc(1, sizeof *b);
    const char *text;
    for (int32_t i = 0; b && (text = breaker_of(o, i)); i++) {
        if (!*text)
            continue;
        if (!breaker_prepare(&b->at[b->n++], text)) {
            dry_breakers_free(b);
            return NULL;
        }
    }
    return b;
}

void dry_breakers_free(struct dry_breakers *b)
{
    for (int32_t i = 0; b && i < b->n; i++) {
        free(b->at[i].text);
        free(b->at[i].shorter);
    }
    free(b);
}

struct dry *dry_create(const struct dry_options *o)
{
    struct dry *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->o = *o;
    const size_t last = (size_t)o->last;
    d->own = o->prepared ? NULL : dry_breakers_create(o);
    d->breakers = o->prepared ? o->prepared : d->own;
    d->ring = malloc(last * sizeof *d->ring);
    d->latest = malloc(last * sizeof *d->latest);
    d->alike = malloc(last * sizeof *d->alike);
    if (d->breakers && d->ring && d->latest && d->alike)
        return d;
    dry_free(d);
    return NULL;
}

void dry_free(struct dry *d)
{
    if (!d)
        return;
    dry_breakers_free(d->own);
    free(d->ring);
    free(d->latest);
    free(d->alike);
    free(d);
}

/* Whether a breaker ends in the text of this token. */
static bool breaks(struct dry *d, int32_t id)
{
    const char *bytes;
    size_t n;
    bool found = false;
    if (!d->o.tokenizer || !tokenizer_piece(d->o.tokenizer, id, true, &bytes, &n))
        return false;
    for (int32_t k = 0; k < d->breakers->n; k++) {
        const struct breaker *b = &d->breakers->at[k];
        for (size_t i = 0; i < n; i++) {
            d->begun[k] = go_on(b, d->begun[k], bytes[i]);
            found = found || d->begun[k] == b->n;
        }
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

void dry_penalties(struct dry *d, float *penalty)
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
        float *to = &penalty[d->latest[i - 1]]; /* what came next that time */
        *to = fmaxf(*to, (float)fmin(by, FLT_MAX / 4));
    }
}

void dry_clear(struct dry *d, float *penalty)
{
    for (int32_t i = 0; i < d->n; i++)
        penalty[d->latest[i]] = 0;
}
