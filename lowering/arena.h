/*
 * arena.h - offsets of activation buffers: two buffers share memory only when every use of one
 * happens before the other is written, across all queues.
 */
#ifndef OATO_ARENA_H
#define OATO_ARENA_H

#include "kernels/program.h"

struct buffer {
    int32_t device;                /* device whose arena holds it */
    uint64_t bytes, offset;        /* offset is the result */
    int32_t def_queue, def_record; /* who writes it first */
    int32_t last_use[DEVICES_MAX]; /* per queue: last record that touches it, -1 none */
};
/* Sets every buffer's offset and each device's arena size. known(user, queue, record, other) = the
 * last record of queue `other` that is complete before record `record` of `queue` starts, -1 for
 * none. Buffers are ordered by when their definitions were issued. False when memory is short. */
bool buffers_place(struct buffer *buffers, int32_t n,
                   int32_t (*known)(const void *user, int32_t queue, int32_t record, int32_t other),
                   const void *user, uint64_t arena_bytes[DEVICES_MAX]);

#endif
