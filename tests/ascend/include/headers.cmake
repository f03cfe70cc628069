# oato_acl_headers(FOLDER): makes in FOLDER the headers under whose names CANN has its operators, for
# programs that are compiled against CANN. Operators are declared in aclnnop/ops.h, one apart from the rest.
function(oato_acl_headers folder)
  set(names abs add add_rms_norm addcdiv amax arange argmax argsort avgpool2d batch_matmul cast cat
    clamp constant_pad_nd convolution copy cos cumsum div elu embedding eq_tensor exp fill_scalar
    fused_infer_attention_score_v2 fused_infer_attention_score_v3 gather_v2 geglu gelu gelu_v2 ger
    group_norm grouped_matmul_v3 grouped_matmul_v4 gt_scalar hardsigmoid hardswish im2col
    incre_flash_attention_v4 index_copy index_fill_tensor index_select layer_norm leaky_relu log
    logical_not logsoftmax masked_fill_scalar matmul max_pool mean mm moe_gating_top_k_softmax mul mv
    neg norm permute pow pow_tensor_tensor recurrent_gated_delta_rule reduce_sum reflection_pad1d relu
    repeat repeat_interleave rms_norm roll rsqrt scatter scatter_pa_kv_cache
    scatter_update sigmoid sign silu sin slice softmax softmax_cross_entropy_with_logits softplus sort
    sqrt sub sum swi_glu tanh threshold topk trans_matmul_weight triangular_solve tril triu
    upsample_nearest_2d weight_quant_batch_matmul_v2 zero)
  foreach(name ${names})
    file(GENERATE OUTPUT ${folder}/aclnnop/aclnn_${name}.h CONTENT "#include <aclnnop/ops.h>\n")
  endforeach()
endfunction()
