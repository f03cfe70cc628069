/*
 * long_8b.h - the shape of an 8B model of F16 with a long context, and a machine of the library:
 * what tests of spilled KV share.
 */
#ifndef OATO_LONG_8B_H
#define OATO_LONG_8B_H

#include "solver/solver.h"
#include "tests/models/random_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define GIB ((uint64_t)1 << 30)

static struct model *model;
static struct profile machine;

static inline int setup(void **state)
{
    (void)state;
    struct oato_error err = {.text = "no such shape"};
    struct random_model m = random_model_default();
    m.dtype = DT_F16;
    m.header_only = true;
    m.tokenizer = false;
    m.context = 1 << 17;
    if (random_model_set_shape(&m, "8b") && !random_model_open(&m, &model, &err) &&
        !hardware_load("rtx4090-xeon4314", &machine, NULL, NULL, &err))
        return 0;
    print_error("%s\n", err.text);
    return 1;
}

static inline int teardown(void **state)
{
    (void)state;
    profile_free(&machine);
    model_close(model);
    return 0;
}

#endif
