/*
 * model_room.c - which models go when another one is to be loaded.
 */
#include "executor/model_room.h"

#include <string.h>

/* Whether `want` fits beside those that stay. */
static bool fits(const struct room_model *v, int32_t n, int32_t want, const uint64_t *budget,
                 int32_t most, const bool *goes)
{
    int32_t there = 1;
    for (int32_t i = 0; i < n; i++)
        there += i != want && v[i].there && !goes[i];
    for (int d = 0; d < MODELS_DEVICES; d++) {
        uint64_t left = budget[d];
        for (int32_t i = 0; i < n; i++) {
            const bool counts = i == want || (v[i].there && !goes[i]);
            if (counts && v[i].need[d] > left)
                return false;
            left -= counts ? v[i].need[d] : 0;
        }
    }
    return !most || there <= most;
}

/* Idle ones go before busy ones, and of each the least recently used. */
static bool goes_before(const struct room_model *a, const struct room_model *b)
{
    return a->busy != b->busy ? b->busy : a->used_ns < b->used_ns;
}

/* Of those that are there and have that value in goes[], the first or the last to go; -1: none. */
static int32_t next_of(const struct room_model *v, int32_t n, int32_t want, const bool *goes,
                       const bool *seen, bool first)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (i != want && v[i].there && goes[i] != first && !seen[i] &&
            (best < 0 || (first ? goes_before(&v[i], &v[best]) : goes_before(&v[best], &v[i]))))
            best = i;
    return best;
}

enum room models_room(const struct room_model *v, int32_t n, int32_t want, const uint64_t *budget,
                      int32_t most, bool *goes)
{
    bool seen[MODELS_MOST] = {false}, none[MODELS_MOST] = {false};
    memset(goes, 0, (size_t)n * sizeof *goes);
    while (!fits(v, n, want, budget, most, goes)) {
        const int32_t i = next_of(v, n, want, goes, none, true);
        if (i < 0) {
            memset(goes, 0, (size_t)n * sizeof *goes);
            return ROOM_NEVER;
        }
        goes[i] = true;
    }
    enum room room = ROOM_FREE;
    for (int32_t i; (i = next_of(v, n, want, goes, seen, false)) >= 0;) {
        seen[i] = true;
        goes[i] = false;
        if (fits(v, n, want, budget, most, goes))
            continue;
        goes[i] = true;
        room = room == ROOM_WAITS || v[i].busy ? ROOM_WAITS : ROOM_MADE;
    }
    return room;
}
