/*
 * peer_logits.c - logits of a model for given ids as llama.cpp computes them, in float32 as far as
 * it can: one thread, float32 KV, no flash attention. Built by scripts/architectures against the
 * peer's libllama; not part of our build.
 *
 * peer_logits MODEL.gguf OUT ID...   OUT: raw float32, tokens x vocabulary
 * peer_logits --serve OUT ID...      the same of each file whose path comes on a line of standard
 *                                    input; answers each with its status on a line. A file that
 *                                    makes llama.cpp abort or run for 20 s ends only its own
 *                                    process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "llama.h"

static void be_quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static int judge(const char *path, const char *out_path, const llama_token *ids, int n)
{
    struct llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model)
        return 3;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = (uint32_t)(n + 255) / 256 * 256;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    struct llama_context *ctx = llama_init_from_model(model, params);
    FILE *out = fopen(out_path, "wb");
    if (!ctx || !out)
        return 3;

    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = n;
    if (llama_decode(ctx, batch) != 0)
        return 5;
    size_t vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int i = 0; i < n; i++)
        if (fwrite(llama_get_logits_ith(ctx, i), sizeof(float), vocab, out) != vocab)
            return 6;
    if (fclose(out) != 0)
        return 6;
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}

static int serve(const char *out_path, const llama_token *ids, int n)
{
    char path[4096];
    while (fgets(path, sizeof path, stdin)) {
        int status = 0;
        path[strcspn(path, "\n")] = 0;
        pid_t child = fork();
        if (!child) {
            alarm(20);
            _exit(judge(path, out_path, ids, n));
        }
        if (child < 0 || waitpid(child, &status, 0) < 0)
            return 4;
        printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: peer_logits MODEL.gguf|--serve OUT ID...\n");
        return 2;
    }
    int n = argc - 3;
    llama_token *ids = malloc((size_t)n * sizeof *ids);
    if (!ids)
        return 4;
    for (int i = 0; i < n; i++)
        ids[i] = atoi(argv[3 + i]);
    setenv("GGML_NO_BACKTRACE", "1", 1); /* a debugger, on every abort */
    llama_log_set(be_quiet, NULL);
    llama_backend_init();
    return strcmp(argv[1], "--serve") != 0 ? judge(argv[1], argv[2], ids, n)
                                           : serve(argv[2], ids, n);
}
