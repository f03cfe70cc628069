/*
 * op_attention_args.c - the arguments of fused attention: FusedInferAttentionScoreV2 and V3,
 * IncreFlashAttentionV4, PromptFlashAttentionV3. Layouts become views B, N, S, D; pages (blocks, N,
 * rows, D).
 */
#include "tests/ascend/op_attention.h"

#include <string.h>

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor

static const struct layout layouts[] = {
    {"BSH", 3, -1, 1, false},
    {"BSND", 4, 2, 1, false},
    {"BNSD", 4, 1, 2, false},
    {"BNSD_BSND", 4, 1, 2, true},
};

/* The view as B, N, S, D. */
static struct stand_view as_bnsd(struct stand_view v, int heads_axis, int64_t heads)
{
    if (heads_axis == 2)
        return stand_swap(v, 1, 2);
    if (heads_axis == 1)
        return v;
    v.rank = 4;
    int64_t d = heads ? v.dims[2] / heads : 0, step = v.strides[2], rows = v.dims[1];
    v.dims[3] = d, v.strides[3] = step;
    v.dims[2] = rows, v.strides[2] = v.strides[1];
    v.dims[1] = heads, v.strides[1] = d * step;
    return v;
}

/* What the operators share. prompt: keys and values are one tensor each, not lists. */
struct attention_args {
    const aclTensor *query, *pse, *mask, *out, *lse, *table, *scale, *offset, *key_scale,
        *key_offset, *value_scale, *value_offset, *one_key, *one_value;
    const aclTensorList *key, *value;
    const aclIntArray *q_lengths, *kv_lengths;
    const char *layout;
    int64_t heads, kv_heads, before, after, sparse, precise, block, mode, key_mode, value_mode;
    double scale_value;
    bool lse_wanted, prompt;
};

static void set_layout(struct stand_call *call, struct attention_op *op, const char *name)
{
    const struct layout *found = NULL;
    for (size_t i = 0; name && i < sizeof layouts / sizeof layouts[0]; i++)
        if (!strcmp(layouts[i].name, name))
            found = &layouts[i];
    stand_require(call, found != NULL, "inputLayout '%s' is not in this stand-in",
                  name ? name : "");
    op->layout = found ? found : &layouts[0];
}

static void set_query(struct stand_call *call, struct attention_op *op)
{
    const struct layout *l = op->layout;
    stand_types(call, &op->q, TYPE_F16 | STAND_TYPE(ACL_BF16));
    stand_same_type(call, &op->q, &op->out);
    stand_rank(call, &op->q, l->rank, l->rank);
    stand_rank(call, &op->out, l->rank, l->rank);
    if (!stand_holds(call) || !stand_require(call, op->heads >= 1 && op->heads <= MOST_HEADS,
                                             "%lld heads", (long long)op->heads))
        return;
    stand_require(call, l->heads >= 0 || op->q.dims[2] % op->heads == 0,
                  "H is no multiple of the heads");
    op->q = as_bnsd(op->q, l->heads, op->heads);
    op->out = as_bnsd(op->out, l->out_bsnd ? 2 : l->heads, op->heads);
    op->batches = op->q.dims[0];
    op->rows = op->q.dims[2];
    op->d = op->q.dims[3];
    stand_require(call, op->q.dims[1] == op->heads, "query has %lld heads, numHeads is %lld",
                  (long long)op->q.dims[1], (long long)op->heads);
    stand_same_shape(call, &op->q, &op->out);
    stand_require(call, op->batches >= 1 && op->batches <= MOST_BATCHES && op->d <= MOST_D,
                  "B is %lld, D %lld", (long long)op->batches, (long long)op->d);
    stand_require(call, op->rows == 1 || op->d % 16 == 0, "D is %lld: a multiple of 16",
                  (long long)op->d);
    stand_require(call, !l->out_bsnd || op->rows > 1, "BNSD_BSND needs more than one row");
    op->kv_heads = op->kv_heads ? op->kv_heads : op->heads;
    stand_require(
        call, op->kv_heads > 0 && op->heads % op->kv_heads == 0 && op->heads / op->kv_heads <= 64,
        "%lld heads on %lld of keys", (long long)op->heads, (long long)op->kv_heads);
}

/* One tensor of keys or values, not paged, as B, N, S, D. */
static struct stand_view plain_kv(struct stand_call *call, const struct attention_op *op,
                                  struct stand_view v)
{
    const struct layout *l = op->layout;
    if (!stand_rank(call, &v, l->rank, l->rank))
        return v;
    v = as_bnsd(v, l->heads, op->kv_heads);
    stand_require(call, v.dims[1] == op->kv_heads && v.dims[3] == op->d,
                  "key or value has %lld heads of %lld", (long long)v.dims[1],
                  (long long)v.dims[3]);
    return v;
}

/* Pages: (blocks, block, H), or for BNSD queries (blocks, N, block, D). */
static struct stand_view paged_kv(struct stand_call *call, const struct attention_op *op,
                                  struct stand_view v)
{
    bool bnsd = op->layout->heads == 1;
    if (!stand_rank(call, &v, 3, bnsd ? 4 : 3))
        return v;
    if (v.rank == 3) {
        stand_require(call, v.dims[2] == op->kv_heads * op->d && v.dims[2] <= 65535,
                      "pages have rows of %lld", (long long)v.dims[2]);
        v = as_bnsd(v, -1, op->kv_heads);
    }
    stand_require(call, v.dims[1] == op->kv_heads && v.dims[2] == op->block && v.dims[3] == op->d,
                  "pages have %lld heads, %lld rows of %lld", (long long)v.dims[1],
                  (long long)v.dims[2], (long long)v.dims[3]);
    return v;
}

static void check_lengths(struct stand_call *call, const struct attention_op *op,
                          struct stand_ints lengths, int64_t most, const char *name)
{
    stand_require(call, !lengths.n || lengths.n == 1 || lengths.n >= op->batches,
                  "%s has %lld entries for %lld batches", name, (long long)lengths.n,
                  (long long)op->batches);
    for (int64_t i = 0; stand_holds(call) && lengths.n && i < op->batches; i++)
        stand_require(call,
                      op_attention_length(lengths, i, 0) >= 0 &&
                          op_attention_length(lengths, i, 0) <= most,
                      "%s %lld is beyond %lld", name, (long long)op_attention_length(lengths, i, 0),
                      (long long)most);
}

static void set_pages(struct stand_call *call, struct attention_op *op)
{
    stand_types(call, &op->table, STAND_TYPE(ACL_INT32));
    stand_rank(call, &op->table, 2, 2);
    stand_require(call, op->kv_lengths.n > 0, "pages need actualSeqLengthsKv");
    int64_t unit = op->rows > 1 ? 128 : op->key.type == ACL_INT8 ? 32 : 16;
    stand_require(call, op->block > 0 && op->block <= 512 && op->block % unit == 0,
                  "blockSize is %lld: a multiple of %lld, at most 512", (long long)op->block,
                  (long long)unit);
    if (!stand_holds(call))
        return;
    stand_require(call, op->table.dims[0] == op->batches, "blockTable has %lld rows, B is %lld",
                  (long long)op->table.dims[0], (long long)op->batches);
    op->key = paged_kv(call, op, op->key);
    op->value = paged_kv(call, op, op->value);
    op->keys = op->table.dims[1] * op->block;
}

static void set_keys(struct stand_call *call, struct attention_op *op,
                     const struct attention_args *a)
{
    int64_t n = a->prompt ? 1 : stand_list(call, "key", a->key);
    stand_require(call, a->prompt || stand_list(call, "value", a->value) == n,
                  "key and value differ in length");
    if (!stand_holds(call))
        return;
    stand_require(call, n == 1 || (n == op->batches && n <= MOST_LISTED),
                  "%lld tensors for %lld batches", (long long)n, (long long)op->batches);
    for (int64_t i = 0; stand_holds(call) && i < n; i++) {
        struct stand_view k =
            a->prompt ? stand_in(call, "key", a->one_key) : stand_list_in(call, "key", a->key, i);
        struct stand_view v = a->prompt ? stand_in(call, "value", a->one_value)
                                        : stand_list_in(call, "value", a->value, i);
        stand_types(call, &k, TYPE_F16 | STAND_TYPE(ACL_BF16) | STAND_TYPE(ACL_INT8));
        stand_same_type(call, &k, &v);
        stand_same_shape(call, &k, &v);
        stand_require(call, k.type == ACL_INT8 || k.type == op->q.type, "key has type %d, query %d",
                      (int)k.type, (int)op->q.type);
        op->key = k, op->value = v;
        if (op->table.given && stand_holds(call)) {
            stand_require(call, n == 1, "pages are in one tensor");
            set_pages(call, op);
        } else if (stand_holds(call)) {
            op->key = plain_kv(call, op, k), op->value = plain_kv(call, op, v);
            stand_require(call, op->key.dims[0] == (n == 1 ? op->batches : 1),
                          "key has %lld batches", (long long)op->key.dims[0]);
            op->key_list[i] = op->key, op->value_list[i] = op->value;
            op->keys = op->key.dims[2] > op->keys ? op->key.dims[2] : op->keys;
        }
    }
    op->listed = n > 1 ? n : 0;
    stand_require(call, !op->listed || op->kv_lengths.n, "a list of keys needs their lengths");
    check_lengths(call, op, op->kv_lengths, op->keys, "actualSeqLengthsKv");
    for (int64_t i = 0; stand_holds(call) && i < op->listed; i++)
        stand_require(call, op_attention_length(op->kv_lengths, i, 0) <= op->key_list[i].dims[2],
                      "actualSeqLengthsKv is beyond the keys of a batch");
    if (op->rows > 1)
        check_lengths(call, op, op->q_lengths, op->rows, "actualSeqLengths");
}

/* (Q, KV), (1|B, Q, KV), (1|B, 1, Q, KV); single rows: (B, KV), (B, 1, KV), (B, 1, 1, KV). All
 * become (B, Q, KV). */
static void set_mask(struct stand_call *call, struct attention_op *op)
{
    struct stand_view *m = &op->mask;
    bool compressed = op->rows > 1 && op->sparse >= 2;
    stand_types(call, m, TYPE_BOOL | STAND_TYPE(ACL_INT8) | STAND_TYPE(ACL_UINT8));
    stand_rank(call, m, 2, 4);
    stand_require(call, op->sparse >= 0 && op->sparse <= 4, "sparseMode is %lld",
                  (long long)op->sparse);
    stand_require(call, op->sparse == 0 || op->rows == 1 || m->given, "sparseMode needs attenMask");
    if (!m->given || !stand_holds(call))
        return;
    if (m->rank == 4 && stand_require(call, m->dims[1] == 1, "attenMask differs between heads"))
        *m = stand_select(*m, 1, 0);
    if (m->rank == 2) {
        bool batches_first = op->rows == 1;
        m->rank = 3;
        m->dims[2] = m->dims[1], m->strides[2] = m->strides[1];
        m->dims[1] = batches_first ? 1 : m->dims[0], m->strides[1] = m->strides[0];
        m->dims[0] = batches_first ? m->dims[0] : 1;
    }
    if (compressed)
        stand_require(call, m->dims[0] == 1 && m->dims[1] == MASK_SIDE && m->dims[2] == MASK_SIDE,
                      "sparseMode %lld takes a mask of 2048 x 2048", (long long)op->sparse);
    else
        stand_require(call,
                      (m->dims[0] == 1 || m->dims[0] == op->batches) && m->dims[1] >= op->rows &&
                          m->dims[2] >= op->keys,
                      "attenMask is no (B, Q, KV)");
}

static void check_pse(struct stand_call *call, const struct attention_op *op)
{
    const struct stand_view *p = &op->pse;
    stand_same_type(call, &op->q, p);
    stand_rank(call, p, 4, 4);
    stand_require(call,
                  !p->given ||
                      ((p->dims[0] == 1 || p->dims[0] == op->batches) && p->dims[1] == op->heads &&
                       p->dims[2] >= op->rows && p->dims[3] >= op->keys),
                  "pseShift is no (B, N, Q, KV)");
}

static void check_quant(struct stand_call *call, const struct attention_op *op,
                        const struct antiquant *quant)
{
    if (!stand_holds(call))
        return;
    bool wanted = op->key.type == ACL_INT8;
    stand_require(call, quant->scale.given == wanted, "scales go with INT8 keys and values");
    stand_same_type(call, &quant->scale, &quant->offset);
    stand_same_shape(call, &quant->scale, &quant->offset);
    if (!wanted)
        return;
    int64_t n = stand_elements(quant->scale);
    if (quant->per_token) {
        stand_types(call, &quant->scale, TYPE_F32);
        stand_require(call, n % op->batches == 0 && n / op->batches >= op->keys,
                      "a scale a token: %lld for %lld tokens of %lld batches", (long long)n,
                      (long long)op->keys, (long long)op->batches);
    } else {
        stand_same_type(call, &op->q, &quant->scale);
        stand_require(call, n == 1 || n == op->kv_heads * op->d, "%lld scales", (long long)n);
    }
}

/* Scales of keys and values in one tensor, whose first axis is 2. */
static struct antiquant half_of(struct stand_call *call, struct stand_view scale,
                                struct stand_view offset, int64_t i, bool per_token)
{
    stand_require(call, !scale.given || (scale.rank >= 1 && scale.dims[0] == 2),
                  "the first axis of antiquantScale is not 2");
    if (scale.given && stand_holds(call))
        scale = stand_select(scale, 0, i);
    if (offset.given && stand_holds(call))
        offset = stand_select(offset, 0, i);
    return (struct antiquant){scale, offset, per_token};
}

static aclnnStatus attention(struct stand_call *call, const struct attention_args *a)
{
    struct attention_op op = {
        .q = stand_in(call, "query", a->query),
        .out = stand_out(call, "attentionOut", a->out),
        .pse = stand_in_optional(call, "pseShift", a->pse),
        .mask = stand_in_optional(call, "attenMask", a->mask),
        .table = stand_in_optional(call, "blockTable", a->table),
        .q_lengths = stand_ints_optional(call, "actualSeqLengths", a->q_lengths),
        .kv_lengths = stand_ints_optional(call, "actualSeqLengthsKv", a->kv_lengths),
        .heads = a->heads,
        .kv_heads = a->kv_heads,
        .before = a->before,
        .after = a->after,
        .sparse = a->sparse,
        .block = a->block,
        .scale = a->scale_value,
        .mend_rows = a->precise & 2};
    if (a->lse_wanted)
        op.lse = stand_out(call, "softmaxLse", a->lse);
    stand_require(call, a->precise >= 0 && a->precise <= 3, "innerPrecise is %lld",
                  (long long)a->precise);
    stand_types(call, &op.lse, TYPE_F32);
    set_layout(call, &op, a->layout);
    if (stand_holds(call))
        set_query(call, &op);
    if (stand_holds(call))
        set_keys(call, &op, a);
    struct stand_view scale = stand_in_optional(call, "antiquantScale", a->scale);
    struct stand_view offset = stand_in_optional(call, "antiquantOffset", a->offset);
    op.key_quant = half_of(call, scale, offset, 0, a->mode == 1);
    op.value_quant = half_of(call, scale, offset, 1, a->mode == 1);
    if (a->key_scale || a->value_scale) {
        op.key_quant = (struct antiquant){
            stand_in(call, "keyAntiquantScale", a->key_scale),
            stand_in_optional(call, "keyAntiquantOffset", a->key_offset), a->key_mode == 1};
        op.value_quant = (struct antiquant){
            stand_in(call, "valueAntiquantScale", a->value_scale),
            stand_in_optional(call, "valueAntiquantOffset", a->value_offset), a->value_mode == 1};
        stand_require(call, op.rows <= 1, "scales apart need single query rows");
        stand_require(
            call, a->key_mode >= 0 && a->key_mode <= 1 && a->value_mode >= 0 && a->value_mode <= 1,
            "modes of scales beyond 1 are not in this stand-in");
    }
    set_mask(call, &op);
    check_pse(call, &op);
    check_quant(call, &op, &op.key_quant);
    check_quant(call, &op, &op.value_quant);
    /* Speed costs precision in F16 only, and not where pseShift is added. */
    op.fast = (a->precise & 1) && op.q.type == ACL_FLOAT16 && !op.pse.given;
    if (stand_holds(call)) {
        int64_t shape[] = {op.batches, op.heads, op.rows, 1};
        stand_shape(call, &op.lse, 4, shape);
    }
    return stand_plan(call, op_attention_run, &op, sizeof op, WORKSPACE);
}

/* The arguments of V2 and V3 that must be left out, as NULL. */
static void left_out(struct stand_call *call, const void *const *arguments, size_t n)
{
    for (size_t i = 0; i < n; i++)
        stand_require(call, !arguments[i],
                      "quantised queries and results, shared prefixes, padding on the left and "
                      "split positions are not in this stand-in");
}

#define FUSED_ARGS_1                                                                               \
    const aclTensor *query, const aclTensorList *key, const aclTensorList *value,                  \
        const aclTensor *pseShiftOptional, const aclTensor *attenMaskOptional,                     \
        const aclIntArray *actualSeqLengthsOptional,                                               \
        const aclIntArray *actualSeqLengthsKvOptional, const aclTensor *deqScale1Optional,         \
        const aclTensor *quantScale1Optional, const aclTensor *deqScale2Optional,                  \
        const aclTensor *quantScale2Optional, const aclTensor *quantOffset2Optional,               \
        const aclTensor *antiquantScaleOptional, const aclTensor *antiquantOffsetOptional,         \
        const aclTensor *blockTableOptional, const aclTensor *queryPaddingSizeOptional,            \
        const aclTensor *kvPaddingSizeOptional, const aclTensor *keyAntiquantScaleOptional,        \
        const aclTensor *keyAntiquantOffsetOptional, const aclTensor *valueAntiquantScaleOptional, \
        const aclTensor *valueAntiquantOffsetOptional, const aclTensor *keySharedPrefixOptional,   \
        const aclTensor *valueSharedPrefixOptional,                                                \
        const aclIntArray *actualSharedPrefixLenOptional
#define FUSED_ARGS_2                                                                               \
    int64_t numHeads, double scaleValue, int64_t preTokens, int64_t nextTokens, char *inputLayout, \
        int64_t numKeyValueHeads, int64_t sparseMode, int64_t innerPrecise, int64_t blockSize,     \
        int64_t antiquantMode, bool softmaxLseFlag, int64_t keyAntiquantMode,                      \
        int64_t valueAntiquantMode, const aclTensor *attentionOut, const aclTensor *softmaxLse
#define FUSED_LEFT_OUT                                                                             \
    deqScale1Optional, quantScale1Optional, deqScale2Optional, quantScale2Optional,                \
        quantOffset2Optional, queryPaddingSizeOptional, kvPaddingSizeOptional,                     \
        keySharedPrefixOptional, valueSharedPrefixOptional, actualSharedPrefixLenOptional
#define FUSED                                                                                      \
    &(struct attention_args)                                                                       \
    {                                                                                              \
        .query = query, .pse = pseShiftOptional, .mask = attenMaskOptional, .out = attentionOut,   \
        .lse = softmaxLse, .table = blockTableOptional, .scale = antiquantScaleOptional,           \
        .offset = antiquantOffsetOptional, .key_scale = keyAntiquantScaleOptional,                 \
        .key_offset = keyAntiquantOffsetOptional, .value_scale = valueAntiquantScaleOptional,      \
        .value_offset = valueAntiquantOffsetOptional, .key = key, .value = value,                  \
        .q_lengths = actualSeqLengthsOptional, .kv_lengths = actualSeqLengthsKvOptional,           \
        .layout = inputLayout, .heads = numHeads, .kv_heads = numKeyValueHeads,                    \
        .before = preTokens, .after = nextTokens, .sparse = sparseMode, .precise = innerPrecise,   \
        .block = blockSize, .mode = antiquantMode, .key_mode = keyAntiquantMode,                   \
        .value_mode = valueAntiquantMode, .scale_value = scaleValue, .lse_wanted = softmaxLseFlag  \
    }

aclnnStatus aclnnFusedInferAttentionScoreV2GetWorkspaceSize(FUSED_ARGS_1, FUSED_ARGS_2, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnFusedInferAttentionScoreV2", bytes, executor);
    const void *out[] = {FUSED_LEFT_OUT};
    stand_chip_has(call, stand_chip()->fused_attention, "fused attention");
    left_out(call, out, sizeof out / sizeof out[0]);
    return attention(call, FUSED);
}
STAND_SECOND_PHASE(aclnnFusedInferAttentionScoreV2)

aclnnStatus aclnnFusedInferAttentionScoreV3GetWorkspaceSize(
    FUSED_ARGS_1, const aclTensor *queryRopeOptional, const aclTensor *keyRopeOptional,
    const aclTensor *keyRopeAntiquantScaleOptional, FUSED_ARGS_2, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnFusedInferAttentionScoreV3", bytes, executor);
    const void *out[] = {FUSED_LEFT_OUT, queryRopeOptional, keyRopeOptional,
                         keyRopeAntiquantScaleOptional};
    stand_chip_has(call, stand_chip()->fused_attention, "fused attention");
    left_out(call, out, sizeof out / sizeof out[0]);
    return attention(call, FUSED);
}
STAND_SECOND_PHASE(aclnnFusedInferAttentionScoreV3)

aclnnStatus aclnnIncreFlashAttentionV4GetWorkspaceSize(
    const aclTensor *query, const aclTensorList *key, const aclTensorList *value,
    const aclTensor *pseShift, const aclTensor *attenMask, const aclIntArray *actualSeqLengths,
    const aclTensor *dequantScale1, const aclTensor *quantScale1, const aclTensor *dequantScale2,
    const aclTensor *quantScale2, const aclTensor *quantOffset2, const aclTensor *antiquantScale,
    const aclTensor *antiquantOffset, const aclTensor *blocktable, const aclTensor *kvPaddingSize,
    int64_t numHeads, double scaleValue, char *inputLayout, int64_t numKeyValueHeads,
    int64_t blockSize, int64_t innerPrecise, const aclTensor *attentionOut, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnIncreFlashAttentionV4", bytes, executor);
    const void *out[] = {dequantScale1, quantScale1,  dequantScale2,
                         quantScale2,   quantOffset2, kvPaddingSize};
    bool p = op_chip() == CHIP_310P;
    struct stand_view q = stand_in(call, "query", query);
    op_chips(call, CHIP_BIG);
    left_out(call, out, sizeof out / sizeof out[0]);
    stand_require(call, inputLayout && strcmp(inputLayout, "BNSD_BSND") != 0,
                  "inputLayout is BSH, BNSD or BSND");
    bool rows_last = inputLayout && !strcmp(inputLayout, "BNSD");
    stand_require(call, !q.given || q.rank < 3 || q.dims[rows_last ? 2 : 1] == 1,
                  "query has more than one row");
    stand_require(call, !p || (numKeyValueHeads == 0 && q.dims[0] <= 256),
                  "the 310P takes as many heads of keys as of queries, and 256 batches");
    return attention(call, &(struct attention_args){.query = query,
                                                    .pse = pseShift,
                                                    .mask = attenMask,
                                                    .out = attentionOut,
                                                    .table = blocktable,
                                                    .scale = antiquantScale,
                                                    .offset = antiquantOffset,
                                                    .key = key,
                                                    .value = value,
                                                    .kv_lengths = actualSeqLengths,
                                                    .layout = inputLayout,
                                                    .heads = numHeads,
                                                    .kv_heads = numKeyValueHeads,
                                                    .before = INT32_MAX,
                                                    .after = INT32_MAX,
                                                    .precise = innerPrecise,
                                                    .block = blockSize,
                                                    .scale_value = scaleValue});
}
STAND_SECOND_PHASE(aclnnIncreFlashAttentionV4)

aclnnStatus aclnnPromptFlashAttentionV3GetWorkspaceSize(
    const aclTensor *query, const aclTensor *key, const aclTensor *value, const aclTensor *pseShift,
    const aclTensor *attenMask, const aclIntArray *actualSeqLengths,
    const aclIntArray *actualSeqLengthsKv, const aclTensor *deqScale1, const aclTensor *quantScale1,
    const aclTensor *deqScale2, const aclTensor *quantScale2, const aclTensor *quantOffset2,
    int64_t numHeads, double scaleValue, int64_t preTokens, int64_t nextTokens, char *inputLayout,
    int64_t numKeyValueHeads, int64_t sparseMode, int64_t innerPrecise,
    const aclTensor *attentionOut, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnPromptFlashAttentionV3", bytes, executor);
    const void *out[] = {deqScale1, quantScale1, deqScale2, quantScale2, quantOffset2};
    bool p = op_chip() == CHIP_310P;
    op_chips(call, CHIP_BIG);
    left_out(call, out, sizeof out / sizeof out[0]);
    stand_require(call, !p || (numKeyValueHeads == 0 && sparseMode == 0 && !pseShift),
                  "the 310P takes neither shared heads of keys, nor sparseMode, nor pseShift");
    stand_require(call,
                  !p || (preTokens == INT32_MAX && (nextTokens == 0 || nextTokens == INT32_MAX)),
                  "the 310P takes all preTokens, and no or all nextTokens");
    return attention(call, &(struct attention_args){.query = query,
                                                    .one_key = key,
                                                    .one_value = value,
                                                    .prompt = true,
                                                    .pse = pseShift,
                                                    .mask = attenMask,
                                                    .out = attentionOut,
                                                    .q_lengths = actualSeqLengths,
                                                    .kv_lengths = actualSeqLengthsKv,
                                                    .layout = inputLayout,
                                                    .heads = numHeads,
                                                    .kv_heads = numKeyValueHeads,
                                                    .before = preTokens,
                                                    .after = nextTokens,
                                                    .sparse = sparseMode,
                                                    .precise = innerPrecise,
                                                    .scale_value = scaleValue});
}
STAND_SECOND_PHASE(aclnnPromptFlashAttentionV3)
