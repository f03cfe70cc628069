/*
 * asc_parts.h - what the files of operators (asc_op_*.c) share: parts of device memory, which
 * become tensors only for the call that takes them, and the calls that most operators make.
 *
 * CANN wants the first element of a tensor at a multiple of 32 bytes. Parts that begin elsewhere
 * are taken out by aclnnSlice and put together by aclnnCat, never by an offset.
 */
#ifndef OATO_ASC_PARTS_H
#define OATO_ASC_PARTS_H

#include "kernels/ascend/asc_device.h"

enum { ASC_PART_DIMS = 6 };

/* Elements in device memory; strides count elements. */
struct asc_part {
    enum asc_type type;
    uint8_t *at;
    int n;
    int64_t dims[ASC_PART_DIMS], strides[ASC_PART_DIMS];
};

/* ASC_DIMS(4, 64): the number of dimensions and the dimensions. */
#define ASC_DIMS(...)                                                                              \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[])                         \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Elements one behind the other at an address; of memory that is free when the record is done, or
 * when the room is given back; of the record's values, rows x width. */
struct asc_part asc_part(enum asc_type type, void *at, int n, const int64_t *dims);
struct asc_part asc_part_new(struct asc_emit *e, enum asc_type type, int n, const int64_t *dims);
struct asc_part asc_part_in(struct asc_emit *e, int i);
struct asc_part asc_part_out(struct asc_emit *e, int i);
int64_t asc_part_elements(const struct asc_part *p);
/* The same elements in other dimensions: of a part without gaps. */
struct asc_part asc_shaped(struct asc_part p, int n, const int64_t *dims);
/* Elements [from, from + n) of a dimension; their first one must be aligned. */
struct asc_part asc_cut(struct asc_part p, int dim, int64_t from, int64_t n);
/* With two dimensions exchanged. */
struct asc_part asc_turned(struct asc_part p, int a, int b);
asc_tensor *asc_t(struct asc_emit *e, struct asc_part p);

uint64_t asc_type_bytes(enum asc_type type); /* of an element; not of I4 */

/* Calls; sizes broadcast, and a result is converted to the type of `out`. */
void asc_add(struct asc_emit *e, struct asc_part a, struct asc_part b, struct asc_part out);
void asc_sub(struct asc_emit *e, struct asc_part a, struct asc_part b, struct asc_part out);
void asc_mul(struct asc_emit *e, struct asc_part a, struct asc_part b, struct asc_part out);
void asc_div(struct asc_emit *e, struct asc_part a, struct asc_part b, struct asc_part out);
void asc_scale(struct asc_emit *e, struct asc_part a, float by, struct asc_part out);
void asc_clamp(struct asc_emit *e, struct asc_part a, float least, float most, struct asc_part out);
/* Any strides, any types. */
void asc_copy(struct asc_emit *e, struct asc_part from, struct asc_part to);
/* `p` as that type: p itself, or a converted copy without gaps. */
struct asc_part asc_as(struct asc_emit *e, struct asc_part p, enum asc_type type);
/* Elements `index` (I32, one dimension) of the first dimension, or of another one. */
void asc_select(struct asc_emit *e, struct asc_part from, int dim, struct asc_part index,
                struct asc_part out);
/* Elements [from, from + out's) of a dimension, from anywhere; out without gaps. */
void asc_slice(struct asc_emit *e, struct asc_part p, int dim, int64_t from, struct asc_part out);
/* Parts of one type put together along a dimension; out without gaps. */
void asc_cat(struct asc_emit *e, int n, const struct asc_part *parts, int dim, struct asc_part out);
void asc_sum(struct asc_emit *e, struct asc_part p, int dim, bool keeps, struct asc_part out);

/* The operator's activation of float32, and times `up` (activation.h); up NULL: there is none. */
void asc_activation(struct asc_emit *e, struct asc_part gate, const struct asc_part *up,
                    struct asc_part out);

/* A vector of the record as float32 numbers in these dimensions. False: it has none. */
bool asc_weight_part(struct asc_emit *e, int i, int n, const int64_t *dims, struct asc_part *out);

#endif
