/*
 * top_logits.h - rows of logits that are hard to take the largest of: equal ones, numbers that are
 * none, in order and against it. Shared by the tests of OP_TOP_K.
 */
#ifndef OATO_TEST_TOP_LOGITS_H
#define OATO_TEST_TOP_LOGITS_H

#include "tests/kernels/test_cpu.h"

enum top_logits {
    TOP_RANDOM,
    TOP_FEW_VALUES, /* many are equal */
    TOP_EQUAL,
    TOP_RISING,
    TOP_FALLING,
    TOP_TOGETHER, /* the largest stand side by side */
    TOP_ODD,      /* no numbers, infinite and tiny ones, zeros of both signs */
    TOP_LOGITS
};

static UNUSED void fill_logits(enum top_logits what, float *x, int32_t n)
{
    const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, 0, -0.0f, 1e-42f, -1e-42f, 2e-42f, 1};
    const int32_t best = (int32_t)random_in(0, n - 1);
    for (int32_t i = 0; i < n; i++)
        switch (what) {
        case TOP_RANDOM: x[i] = random_float(); break;
        case TOP_FEW_VALUES: x[i] = (float)random_in(-3, 3); break;
        case TOP_EQUAL: x[i] = -1.5f; break;
        case TOP_RISING: x[i] = (float)i; break;
        case TOP_FALLING: x[i] = (float)-i; break;
        case TOP_TOGETHER:
            x[i] = random_float() + (i >= best && i < best + 300 ? 100.0f : 0);
            break;
        default: x[i] = odd[random_in(0, ARRAY_LEN(odd) - 1)];
        }
}

#endif
