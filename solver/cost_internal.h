/*
 * cost_internal.h - what planners ask about the world: struct cost_source. cost.c answers from a
 * profile; price.c composes prices of what it says.
 */
#ifndef OATO_COST_INTERNAL_H
#define OATO_COST_INTERNAL_H

#include "planfmt/planfmt.h"

struct op_cost {
    double ns;
    bool estimate;        /* this very shape was never measured */
    const char *numerics; /* class of the nearest measured point; NULL when unknown */
    double off;           /* an estimate: nine in ten like it were off by at most this share of it,
                             where it was measured (tests/solver/test_estimates.c) */
    const char *from;     /* an estimate: the key of the nearest shape or type of the kind that was
                             measured, whose times it is scaled from; NULL: a roofline */
};

/* What a profile knows of an operator on a device. What was never timed is not what cannot run:
 * only the device says that. */
enum cost_known {
    COST_TIMED,        /* this very shape */
    COST_OTHER_SHAPES, /* of this kind and type */
    COST_NEVER_TIMED,  /* in this type, but the device supports it */
    COST_NEVER_ASKED,  /* neither timed, nor does the profile say what the device supports */
    COST_DATA_SHEET,   /* nothing is timed there */
    COST_REFUSED       /* by the device: it does not run it */
};

/* What a device is, and takes beside its operators. */
struct cost_device {
    bool is_host, data_sheet, refills, keeps; /* as in struct profile_device */
    double record_ns, step_ns;                /* of every record, and of every step */
    double join_ns[JOIN_COUNT];               /* what a join saves in a decode step */
    const struct value_types *values;         /* as in struct profile_device */
    /* It compiles spans for these numbers of rows: a call costs so much beside its operators. */
    bool spans;
    int32_t rows[DEVICE_ROWS];
    bool no_class;             /* a library computes all of it, decode, too: no bits are promised */
    double unit_ns, compile_s; /* compile_s: of a function */
    bool compile_cached;
    uint64_t library_bytes; /* as in struct profile_device */
};

/* How an engine runs a model on the devices of a machine: what it takes, in time and memory, and
 * what can run where. Problems, solvers, baselines, the virtual clock and reports ask nothing else;
 * they know devices by their indices in the profile. Ours is made from a profile's rows for our
 * executor (cost_create); another engine's rules are another set of these functions. */
struct cost_source {
    void *context; /* first argument of each */
    /* What is known of the operator there; *listed: something speaks for it, the device's list, a
     * row of this kind and type or, without a list, of this kind in another type, or a data sheet.
     * REFUSED: by a row of this shape, by the device's list of the kinds and types that it supports
     * or, in a profile without that list, by rows that refuse this type of the kind, or of what was
     * fused to it, in all shapes. */
    enum cost_known (*known)(const void *context, int32_t device, const struct oato_op *op,
                             bool *listed);
    /* The time of one run of a size with rows, without a program's overhead per record. Measured
     * sizes are exact. Between them rows (and KV positions per row) are interpolated linearly;
     * above the last, time grows in proportion; below the first it follows the line through the
     * first two points, kept between proportional and constant. */
    struct op_cost (*op)(const void *context, int32_t device, const struct oato_op *op,
                         const struct op_size *size);
    struct cost_device (*device)(const void *context, int32_t device);
    /* ns of one copy over a link, synchronization included; negative when there is none. Between
     * two processors without one it takes what reading there and writing here does. streams: of
     * weights in file format, at the rate of the host's conversion during the copy, where that was
     * measured. */
    double (*copy)(const void *context, int32_t from, int32_t to, double bytes, bool streams);
    double (*storage)(const void *context); /* bytes/s, read ahead; 0: never measured */
    /* Memory of the prepared weights; when they were never prepared there `file_bytes`, or a little
     * more on an accelerator of which no row has the type. */
    uint64_t (*prepared)(const void *context, int32_t device, const struct oato_op *op,
                         uint64_t file_bytes);
    /* Scratch memory that a program sets aside for runs of up to that size: never less than they
     * take. */
    uint64_t (*workspace)(const void *context, int32_t device, const struct oato_op *op,
                          const struct op_size *size);
    void (*free)(void *context);
};

/* Of our executor on the profile's devices. classes: what a plan names for prefill; of libraries of
 * the devices' vendors only those are used. NULL: all. Borrows the profile and, while it is made,
 * the classes. */
oato_status cost_create(const struct profile *p, const char *classes, struct cost_source **out,
                        struct oato_error *err);

static inline void cost_free(struct cost_source *c)
{
    if (c)
        c->free(c->context);
}
static inline enum cost_known cost_known(const struct cost_source *c, int32_t device,
                                         const struct oato_op *op)
{
    bool ignored;
    return c->known(c->context, device, op, &ignored);
}
/* True unless the device refuses the operator. */
static inline bool cost_supports(const struct cost_source *c, int32_t device,
                                 const struct oato_op *op)
{
    return cost_known(c, device, op) != COST_REFUSED;
}
/* The same where something speaks for it. */
static inline bool cost_lists(const struct cost_source *c, int32_t device, const struct oato_op *op)
{
    bool listed;
    c->known(c->context, device, op, &listed);
    return listed;
}
/* True when this very shape was measured on the device. */
static inline bool cost_measured(const struct cost_source *c, int32_t device,
                                 const struct oato_op *op)
{
    return cost_known(c, device, op) == COST_TIMED;
}
static inline struct op_cost cost_of_op(const struct cost_source *c, int32_t device,
                                        const struct oato_op *op, const struct op_size *size)
{
    return size->rows > 0 ? c->op(c->context, device, op, size) : (struct op_cost){.ns = 0};
}
static inline struct cost_device cost_device(const struct cost_source *c, int32_t device)
{
    return c->device(c->context, device);
}
static inline double cost_of_copy(const struct cost_source *c, int32_t from, int32_t to,
                                  double bytes)
{
    return c->copy(c->context, from, to, bytes, false);
}
static inline double cost_of_stream(const struct cost_source *c, int32_t from, int32_t to,
                                    double bytes)
{
    return c->copy(c->context, from, to, bytes, true);
}
static inline double cost_storage_rate(const struct cost_source *c)
{
    return c->storage(c->context);
}
static inline uint64_t cost_prepared_bytes(const struct cost_source *c, int32_t device,
                                           const struct oato_op *op, uint64_t file_bytes)
{
    return c->prepared(c->context, device, op, file_bytes);
}
static inline uint64_t cost_workspace_bytes(const struct cost_source *c, int32_t device,
                                            const struct oato_op *op, const struct op_size *size)
{
    return c->workspace(c->context, device, op, size);
}

#endif
