/*
 * rig.h - runs one operator of the stand-in at a time: tensors made from numbers, both phases,
 * the result as numbers.
 */
#ifndef STAND_RIG_H
#define STAND_RIG_H

#include "aclnnop/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* A tensor on the device with guards of 64 bytes before and after its elements. */
struct cell {
    aclTensor *t;
    void *device; /* the first guard */
    aclDataType type;
    int64_t n;
};

typedef aclnnStatus rig_launch(void *workspace, uint64_t bytes, aclOpExecutor *e, aclrtStream s);

/* STAND_CHIP for the tests that follow. */
void rig_begin(const char *chip);
/* Asserts that nothing is left over and no rule was broken. */
void rig_end(void);
/* The same, as cmocka calls them before and after a test. */
int rig_on_910b(void **state), rig_on_310p(void **state), rig_on_310b(void **state);
int rig_off(void **state);

/* A dense tensor; values NULL: all 7, what no result is. Freed by rig_end. */
struct cell *rig_tensor(aclDataType type, int rank, const int64_t *dims, const double *values);
/* Another view of it: strides and offset in elements. */
const aclTensor *rig_view(struct cell *c, aclFormat format, int rank, const int64_t *dims,
                          const int64_t *strides, int64_t offset);
const aclScalar *rig_scalar(double value, aclDataType type);
const aclIntArray *rig_ints(int64_t n, const int64_t *values);
/* Owns what it is given. */
const aclTensorList *rig_list(int64_t n, const aclTensor *const *tensors);
/* A tensor that a list may own. */
aclTensor *rig_member(struct cell *c, int rank, const int64_t *dims);

/* Runs what a first phase has planned; asserts that both phases have the status. */
int rig_run(aclnnStatus status, uint64_t bytes, aclOpExecutor *e, rig_launch *launch);
/* Asserts that a first phase refused; rig_end expects one broken rule for each. */
void rig_refused(aclnnStatus status, aclnnStatus want, const aclOpExecutor *e, const char *name,
                 int line);
/* Elements of the tensor; asserts that its guards are whole. */
const double *rig_values(struct cell *c);
/* |got - want| <= tolerance * max(1, |want|) for each element. */
void rig_compare(struct cell *c, const double *want, double tolerance, const char *what, int line);

/* Numbers that every float type holds: quarters from -4 to 4. */
void rig_quarters(unsigned seed, int64_t n, double *values);
double rig_tolerance(aclDataType type);

#define DIMS(...)                                                                                  \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[])                         \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define INTS(...)                                                                                  \
    rig_ints((int64_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                        \
             (int64_t[]){__VA_ARGS__})
#define VALUES(...)                                                                                \
    (const double[])                                                                               \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
/* RUN(name, arguments) runs an operator that must work; the second form asserts a refusal. */
#define RUN(name, ...)                                                                             \
    do {                                                                                           \
        uint64_t bytes_ = 0;                                                                       \
        aclOpExecutor *e_ = NULL;                                                                  \
        aclnnStatus s_ = aclnn##name##GetWorkspaceSize(__VA_ARGS__, &bytes_, &e_);                 \
        assert_int_equal(rig_run(s_, bytes_, e_, aclnn##name), 0);                                 \
    } while (0)
#define REFUSED(code, name, ...)                                                                   \
    do {                                                                                           \
        uint64_t bytes_ = 0;                                                                       \
        aclOpExecutor *e_ = NULL;                                                                  \
        aclnnStatus s_ = aclnn##name##GetWorkspaceSize(__VA_ARGS__, &bytes_, &e_);                 \
        rig_refused(s_, code, e_, #name, __LINE__);                                                \
    } while (0)
/* Runs and ends in an AI-core exception; the stand-in is new afterwards, see rig_begin. */
#define FAULTS(name, ...)                                                                          \
    do {                                                                                           \
        uint64_t bytes_ = 0;                                                                       \
        aclOpExecutor *e_ = NULL;                                                                  \
        aclnnStatus s_ = aclnn##name##GetWorkspaceSize(__VA_ARGS__, &bytes_, &e_);                 \
        assert_int_equal(rig_run(s_, bytes_, e_, aclnn##name), 507015);                            \
    } while (0)
#define SAME(c, tolerance, ...) rig_compare(c, VALUES(__VA_ARGS__), tolerance, #c, __LINE__)

#endif
