/*
 * lower_internal.h - a phase on its way from graph and placement to programs: lower.c walks the
 * graph and adds records, lower_program.c makes the finished programs of them.
 */
#ifndef OATO_LOWER_INTERNAL_H
#define OATO_LOWER_INTERNAL_H

#include "executor/executor_internal.h"

/* Offsets of weights in a staging room: what any device's copies like. */
enum { STAGING_ALIGN = 256 };

struct lowered {
    struct program_record record; /* offsets, waits and signals are filled at the end */
    int32_t in[RECORD_INPUTS], out[RECORD_OUTPUTS]; /* buffers */
    int32_t wait_device[RECORD_WAITS], wait_record[RECORD_WAITS];
    int32_t known[DEVICES_MAX];
    bool signals, streams; /* streams: its weights come from the host, */
    uint64_t stream_bytes; /* so many of the staging room */
};

struct queue {
    struct lowered *records;
    int32_t n, cap;
    int32_t known[DEVICES_MAX]; /* of the next record */
};

/* Where a value, or a part of it, can be read on one device. */
struct home {
    int32_t buffer; /* -1: not there */
    int32_t queue, record;
};

/* How the parts of a value make the whole. */
enum value_parts {
    PARTS_COLUMNS,  /* they stand side by side */
    PARTS_SUMMANDS, /* they are added */
    PARTS_EXPERTS,  /* each has the rows of its experts where the whole had them, and nothing in the
                       others: only the same experts read them */
};

struct lowered_value {
    int32_t n_parts;
    enum value_parts parts;
    int32_t part_device[PARTS_MAX], part_width[PARTS_MAX];
    int32_t part_begin[PARTS_MAX], part_end[PARTS_MAX]; /* of the operator that made them */
    struct home part[PARTS_MAX][DEVICES_MAX];
    struct home merged[DEVICES_MAX];
    bool counted[PARTS_MAX][DEVICES_MAX]; /* read there: one copy of the step */
};

struct lowering {
    struct engine *e;
    const struct graph *graph;
    enum plan_phase phase;
    int32_t max_tokens, max_rows;
    struct queue queue[DEVICES_MAX];
    struct lowered_value *values;
    struct buffer *buffers;
    int32_t n_buffers, buffers_cap;
    int32_t copies;
    uint64_t copy_bytes, stream_bytes;
    int32_t streams[DEVICES_MAX]; /* records so far */
    struct oato_error *err;
};

static inline bool failed(const struct lowering *l)
{
    return l->err->status != OATO_OK;
}

/* The program of each device that has records, once buffers have their offsets. */
void programs_finish(struct lowering *l);

#endif
