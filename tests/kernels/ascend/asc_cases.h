/*
 * asc_cases.h - the operators that are tried on an NPU: of every kind small shapes, odd ones among
 * them, with what may vary beside the shape. A row is tried with each type of weights that the kind
 * can have and several numbers of rows; trials are the self-test's (profiler/selftest_trial.c).
 */
#ifndef OATO_TESTS_ASC_CASES_H
#define OATO_TESTS_ASC_CASES_H

#include "profiler/selftest_internal.h"

/* few_types: F16 and Q4_0 only. */
extern const struct recipe asc_cases[];
extern const int asc_case_count;

#endif
