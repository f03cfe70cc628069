/*
 * ranks_fixture.h - a model of 4 layers and 62 MiB, and machines for its ranks: `slow` takes twice
 * as long as `fast`, `crawling` a hundred times, and `accelerated` has a sim:0 beside its
 * processor, with room for 57.6 MiB.
 */
#ifndef OATO_RANKS_FIXTURE_H
#define OATO_RANKS_FIXTURE_H

#include "solver/solver.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

extern struct model *model;
extern struct profile fast, slow, crawling, accelerated;

int ranks_setup(void **state);
int ranks_teardown(void **state);
/* Each with a part of every layer, by Ethernet of 1 Gb/s. second: the profile of every other host;
 * NULL: all are fast. */
struct rank_options ranks_on(int32_t ranks, int32_t hosts, const struct profile *second);
struct planner_options request(void);
/* The plan for that request. */
void made(const struct rank_options *ranks, struct plan *plan);
/* oato-plan check; the text is in *out. */
oato_status checked(const struct plan *plan, const struct rank_options *ranks, bool json,
                    struct text *out);
/* The share of the plan's parts that is on accelerators. */
double accelerated_share(const struct plan *plan);
void budgets_hold(const struct plan *plan);

#endif
