/*
 * random.h - random numbers of tests, which a run prints so that it can be repeated.
 */
#ifndef OATO_TEST_RANDOM_H
#define OATO_TEST_RANDOM_H

#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

struct random {
    uint64_t state;
};

/* Of OATO_TEST_SEED, else of the clock; prints it. */
static inline struct random random_of_run(void)
{
    const char *s = getenv("OATO_TEST_SEED");
    const struct random r = {s ? strtoull(s, NULL, 10) : now_ns()};
    print_message("OATO_TEST_SEED=%llu\n", (unsigned long long)r.state);
    return r;
}

/* A whole number below n, which is not 0. */
static inline uint32_t random_below(struct random *r, uint32_t n)
{
    if (!n)
        abort();
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((r->state >> 33) % n);
}

#endif
