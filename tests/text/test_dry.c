/*
 * test_dry.c - DRY takes from each logit what its definition says, recomputed here by comparing
 * every place of the text with its end, and breakers are found wherever their text was cut into
 * tokens.
 */
#include "tests/models/random_model.h"
#include "tests/random.h"
#include "text/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { VOCAB = 512, SOME = 6, TOKENS = 100 };

static char path[] = "/tmp/oato-dry-XXXXXX";

struct words {
    struct gguf *gguf;
    struct tokenizer *tokenizer;
};

static int setup(void **state)
{
    static struct words w;
    struct random_model m = random_model_default();
    struct oato_error err;
    m.tokenizer = true;
    m.vocab = VOCAB;
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd) || random_model_save(&m, path, &err) ||
        gguf_open(path, &w.gguf, &err) || tokenizer_create(w.gguf, &w.tokenizer, &err))
        return 1;
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    struct words *w = *state;
    tokenizer_free(w->tokenizer);
    gguf_close(w->gguf);
    return unlink(path);
}

static const struct sampler_options options = {.temperature = 1,
                                               .top_p = 1,
                                               .repeat_penalty = 1,
                                               .seed = 42,
                                               .logprobs = true,
                                               .final_probs = true,
                                               .top_logprobs = VOCAB};

/* What a token loses: the longest repetition that it would go on with, at most `unbroken` tokens.
 */
static double expected(const struct dry_options *o, const int32_t *text, int32_t n, int32_t token,
                       int32_t unbroken)
{
    int32_t longest = 0;
    for (int32_t at = 0; at < n; at++) {
        int32_t same = 0;
        while (text[at] == token && same < at && same < unbroken &&
               text[at - 1 - same] == text[n - 1 - same])
            same++;
        longest = same > longest ? same : longest;
    }
    return longest && longest >= o->allowed ? o->multiplier * pow(o->base, longest - o->allowed)
                                            : 0;
}

/* The sampler's next draw from a row of zeros has the probabilities that the definition gives. */
static void compare(struct sampler *s, const struct dry_options *o, const int32_t *text, int32_t n,
                    int32_t unbroken)
{
    static const float zeros[VOCAB];
    const int32_t from = n > o->last ? n - o->last : 0;
    double by[VOCAB], sum = 0;
    int32_t count;
    for (int32_t id = 0; id < VOCAB; id++) {
        by[id] = expected(o, text + from, n - from, id, unbroken);
        sum += exp(-by[id]);
    }
    sampler_next(s, zeros);
    const struct token_prob *p = sampler_probs(s, &count);
    assert_int_equal(count, 1 + VOCAB);
    for (int32_t i = 1; i < count; i++)
        assert_float_equal(p[i].logprob, -by[p[i].id] - log(sum), 1e-4);
}

static void tokens_lose_what_the_definition_says(void **state)
{
    struct random r = {2026};
    (void)state;
    for (int32_t last = 1; last <= 40; last += 13) {
        for (int32_t allowed = 0; allowed < 4; allowed++) {
            struct sampler_options o = options;
            int32_t text[TOKENS];
            o.dry = (struct dry_options){
                .multiplier = 0.25f, .base = 1.5f, .allowed = allowed, .last = last};
            struct sampler *s = sampler_create(&o, VOCAB);
            for (int32_t n = 0; n < TOKENS; n++) {
                compare(s, &o.dry, text, n, TOKENS);
                text[n] = (int32_t)random_below(&r, n % 50 < 25 ? SOME : 2);
                sampler_accept(s, text[n]);
            }
            sampler_free(s);
        }
    }
}

/* Tokens behind the one in which a breaker ends last. */
static int32_t unbroken_of(const struct tokenizer *t, const int32_t *text, int32_t n,
                           const char *const *breakers)
{
    struct text all;
    size_t last = 0, ends[TOKENS];
    text_init(&all);
    for (int32_t i = 0; i < n; i++) {
        const char *bytes;
        size_t length;
        assert_true(tokenizer_piece(t, text[i], true, &bytes, &length));
        text_add(&all, bytes, length);
        ends[i] = all.len;
    }
    for (size_t at = 0; at < all.len; at++)
        for (int i = 0; breakers[i]; i++) {
            const size_t length = strlen(breakers[i]);
            if (length && at + length <= all.len && !memcmp(all.data + at, breakers[i], length))
                last = at + length > last ? at + length : last;
        }
    text_free(&all);
    int32_t behind = 0;
    while (behind < n && (behind == n - 1 ? 0 : ends[n - 2 - behind]) >= last)
        behind++;
    return last ? behind : n;
}

static void repetitions_do_not_reach_across_breakers(void **state)
{
    const struct words *w = *state;
    static const char *const breakers[][4] = {{"b"}, {"ca", "abc"}, {"", NULL}, {"bb", "a"}};
    struct random r = {7};
    int32_t *ids, letters[4];
    size_t n_ids;
    struct oato_error err;
    int found = 0;
    for (int i = 0; i < 4; i++) {
        const char letter = (char)('a' + i);
        assert_int_equal(tokenizer_encode(w->tokenizer, &letter, 1, 0, &ids, &n_ids, &err),
                         OATO_OK);
        letters[i] = ids[n_ids - 1];
        free(ids);
    }
    for (size_t row = 0; row < ARRAY_LEN(breakers); row++) {
        struct sampler_options o = options;
        int32_t text[TOKENS];
        o.dry = (struct dry_options){
            .multiplier = 0.5f, .base = 1.3f, .allowed = 1, .last = 50, .tokenizer = w->tokenizer};
        for (; breakers[row][o.dry.n_breakers]; o.dry.n_breakers++)
            o.dry.breaker[o.dry.n_breakers] = breakers[row][o.dry.n_breakers];
        struct sampler *s = sampler_create(&o, VOCAB);
        for (int32_t n = 0; n < TOKENS; n++) {
            const int32_t unbroken = unbroken_of(w->tokenizer, text, n, breakers[row]);
            found += unbroken < n;
            compare(s, &o.dry, text, n, unbroken);
            text[n] = letters[random_below(&r, n % 40 < 20 ? 4 : 3)];
            sampler_accept(s, text[n]);
        }
        sampler_free(s);
    }
    assert_in_range(found, TOKENS, 4 * TOKENS);
}

/* Long breakers, of which every place of the text may be the beginning, cost a token no more than
 * short ones, and several samplers share them. */
static void long_breakers_are_prepared_once(void **state)
{
    enum { LONG = 200000, MANY = 20000, SEVERAL = 8 };
    struct words *w = *state;
    struct oato_error err;
    char *text = malloc(LONG + 2);
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(w->tokenizer, "a", 1, 0, &ids, &n, &err), OATO_OK);
    const int32_t a = ids[n - 1];
    free(ids);
    memset(text, 'a', LONG);
    text[LONG] = 'b';
    text[LONG + 1] = 0;
    struct sampler_options o = options;
    o.dry = (struct dry_options){.multiplier = 1, .base = 2, .last = 64, .tokenizer = w->tokenizer};
    while (o.dry.n_breakers < DRY_BREAKERS)
        o.dry.breaker[o.dry.n_breakers++] = text;
    assert_in_range(dry_breakers_bytes(&o.dry), (size_t)DRY_BREAKERS * LONG,
                    (size_t)DRY_BREAKERS * LONG * 6);
    struct dry_breakers *prepared = dry_breakers_create(&o.dry);
    assert_non_null(prepared);
    free(text);
    memset(o.dry.breaker, 0, sizeof o.dry.breaker); /* not needed any more */
    o.dry.prepared = prepared;
    assert_in_range(sampler_bytes(&o), 1, 10000);
    struct sampler *s[SEVERAL];
    for (int i = 0; i < SEVERAL; i++)
        assert_non_null(s[i] = sampler_create(&o, VOCAB));
    const clock_t begin = clock();
    for (int i = 0; i < SEVERAL; i++)
        for (int32_t k = 0; k < MANY; k++)
            sampler_accept(s[i], a);
    /* 16 breakers, a few steps each; by their length it would be minutes */
    assert_in_range(clock() - begin, 0, 4 * CLOCKS_PER_SEC);
    for (int i = 0; i < SEVERAL; i++)
        sampler_free(s[i]);
    dry_breakers_free(prepared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_lose_what_the_definition_says),
        cmocka_unit_test(repetitions_do_not_reach_across_breakers),
        cmocka_unit_test(long_breakers_are_prepared_once),
    };
    return cmocka_run_group_tests_name("dry", tests, setup, teardown);
}
