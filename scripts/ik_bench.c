/*
 * ik_bench.c - times ik_llama.cpp through its C interface, because its wheel brings no bench
 * program: prefill, then decode at some depth with some sequences. Weights are repacked at load
 * and, where it can, flash attention is on, as its users run it. Prints JSON like `oato-run bench
 * --json`. scripts/fetch-peer builds it beside the wheel's libraries; it is no part of the
 * project's build.
 */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct sizes {
    int prefill, generate, depth, batch, threads;
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void say_nothing(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

enum { PIECE = 512 };

/* Appends n tokens to each of `batch` sequences of which `at` positions are there, with logits of
 * the last ones. */
static int feed(struct llama_context *c, const int *tokens, int at, int n, int batch)
{
    const int most = batch < PIECE ? PIECE / batch : 1;
    struct llama_batch b = llama_batch_init(most * batch, 0, 1);
    int failed = 0;
    for (int done = 0; done < n && !failed; done += b.n_tokens / batch) {
        b.n_tokens = 0;
        for (int i = done; i < n && i < done + most; i++) {
            for (int q = 0; q < batch; q++) {
                const int t = b.n_tokens++;
                b.token[t] = tokens[at + i];
                b.pos[t] = at + i;
                b.n_seq_id[t] = 1;
                b.seq_id[t][0] = q;
                b.logits[t] = i == n - 1;
            }
        }
        failed = llama_decode(c, b);
    }
    llama_batch_free(b);
    return failed;
}

static int measure(struct llama_context *c, const int *tokens, const struct sizes *s)
{
    double prefill = 0;
    /* Warm-up: memory is touched and threads exist. */
    int failed = feed(c, tokens, 0, s->prefill < 32 ? 32 : s->prefill, 1);
    llama_kv_cache_clear(c);
    if (!failed && s->prefill) {
        prefill = seconds();
        failed = feed(c, tokens, 0, s->prefill, 1);
        prefill = seconds() - prefill;
        llama_kv_cache_clear(c);
    }
    if (!failed && s->depth)
        failed = feed(c, tokens, 0, s->depth, s->batch);
    const double begin = seconds();
    for (int i = 0; i < s->generate && !failed; i++)
        failed = feed(c, tokens, s->depth + i, 1, s->batch);
    const double generate = seconds() - begin;
    if (failed)
        return failed;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("{\"prefill\":{\"tokens\":%d,\"tokens_per_s\":%.3f},"
           "\"decode\":{\"tokens\":%d,\"tokens_per_s\":%.3f,\"batch\":%d,\"depth\":%d},"
           "\"peak_rss_bytes\":%llu,\"system\":\"%s\"}\n",
           s->prefill, prefill > 0 ? s->prefill / prefill : 0, s->generate * s->batch,
           s->generate ? s->generate * s->batch / generate : 0, s->batch, s->depth,
           (unsigned long long)u.ru_maxrss * 1024, llama_print_system_info());
    return fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fputs("usage: ik_bench MODEL.gguf PREFILL GENERATE DEPTH BATCH THREADS\n", stderr);
        return 2;
    }
    const struct sizes s = {atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]),
                            atoi(argv[6])};
    if (s.prefill < 0 || s.generate < 0 || s.depth < 0 || s.batch < 1 || s.threads < 1) {
        fputs("ik_bench: a count is negative or no number\n", stderr);
        return 2;
    }
    const int room = (s.depth + s.generate) * s.batch + s.prefill + PIECE;
    llama_log_set(say_nothing, NULL);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.use_mmap = false;
    mp.repack_tensors = true;
    struct llama_model *model = llama_model_load_from_file(argv[1], mp);
    if (!model)
        return 3;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = (unsigned)(room + 255) / 256 * 256;
    cp.n_batch = 2048;
    cp.n_ubatch = 512;
    cp.n_seq_max = (unsigned)s.batch;
    cp.n_threads = cp.n_threads_batch = (unsigned)s.threads;
    cp.flash_attn = s.batch == 1; /* with several sequences it aborts: GGML_ASSERT(S > 0) */
    struct llama_context *c = llama_init_from_model(model, cp);
    int *tokens = malloc((size_t)room * sizeof *tokens);
    if (!c || !tokens)
        return 5;
    srand(1);
    for (int i = 0; i < room; i++)
        tokens[i] = rand() % llama_n_vocab(model);
    int failed = measure(c, tokens, &s);
    if (failed)
        fprintf(stderr, "ik_bench: llama_decode failed (%d)\n", failed);
    _exit(failed ? 5 : 0); /* its destructors are slow and not ours to time */
}
