/*
 * pace.h - how much tests repeat. Under sanitizers and emulators all takes ten times as long: there
 * tests go through fewer rounds, and through samples of their tables that begin at a random row.
 * What is rare is found by the ordinary build, and by `scripts/test all`, which sets
 * OATO_TEST_ALL=1: all is repeated everywhere.
 */
#ifndef OATO_TEST_PACE_H
#define OATO_TEST_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

static inline bool pace_is_slow(void)
{
    const char *all = getenv("OATO_TEST_ALL"), *emulator = getenv("OATO_TEST_EMULATOR");
    if (all && *all)
        return false;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    return true;
#endif
    return emulator && *emulator;
}

/* n, or a `part`th of it rounded up. */
static inline int pace_rounds(int n, int part)
{
    return pace_is_slow() ? (n + part - 1) / part : n;
}

/* The step in a table of cases; no multiple of what the cases' numbers are taken modulo of. */
static inline size_t pace_step(size_t step)
{
    return pace_is_slow() ? step : 1;
}

/* The first case, below the step: of OATO_TEST_SEED, else of the clock. */
static inline size_t pace_first(size_t step)
{
    const char *seed = getenv("OATO_TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (size_t)(seed ? strtoull(seed, NULL, 10) : (unsigned long long)now.tv_nsec / 1000) %
           pace_step(step);
}

#endif
