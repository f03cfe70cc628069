/* meta.h - the operands behind aclnn's handles; shared by the files of libnnopbase.so. */
#ifndef STAND_META_H
#define STAND_META_H

#include "runtime.h"

struct aclTensor {
    struct stand_view view;
};

struct aclScalar {
    aclDataType type;
    double real;
    int64_t whole; /* of an integer type: exact */
};

struct aclIntArray {
    uint64_t n;
    int64_t *values;
};

struct aclFloatArray {
    uint64_t n;
    float *values;
};

struct aclBoolArray {
    uint64_t n;
    bool *values;
};

struct aclTensorList {
    uint64_t n;
    const aclTensor **members;
};

struct aclOpExecutor {
    struct stand_work *work; /* first: what is left is given back by it */
    const char *name;
    uint64_t workspace_bytes;
    int device;
    bool repeatable;
    int n;
    const void **operands; /* the client's handles, which live until the launch */
};

/* Bits of an element; 0: a type that the stand-in does not hold. */
int type_bits(aclDataType type);
const char *type_name(aclDataType type);
/* The lowest and highest element that a view touches, from its address; false where it has none. */
bool view_extent(const struct stand_view *view, int64_t *low, int64_t *high);
double load_double(const uint8_t *from, aclDataType type, int64_t element);
int64_t load_int(const uint8_t *from, aclDataType type, int64_t element);
void store_double(uint8_t *to, aclDataType type, int64_t element, double);
void store_int(uint8_t *to, aclDataType type, int64_t element, int64_t);

#endif
