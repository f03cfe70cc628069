/*
 * ov_parts.h - what the files of this folder below the device tell each other: planes of weights,
 * text of functions, operators, the check.
 */
#ifndef OATO_OV_PARTS_H
#define OATO_OV_PARTS_H

#include "kernels/openvino/ov_internal.h"

/* ------------------------------------------------------------------------- ov_weights.c --- */

/* Numbers of one kind of a weight: rows x groups x each. */
struct ov_plane {
    enum ov_element element;
    int64_t groups, each;
    uint64_t offset, row_bytes;
};
enum { OV_PLANES = 3 };
/* A prepared weight; n 0: it has no layout here. */
struct ov_planes {
    int64_t rows, k;
    const struct columns_form *form;
    int n;
    struct ov_plane plane[OV_PLANES];
    uint64_t bytes;
};
struct ov_planes ov_planes_of(oato_dtype dtype, enum weight_use use, int64_t rows, int64_t k);
/* Row r of a prepared weight as float32. */
void ov_planes_row(const struct ov_planes *p, const void *weight, int64_t r, float *out);

/* ------------------------------------------------------------------------- ov_runtime.c --- */

/* The text, and the constants that it names, compiled. They are read until both *tensor and *out
 * are freed, by the caller; after a failure *tensor, too, unless NULL. */
oato_status ov_runtime_compile(struct ov_runtime *rt, const char *text, size_t bytes,
                               const char *constants, size_t n, ov_tensor **tensor,
                               ov_compiled_model **out, struct oato_error *err);

/* ------------------------------------------------------------------------------ ov_ir.c --- */

/* A function as the library reads it: layers and what goes from one to another, and the constants
 * that layers name by their place. Equal functions are equal texts. */
struct ov_ir {
    struct text layers, edges, constants;
    int32_t n;
};
/* What a layer gives: its number, and that of its port behind its inputs. Its name is "t" and the
 * number of the layer. */
struct ov_node {
    int32_t layer, port;
};
void ov_ir_free(struct ov_ir *ir);
/* The whole text, appended. */
void ov_ir_write(const struct ov_ir *ir, struct text *out);
struct ov_node ov_ir_input(struct ov_ir *ir, enum ov_element element, int rank,
                           const int64_t *dims);
void ov_ir_result(struct ov_ir *ir, struct ov_node of);
struct ov_node ov_ir_number(struct ov_ir *ir, float x);
struct ov_node ov_ir_whole(struct ov_ir *ir, int n, const int64_t *x);
/* A layer of the type, which a set of operators has, with attributes ("" or "axis=\"1\""). */
struct ov_node ov_ir_layer(struct ov_ir *ir, const char *type, int opset, const char *attributes,
                           int n_in, const struct ov_node *in);
struct ov_node ov_ir_1(struct ov_ir *ir, const char *type, struct ov_node a);
struct ov_node ov_ir_2(struct ov_ir *ir, const char *type, struct ov_node a, struct ov_node b);
struct ov_node ov_ir_convert(struct ov_ir *ir, struct ov_node a, enum ov_element to);
struct ov_node ov_ir_reshape(struct ov_ir *ir, struct ov_node a, int rank, const int64_t *dims);

/* ----------------------------------------------------------------------------- ov_ops.c --- */

/* A record being written: inputs and weights are given, outputs are made. */
struct ov_record {
    struct ov_ir *ir;
    const struct program_record *r;
    int64_t rows;
    struct ov_node in[RECORD_INPUTS], weight[RECORD_WEIGHTS], out[RECORD_OUTPUTS];
    bool has[RECORD_WEIGHTS];
};
/* Whether there is a row for it: a kind whose rows depend on nothing but themselves. */
bool ov_op_known(const struct oato_op *op);
void ov_op_write(struct ov_record *x);
/* Planes of weight i of the operator. */
struct ov_planes ov_op_planes(const struct oato_op *op, int i);
/* The weight as a float32 matrix of rows x k, from the inputs of its planes. */
struct ov_node ov_weight_write(struct ov_ir *ir, const struct ov_planes *p,
                               const struct ov_node plane[OV_PLANES], enum ov_element between);

/* --------------------------------------------------------------------------- ov_check.c --- */

/* A weight that a span takes: weight i of a record of it. */
struct ov_weight_use {
    uint32_t record;
    int i;
    struct ov_planes planes;
};
/* Runs the function once on made-up values and these weights (NULL: made-up ones), and compares
 * rows of it with the reference kernels: sets *nmse. Fails only where memory is short, or the run
 * fails.
 */
oato_status ov_check(struct ov_function *f, const struct ov_span *span,
                     const struct ov_weight_use *uses, int n, int32_t rows,
                     const void *const *weights, double *nmse, struct oato_error *err);

#endif
