/*
 * peer_mtp.cpp - as peer_logits.c, the logits of the block that predicts one more token: a second
 * context of llama.cpp's gets each token with the hidden state of the token before, as its
 * speculation does. C++ because that part of llama.cpp's interface is.
 *
 * peer_mtp MODEL.gguf OUT ID...      OUT: raw float32, tokens x vocabulary
 */
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../src/llama-ext.h"
#include "llama.h"

static void be_quiet(enum ggml_log_level level, const char *text, void *)
{
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static llama_batch_ext *batch_of(llama_context *ctx, const std::vector<llama_token> &ids)
{
    llama_batch_ext *batch = llama_batch_ext_init(ctx);
    for (size_t i = 0; batch && i < ids.size(); i++) {
        const llama_pos pos[4] = {(llama_pos)i, 0, 0, 0};
        const int32_t at = llama_batch_ext_add_token(batch, 0, ids[i]);
        llama_batch_ext_set_pos(batch, at, pos);
        llama_batch_ext_set_output_logits(batch, at, true);
    }
    return batch;
}

int main(int argc, char **argv)
{
    std::vector<llama_token> ids;
    for (int i = 3; i < argc; i++)
        ids.push_back(atoi(argv[i]));
    if (ids.empty()) {
        fprintf(stderr, "usage: peer_mtp MODEL.gguf OUT ID...\n");
        return 2;
    }
    llama_log_set(be_quiet, NULL);
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    model_params.load_mtp = true;
    llama_model *model = llama_model_load_from_file(argv[1], model_params);
    if (!model)
        return 3;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = (uint32_t)(ids.size() + 255) / 256 * 256;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    llama_context *ctx = llama_init_from_model(model, params);
    if (!ctx)
        return 3;
    params.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
    params.ctx_other = ctx;
    llama_context *mtp = llama_init_from_model(model, params);
    FILE *out = fopen(argv[2], "wb");
    if (!mtp || !out)
        return 3;

    llama_set_embeddings_nextn(ctx, true, false);
    if (llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch_of(ctx, ids)) != 0)
        return 5;
    const size_t width = (size_t)llama_model_n_embd(model);
    const float *hidden = llama_get_embeddings_nextn(ctx);
    std::vector<float> shifted(width * ids.size()); /* nothing before the first token */
    for (size_t i = width; i < shifted.size(); i++)
        shifted[i] = hidden[i - width];
    llama_batch_ext *batch = batch_of(mtp, ids);
    for (size_t i = 0; i < ids.size(); i++)
        if (!llama_batch_ext_set_embd_token(batch, (int32_t)i, {&shifted[i * width], 1, width}))
            return 5;
    if (llama_process(mtp, LLAMA_PROCESS_TYPE_DECODE, batch) != 0)
        return 5;
    const size_t vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (size_t i = 0; i < ids.size(); i++)
        if (fwrite(llama_get_logits_ith(mtp, (int32_t)i), sizeof(float), vocab, out) != vocab)
            return 6;
    return fclose(out) ? 6 : 0;
}
