/*
 * op_index.c - operators that read or write slices of a tensor by a list of indices. An index out
 * of range is only seen when the kernel runs: it ends the stream with an AI-core exception.
 */
#include "tests/ascend/op.h"

#include <string.h>

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor
#define ANY_TYPE                                                                                   \
    (TYPE_NUMBER | STAND_TYPE(ACL_UINT16) | STAND_TYPE(ACL_UINT32) | STAND_TYPE(ACL_UINT64))

struct index_op {
    struct stand_view self, index, other; /* `other`: the slices read, or written */
    struct stand_ints list;
    int axis;
    double value;
    bool one_axis; /* the indices stay one axis even if the tensor of them has another rank */
};

/* other[..., i, ...] = self[..., index[i], ...], where i counts all indices. */
static void run_gather(struct stand_run *run, const void *state)
{
    const struct index_op *op = state;
    if (op_empty(op->other, op->index))
        return;
    int64_t *from = op_indices(run, op->index, op->self.dims[op->axis]);
    int axes = op->one_axis ? 1 : op->index.rank;
    for (int64_t i = 0; from && i < stand_elements(op->index); i++) {
        struct stand_view to = op->other;
        int64_t rest = i;
        for (int j = axes - 1; j >= 0; j--) {
            int64_t n = to.dims[op->axis + j];
            to = stand_select(to, op->axis + j, rest % n);
            rest /= n;
        }
        op_copy(run, to, stand_select(op->self, op->axis, from[i]));
    }
}

static aclnnStatus gather(const char *name, unsigned chips, bool one_axis, const aclTensor *self,
                          int64_t dim, const aclTensor *index, const aclTensor *out,
                          uint64_t *bytes, aclOpExecutor **executor)
{
    struct stand_call *call = stand_begin(name, bytes, executor);
    struct index_op op = {.self = stand_in(call, "self", self),
                          .index = stand_in(call, "index", index),
                          .other = stand_out(call, "out", out),
                          .one_axis = one_axis};
    op_chips(call, chips);
    stand_types(call, &op.self, ANY_TYPE);
    stand_types(call, &op.index, STAND_INDICES);
    stand_same_type(call, &op.self, &op.other);
    stand_rank(call, &op.self, 1, STAND_RANK);
    op.axis = stand_axis(call, &op.self, dim);
    if (one_axis)
        stand_rank(call, &op.index, 0, 1);
    if (stand_holds(call)) {
        int64_t shape[2 * STAND_RANK];
        int rank = 0;
        for (int i = 0; i < op.axis; i++)
            shape[rank++] = op.self.dims[i];
        if (one_axis)
            shape[rank++] = stand_elements(op.index);
        for (int i = 0; !one_axis && i < op.index.rank; i++)
            shape[rank++] = op.index.dims[i];
        for (int i = op.axis + 1; i < op.self.rank; i++)
            shape[rank++] = op.self.dims[i];
        if (stand_require(call, rank <= STAND_RANK, "the result has %d dimensions", rank))
            stand_shape(call, &op.other, rank, shape);
    }
    return stand_plan(call, run_gather, &op, sizeof op, 0);
}

aclnnStatus aclnnGatherV2GetWorkspaceSize(const aclTensor *self, int64_t dim,
                                          const aclTensor *index, aclTensor *out, SIZE_ARGS)
{
    return gather("aclnnGatherV2", CHIP_BIG, false, self, dim, index, out, bytes, executor);
}
STAND_SECOND_PHASE(aclnnGatherV2)

aclnnStatus aclnnIndexSelectGetWorkspaceSize(const aclTensor *self, int64_t dim,
                                             const aclTensor *index, aclTensor *out, SIZE_ARGS)
{
    return gather("aclnnIndexSelect", CHIP_ALL, true, self, dim, index, out, bytes, executor);
}
STAND_SECOND_PHASE(aclnnIndexSelect)

aclnnStatus aclnnEmbeddingGetWorkspaceSize(const aclTensor *weight, const aclTensor *indices,
                                           const aclTensor *out, SIZE_ARGS)
{
    return gather("aclnnEmbedding", CHIP_ALL, false, weight, 0, indices, out, bytes, executor);
}
STAND_SECOND_PHASE(aclnnEmbedding)

/* --------------------------------------------------------------------------- written to ---- */

static void run_index_copy(struct stand_run *run, const void *state)
{
    const struct index_op *op = state;
    int64_t *to = op_indices(run, op->index, op->self.dims[op->axis]);
    for (int64_t i = 0; to && i < stand_elements(op->index); i++)
        op_copy(run, stand_select(op->self, op->axis, to[i]), stand_select(op->other, op->axis, i));
}

static void check_index_copy(struct stand_call *call, struct index_op *op, int64_t dim)
{
    stand_types(call, &op->self, ANY_TYPE);
    stand_types(call, &op->index, STAND_INDICES);
    stand_rank(call, &op->index, 0, 1);
    stand_same_type(call, &op->self, &op->other);
    op->axis = stand_axis(call, &op->self, dim);
    if (stand_holds(call)) {
        int64_t shape[STAND_RANK];
        memcpy(shape, op->self.dims, sizeof shape);
        shape[op->axis] = stand_elements(op->index);
        stand_shape(call, &op->other, op->self.rank, shape);
    }
}

aclnnStatus aclnnInplaceIndexCopyGetWorkspaceSize(aclTensor *selfRef, int64_t dim,
                                                  const aclTensor *index, const aclTensor *source,
                                                  SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnInplaceIndexCopy", bytes, executor);
    struct index_op op = {.self = stand_inout(call, "selfRef", selfRef),
                          .index = stand_in(call, "index", index),
                          .other = stand_in(call, "source", source)};
    check_index_copy(call, &op, dim);
    return stand_plan(call, run_index_copy, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnInplaceIndexCopy)

struct index_copy_out_op {
    struct index_op copy;
    struct stand_view self;
};

static void run_index_copy_out(struct stand_run *run, const void *state)
{
    const struct index_copy_out_op *op = state;
    op_copy(run, op->copy.self, op->self);
    run_index_copy(run, &op->copy);
}

aclnnStatus aclnnIndexCopyGetWorkspaceSize(aclTensor *selfRef, int64_t dim, const aclTensor *index,
                                           const aclTensor *source, aclTensor *outRef, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnIndexCopy", bytes, executor);
    struct index_copy_out_op op = {.self = stand_in(call, "selfRef", selfRef)};
    op.copy = (struct index_op){.index = stand_in(call, "index", index),
                                .other = stand_in(call, "source", source),
                                .self = stand_out(call, "outRef", outRef)};
    stand_same_type(call, &op.self, &op.copy.self);
    stand_same_shape(call, &op.self, &op.copy.self);
    check_index_copy(call, &op.copy, dim);
    return stand_plan(call, run_index_copy_out, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnIndexCopy)

static void run_index_fill(struct stand_run *run, const void *state)
{
    const struct index_op *op = state;
    for (int64_t i = 0; i < op->list.n; i++) {
        int64_t at = op->list.values[i];
        struct stand_view slice =
            stand_select(op->self, op->axis, at < 0 ? at + op->self.dims[op->axis] : at);
        for (int64_t j = 0; j < stand_elements(slice); j++)
            stand_set(run, &slice, j, op->value);
    }
}

aclnnStatus aclnnInplaceIndexFillTensorGetWorkspaceSize(aclTensor *selfRef, int64_t dim,
                                                        const aclIntArray *index,
                                                        const aclScalar *value, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnInplaceIndexFillTensor", bytes, executor);
    struct index_op op = {.self = stand_inout(call, "selfRef", selfRef),
                          .list = stand_ints(call, "index", index),
                          .value = stand_scalar(call, "value", value)};
    stand_types(call, &op.self, STAND_FLOATS | STAND_INDICES | TYPE_BOOL);
    op.axis = stand_axis(call, &op.self, dim);
    for (int64_t i = 0; stand_holds(call) && i < op.list.n; i++)
        stand_require(call,
                      op.list.values[i] >= -op.self.dims[op.axis] &&
                          op.list.values[i] < op.self.dims[op.axis],
                      "index %lld of %lld", (long long)op.list.values[i],
                      (long long)op.self.dims[op.axis]);
    return stand_plan(call, run_index_fill, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnInplaceIndexFillTensor)

/* data[b], from indices[b] along the axis on, = updates[b]. */
static void run_scatter_update(struct stand_run *run, const void *state)
{
    const struct index_op *op = state;
    int64_t n = op->other.dims[op->axis];
    int64_t *to = op_indices(run, op->index, op->self.dims[op->axis] - n + 1);
    for (int64_t b = 0; to && b < op->other.dims[0]; b++)
        op_copy(run, stand_slice(stand_select(op->self, 0, b), op->axis - 1, to[b], n),
                stand_select(op->other, 0, b));
}

aclnnStatus aclnnInplaceScatterUpdateGetWorkspaceSize(aclTensor *data, const aclTensor *indices,
                                                      const aclTensor *updates, int64_t axis,
                                                      SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnInplaceScatterUpdate", bytes, executor);
    struct index_op op = {.self = stand_inout(call, "data", data),
                          .index = stand_in(call, "indices", indices),
                          .other = stand_in(call, "updates", updates)};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.self, STAND_FLOATS | STAND_TYPE(ACL_INT8) | STAND_TYPE(ACL_INT32));
    stand_types(call, &op.index, STAND_INDICES);
    stand_same_type(call, &op.self, &op.other);
    stand_rank(call, &op.self, 2, STAND_RANK);
    stand_rank(call, &op.index, 1, 1);
    op.axis = stand_axis(call, &op.self, axis);
    stand_require(call, op.axis > 0, "axis 0 is that of the indices");
    if (stand_holds(call)) {
        int64_t shape[STAND_RANK];
        memcpy(shape, op.self.dims, sizeof shape);
        shape[0] = stand_elements(op.index);
        shape[op.axis] = op.other.dims[op.axis];
        stand_shape(call, &op.other, op.self.rank, shape);
        stand_require(call, shape[0] <= op.self.dims[0] && shape[op.axis] <= op.self.dims[op.axis],
                      "updates are larger than data");
    }
    return stand_plan(call, run_scatter_update, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnInplaceScatterUpdate)

/* ------------------------------------------------------------------------ paged KV cache ---- */

struct pa_op {
    struct stand_view key, key_cache, slots, value, value_cache;
};

static void run_pa(struct stand_run *run, const void *state)
{
    const struct pa_op *op = state;
    int64_t *slots = stand_read_ints(run, op->slots);
    int64_t block = op->key_cache.dims[1], limit = block * op->key_cache.dims[0];
    for (int64_t i = 0; i < stand_elements(op->slots); i++) {
        if (slots[i] < 0) /* a token that is not kept */
            continue;
        if (slots[i] >= limit) {
            stand_fail(run, "slot %lld of %lld", (long long)slots[i], (long long)limit);
            return;
        }
        struct stand_view to = stand_select(op->key_cache, 0, slots[i] / block);
        op_copy(run, stand_select(to, 0, slots[i] % block), stand_select(op->key, 0, i));
        to = stand_select(op->value_cache, 0, slots[i] / block);
        op_copy(run, stand_select(to, 0, slots[i] % block), stand_select(op->value, 0, i));
    }
}

/* One side of the cache: new (tokens, N, D), cache (blocks, block size, N, D). */
static void check_pa(struct stand_call *call, const struct stand_view *fresh,
                     const struct stand_view *cache, int64_t tokens)
{
    stand_types(call, fresh, STAND_FLOATS | STAND_TYPE(ACL_INT8));
    stand_same_type(call, fresh, cache);
    stand_rank(call, fresh, 3, 3);
    stand_rank(call, cache, 4, 4);
    stand_dense(call, fresh);
    stand_dense(call, cache);
    if (stand_holds(call)) {
        int64_t shape[] = {tokens, cache->dims[2], cache->dims[3]};
        stand_shape(call, fresh, 3, shape);
    }
}

aclnnStatus aclnnScatterPaKvCacheGetWorkspaceSize(
    const aclTensor *key, aclTensor *keyCacheRef, const aclTensor *slotMapping,
    const aclTensor *value, aclTensor *valueCacheRef, const aclTensor *compressLensOptional,
    const aclTensor *compressSeqOffsetOptional, const aclTensor *seqLensOptional,
    char *cacheModeOptional, char *scatterModeOptional, const aclIntArray *stridesOptional,
    const aclIntArray *offsetsOptional, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnScatterPaKvCache", bytes, executor);
    struct pa_op op = {stand_in(call, "key", key), stand_inout(call, "keyCacheRef", keyCacheRef),
                       stand_in(call, "slotMapping", slotMapping), stand_in(call, "value", value),
                       stand_inout(call, "valueCacheRef", valueCacheRef)};
    op_chips(call, CHIP_910B);
    stand_types(call, &op.slots, STAND_INDICES);
    stand_rank(call, &op.slots, 1, 1);
    stand_require(call, !compressLensOptional && !compressSeqOffsetOptional && !seqLensOptional,
                  "compressed caches are not in this stand-in");
    stand_require(
        call,
        (!cacheModeOptional || !*cacheModeOptional || !strcmp(cacheModeOptional, "Norm")) &&
            (!scatterModeOptional || !*scatterModeOptional ||
             !strcmp(scatterModeOptional, "None")) &&
            !stridesOptional && !offsetsOptional,
        "cache mode Norm only");
    if (stand_holds(call)) {
        check_pa(call, &op.key, &op.key_cache, op.slots.dims[0]);
        check_pa(call, &op.value, &op.value_cache, op.slots.dims[0]);
    }
    stand_require(call,
                  !stand_holds(call) || (op.key_cache.dims[0] == op.value_cache.dims[0] &&
                                         op.key_cache.dims[1] == op.value_cache.dims[1]),
                  "the caches differ in their blocks");
    return stand_plan(call, run_pa, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnScatterPaKvCache)
