/*
 * stand.h - the frame in which the stand-in's operators are written (libopapi.so), provided by its
 * runtime (libascendcl.so, libnnopbase.so).
 *
 * An operator is two phases, as in aclnn. The first declares its operands and its checks and hands
 * over a kernel with its state; nothing runs. The second puts that kernel on a stream, where it
 * waits until a synchronisation forces it. The frame does the rest: null pointers, alignment,
 * addresses, workspaces, single use, injected errors, races between streams. A whole operator:
 *
 *     struct add { struct stand_view a, b, out; double alpha; };
 *
 *     static void add(struct stand_run *run, const void *state)
 *     {
 *         const struct add *op = state;
 *         float *a = stand_read_floats(run, stand_expand(op->a, op->out));
 *         float *b = stand_read_floats(run, stand_expand(op->b, op->out));
 *         for (int64_t i = 0; i < stand_elements(op->out); i++)
 *             a[i] += (float)op->alpha * b[i];
 *         stand_write_floats(run, op->out, a);
 *     }
 *
 *     aclnnStatus aclnnAddGetWorkspaceSize(const aclTensor *self, const aclTensor *other,
 *                                          const aclScalar *alpha, aclTensor *out,
 *                                          uint64_t *workspaceSize, aclOpExecutor **executor)
 *     {
 *         struct stand_call *call = stand_begin("aclnnAdd", workspaceSize, executor);
 *         struct add op = {stand_in(call, "self", self), stand_in(call, "other", other),
 *                          stand_out(call, "out", out), stand_scalar(call, "alpha", alpha)};
 *         stand_types(call, &op.a, STAND_FLOATS | STAND_INTEGERS);
 *         stand_same_type(call, &op.a, &op.b);
 *         stand_broadcasts(call, &op.a, &op.b, &op.out);
 *         return stand_plan(call, add, &op, sizeof op, 0);
 *     }
 *     STAND_SECOND_PHASE(aclnnAdd)
 *
 * The declaring functions may be called with what is missing or wrong: the first fault is kept, a
 * missing operand becomes an empty view (`given` is false), and stand_plan answers with the fault's
 * code. Only code that computes with dimensions asks stand_holds(call) first.
 */
#ifndef STAND_STAND_H
#define STAND_STAND_H

#include "aclnn/acl_meta.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STAND_API __attribute__((visibility("default")))

enum { STAND_RANK = 8 };

/* What a chip has. STAND_CHIP chooses: 910B4 (the default), 310P3, 310B1 (or 310B). */
struct stand_chip {
    const char *soc; /* as aclrtGetSocName gives it: "Ascend910B4" */
    uint64_t memory_bytes;
    int events;            /* most that exist at a time */
    bool bf16;             /* tensors in BF16 */
    bool f64;              /* tensors in DOUBLE beyond Cast and copies */
    bool quantised_matmul; /* WeightQuantBatchMatmulV2 and its kin */
    bool fused_attention;  /* FusedInferAttentionScore and its kin */
    bool grouped_matmul;
    bool virtual_memory; /* aclrtReserveMemAddress and its kin */
    bool graphs;         /* aclmdlRICapture... */
};
STAND_API const struct stand_chip *stand_chip(void);
/* STAND_RULES=loose: what chips take beyond the documentation is taken. */
STAND_API bool stand_is_loose(void);

/* A mask of types: (1 << aclDataType). */
#define STAND_TYPE(t) (UINT32_C(1) << (unsigned)(t))
#define STAND_FLOATS  (STAND_TYPE(ACL_FLOAT) | STAND_TYPE(ACL_FLOAT16) | STAND_TYPE(ACL_BF16))
#define STAND_INTEGERS                                                                             \
    (STAND_TYPE(ACL_INT8) | STAND_TYPE(ACL_UINT8) | STAND_TYPE(ACL_INT16) |                        \
     STAND_TYPE(ACL_INT32) | STAND_TYPE(ACL_INT64))
#define STAND_INDICES (STAND_TYPE(ACL_INT32) | STAND_TYPE(ACL_INT64))

/* A tensor as an operator sees it; a plain value, which outlives the aclTensor. Dimension 0 is the
 * outermost. Strides and offset in elements from `address`; an INT4 element is half a byte, the
 * even one in the low half. `format` is told, not interpreted. */
struct stand_view {
    bool given; /* false: an optional operand left out, or a fault */
    aclDataType type;
    aclFormat format;
    int rank, storage_rank;
    int64_t dims[STAND_RANK], strides[STAND_RANK], offset, storage[STAND_RANK];
    void *address; /* the client's: never dereferenced, the readers below translate it */
};

/* --- the first phase ------------------------------------------------------------------------- */

struct stand_call; /* from stand_begin to stand_plan */
struct stand_run;  /* while a kernel runs */
typedef void stand_kernel(struct stand_run *run, const void *state);

/* Never NULL. `name` without GetWorkspaceSize; kept, a literal. */
STAND_API struct stand_call *stand_begin(const char *name, uint64_t *workspace_bytes,
                                         aclOpExecutor **executor);

/* Operands. Null where required: 161001. Addresses must be of the device and 32-byte aligned
 * (address + offset), the view must lie inside its storage dims. BF16 and DOUBLE are refused where
 * the chip lacks them. _optional: NULL gives a view with given == false. inout: read and written.
 */
STAND_API struct stand_view stand_in(struct stand_call *, const char *name, const aclTensor *);
STAND_API struct stand_view stand_in_optional(struct stand_call *, const char *name,
                                              const aclTensor *);
STAND_API struct stand_view stand_out(struct stand_call *, const char *name, const aclTensor *);
STAND_API struct stand_view stand_out_optional(struct stand_call *, const char *name,
                                               const aclTensor *);
STAND_API struct stand_view stand_inout(struct stand_call *, const char *name, const aclTensor *);
/* Lists: the number of members (0 for NULL, which is a fault unless optional), then member i. */
STAND_API int64_t stand_list(struct stand_call *, const char *name, const aclTensorList *);
STAND_API int64_t stand_list_optional(struct stand_call *, const char *name, const aclTensorList *);
STAND_API struct stand_view stand_list_in(struct stand_call *, const char *name,
                                          const aclTensorList *, int64_t i);
STAND_API struct stand_view stand_list_out(struct stand_call *, const char *name,
                                           const aclTensorList *, int64_t i);
/* A scalar of any numeric type. stand_scalar_type: its type, ACL_DT_UNDEFINED for NULL. */
STAND_API double stand_scalar(struct stand_call *, const char *name, const aclScalar *);
STAND_API aclDataType stand_scalar_type(const aclScalar *);
/* An array, copied: n values that live as long as the executor. NULL is a fault unless optional
 * (then n == 0 and values == NULL). */
struct stand_ints {
    int64_t n;
    const int64_t *values;
};
STAND_API struct stand_ints stand_ints(struct stand_call *, const char *name, const aclIntArray *);
STAND_API struct stand_ints stand_ints_optional(struct stand_call *, const char *name,
                                                const aclIntArray *);

/* Checks. Each returns whether it holds and keeps the first fault (161002) with a text that names
 * the operator and the operand. A view that was not given passes, so that optional operands need
 * no condition. */
STAND_API bool stand_types(struct stand_call *, const struct stand_view *, uint32_t mask);
STAND_API bool stand_same_type(struct stand_call *, const struct stand_view *,
                               const struct stand_view *);
STAND_API bool stand_rank(struct stand_call *, const struct stand_view *, int least, int most);
STAND_API bool stand_shape(struct stand_call *, const struct stand_view *, int rank,
                           const int64_t *dims);
STAND_API bool stand_same_shape(struct stand_call *, const struct stand_view *,
                                const struct stand_view *);
/* `out` has the shape that a and b broadcast to. */
STAND_API bool stand_broadcasts(struct stand_call *, const struct stand_view *a,
                                const struct stand_view *b, const struct stand_view *out);
/* Dense in the order of its dims. */
STAND_API bool stand_dense(struct stand_call *, const struct stand_view *);
STAND_API bool stand_format(struct stand_call *, const struct stand_view *, aclFormat);
/* dim in [-rank, rank) made non-negative; 0 after a fault. */
STAND_API int stand_axis(struct stand_call *, const struct stand_view *, int64_t dim);
/* Any other rule of the operator's documentation: 161002 unless it holds. */
STAND_API bool stand_require(struct stand_call *, bool holds, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* From here on a wrong shape and stand_require answer 561002: the operator's documentation finds
 * these faults when it cuts the work into tiles. */
STAND_API void stand_tiling(struct stand_call *);
/* What the chip has no kernel for: 561003 unless it holds. */
STAND_API bool stand_chip_has(struct stand_call *, bool holds, const char *what);
/* Nothing was found wrong so far. */
STAND_API bool stand_holds(const struct stand_call *);

/* Ends the first phase: frees the call, sets *workspaceSize and *executor, or answers with the
 * first fault. The state is copied. The bytes of workspace are those that a real kernel could need
 * (what it would convert or transpose); the frame poisons them before the kernel runs. */
STAND_API aclnnStatus stand_plan(struct stand_call *, stand_kernel *kernel, const void *state,
                                 size_t state_bytes, uint64_t workspace_bytes);
/* The second phase of every operator. `name` as for stand_begin. */
STAND_API aclnnStatus stand_launch(const char *name, void *workspace, uint64_t workspace_bytes,
                                   aclOpExecutor *executor, aclrtStream stream);
#define STAND_SECOND_PHASE(name)                                                                   \
    aclnnStatus name(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,             \
                     aclrtStream stream)                                                           \
    {                                                                                              \
        return stand_launch(#name, workspace, workspaceSize, executor, stream);                    \
    }

/* --- views: pure ----------------------------------------------------------------------------- */

STAND_API int64_t stand_elements(struct stand_view);
/* The view with the shape of `like`, missing dimensions and those of 1 repeated (stride 0). */
STAND_API struct stand_view stand_expand(struct stand_view, struct stand_view like);
/* Index i of an axis, which is dropped; n indices from `first`; two axes exchanged. */
STAND_API struct stand_view stand_select(struct stand_view, int axis, int64_t i);
STAND_API struct stand_view stand_slice(struct stand_view, int axis, int64_t first, int64_t n);
STAND_API struct stand_view stand_swap(struct stand_view, int a, int b);
/* Row i when all axes but the last are counted as one. */
STAND_API struct stand_view stand_row(struct stand_view, int64_t i);
STAND_API int64_t stand_rows(struct stand_view);

/* --- in a kernel ----------------------------------------------------------------------------- */

/* Whole views as dense arrays in row-major order, in the run's scratch (freed after the kernel).
 * Each element is checked against the allocation that holds it; one outside ends the run with an
 * AI-core exception (507015) and reads as 0. From floats to F16 and BF16: nearest, ties to even,
 * overflow to infinity. From floats and doubles to integers: truncated, saturated; NaN gives 0. */
STAND_API float *stand_read_floats(struct stand_run *, struct stand_view);
STAND_API double *stand_read_doubles(struct stand_run *, struct stand_view);
STAND_API int64_t *stand_read_ints(struct stand_run *, struct stand_view);
STAND_API void stand_write_floats(struct stand_run *, struct stand_view, const float *);
STAND_API void stand_write_doubles(struct stand_run *, struct stand_view, const double *);
STAND_API void stand_write_ints(struct stand_run *, struct stand_view, const int64_t *);
/* One element, by its number in row-major order. */
STAND_API double stand_get(struct stand_run *, const struct stand_view *, int64_t i);
STAND_API int64_t stand_get_int(struct stand_run *, const struct stand_view *, int64_t i);
STAND_API void stand_set(struct stand_run *, const struct stand_view *, int64_t i, double);
STAND_API void stand_set_int(struct stand_run *, const struct stand_view *, int64_t i, int64_t);
/* n raw bytes at a byte offset from the view's address, for formats of one's own: the host's alias,
 * readable and writable during the kernel; NULL (and the run fails) where they are not all there.
 */
STAND_API void *stand_bytes(struct stand_run *, const struct stand_view *, int64_t offset,
                            size_t n);
/* Zeroed, aligned to 64, freed after the kernel. */
STAND_API void *stand_scratch(struct stand_run *, size_t bytes);
/* What only the values show (an index out of range): the run ends with 507015. */
STAND_API void stand_fail(struct stand_run *, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Numbers as the chip rounds them. */
STAND_API float stand_from_f16(uint16_t);
STAND_API uint16_t stand_to_f16(double);
STAND_API float stand_from_bf16(uint16_t);
STAND_API uint16_t stand_to_bf16(double);

#endif
