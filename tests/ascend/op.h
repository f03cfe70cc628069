/*
 * op.h - what the operators of the stand-in share beyond the frame of stand.h: which chips the
 * documentation names for an operator, how types are promoted, and walks over views.
 */
#ifndef STAND_OP_H
#define STAND_OP_H

#include "aclnnop/ops.h"
#include "tests/ascend/stand.h"

/* Chips that the documentation of an operator names: the 910B family, the 310P, the 310B. */
enum { CHIP_910B = 1, CHIP_310P = 2, CHIP_310B = 4, CHIP_BIG = 3, CHIP_ALL = 7 };

/* What kernels of the cube unit ask for beside their copies. Chips ask for 16 MiB, which would take a
 * CPU longer to poison than many a product takes. */
enum { WORKSPACE = 64 << 10 };

#define TYPE_F16    STAND_TYPE(ACL_FLOAT16)
#define TYPE_F32    STAND_TYPE(ACL_FLOAT)
#define TYPE_BOOL   STAND_TYPE(ACL_BOOL)
#define TYPE_DOUBLE STAND_TYPE(ACL_DOUBLE)
#define TYPE_REAL   (STAND_FLOATS | TYPE_DOUBLE)
#define TYPE_NUMBER (TYPE_REAL | STAND_INTEGERS | TYPE_BOOL)

/* The chip that STAND_CHIP chose, as one of the bits above. */
unsigned op_chip(void);
/* 561003 unless the chip is among `chips`. */
bool op_chips(struct stand_call *call, unsigned chips);

bool op_is_real(aclDataType type);    /* F32, F16, BF16 or DOUBLE */
bool op_is_integer(aclDataType type); /* not BOOL */
/* Bytes of an element; INT4 counts as 1. */
size_t op_bytes(aclDataType type);
/* The type in which two operands meet: BOOL < integers by size < F16, BF16 < F32 < DOUBLE;
 * F16 with BF16 meet in F32. */
aclDataType op_promote(aclDataType a, aclDataType b);
/* A value rounded to `type`. */
double op_round(double value, aclDataType type);
/* The value of F32 operands in HF32: 11 bits of mantissa, ties to even. */
float op_hf32(float value);

/* `out` must be able to hold a result of type `from`: floats do not go into integers, nor numbers
 * into BOOL. */
bool op_holds(struct stand_call *call, aclDataType from, const struct stand_view *out);
/* One of the views is empty, so that the kernel has nothing to compute. */
bool op_empty(struct stand_view a, struct stand_view b);

/* The view with `axis` as its last axis, the others in their order. */
struct stand_view op_last(struct stand_view v, int axis);
/* The last `n` axes counted as one row; rows are the rest. */
int64_t op_tail(struct stand_view v, int n);
/* dst = src, both of one shape; integers exactly. Types may differ: floats to BOOL are != 0. */
void op_copy(struct stand_run *run, struct stand_view dst, struct stand_view src);
/* Indices, each checked to lie in [0, limit); NULL (the run has failed) otherwise. */
int64_t *op_indices(struct stand_run *run, struct stand_view index, int64_t limit);
/* GELU by erf, or by the approximation with tanh. */
double op_gelu(double x, bool tanh_form);
double op_silu(double x);
/* Dot product with 16 sums in F32. */
float op_dot(const float *a, const float *b, int64_t n);

/* n values rounded to what the cube unit takes: `type`, or HF32. */
void op_narrow(float *values, int64_t n, aclDataType type, bool hf32);

/* ------------------------------------------------------------------- weights (op_weight.c) ---- */

/* FRACTAL_NZ: columns of 32 bytes are outermost, rows are padded to 16. The number of the element
 * (r, c) of a matrix of `rows` rows, and the bytes of all of it. */
int64_t op_nz_width(aclDataType type);
int64_t op_nz_at(int64_t rows, int64_t width, int64_t r, int64_t c);
uint64_t op_nz_bytes(int64_t rows, int64_t columns, aclDataType type);

/* A weight k x n of any strides, ND or FRACTAL_NZ, of floats, INT8 or INT4. The caller sets what
 * the values are rounded to and, for integers, the scales (one for `group` values of a column, n of
 * them in a row) and offsets (NULL: none). */
struct op_weight {
    aclDataType operands;
    bool hf32;
    const float *scale, *offset;
    int64_t group;
    /* set by op_weight_open */
    const uint8_t *data;
    struct stand_view view;
    bool nz, rows_are_n;
};
/* False: not all of it is in an allocation, and the run has failed. */
bool op_weight_open(struct stand_run *run, struct op_weight *w, struct stand_view view);
/* The k values of column n. */
void op_weight_column(const struct op_weight *w, int64_t n, float *column);
/* out (m x n) = x (m x k, already rounded) . w + bias (NULL: none), rounded to `result`. */
void op_weight_multiply(struct stand_run *run, const struct op_weight *w, const float *x, int64_t m,
                        const float *bias, aclDataType result, float *out);

#endif
