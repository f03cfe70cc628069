/*
 * test_candidates.c - what steps give in place of rows of logits. An engine that is asked for
 * candidates gives the first of each row, over the link goes no more than they are, and a sampler
 * draws the tokens from them that it draws from whole rows, with whatever settings it says they are
 * enough for. One that is asked for embeddings gives what the logits would be made of.
 */
#include "tests/executor/harness.h"
#include "text/sampler.h"

#include <math.h>
#include <stdlib.h>

enum { PROMPT = 20, ANSWER = 12, SEQS = 3 };

/* ------------------------------------------------------------------------------ the engine */

/* Everything on one device, but the operator that makes the logits on `head_device`, in parts of so
 * many rows; 0: whole. */
static void place_all(struct plan *p, const struct graph *g, int32_t device, int32_t part_rows,
                      int32_t head_device)
{
    p->n_parts = p->n_kv = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const bool head = o->n_out && o->out[0] == g->logits;
        const int64_t step = head && part_rows ? part_rows : o->op.n;
        if (o->op.kind == OP_KV_STORE)
            p->kv[p->n_kv++] = (struct plan_kv){o->kv_layer, 0, o->op.kv_heads, device};
        for (int64_t begin = 0; begin < o->op.n; begin += step)
            plan_add_part(p, o->name, begin, begin + step, head ? head_device : device);
    }
}

struct rig {
    struct model *m;
    struct plan p;
    struct graph fused;
};

static void rig_open(struct rig *x, uint64_t seed)
{
    x->m = tiny_model(DT_Q8_0, seed);
    plan_begin(&x->p, x->m, 1, "vram=64MiB");
    plan_fuse_all(&x->p, x->m, &x->fused);
}

static void rig_close(struct rig *x)
{
    graph_free(&x->fused);
    plan_free(&x->p);
    model_close(x->m);
}

static void step_or_fail(struct engine *e, const struct engine_input *in, int32_t n)
{
    struct oato_error err;
    if (engine_step(e, in, n, &err))
        fail_msg("%s", err.text);
}

static void candidates_are_the_first_of_each_row(void **state)
{
    enum { CANDIDATES = 9 };
    struct random r = random_of_run();
    struct rig x;
    (void)state;
    rig_open(&x, random_below(&r, 1000));
    place_all(&x.p, &x.fused, 1, 0, 1);
    const int32_t vocab = x.m->shape.vocab;
    struct engine *e[2]; /* whole rows, candidates */
    struct engine_stats stats[2];
    for (int i = 0; i < 2; i++) {
        e[i] = open_engine(
            x.m, &x.p,
            (struct engine_options){.threads = 1, .seqs = SEQS, .top_logits = i ? CANDIDATES : 0});
        engine_get_stats(e[i], &stats[i]);
    }
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const uint64_t bytes = stats[0].copy_bytes[phase];
        assert_int_equal(stats[0].candidates[phase], 0);
        assert_int_equal(stats[1].candidates[phase], CANDIDATES);
        assert_int_equal(stats[0].copies[phase], stats[1].copies[phase]);
        assert_int_equal(stats[1].copy_bytes[phase],
                         bytes - (uint64_t)(vocab - 2 * CANDIDATES) * sizeof(float));
    }
    struct engine_input in[SEQS];
    int32_t ids[SEQS][PROMPT], seq[SEQS];
    struct oato_error err;
    for (int s = 0; s < SEQS; s++)
        fill_ids(ids[s], PROMPT, vocab, (uint64_t)s);
    for (int i = 0; i < 2 * SEQS; i++)
        assert_int_equal(engine_seq_create(e[i % 2], &seq[i / 2], &err), OATO_OK);
    for (int round = 0; round < 4; round++) { /* a prompt each, then decode */
        for (int s = 0; s < SEQS; s++)
            in[s] = (struct engine_input){seq[s], ids[s] + round, round ? 1 : PROMPT - s,
                                          round == 2 && !s ? LOGITS_NONE : LOGITS_PICKS, !round};
        step_or_fail(e[0], in, SEQS);
        step_or_fail(e[1], in, SEQS);
        const int32_t rows = round == 2 ? SEQS - 1 : SEQS;
        for (int32_t row = 0; row < rows; row++) {
            int32_t n;
            const float *logits = engine_logits(e[0], row);
            assert_null(engine_logits(e[1], row));
            assert_null(engine_candidates(e[0], row, &n));
            const float *candidates = engine_candidates(e[1], row, &n);
            assert_non_null(candidates);
            assert_int_equal(n, CANDIDATES);
            assert_candidates(candidates, n, logits, vocab);
        }
        int32_t n;
        assert_null(engine_candidates(e[1], rows, &n));
    }
    in[1].logits = LOGITS_LAST; /* one whole row: then all are */
    step_or_fail(e[0], in, SEQS);
    step_or_fail(e[1], in, SEQS);
    for (int32_t row = 0, n; row < SEQS; row++) {
        assert_null(engine_candidates(e[1], row, &n));
        assert_memory_equal(engine_logits(e[0], row), engine_logits(e[1], row),
                            (size_t)vocab * sizeof(float));
    }
    engine_close(e[0]);
    engine_close(e[1]);
    rig_close(&x);
}

static void check_whole_rows(const struct rig *x, const struct plan *p, int32_t top_logits)
{
    struct engine *e =
        open_engine(x->m, p, (struct engine_options){.threads = 1, .top_logits = top_logits});
    struct engine_stats stats;
    int32_t ids[PROMPT], seq, n;
    struct oato_error err;
    engine_get_stats(e, &stats);
    fill_ids(ids, PROMPT, x->m->shape.vocab, 1);
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        struct engine_input in = {seq, ids, phase == PHASE_PREFILL ? PROMPT : 1, LOGITS_PICKS,
                                  phase == PHASE_PREFILL};
        assert_int_equal(stats.candidates[phase], 0);
        step_or_fail(e, &in, 1);
        assert_non_null(engine_logits(e, 0));
        assert_null(engine_candidates(e, 0, &n));
    }
    engine_close(e);
}

/* Where the host makes the logits, or a part of them, and where candidates are no less. */
static void whole_rows_come_where_candidates_save_nothing(void **state)
{
    struct rig x;
    (void)state;
    rig_open(&x, 3);
    check_whole_rows(&x, NULL, 8);
    place_all(&x.p, &x.fused, 1, 0, 0);
    check_whole_rows(&x, &x.p, 8);
    place_all(&x.p, &x.fused, 1, 64, 1);
    check_whole_rows(&x, &x.p, 8);
    place_all(&x.p, &x.fused, 1, 0, 1);
    check_whole_rows(&x, &x.p, x.m->shape.vocab / 2);
    check_whole_rows(&x, &x.p, INT32_MAX);
    struct engine *e;
    struct oato_error err;
    const struct engine_options negative = {.top_logits = -1};
    assert_int_equal(engine_open(x.m, &x.p, &negative, NULL, NULL, &e, &err), OATO_EUSAGE);
    rig_close(&x);
}

/* More than any device makes: of a vocabulary that would have room for them. */
static void more_candidates_than_a_device_makes_are_whole_rows(void **state)
{
    struct oato_error err;
    struct random_model shape = random_model_default();
    struct rig x;
    (void)state;
    shape.vocab = 2 * TOP_K_MOST + 200;
    if (random_model_open(&shape, &x.m, &err))
        fail_msg("%s", err.text);
    plan_begin(&x.p, x.m, 1, "vram=64MiB");
    plan_fuse_all(&x.p, x.m, &x.fused);
    place_all(&x.p, &x.fused, 1, 0, 1);
    check_whole_rows(&x, &x.p, TOP_K_MOST + 1);
    rig_close(&x);
}

/* Tokens of an answer by an engine that gives whole rows or candidates. */
static void answer(struct engine *e, const struct sampler_options *options, int32_t vocab,
                   int32_t *tokens)
{
    struct sampler *s = sampler_create(options, vocab);
    struct oato_error err;
    int32_t ids[PROMPT], seq, n;
    assert_non_null(s);
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    fill_ids(ids, PROMPT, vocab, 5);
    for (int32_t i = 0; i < PROMPT; i++)
        sampler_accept(s, ids[i]);
    for (int32_t i = 0; i < ANSWER; i++) {
        struct engine_input in = {seq, i ? &tokens[i - 1] : ids, i ? 1 : PROMPT, LOGITS_PICKS, !i};
        step_or_fail(e, &in, 1);
        const float *candidates = engine_candidates(e, 0, &n);
        tokens[i] =
            candidates ? sampler_next_of(s, candidates, n) : sampler_next(s, engine_logits(e, 0));
        sampler_accept(s, tokens[i]);
    }
    engine_seq_free(e, seq);
    sampler_free(s);
}

static void answers_are_those_of_whole_rows(void **state)
{
    static const struct sampler_options settings[] = {
        {.top_p = 1, .repeat_penalty = 1},
        {.top_k = 7, .top_p = 0.95f, .repeat_penalty = 1.3f, .repeat_last = 30},
        {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1},
        {.temperature = 3, .top_k = 40, .top_p = 1, .repeat_penalty = 1.5f, .repeat_last = 64},
    };
    struct random r = random_of_run();
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        struct rig x;
        struct sampler_options options = settings[i];
        int32_t tokens[2][ANSWER];
        rig_open(&x, random_below(&r, 1000));
        place_all(&x.p, &x.fused, 1, 0, 1);
        options.seed = random_below(&r, 1 << 30);
        for (int top = 0; top < 2; top++) {
            struct engine_options engine = {.threads = 1};
            struct engine_stats stats;
            if (top)
                engine.top_logits = sampler_candidates(&options, x.m->shape.vocab);
            struct engine *e = open_engine(x.m, &x.p, engine);
            engine_get_stats(e, &stats);
            assert_int_equal(stats.candidates[PHASE_DECODE] > 0, top);
            answer(e, &options, x.m->shape.vocab, tokens[top]);
            engine_close(e);
        }
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        rig_close(&x);
    }
}

/* -------------------------------------------------------------------------- embeddings */

static struct engine *embedder(const struct model *m, const struct plan *p, int32_t *width)
{
    struct engine *e = open_engine(m, p,
                                   (struct engine_options){.threads = 1,
                                                           .seqs = SEQS,
                                                           .rows = PROMPT,
                                                           .top_logits = 3,
                                                           .embeddings = true,
                                                           .deterministic = true});
    struct engine_stats stats;
    engine_get_stats(e, &stats);
    *width = stats.row_width;
    return e;
}

/* Rows of all of a prompt, then of a token by decode. */
static void rows_of(struct engine *e, const int32_t *ids, int32_t width, float *out)
{
    struct oato_error err;
    int32_t seq;
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    step_or_fail(e, &(struct engine_input){seq, ids, PROMPT - 1, LOGITS_ALL, true}, 1);
    for (int32_t row = 0; row < PROMPT - 1; row++)
        memcpy(out + (size_t)row * (size_t)width, engine_logits(e, row),
               (size_t)width * sizeof *out);
    step_or_fail(e, &(struct engine_input){seq, ids + PROMPT - 1, 1, LOGITS_LAST, false}, 1);
    memcpy(out + (size_t)(PROMPT - 1) * (size_t)width, engine_logits(e, 0),
           (size_t)width * sizeof *out);
    engine_seq_free(e, seq);
}

static double weight_product(const float *row, const float *x, int32_t width)
{
    double sum = 0;
    for (int32_t i = 0; i < width; i++)
        sum += (double)row[i] * (double)x[i];
    return sum;
}

static const struct gguf_tensor *head_of(const struct model *m)
{
    for (int32_t i = 0; i < m->graph.n_ops; i++)
        if (!strcmp(m->graph.ops[i].name, "output"))
            return m->graph.ops[i].weight[0];
    fail_msg("no head");
    return NULL;
}

/* The head's matrix has more rows than columns, so only the one hidden state gives these logits. */
static void check_makes_logits(const struct model *m, const float *hidden, const float *logits,
                               float factor, float cap)
{
    const struct gguf_tensor *w = head_of(m);
    const int32_t vocab = m->shape.vocab, width = m->shape.width;
    assert_true(w && w->dtype == DT_F32 && vocab > width);
    for (int32_t i = 0; w && i < vocab; i++) {
        const float *row = (const float *)w->data + (size_t)i * (size_t)width;
        double expected = weight_product(row, hidden, width) * (double)factor;
        if (cap != 0)
            expected = (double)cap * tanh(expected / (double)cap);
        assert_true(fabs(expected - (double)logits[i]) < 1e-4 * (1 + fabs(expected)));
    }
}

static void embeddings_are_what_logits_are_made_of(void **state)
{
    static const struct {
        const char *architecture, *keys;
        float factor, cap;
    } models[] = {{"llama", NULL, 1, 0},
                  {"granite", "logit_scale=0.5", 2, 0},
                  {"gemma2", "final_logit_softcapping=3 attention.sliding_window=512", 1, 3}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct model *m = tiny_model_with(models[i].architecture, models[i].keys, DT_F32, i);
        const int32_t vocab = m->shape.vocab;
        int32_t ids[PROMPT], width;
        struct engine *e = embedder(m, NULL, &width),
                      *plain =
                          open_engine(m, NULL,
                                      (struct engine_options){
                                          .threads = 1, .rows = PROMPT, .deterministic = true});
        assert_int_equal(width, m->shape.width);
        float *hidden = calloc(PROMPT * (size_t)width, sizeof *hidden),
              *logits = calloc(PROMPT * (size_t)vocab, sizeof *logits);
        assert_true(hidden && logits);
        fill_ids(ids, PROMPT, vocab, i);
        rows_of(e, ids, width, hidden);
        rows_of(plain, ids, vocab, logits);
        for (int32_t row = 0; row < PROMPT; row++)
            check_makes_logits(m, hidden + row * width, logits + row * vocab, models[i].factor,
                               models[i].cap);
        struct engine_stats a, b;
        engine_get_stats(e, &a);
        engine_get_stats(plain, &b);
        assert_int_equal(b.row_width, vocab);
        assert_true(a.device[0].weight_bytes < b.device[0].weight_bytes);
        engine_close(e);
        engine_close(plain);
        free(hidden);
        free(logits);
        model_close(m);
    }
}

/* Also where the plan has the head elsewhere, or in parts. */
static void embeddings_have_the_same_bits_wherever_they_are_made(void **state)
{
    static const struct {
        int32_t device, part_rows, head_device;
    } places[] = {{1, 0, 1}, {1, 64, 0}, {0, 0, 1}};
    struct rig x;
    int32_t ids[PROMPT], width;
    (void)state;
    rig_open(&x, 8);
    fill_ids(ids, PROMPT, x.m->shape.vocab, 8);
    struct engine *e = embedder(x.m, NULL, &width);
    float *rows[2];
    for (int i = 0; i < 2; i++)
        assert_non_null(rows[i] = calloc(PROMPT * (size_t)width, sizeof(float)));
    rows_of(e, ids, width, rows[0]);
    engine_close(e);
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        place_all(&x.p, &x.fused, places[i].device, places[i].part_rows, places[i].head_device);
        e = embedder(x.m, &x.p, &width);
        rows_of(e, ids, width, rows[1]);
        assert_same_bits(rows[1], rows[0], PROMPT * (size_t)width);
        engine_close(e);
    }
    free(rows[0]);
    free(rows[1]);
    rig_close(&x);
}

/* ----------------------------------------------------------------------------- the sampler */

enum { VOCAB = 500 };

/* With equal logits, no numbers and infinite ones among them in some rows. */
static void fill_row(struct random *r, float *row)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0, -0.0f};
    const uint32_t kind = random_below(r, 8);
    for (int32_t i = 0; i < VOCAB; i++) {
        row[i] = ((float)random_below(r, 1 << 16) - 40000.0f) / 4096;
        if (kind == 1 || (kind == 2 && random_below(r, 2)))
            row[i] = (float)random_below(r, 5) - 2;
        if (kind == 3 && !random_below(r, 3))
            row[i] = odd[random_below(r, ARRAY_LEN(odd))];
    }
}

/* Before the row's other logits: the larger one, of equal ones the lower id; numbers first. */
static bool is_before(const float *row, int32_t a, int32_t b)
{
    if (isnan(row[a]) || isnan(row[b]))
        return isnan(row[a]) == isnan(row[b]) ? a < b : isnan(row[b]);
    return row[a] > row[b] || (a < b && row[a] == row[b]);
}

static void take_candidates(const float *row, int32_t n, float *out)
{
    for (int32_t i = 0; i < VOCAB; i++) {
        int32_t before = 0;
        for (int32_t j = 0; j < VOCAB; j++)
            before += is_before(row, j, i);
        if (before < n) {
            out[before] = (float)i;
            out[n + before] = row[i];
        }
    }
}

static struct sampler_options random_options(struct random *r)
{
    return (struct sampler_options){
        .temperature = random_below(r, 4) ? (float)random_below(r, 300) / 100 : 0,
        .top_k = random_below(r, 6) ? 1 + (int32_t)random_below(r, 60) : 0,
        .top_p = random_below(r, 2) ? (float)random_below(r, 100) / 100 : 1,
        .min_p = random_below(r, 2) ? (float)random_below(r, 100) / 1000 : 0,
        .repeat_penalty = random_below(r, 2) ? 0.8f + (float)random_below(r, 100) / 100 : 1,
        .presence_penalty = random_below(r, 4) ? 0 : (float)random_below(r, 100) / 50,
        .frequency_penalty = random_below(r, 4) ? 0 : (float)random_below(r, 100) / 80 - 0.1f,
        .repeat_last = (int32_t)random_below(r, 70),
        .seed = random_below(r, 1 << 30)};
}

static void candidates_give_the_tokens_of_whole_rows(void **state)
{
    struct random r = random_of_run();
    int enough = 0;
    (void)state;
    for (int round = 0; round < 400; round++) {
        const struct sampler_options o = random_options(&r);
        const int32_t n = sampler_candidates(&o, VOCAB);
        struct sampler *whole = sampler_create(&o, VOCAB), *some = sampler_create(&o, VOCAB);
        float row[VOCAB], out[2 * VOCAB];
        assert_true(whole && some);
        for (int step = 0; step < 12 && n; step++) {
            const int32_t more = (int32_t)random_below(&r, 3),
                          given = n + more < VOCAB ? n + more : n;
            fill_row(&r, row);
            take_candidates(row, given, out);
            const int32_t expected = sampler_next(whole, row);
            const int32_t got = sampler_next_of(some, out, given);
            if (got != expected)
                fail_msg("round %d step %d: token %d by %d candidates, %d by the row", round, step,
                         (int)got, (int)given, (int)expected);
            /* often one that was near the top, so that penalties matter */
            const int32_t next =
                random_below(&r, 2) ? expected : (int32_t)out[random_below(&r, (uint32_t)given)];
            sampler_accept(whole, next);
            sampler_accept(some, next);
        }
        enough += n > 0;
        sampler_free(whole);
        sampler_free(some);
    }
    assert_true(enough > 100);
}

static void settings_that_look_at_all_tokens_need_whole_rows(void **state)
{
    const struct sampler_options greedy = {.top_p = 1, .repeat_penalty = 1, .repeat_last = 64};
    struct sampler_options o = greedy;
    (void)state;
    assert_int_equal(sampler_candidates(&o, VOCAB), 1);
    o.repeat_penalty = 1.1f;
    assert_int_equal(sampler_candidates(&o, VOCAB), 65);
    o.repeat_penalty = 0.9f; /* any token may come to the front */
    assert_int_equal(sampler_candidates(&o, VOCAB), 0);
    o.repeat_last = 0;
    assert_int_equal(sampler_candidates(&o, VOCAB), 1);
    o = greedy;
    o.presence_penalty = 0.5f;
    assert_int_equal(sampler_candidates(&o, VOCAB), 65);
    o.frequency_penalty = -0.5f;
    assert_int_equal(sampler_candidates(&o, VOCAB), 0);
    o = greedy;
    o.temperature = 1;
    assert_int_equal(sampler_candidates(&o, VOCAB), 0);
    o.top_k = 40;
    assert_int_equal(sampler_candidates(&o, VOCAB), 40);
    o.top_k = VOCAB;
    assert_int_equal(sampler_candidates(&o, VOCAB), 0);
    o.top_k = 40;
    o.repeat_penalty = 2;
    o.repeat_last = INT32_MAX;
    assert_int_equal(sampler_candidates(&o, VOCAB), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_are_the_first_of_each_row),
        cmocka_unit_test(whole_rows_come_where_candidates_save_nothing),
        cmocka_unit_test(more_candidates_than_a_device_makes_are_whole_rows),
        cmocka_unit_test(answers_are_those_of_whole_rows),
        cmocka_unit_test(embeddings_are_what_logits_are_made_of),
        cmocka_unit_test(embeddings_have_the_same_bits_wherever_they_are_made),
        cmocka_unit_test(candidates_give_the_tokens_of_whole_rows),
        cmocka_unit_test(settings_that_look_at_all_tokens_need_whole_rows),
    };
    return cmocka_run_group_tests_name("candidates", tests, NULL, NULL);
}
