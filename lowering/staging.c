/*
 * staging.c - places for streamed weights. A piece lies in one half of the room, so whatever the
 * last one took, the next finds a half without it: at least one is copied while the one before is
 * read. Small pieces lie beside each other, so more are.
 */
#include "lowering/lowering_internal.h"

/* How many pieces must have been read before [begin, end) may be filled. */
static uint64_t read_before(const struct staging *s, uint64_t begin, uint64_t end)
{
    uint64_t after = s->after;
    for (uint64_t i = s->after; i < s->placed; i++) {
        const struct staging_piece *p = &s->piece[i % STAGING_AHEAD];
        if (begin < p->end && p->begin < end)
            after = i + 1;
    }
    return after;
}

/* A place that may be taken, and the best of those so far. */
struct choice {
    uint64_t begin, after;
};

static void consider(const struct staging *s, uint64_t begin, uint64_t bytes, struct choice *best)
{
    const uint64_t after = read_before(s, begin, begin + bytes);
    if (after < best->after)
        *best = (struct choice){begin, after};
}

uint64_t staging_place(struct staging *s, uint64_t bytes, uint64_t *after)
{
    if (s->placed - s->after >= STAGING_AHEAD)
        s->after = s->placed - STAGING_AHEAD + 1;
    struct choice best = {0, UINT64_MAX};
    for (uint64_t h = 0; h < 2; h++) {
        const uint64_t first = h * s->half, last = first + s->half - bytes;
        consider(s, first, bytes, &best);
        for (uint64_t i = s->after; i < s->placed; i++) {
            const uint64_t behind = s->piece[i % STAGING_AHEAD].end;
            if (behind > first && behind <= last)
                consider(s, behind, bytes, &best);
        }
    }
    s->after = *after = best.after;
    s->piece[s->placed++ % STAGING_AHEAD] = (struct staging_piece){best.begin, best.begin + bytes};
    return best.begin;
}
