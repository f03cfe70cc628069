/*
 * test_batch_rows.c - requests that ask for rows of their prompt: of hidden states, which are what
 * logits are made of, or of logits, beside an answer. Each row is told once, also where the
 * sequence was evicted and computed anew, and where the prompt is in the cache already.
 */
#include "executor/batch.h"
#include "tests/executor/harness.h"

#include <math.h>
#include <stdlib.h>

static struct batch *batch_with(struct engine *e, const struct batch_options *options)
{
    struct batch *b;
    struct oato_error err;
    if (batch_create(e, options, &b, &err))
        fail_msg("%s", err.text);
    return b;
}

/* The hidden states of a prompt, of which the model's last product makes its logits. */
enum { STATES = 40, WIDTH = 256 };
struct states {
    int n;
    float row[STATES][WIDTH];
};

static void on_row(void *user, const float *row)
{
    struct states *x = user;
    assert_true(x->n < STATES);
    memcpy(x->row[x->n++], row, sizeof x->row[0]);
}

static void row_end(void *user, enum batch_end why)
{
    (void)user;
    assert_int_equal(why, BATCH_LIMIT);
}

static void states_of(struct batch *b, const int32_t *ids, struct states *x)
{
    const struct batch_request r = {
        .ids = ids, .n_ids = STATES, .seq = -1, .on_row = on_row, .on_end = row_end, .user = x};
    struct oato_error err;
    if (batch_add(b, &r, NULL, &err))
        fail_msg("%s", err.text);
    while (batch_requests(b))
        if (batch_step(b, &err))
            fail_msg("%s", err.text);
    assert_int_equal(x->n, STATES);
}

static void rows_are_what_logits_are_made_of(void **state)
{
    struct model *m = tiny_model(DT_F32, 5);
    const struct gguf_tensor *w = m->graph.ops[m->graph.n_ops - 1].weight[0];
    struct engine_options options = {.context = 256, .ubatch = 16, .seqs = 2};
    struct states *x = calloc(2, sizeof *x);
    int32_t ids[STATES];
    (void)state;
    assert_true(x && w->dtype == DT_F32 && w->ne[0] == WIDTH);
    fill_ids(ids, STATES, 320, 1);
    struct engine *e = open_engine(m, NULL, options);
    float *logits = logits_of(e, ids, STATES);
    engine_close(e);
    options.embeddings = true;
    e = open_engine(m, NULL, options);
    struct batch *b = batch_with(e, NULL);
    for (int i = 0; i < 2; i++) { /* the second would find pages of the first */
        states_of(b, ids, &x[i]);
    }
    assert_memory_equal(&x[0], &x[1], sizeof x[0]);
    for (int i = 0; i < STATES; i++) {
        for (int j = 0; j < 320; j++) {
            const float *row = (const float *)(const void *)w->data + (size_t)j * WIDTH;
            double sum = 0;
            for (int k = 0; k < WIDTH; k++)
                sum += (double)row[k] * (double)x[0].row[i][k];
            assert_true(fabs(sum - (double)logits[i * 320 + j]) < 1e-3);
        }
    }
    batch_free(b);
    engine_close(e);
    free(logits);
    free(x);
    model_close(m);
}

/* Everything is evicted in the third step. */
static void evicting_schedule(void *user, struct batch_view *v, int32_t n,
                              const struct batch_room *room)
{
    int *steps = user;
    (void)room;
    ++*steps;
    for (int32_t i = 0; i < n; i++)
        v[i].action = v[i].state == BATCH_WAITING ? BATCH_RUN
                      : *steps == 3               ? BATCH_EVICT
                                                  : BATCH_KEEP;
}

static void rows_are_told_once(void **state)
{
    struct model *m = tiny_model(DT_F32, 5);
    const struct engine_options options = {.context = 256, .ubatch = 16, .embeddings = true};
    struct states *x = calloc(2, sizeof *x);
    int32_t ids[STATES];
    int steps = 0;
    const struct batch_options evicting = {.schedule = evicting_schedule, .user = &steps};
    (void)state;
    assert_non_null(x);
    fill_ids(ids, STATES, 320, 1);
    for (int i = 0; i < 2; i++) {
        struct engine *e = open_engine(m, NULL, options);
        struct batch *b = batch_with(e, i ? &evicting : NULL);
        struct batch_times times;
        states_of(b, ids, &x[i]);
        batch_get_times(b, &times);
        assert_int_equal(times.evictions, i);
        batch_free(b);
        engine_close(e);
    }
    assert_memory_equal(&x[0], &x[1], sizeof x[0]);
    free(x);
    model_close(m);
}

/* ------------------------------------------------------------------ rows beside an answer --- */

enum { VOCAB = 320, ANSWER = 12, ASKERS = 4 };
struct asker {
    float row[STATES][VOCAB];
    int rows, n;
    int32_t got[ANSWER];
    bool tells;
};

static void logits_row(void *user, const float *row)
{
    struct asker *x = user;
    assert_true(x->rows < STATES && !x->n);
    memcpy(x->row[x->rows++], row, sizeof x->row[0]);
}

static bool answer_token(void *user, int32_t id)
{
    struct asker *x = user;
    assert_int_equal(x->rows, x->tells ? STATES : 0); /* all rows come first */
    x->got[x->n++] = id;
    return true;
}

/* Requests of one prompt, every second of which wants rows, by so many at a time. */
static void ask(struct engine *e, const struct batch_options *options, const int32_t *ids,
                struct asker *x)
{
    const struct sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    struct sampler *sampler[ASKERS];
    struct batch *b = batch_with(e, options);
    struct oato_error err;
    for (int i = 0; i < ASKERS; i++) {
        sampler[i] = sampler_create(&greedy, VOCAB);
        x[i].tells = i % 2;
        const struct batch_request r = {.ids = ids,
                                        .n_ids = STATES,
                                        .most = ANSWER,
                                        .seq = -1,
                                        .sampler = sampler[i],
                                        .on_row = x[i].tells ? logits_row : NULL,
                                        .on_token = answer_token,
                                        .on_end = row_end,
                                        .user = &x[i]};
        if (batch_add(b, &r, NULL, &err))
            fail_msg("%s", err.text);
    }
    while (batch_requests(b))
        if (batch_step(b, &err))
            fail_msg("%s", err.text);
    batch_free(b);
    for (int i = 0; i < ASKERS; i++)
        sampler_free(sampler[i]);
}

/* Whatever room a step has for rows, and whoever is evicted. */
static void rows_come_before_an_answer(void **state)
{
    static const struct {
        int32_t seqs, rows;
        bool evicts;
    } cases[] = {{1, 0, false}, {2, 0, false}, {4, 7, false}, {4, 64, false}, {3, 5, true}};
    struct model *m = tiny_model(DT_F32, 5);
    int32_t ids[STATES], expected[ANSWER];
    (void)state;
    fill_ids(ids, STATES, VOCAB, 1);
    struct engine *e = open_engine(
        m, NULL, (struct engine_options){.context = 256, .ubatch = 16, .deterministic = true});
    float *logits = logits_of(e, ids, STATES);
    engine_close(e);
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        int steps = 0;
        const struct batch_options evicting = {.schedule = evicting_schedule, .user = &steps};
        struct asker *x = calloc(ASKERS, sizeof *x);
        assert_non_null(x);
        e = open_engine(m, NULL,
                        (struct engine_options){.context = 512,
                                                .ubatch = 16,
                                                .seqs = cases[c].seqs,
                                                .rows = cases[c].rows,
                                                .deterministic = true});
        ask(e, cases[c].evicts ? &evicting : NULL, ids, x);
        engine_close(e);
        for (int i = 0; i < ASKERS; i++) {
            assert_int_equal(x[i].rows, x[i].tells ? STATES : 0);
            assert_int_equal(x[i].n, ANSWER);
            if (x[i].tells)
                assert_same_bits(x[i].row[0], logits, (size_t)STATES * VOCAB);
            if (!c && !i)
                memcpy(expected, x[i].got, sizeof expected);
            assert_memory_equal(x[i].got, expected, sizeof expected);
        }
        free(x);
    }
    free(logits);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_what_logits_are_made_of),
        cmocka_unit_test(rows_are_told_once),
        cmocka_unit_test(rows_come_before_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
