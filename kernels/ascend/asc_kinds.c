/*
 * asc_kinds.c - what an NPU does with each kind of operators: a row each. What has no aclnn
 * operator, or depends on lists or caches, has no row and stays on the host by plan.
 *
 * Values: the residual stream, logits, scores and choices are float32; what goes into products and
 * what they leave for attention is F16.
 */
#include "kernels/ascend/asc_ops.h"

#define F32 DT_F32
#define F16 DT_F16

/* clang-format off */
const struct asc_kind asc_kinds[OP_KIND_COUNT] = {
    [OP_EMBED] = {asc_emit_embed, asc_supports_lookup, asc_prepare_embed, {{F32}, {F32}},
        {ASC_IndexSelect, ASC_InplaceCopy, ASC_Mul, ASC_Muls}},
    [OP_RMS_NORM] = {asc_emit_norm, NULL, asc_prepare_norm, {{F32}, {F16}},
        {ASC_RmsNorm, ASC_LayerNorm, ASC_Add, ASC_InplaceCopy}},
    [OP_ADD_NORM] = {asc_emit_add_norm, NULL, asc_prepare_norm, {{F32, F32}, {F32, F16}},
        {ASC_RmsNorm, ASC_LayerNorm, ASC_Add, ASC_InplaceCopy}},
    [OP_HEAD_NORM] = {asc_emit_head_norm, NULL, asc_prepare_norm, {{F32}, {F16}},
        {ASC_RmsNorm, ASC_LayerNorm, ASC_Mul, ASC_InplaceCopy}},
    [OP_MUL_MAT] = {asc_emit_products, asc_supports_products, NULL, {{F16}, {F32}},
        {ASC_Mm, ASC_InplaceCopy}},
    [OP_QKV] = {asc_emit_products, asc_supports_products, NULL, {{F16}, {F16, F16, F16}},
        {ASC_Mm, ASC_InplaceCopy}},
    [OP_GATE_UP] = {asc_emit_gate_up, asc_supports_products, NULL, {{F16}, {F16}},
        {ASC_Mm, ASC_Mul, ASC_InplaceCopy}},
    [OP_HEAD_MUL_MAT] = {asc_emit_head_products, asc_supports_products, NULL, {{F16}, {F16}},
        {ASC_BatchMatMul, ASC_Slice, ASC_Cat, ASC_InplaceCopy}},
    [OP_MUL_MAT_T] = {asc_emit_transposed, asc_supports_lookup, NULL, {{F16}, {F32}},
        {ASC_Mm, ASC_InplaceCopy}},
    [OP_BIAS] = {asc_emit_bias, NULL, NULL, {{F32}, {F32}}, {ASC_Add}},
    [OP_ADD] = {asc_emit_add, NULL, NULL, {{F32, F32}, {F32}}, {ASC_Add}},
    [OP_SCALE] = {asc_emit_scale, NULL, asc_prepare_scale, {{F32}, {F32}},
        {ASC_Muls, ASC_Mul, ASC_Div}},
    [OP_ROPE] = {asc_emit_rope, NULL, asc_prepare_rope, {{F16}, {F16}},
        {ASC_IndexSelect, ASC_Mul, ASC_Add}},
    [OP_KV_STORE] = {asc_emit_store, asc_supports_kv, asc_prepare_store, {{F16, F16}, {0}},
        {ASC_InplaceIndexCopy, ASC_InplaceCopy, ASC_Slice, ASC_Cat}},
    [OP_KV_COPY] = {asc_emit_kv_copy, NULL, NULL, {{0}, {0}}, {0}},
    [OP_ATTENTION] = {asc_emit_attention, asc_supports_attention, asc_prepare_attention,
        {{F16}, {F16}}, {ASC_IndexSelect, ASC_Matmul, ASC_Softmax, ASC_Sub, ASC_Clamp, ASC_Muls,
        ASC_Tanh, ASC_Cat}},
    [OP_SWIGLU] = {asc_emit_swiglu, NULL, NULL, {{F32, F32}, {F16}}, {ASC_Mul, ASC_InplaceCopy}},
    [OP_ACTIVATE] = {asc_emit_activate, asc_supports_activation, NULL, {{F32}, {F32}},
        {ASC_Mul, ASC_InplaceCopy}},
    [OP_GATE] = {asc_emit_gate, asc_supports_activation, NULL, {{F32, F32}, {F32}},
        {ASC_Mul, ASC_InplaceCopy}},
    [OP_SELECT] = {asc_emit_select, NULL, asc_prepare_select, {{F32}, {F32}}, {ASC_IndexSelect}},
    [OP_MERGE] = {asc_emit_merge, NULL, NULL, {{F32}, {F32}}, {ASC_Cat}},
    [OP_MERGE_SUM] = {asc_emit_sum, asc_supports_sum, NULL, {{F32}, {F32}},
        {ASC_Add, ASC_InplaceCopy}},
    [OP_SLICE] = {asc_emit_slice, NULL, NULL, {{F32}, {F32}}, {ASC_Slice}},
    [OP_CONVERT] = {asc_emit_convert, NULL, NULL, {{F32}, {F32}}, {ASC_Clamp, ASC_InplaceCopy}},
    [OP_CONV] = {asc_emit_conv, asc_supports_conv, asc_prepare_conv, {{F32}, {F32}},
        {ASC_IndexSelect, ASC_InplaceIndexCopy, ASC_InplaceCopy, ASC_Mul, ASC_Cat, ASC_ReduceSum}},
    [OP_ROUTE] = {asc_emit_route, asc_supports_route, asc_prepare_choice, {{F32}, {F32}},
        {ASC_Topk, ASC_IndexSelect, ASC_Cat, ASC_Softmax, ASC_ReduceSum, ASC_Clamp, ASC_Div,
        ASC_InplaceCopy}},
    [OP_EXPERT_GATE_UP] = {asc_emit_expert_gate_up, asc_supports_experts, asc_prepare_choice,
        {{F16, F32}, {F16}},
        {ASC_IndexSelect, ASC_Slice, ASC_Mm, ASC_Mul, ASC_SWhere, ASC_Adds, ASC_Clamp,
        ASC_InplaceCopy}},
    [OP_EXPERT_DOWN] = {asc_emit_expert_down, asc_supports_experts, asc_prepare_choice,
        {{F16, F32}, {F32}},
        {ASC_IndexSelect, ASC_Slice, ASC_InplaceIndexCopy, ASC_Mul, ASC_ReduceSum, ASC_Adds, ASC_Clamp,
        ASC_InplaceCopy}},
    [OP_TOP_K] = {asc_emit_top_k, NULL, NULL, {{F32}, {F32}},
        {ASC_Topk, ASC_Cat, ASC_Adds, ASC_InplaceCopy}},
};
/* clang-format on */
