/*
 * test_windows.c - models whose layers have windows, over contexts several windows long: what is
 * forked, cut and stepped in company gives the bits of a run that keeps all pages, although layers
 * with a window have few pages, which are given back and used again.
 */
#include "tests/executor/harness.h"

#include <stdlib.h>

enum { WINDOW = 40, UBATCH = 32, CONTEXT = 768, SEQS = 3, STEPS = 120 };

static const struct {
    const char *architecture, *keys;
    bool all;      /* layers have a window */
    bool stateful; /* which makes stories short: they are fed again from the start */
} models[] = {
    {"gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=3", false, false},
    {"gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=0", true, false},
    /* the last layer attends to what the first one keeps */
    {"gemma4",
     "attention.sliding_window=40 attention.sliding_window_pattern=true,false,true "
     "attention.shared_kv_layers=1 embedding_length_per_layer_input=0 feed_forward_length=512",
     false, false},
    /* with recurrent state, whose checkpoints may be out of the window's reach */
    {"lfm2", "attention.head_count_kv=0,2,0 shortconv.l_cache=3 attention.sliding_window=40", true,
     true},
};

static struct model *model_of(size_t i)
{
    return tiny_model_with(models[i].architecture, models[i].keys, DT_F32, 8);
}

/* The same model, in which every layer keeps all pages. */
static struct model *keeping_model_of(size_t i)
{
    struct model *m = model_of(i);
    int windows = 0;
    for (int32_t o = 0; o < m->graph.n_ops; o++) {
        struct oato_op *op = &m->graph.ops[o].op;
        windows += op->kind == OP_ATTENTION && op->window == WINDOW;
        if (op->kind == OP_KV_STORE)
            op->window = 0;
    }
    assert_int_equal(windows, models[i].stateful ? 1 : models[i].all ? 3 : 2);
    return m;
}

static uint64_t kv_bytes(const struct engine *e)
{
    struct engine_stats stats;
    uint64_t bytes = 0;
    engine_get_stats(e, &stats);
    for (int32_t i = 0; i < stats.n_devices; i++)
        bytes += stats.device[i].kv_bytes;
    return bytes;
}

/* ------------------------------------------------------------------- a random run --------- */

struct story {
    int32_t seq, n; /* seq -1: unused */
    int32_t ids[CONTEXT + SEQS * KV_PAGE_POSITIONS];
};

struct script {
    struct engine *e, *keeping;
    struct random random;
    struct story story[SEQS];
    int32_t vocab, restarts, full;
};

/* The last row of the story from a sequence that was fed all of it at once, all pages kept. */
static void check_story(struct script *s, const struct story *t, int32_t row)
{
    struct oato_error err;
    int32_t seq;
    if (engine_seq_create(s->keeping, &seq, &err) ||
        engine_feed(s->keeping, seq, t->ids, t->n, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    assert_same_bits(engine_logits(s->e, row), engine_logits(s->keeping, 0), (size_t)s->vocab);
    engine_seq_free(s->keeping, seq);
}

/* Each story gets more tokens in one step, or goes on from where it was cut. */
static void step_all(struct script *s)
{
    struct engine_input in[SEQS];
    struct oato_error err;
    int32_t n = 0, room = UBATCH;
    struct story *of[SEQS];
    for (int i = 0; i < SEQS; i++) {
        struct story *t = &s->story[i];
        if (t->seq < 0 || (n && random_below(&s->random, 2)))
            continue;
        const int32_t there = engine_seq_length(s->e, t->seq);
        const int32_t most = room - (SEQS - 1 - i);
        int32_t more = t->n - there;
        if (!more) {
            more = 1 + (int32_t)random_below(&s->random, (uint32_t)most);
            fill_ids(t->ids + t->n, more, s->vocab, s->random.state);
        }
        more = more < most ? more : most;
        room -= more;
        of[n] = t;
        in[n++] = (struct engine_input){t->seq, t->ids + there, more, LOGITS_LAST, true};
    }
    if (!n)
        return;
    if (engine_step(s->e, in, n, &err) == OATO_EFIT) {
        assert_non_null(strstr(err.text, "of 14 are free")); /* of layers that see everything */
        s->full++;
        engine_seq_free(s->e, of[0]->seq);
        of[0]->seq = -1;
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t there = engine_seq_length(s->e, of[i]->seq);
        if (there < of[i]->n)
            continue;
        of[i]->n = there;
        if (random_below(&s->random, 4) == 0)
            check_story(s, of[i], i);
    }
}

static void fork_story(struct script *s, const struct story *from, struct story *to)
{
    struct oato_error err;
    if (from->seq < 0 || to->seq >= 0 || engine_seq_length(s->e, from->seq) < from->n)
        return;
    *to = *from;
    assert_int_equal(engine_seq_fork(s->e, from->seq, &to->seq, &err), OATO_OK);
}

/* Where pages were given back nothing is left, and the story is fed again. */
static void cut_story(struct script *s, struct story *t)
{
    struct oato_error err;
    if (t->seq < 0 || engine_seq_length(s->e, t->seq) < t->n)
        return;
    t->n -=
        (int32_t)random_below(&s->random, (uint32_t)t->n) / (random_below(&s->random, 2) ? 1 : 8);
    assert_int_equal(engine_seq_truncate(s->e, t->seq, t->n, &err), OATO_OK);
    s->restarts += t->n && !engine_seq_length(s->e, t->seq);
    assert_in_range(engine_seq_length(s->e, t->seq), 0, t->n);
}

static void random_run(const struct model *m, const struct plan *p, size_t model)
{
    struct model *keeps = keeping_model_of(model);
    struct engine_options options = {
        .seqs = SEQS, .context = CONTEXT, .ubatch = UBATCH, .deterministic = true};
    struct script s = {.e = open_engine(m, p, options), .random = {11}, .vocab = m->shape.vocab};
    options.seqs = 1;
    options.context += (SEQS - 1) * KV_PAGE_POSITIONS;
    s.keeping = open_engine(keeps, NULL, options);
    const int32_t pages = engine_free_pages(s.e);
    for (int i = 0; i < SEQS; i++)
        s.story[i].seq = -1;
    for (int i = 0; i < STEPS; i++) {
        struct oato_error err;
        struct story *a = &s.story[random_below(&s.random, SEQS)], *b = &s.story[i % SEQS];
        if (s.story[0].seq < 0) {
            assert_int_equal(engine_seq_create(s.e, &s.story[0].seq, &err), OATO_OK);
            s.story[0].n = 0;
        }
        if (a != b)
            fork_story(&s, a, b);
        if (random_below(&s.random, 6) == 0)
            cut_story(&s, b);
        step_all(&s);
    }
    assert_true(s.restarts > 0 && (s.full > 0 || models[model].stateful));
    for (int i = 0; i < SEQS; i++)
        if (s.story[i].seq >= 0)
            engine_seq_free(s.e, s.story[i].seq);
    assert_int_equal(engine_free_pages(s.e), pages);
    engine_close(s.e);
    engine_close(s.keeping);
    model_close(keeps);
}

static void any_run_gives_the_bits_of_one_that_keeps_all_pages(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct model *m = model_of(i);
        random_run(m, NULL, i);
        model_close(m);
    }
}

static void also_where_layers_are_on_several_devices(void **state)
{
    (void)state;
    struct random r = {7};
    for (size_t i = 0; i < ARRAY_LEN(models); i += 3) {
        struct model *m = model_of(i);
        struct plan p;
        struct graph fused;
        plan_begin(&p, m, 2, "vram=64MiB");
        plan_fuse_all(&p, m, &fused);
        plan_place_randomly(&p, &fused, &r);
        random_run(m, &p, i);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

/* ------------------------------------------------------------------- what is kept --------- */

static int32_t cut(struct engine *e, int32_t seq, int32_t length)
{
    struct oato_error err;
    assert_int_equal(engine_seq_truncate(e, seq, length, &err), OATO_OK);
    return engine_seq_length(e, seq);
}

static void feed(struct engine *e, int32_t seq, const int32_t *ids, int32_t n)
{
    struct oato_error err;
    if (engine_feed(e, seq, ids, n, LOGITS_NONE, NULL, NULL, &err))
        fail_msg("%s", err.text);
}

/* A window of 40 and steps of 32 touch 3 pages at most, of the 12 that the context has. */
static void layers_with_a_window_have_fewer_pages(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct model *m = model_of(i), *keeps = keeping_model_of(i);
        const struct engine_options options = {.context = CONTEXT, .ubatch = UBATCH};
        struct engine *e = open_engine(m, NULL, options), *k = open_engine(keeps, NULL, options);
        const uint64_t page = kv_bytes(k) / 3 / 12;
        assert_int_equal(kv_bytes(e), page * (models[i].all ? 3 * 3 : 2 * 3 + 12));
        engine_close(e);
        engine_close(k);
        model_close(m);
        model_close(keeps);
    }
}

static void a_sequence_goes_back_as_far_as_its_pages_are_kept(void **state)
{
    (void)state;
    struct model *m = model_of(0);
    struct oato_error err;
    int32_t ids[400], seq;
    fill_ids(ids, 400, m->shape.vocab, 2);
    struct engine *e =
        open_engine(m, NULL, (struct engine_options){.context = CONTEXT, .ubatch = UBATCH});
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    feed(e, seq, ids, 190); /* three pages: nothing is given back */
    assert_int_equal(cut(e, seq, 3), 3);
    feed(e, seq, ids, 394);
    assert_int_equal(cut(e, seq, 390), 390);
    assert_int_equal(cut(e, seq, 200), 0);
    feed(e, seq, ids, 10);
    assert_int_equal(cut(e, seq, 9), 9);
    engine_close(e);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_run_gives_the_bits_of_one_that_keeps_all_pages),
        cmocka_unit_test(also_where_layers_are_on_several_devices),
        cmocka_unit_test(layers_with_a_window_have_fewer_pages),
        cmocka_unit_test(a_sequence_goes_back_as_far_as_its_pages_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
