/*
 * ov_device.h - the device made of what ov_internal.h has: ov_device.c is what it says and keeps,
 * ov_queue.c its programs and the thread that runs them.
 */
#ifndef OATO_OV_DEVICE_H
#define OATO_OV_DEVICE_H

#include "kernels/core/far_device.h"
#include "kernels/core/weights.h"
#include "kernels/openvino/ov_internal.h"

enum { OV_BUCKETS = 3, OV_SPAN_VALUES = 64 }; /* values of a span, at most */
extern const int32_t ov_rows[OV_BUCKETS];     /* that functions are compiled for, ascending */

/* Some records of a program: one that copies, or a span with its functions. */
struct ov_step {
    struct ov_span span;
    uint32_t first;  /* number of its first record */
    bool copies;     /* it is no span */
    bool overwrites; /* in a step of several runs, one would write what a later one reads: outputs
                        go through the device's room */
    int n_weights;
    uint32_t weight[OV_SPAN_WEIGHTS];         /* numbers in program.weights */
    struct ov_function *function[OV_BUCKETS]; /* NULL: so many rows never come */
};

struct compiled {
    struct compiled *next;
    const struct program *program; /* borrowed */
    uint8_t *arena;                /* its real address */
    int self;
    uint32_t n_steps;
    struct ov_step *steps;
    struct span_value *values; /* of records that are in no span */
};

struct ov_device {
    struct far_device far;
    char model[96];
    struct ov_runtime *runtime;
    uint64_t memory_bytes; /* in all */
    struct compiled *programs;
    struct far_block *room; /* see ov_step; changes only while the queue is empty; NULL: none */
};

static inline struct ov_device *ov_of(const struct oato_device *d)
{
    return (struct ov_device *)(uintptr_t)d;
}

/* The first of ov_rows that has room for so many; the last, if none has. */
int ov_bucket(int32_t rows);
/* device_ops.compile and release. */
oato_status ov_compile(struct oato_device *d, const struct program *p, int self,
                       struct compiled **out, struct oato_error *err);
void ov_release(struct oato_device *d, struct compiled *c);
/* The queue's thread runs a job. */
void ov_run_job(struct job_queue *q, const struct job *job);

#endif
