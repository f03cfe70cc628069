/*
 * random_planfmt.h - random but allowed profiles and plans for the tests of planfmt/ and the seed
 * corpus of the fuzz targets. The same seed gives the same structure on every machine.
 */
#ifndef OATO_RANDOM_PLANFMT_H
#define OATO_RANDOM_PLANFMT_H

#include "planfmt/planfmt.h"

struct rng {
    uint64_t state;
};
uint64_t rng_next(struct rng *r);
/* Uniform in [lo, hi]. */
int64_t rng_range(struct rng *r, int64_t lo, int64_t hi);

/* A seed for this run: OATO_TEST_SEED, or the clock; printed so that a failure can be repeated. */
uint64_t test_seed(void);

/* Out must be freed. Rows have distinct keys; numbers span their whole range. */
void random_profile(struct rng *r, int32_t n_rows, struct profile *out);
void random_plan(struct rng *r, int32_t n_parts, struct plan *out);

/* The whole file; free it. */
char *read_whole(const char *path, size_t *bytes);
/* A path in a fresh directory under $TMPDIR; scratch_clean removes all. */
const char *scratch_path(const char *name);
void scratch_clean(void);
/* How many files lie in the scratch directory. */
int scratch_files(void);

#endif
