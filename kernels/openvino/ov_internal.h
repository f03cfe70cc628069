/*
 * ov_internal.h - shared by the files of kernels/openvino: the library that is opened at run time
 * (ov_load.c), text of its intermediate representation (ov_ir.c), what an operator is in it
 * (ov_ops.c), how weights lie (ov_weights.c), functions compiled from runs of records
 * (ov_function.c) and the device made of them (ov_device.c, ov_queue.c).
 */
#ifndef OATO_OV_INTERNAL_H
#define OATO_OV_INTERNAL_H

#include "kernels/core/weights.h"
#include "kernels/job_queue.h"
#include "kernels/openvino/ov_api.h"

/* ----------------------------------------------------------------------- representation ---- */

/* An output of a layer of the text. */
struct ov_node {
    int layer, port;
};

/* The text of a function: layers, the edges between them, and the numbers that constants have. */
struct ov_ir {
    struct text layers, edges, consts;
    int n;
    bool half; /* products of scales and integers are rounded to F16, as an NPU computes */
};

void ov_ir_init(struct ov_ir *ir, bool half);
void ov_ir_free(struct ov_ir *ir);
/* A layer of an operation set: "MatMul", "opset1". data: its attributes, or NULL. */
struct ov_node ov_layer(struct ov_ir *ir, const char *type, const char *set, const char *data,
                        int n_in, const struct ov_node *in);
/* An input of the function; its place among them is the order of the calls. */
struct ov_node ov_parameter(struct ov_ir *ir, enum ov_type type, int n, const int64_t *shape);
/* An output, likewise. */
void ov_result(struct ov_ir *ir, struct ov_node value);
struct ov_node ov_number(struct ov_ir *ir, double value); /* a float32 of no dimensions */
struct ov_node ov_integers(struct ov_ir *ir, int n, const int64_t *values);
struct ov_node ov_unary(struct ov_ir *ir, const char *type, struct ov_node x);
struct ov_node ov_binary(struct ov_ir *ir, const char *type, struct ov_node a, struct ov_node b);
struct ov_node ov_convert(struct ov_ir *ir, enum ov_type type, struct ov_node x);
struct ov_node ov_reshape(struct ov_ir *ir, struct ov_node x, int n, const int64_t *shape);
/* The whole text; false: memory is short. */
bool ov_ir_text(const struct ov_ir *ir, struct text *out);

/* -------------------------------------------------------------------------------- weights -- */

/* A prepared weight is up to three tensors, one behind the other: numbers, the scale of each block
 * of a row, and what is added to its products. */
enum { OV_TENSORS = 3, OV_ALIGN = 64, OV_RANK = 3 };
struct ov_tensor_form {
    enum ov_type type;
    int rank;
    int64_t shape[OV_RANK];
    uint64_t offset, bytes;
};
struct ov_form {
    int n;
    struct ov_tensor_form tensor[OV_TENSORS];
    uint64_t bytes; /* of all; 0: there is no such layout */
};
struct ov_form ov_form_of(oato_dtype dtype, int64_t rows, int64_t k, enum weight_use use);
const char *ov_layout(const struct oato_device *d);
uint64_t ov_bytes(const struct oato_device *d, const struct weight_source *source);
void ov_convert_rows(const struct oato_device *d, const struct weight_source *source, int64_t begin,
                     int64_t end, void *to);
/* The rows x k float32 matrix that the tensors of a weight mean, from its parameters. */
struct ov_node ov_weight_node(struct ov_ir *ir, const struct ov_form *form, int64_t rows,
                              int64_t k);

/* ------------------------------------------------------------------------------ operators -- */

/* False: an operator of this kind, type or shape is none here. */
bool ov_supports(const struct oato_op *op);
/* The operator's layers: in and weight are its inputs and weights (those that a record has), out
 * its outputs. rows: of the values. */
void ov_op(struct ov_ir *ir, const struct oato_op *op, int64_t rows, int n_in,
           const struct ov_node *in, int n_weights, const struct ov_node *weight,
           struct ov_node *out);

/* ------------------------------------------------------------------------------ functions -- */

struct ov_device;

/* A run of records compiled for a number of rows. One that has the same text is shared. */
struct ov_function {
    struct ov_function *next;
    struct text text;
    struct text consts; /* that the text refers to */
    int32_t rows;
    int n_in, n_out, n_weights; /* values that go in and out; weights, each of whose tensors is a
                                   parameter behind the values */
    struct ov_binding *binding; /* n_bindings: of each parameter, then of each output */
    int n_bindings;
    struct ov_compiled_model *model;
    struct ov_infer_request *request;
    double compile_s;
};

/* A span, or a record as a span of one: what it is compiled from. */
struct ov_span {
    const struct program_record *records;
    uint32_t n;
    const struct span_value *value; /* n_in values, then n_out */
    int n_in, n_out;
};

/* The span's function for so many rows: found among the device's, or compiled and checked once on
 * made-up numbers against float64 arithmetic of the CPU's reference. OATO_EDEVICE: it is refused,
 * in one line. */
oato_status ov_function_get(struct ov_device *d, const struct ov_span *span, int32_t rows,
                            struct ov_function **out, struct oato_error *err);
/* Runs it on the calling thread. in, out: rows of the span's values; weights in the order of the
 * records. */
oato_status ov_function_run(struct ov_device *d, struct ov_function *f, void *const *in,
                            void *const *out, const struct oato_weight *const *weights,
                            struct oato_error *err);
void ov_functions_free(struct ov_device *d);

/* --------------------------------------------------------------------------------- device -- */

struct compiled {
    struct compiled *next;
    const struct program *program; /* borrowed */
    int self;
    struct ov_step *steps; /* what its records are, in order */
    uint32_t n_steps;
    struct span_value *values; /* of records that are in no span */
};

enum { OV_BUCKETS = 3 };
extern const int32_t ov_rows[OV_BUCKETS]; /* that functions are compiled for */

/* Some records of a program: one that copies, or a span with its functions. */
struct ov_step {
    struct ov_span span;
    uint32_t first; /* number of its first record */
    struct ov_function *function[OV_BUCKETS];
    const struct oato_weight **weights; /* of a span, in the order of its records */
};

struct ov_device {
    struct oato_device base;
    struct job_queue queue;
    char id[16], name[16], model[96], driver[48], class[24];
    const struct ov_api *api;
    struct ov_core *core;
    bool static_only; /* an NPU or a GPU: trial compiles say what it takes, F16 inside */
    uint64_t budget_bytes, used_bytes, total_bytes;
    int64_t fail_alloc;
    struct compiled *programs;
    struct ov_function *functions;
    uint8_t *padded; /* rows of the values of a tail, up to the next number of rows */
    uint64_t padded_bytes;
    struct oato_device *reference; /* checks functions; NULL: not open */
    _Atomic uint8_t tried[OP_KIND_COUNT][DT_COUNT]; /* trial compiles: 0 none, 1 fine, 2 refused */
};

static inline struct ov_device *ov_of(const struct oato_device *d)
{
    return (struct ov_device *)(uintptr_t)d;
}
/* Memory of the device, counted against its budget. */
oato_status ov_take(struct ov_device *d, uint64_t bytes, const char *what, void **out,
                    struct oato_error *err);
void ov_give(struct ov_device *d, void *p, uint64_t bytes);
/* The queue's thread runs a job. */
void ov_run_job(struct job_queue *q, const struct job *job);
/* Which of ov_rows so many rows take next: the largest while there are as many. */
int ov_bucket(int32_t rows);

#endif
