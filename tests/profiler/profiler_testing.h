/*
 * profiler_testing.h - tiny random models in a folder of their own, for the tests of profiler/.
 */
#ifndef OATO_PROFILER_TESTING_H
#define OATO_PROFILER_TESTING_H

#include "tests/folder.h"
#include "tests/models/random_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* cmocka wants the four headers above first */
#include <cmocka.h>

static inline const char *path_in(char out[128], const char *name)
{
    snprintf(out, 128, "%.40s/%.80s", test_folder, name);
    return out;
}

/* A model of one layer with 16 experts, 4 used; returns its path. */
static inline const char *make_experts(char path[128], const char *name, oato_dtype dtype,
                                       bool header_only)
{
    struct oato_error err;
    struct random_model m = random_model_default();
    m.architecture = "qwen3moe";
    m.layers = 1;
    m.head_dim = 32;
    m.experts = 16;
    m.experts_used = 4;
    m.ffn = 96;
    m.vocab = 320;
    m.dtype = dtype;
    m.tokenizer = false;
    m.header_only = header_only;
    path_in(path, name);
    unlink(path); /* a model is never replaced */
    if (random_model_save(&m, path, &err))
        fail_msg("%s", err.text);
    return path;
}

/* A model of one layer and that width; returns its path. */
static inline const char *make_model(char path[128], const char *name, int64_t width,
                                     oato_dtype dtype, bool header_only)
{
    struct oato_error err;
    struct random_model m = random_model_default();
    m.layers = 1;
    m.width = width;
    m.ffn = 2 * width;
    m.vocab = 320;
    m.context = 512;
    m.dtype = dtype;
    m.tokenizer = false;
    m.header_only = header_only;
    path_in(path, name);
    if (random_model_save(&m, path, &err))
        fail_msg("%s", err.text);
    return path;
}

#endif
