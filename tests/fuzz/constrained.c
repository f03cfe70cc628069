/*
 * constrained.c - see constrained.h. The vocabulary is that of a tiny random model.
 */
#include "tests/fuzz/constrained.h"
#include "tests/models/random_model.h"

#include <sanitizer/allocator_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLOWER 12 /* measured, with sanitizers, which libFuzzer counts edges beside */
#endif
#endif
#ifndef SLOWER
#define SLOWER 1
#endif

enum { TOKENS_MOST = 40, SLICE_STEPS = 30000 };
static const double SECONDS_MOST = 0.5 * SLOWER;
static const size_t BYTES_MOST = 100000000;

/* ------------------------------------------------------------------------------------ limits */

static struct {
    size_t live, most;
    double begin;
    bool counts;
} input;

/* Only sanitizers tell what is allocated. */
#if SLOWER > 1
static void on_malloc(const volatile void *p, size_t bytes)
{
    (void)p;
    input.live += bytes;
    input.most = input.live > input.most ? input.live : input.most;
}

static void on_free(const volatile void *p)
{
    const size_t bytes = p ? __sanitizer_get_allocated_size(p) : 0;
    input.live -= bytes < input.live ? bytes : input.live;
}
#endif

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void limits_begin(void)
{
#if SLOWER > 1
    if (!input.counts)
        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
#endif
    input.counts = true;
    input.live = input.most = 0;
    input.begin = thread_seconds();
}

void limits_end(void)
{
    const double seconds = thread_seconds() - input.begin;
    if (seconds <= SECONDS_MOST && input.most <= BYTES_MOST)
        return;
    fprintf(stderr, "the input took %.2f s and %.1f MB\n", seconds, (double)input.most * 1e-6);
    abort();
}

/* -------------------------------------------------------------------------------------- texts */

void check_error(oato_status status, const struct oato_error *err)
{
    if (err->status != status || !err->text[0] || strchr(err->text, '\n'))
        abort();
}

static struct {
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct grammar_vocab *vocab;
} words;

static void words_open(void)
{
    char path[] = "/tmp/oato-fuzz-XXXXXX";
    struct random_model m = random_model_default();
    struct oato_error err;
    const int fd = mkstemp(path);
    m.tokenizer = true;
    m.vocab = 512;
    if (fd < 0 || close(fd) || random_model_save(&m, path, &err) ||
        gguf_open(path, &words.gguf, &err) || unlink(path) ||
        tokenizer_create(words.gguf, &words.tokenizer, &err) ||
        grammar_vocab_create(words.tokenizer, &words.vocab, &err))
        abort();
}

/* The allowed token at or behind one; -1: there is none. */
static int32_t allowed_from(const uint64_t *mask, int32_t id)
{
    const int32_t size = tokenizer_size(words.tokenizer);
    for (int32_t i = 0; i < size; i++, id = (id + 1) % size)
        if (mask[id / 64] >> (id % 64) & 1)
            return id;
    return -1;
}

/* False: the text is over. */
static bool token_take(struct grammar_state *s, int32_t wish)
{
    const uint64_t *mask;
    enum sampler_mask made = MASK_MORE;
    while (made == MASK_MORE)
        made = grammar_mask(s, SLICE_STEPS, &mask);
    if (made == MASK_FAILED) {
        if (!grammar_state_error(s))
            abort();
        check_error(OATO_EUSAGE, grammar_state_error(s));
        return false;
    }
    const int32_t id = allowed_from(mask, wish);
    if (id < 0)
        abort();
    if (tokenizer_is_end(words.tokenizer, id))
        return false;
    if (!grammar_accept_token(s, id) && !grammar_state_error(s))
        abort();
    return true;
}

void constrained_walk(struct grammar *g, const struct budget *left, const uint8_t *data,
                      size_t bytes)
{
    struct grammar_state *s;
    struct oato_error err = {.text = ""};
    if (!words.vocab) {
        words_open();
        limits_begin();
    }
    const oato_status status = grammar_state_create(g, words.vocab, left, &s, &err);
    if (status) {
        check_error(status, &err);
    } else {
        const int32_t size = tokenizer_size(words.tokenizer);
        for (size_t i = 0; i < TOKENS_MOST; i++)
            if (!token_take(s, (bytes ? data[i * 7 % bytes] * 131 : 0) % size))
                break;
        grammar_state_free(s);
    }
    grammar_free(g);
}
