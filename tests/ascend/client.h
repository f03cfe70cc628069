/*
 * client.h - a small client of the stand-in for its tests: one stream, a little device memory, an
 * operator of its own (y = x * alpha, with a workspace) written in the frame of stand.h.
 */
#ifndef STAND_CLIENT_H
#define STAND_CLIENT_H

#include "tests/ascend/control.h"
#include "tests/ascend/include/acl/acl.h"
#include "tests/ascend/stand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FLOATS = 256, BYTES = FLOATS * 4, WORKSPACE_BYTES = 512 };

#define OK(call) assert_int_equal(call, 0)

struct client {
    aclrtStream stream;
    void *x, *y, *workspace;
};

/* A fresh stand-in with these settings ("NAME=VALUE", NULL at the end), initialised, device 0 set.
 */
static inline void start(const char *const *settings)
{
    static const char *const names[] = {
        "STAND_RULES", "STAND_CHIP",     "STAND_DEVICES", "STAND_MEMORY", "STAND_ORDER",
        "STAND_SEED",  "STAND_PAGEABLE", "STAND_FAIL",    "STAND_DIE",    "STAND_HANG"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    for (; settings && *settings; settings++) {
        char name[64];
        size_t n = strcspn(*settings, "=");
        assert_true(n < sizeof name);
        memcpy(name, *settings, n);
        name[n] = 0;
        setenv(name, *settings + n + 1, 1);
    }
    stand_reset();
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
}

static inline struct client client_open(void)
{
    struct client c;
    OK(aclrtCreateStream(&c.stream));
    OK(aclrtMalloc(&c.x, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtMalloc(&c.y, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtMalloc(&c.workspace, WORKSPACE_BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    return c;
}

static inline void client_close(struct client *c)
{
    OK(aclrtSynchronizeStream(c->stream));
    OK(aclrtFree(c->x));
    OK(aclrtFree(c->y));
    OK(aclrtFree(c->workspace));
    OK(aclrtDestroyStream(c->stream));
}

static inline aclTensor *tensor_at(void *at, int64_t n, aclDataType type)
{
    return aclCreateTensor(&n, 1, type, NULL, 0, ACL_FORMAT_ND, &n, 1, at);
}

/* --- y = x * alpha --- */

struct scale {
    struct stand_view x, y;
    double alpha;
};

static inline void scale_run(struct stand_run *run, const void *state)
{
    const struct scale *op = state;
    float *x = stand_read_floats(run, op->x);
    for (int64_t i = 0; i < stand_elements(op->x); i++)
        x[i] *= (float)op->alpha;
    if (op->alpha < 0)
        stand_fail(run, "alpha is negative");
    stand_write_floats(run, op->y, x);
}

static inline aclnnStatus scale_plan(const aclTensor *x, const aclScalar *alpha, aclTensor *y,
                                     uint64_t *workspace_bytes, aclOpExecutor **executor)
{
    struct stand_call *call = stand_begin("scale", workspace_bytes, executor);
    struct scale op = {stand_in(call, "x", x), stand_out(call, "y", y),
                       stand_scalar(call, "alpha", alpha)};
    stand_types(call, &op.x, STAND_FLOATS);
    stand_same_type(call, &op.x, &op.y);
    stand_same_shape(call, &op.x, &op.y);
    return stand_plan(call, scale_run, &op, sizeof op, WORKSPACE_BYTES);
}

/* Both phases over n floats; the operands are destroyed before it returns. The code of the phase
 * that failed. */
static inline int scale(void *x, void *y, float alpha, void *workspace, aclrtStream stream)
{
    uint64_t bytes;
    aclOpExecutor *executor;
    aclTensor *tx = tensor_at(x, FLOATS, ACL_FLOAT), *ty = tensor_at(y, FLOATS, ACL_FLOAT);
    aclScalar *by = aclCreateScalar(&alpha, ACL_FLOAT);
    int code = scale_plan(tx, by, ty, &bytes, &executor);
    if (!code)
        code = stand_launch("scale", workspace, bytes, executor, stream);
    OK(aclDestroyTensor(tx));
    OK(aclDestroyTensor(ty));
    OK(aclDestroyScalar(by));
    return code;
}

static inline void send(void *to, float first)
{
    float values[FLOATS];
    for (int i = 0; i < FLOATS; i++)
        values[i] = first + (float)i;
    OK(aclrtMemcpy(to, BYTES, values, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
}

static inline float first_of(void *from)
{
    float value;
    OK(aclrtMemcpy(&value, sizeof value, from, sizeof value, ACL_MEMCPY_DEVICE_TO_HOST));
    return value;
}

#endif
