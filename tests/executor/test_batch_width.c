/*
 * test_batch_width.c - a step may be wide for prompts alone: who decodes does not wait for it.
 */
#include "executor/batch.h"
#include "tests/executor/harness.h"

enum { VOCAB = 320, LONG = 1100, SHORT = 20, ANSWER = 8 };

struct answer {
    struct sampler *sampler;
    int n;
};

static bool on_token(void *user, int32_t id)
{
    struct answer *a = user;
    (void)id;
    a->n++;
    return true;
}

static void on_end(void *user, enum batch_end why)
{
    (void)user;
    assert_int_equal(why, BATCH_LIMIT);
}

static void add(struct batch *b, const int32_t *ids, int32_t n, int32_t most, struct answer *a)
{
    const struct sampler_options greedy = {.repeat_penalty = 1};
    struct oato_error err;
    sampler_free(a->sampler);
    *a = (struct answer){sampler_create(&greedy, VOCAB), 0};
    assert_non_null(a->sampler);
    const struct batch_request r = {.ids = ids,
                                    .n_ids = n,
                                    .most = most,
                                    .seq = -1,
                                    .sampler = a->sampler,
                                    .on_token = on_token,
                                    .on_end = on_end,
                                    .user = a};
    if (batch_add(b, &r, NULL, &err))
        fail_msg("%s", err.text);
}

/* Returns how many tokens of prompts the step had. */
static int64_t step(struct batch *b)
{
    struct batch_times before, after;
    struct oato_error err;
    batch_get_times(b, &before);
    if (batch_step(b, &err))
        fail_msg("%s", err.text);
    batch_get_times(b, &after);
    return (int64_t)after.prompt_tokens - (int64_t)before.prompt_tokens;
}

static void nobody_waits_for_a_wide_step(void **state)
{
    (void)state;
    static int32_t ids[LONG];
    struct model *m = tiny_model(DT_Q8_0, 3);
    struct engine *e =
        open_engine(m, NULL, (struct engine_options){.context = 4096, .ubatch = LONG, .seqs = 3});
    struct answer answers[2] = {{NULL, 0}, {NULL, 0}};
    struct batch *b;
    struct oato_error err;
    if (batch_create(e, NULL, &b, &err))
        fail_msg("%s", err.text);
    for (int decodes = 0; decodes < 2; decodes++) {
        if (decodes) {
            fill_ids(ids, SHORT, VOCAB, 1);
            add(b, ids, SHORT, ANSWER, &answers[0]);
            assert_int_equal(step(b), SHORT);
            assert_int_equal(answers[0].n, 1);
        }
        fill_ids(ids, LONG, VOCAB, 2 + (uint64_t)decodes); /* nothing of it is in the cache */
        add(b, ids, LONG, 1, &answers[1]);
        assert_int_equal(step(b), decodes ? BATCH_BESIDE : LONG);
        while (batch_requests(b))
            step(b);
        assert_int_equal(answers[1].n, 1);
    }
    batch_free(b);
    for (int i = 0; i < 2; i++)
        sampler_free(answers[i].sampler);
    engine_close(e);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_waits_for_a_wide_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
