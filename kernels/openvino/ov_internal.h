/*
 * ov_internal.h - the parts of the openvino device, each of which knows nothing of those below it:
 *
 *   ov_load.c      the library, opened at run time: its functions, its element types, its errors
 *   ov_runtime.c   one of its devices: what it is, what it can, what it computes in
 *   ov_weights.c   how weights lie in memory: the planes that compiled functions take as inputs
 *   ov_ir.c        the text that describes a function to the library
 *   ov_ops.c       the operators as such text, a row each
 *   ov_function.c  a span of records, compiled, checked against the reference, shared by all equal
 *                  spans, and run
 *
 * Functions have a fixed number of rows; a run with fewer is padded in the function's own buffers,
 * so arenas need no room for it and values may overlap as lowering likes. Weights are inputs: no
 * function holds any, and one serves all layers of a shape.
 */
#ifndef OATO_OV_INTERNAL_H
#define OATO_OV_INTERNAL_H

#include "kernels/core/core_internal.h"
#include "kernels/openvino/ov_load.h"

/* ------------------------------------------------------------------------------- runtime -- */

struct ov_function;

/* A device of the library that was opened. Its functions are called by one thread at a time, except
 * ov_function_run, which may run beside all but those of the same function. */
struct ov_runtime {
    const struct ov_library *library;
    ov_core *core;
    char device[16];       /* "CPU", "GPU.0", "NPU" */
    char name[96];         /* what it says it is: FULL_DEVICE_NAME */
    char architecture[32]; /* "intel64", "3720"; "" when it says none */
    char driver[48];       /* of NPU and GPU, and the compiler's version; "" */
    char streams[4];       /* "0": a run takes the caller's thread and makes none */
    char numerics[24];     /* class of all operators: "f32.openvino", read from a compiled model */
    char precision[8];     /* the part before the dot */
    double nmse;           /* a function with more error than this is refused */
    uint64_t memory_bytes; /* what it can use, and how much of it is free; 0: the host's */
    uint64_t free_bytes;
    bool asks;                     /* what it supports is found out by compiling: NPU, GPU */
    char known[4096];              /* SUPPORTED_PROPERTIES, surrounded by blanks */
    struct ov_function *functions; /* in use */
    struct ov_trial *trials;
};

/* device: "CPU", "GPU", "NPU", or "" for the first of NPU and GPU.0. One line in err where there
 * is no library, no plugin, no such device. */
oato_status ov_runtime_open(const char *device, struct ov_runtime **out, struct oato_error *err);
void ov_runtime_close(
    struct ov_runtime *rt); /* functions that are still open are closed; NULL: nothing */
/* Appends the names of the library's devices, ", " between them. Opens the library. */
oato_status ov_runtime_devices(struct text *out, struct oato_error *err);
/* Reads what memory is free now to rt->free_bytes. */
void ov_runtime_memory(struct ov_runtime *rt);
/* Whether it runs the operator: the table of kinds and types, and where rt->asks the compiler's
 * answer to an operator of that kind and type, asked once. why: its one line; may be NULL. */
bool ov_supports(struct ov_runtime *rt, const struct oato_op *op, struct oato_error *why);

/* ------------------------------------------------------------------------------- weights -- */

/* See device_ops: layout's id, bytes (0: not such a use, or type), convert (pure). */
const char *ov_layout(void);
uint64_t ov_bytes(const struct weight_source *source);
void ov_convert_rows(const struct weight_source *source, int64_t begin, int64_t end, void *to);

/* ----------------------------------------------------------------------------- functions -- */

/* Records of one row class that are compiled as one function: a program_span, or a single record.
 * Everything is borrowed. */
struct ov_span {
    const struct program_record *records;
    uint32_t n;
    const struct span_value *values; /* n_in that it reads, then n_out that it leaves */
    uint16_t n_in, n_out;
};
enum { OV_SPAN_WEIGHTS = 64 }; /* of a span, at most */
/* The values of a span of one record, for a program without spans; values: room for
 * RECORD_INPUTS + RECORD_OUTPUTS, borrowed by the span. */
struct ov_span ov_span_of_record(const struct program_record *r, struct span_value *values);
/* The numbers in program.weights of the weights that a run takes, in its order, or -1: too many. */
int ov_span_weights(const struct ov_span *span, uint32_t out[OV_SPAN_WEIGHTS]);

struct ov_function_info {
    int32_t rows;
    double compile_seconds, check_seconds;
    uint64_t buffer_bytes;    /* its padded inputs and outputs */
    uint64_t temporary_bytes; /* what it takes beside them, estimated: values inside, and the
                                 matrices of an operator as float32 */
    double nmse;              /* of the check */
};
/* The function of that span for so many rows: compiled and checked, or, if an equal one was, that
 * one. weights: as ov_function_run has them, to check it with; NULL: made-up ones. oato_status
 * OATO_EDEVICE, one line: the compiler refuses it, or it computes something else.
 */
oato_status ov_function_open(struct ov_runtime *rt, const struct ov_span *span, int32_t rows,
                             const void *const *weights, struct ov_function **out,
                             struct oato_error *err);
/* The last one who has it open frees it. NULL: nothing. */
void ov_function_close(struct ov_function *f);
struct ov_function_info ov_function_info(const struct ov_function *f);
/* Binds weights, as ov_function_run has them, so that runs with them do not; not while one runs. */
oato_status ov_function_bind(struct ov_function *f, const void *const *weights,
                             struct oato_error *err);
/* One run on the calling thread. rows: 1 to the function's. in, out: the span's values, any
 * addresses, which may overlap (outputs are written when all is read); weights: the prepared bytes
 * of ov_span_weights, in that order. */
oato_status ov_function_run(struct ov_function *f, int32_t rows, const float *const *in,
                            const void *const *weights, float *const *out, struct oato_error *err);
/* About what a function whose neediest operator is this one takes beside its buffers and weights;
 * without a compiler. It keeps that from its first run on. */
uint64_t ov_temporary_bytes(const struct oato_op *op, int32_t rows);

#endif
