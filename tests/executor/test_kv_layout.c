/*
 * test_kv_layout.c - KV in a layout of the device's own (sim:kv=rows): answers have the bits of the
 * shared layout, whether the device keeps KV or attends to that of the host; a sequence that was
 * saved on one device goes on on another; and types that the layout does not have are refused.
 */
#include "tests/executor/story.h"

#include <stdlib.h>

static const struct engine_options options = {
    .threads = 1, .rows = STORY_CHUNK, .ubatch = STORY_CHUNK, .seqs = STORY_SEQS, .context = 1024};

/* All of the model on device 1 but, of layers in the mask, the KV, which is the host's and
 * streamed. */
static void plan_rows(struct plan *p, const struct model *m, struct graph *fused, uint32_t streamed)
{
    plan_begin(p, m, 1, "vram=1GiB,kv=rows");
    plan_fuse_all(p, m, fused);
    plan_on_gpu(p, fused, false);
    for (int32_t i = 0, n = p->n_parts; i < n; i++) {
        const struct graph_op *o = &fused->ops[i];
        if (o->kv_layer < 0 || !(streamed >> o->kv_layer & 1))
            continue;
        p->parts[i].device = p->parts[i].home = 0;
        if (o->op.kind != OP_ATTENTION)
            continue;
        p->parts[i].phases = 1u << PHASE_DECODE;
        plan_add_part(p, o->name, 0, o->op.n, 1);
        p->parts[p->n_parts - 1].home = 0;
        p->parts[p->n_parts - 1].phases = 1u << PHASE_PREFILL;
    }
    for (int32_t i = 0; i < p->n_kv; i++)
        p->kv[i].device = !(streamed >> p->kv[i].layer & 1);
}

static void the_bits_are_those_of_the_shared_layout(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *keys;
        uint32_t streamed;
    } cases[] = {
        {"llama", NULL, 0},
        {"llama", NULL, 5},
        {"gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=3", 0},
        {"gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=3", 7},
        {"qwen35", NULL, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model *m = cases[i].keys
                              ? tiny_model_with(cases[i].architecture, cases[i].keys, DT_F32, 3 + i)
                              : tiny_model_of(cases[i].architecture, DT_F16, 3 + i);
        struct plan p;
        struct graph fused;
        plan_rows(&p, m, &fused, cases[i].streamed);
        struct told expected = story_of(m, NULL, options), got = story_of(m, &p, options);
        assert_int_equal(expected.n, got.n);
        assert_same_bits(got.said, expected.said, got.n * got.vocab);
        engine_close(expected.e);
        engine_close(got.e);
        free(expected.said);
        free(got.said);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

/* The same tokens behind a sequence that the other engine has saved. */
static void what_one_saves_the_other_restores(void **state)
{
    (void)state;
    enum { N = 90, MORE = 10 };
    struct model *m = tiny_model(DT_F16, 3);
    const size_t vocab = (size_t)m->shape.vocab;
    struct plan p;
    struct graph fused;
    struct oato_error err;
    int32_t ids[N + MORE], seq;
    float *row = malloc(vocab * sizeof *row);
    assert_non_null(row);
    fill_ids(ids, N + MORE, m->shape.vocab, 5);
    plan_rows(&p, m, &fused, 0);
    struct engine *e[2] = {open_engine(m, NULL, options), open_engine(m, &p, options)};
    for (int from = 0; from < 2; from++)
        for (int to = 0; to < 2; to++) {
            struct engine_saved *saved = NULL;
            if (engine_seq_create(e[from], &seq, &err) ||
                engine_feed(e[from], seq, ids, N, LOGITS_LAST, NULL, NULL, &err) ||
                engine_seq_save(e[from], seq, &saved, &err))
                fail_msg("%s", err.text);
            engine_seq_free(e[from], seq);
            for (int again = 0; again < 2; again++) { /* what is saved is still there */
                if (engine_seq_restore(e[to], saved, &seq, &err) ||
                    engine_feed(e[to], seq, ids + N, MORE, LOGITS_LAST, NULL, NULL, &err))
                    fail_msg("%s", err.text);
                if (from || to || again)
                    assert_same_bits(engine_logits(e[to], 0), row, vocab);
                memcpy(row, engine_logits(e[to], 0), vocab * sizeof *row);
                engine_seq_free(e[to], seq);
            }
            engine_saved_free(saved);
        }
    engine_close(e[0]);
    engine_close(e[1]);
    free(row);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

static void a_page_is_another_and_comes_back(void **state)
{
    (void)state;
    const struct kv_layer_shape shape = {.kv_heads = 2, .head_dim = 32};
    struct oato_error err;
    struct oato_device *d;
    struct kv_cache *kv;
    assert_int_equal(device_open("sim:kv=rows", 0, NULL, &d, &err), OATO_OK);
    assert_int_equal(d->ops->kv_create(d, &shape, 1, DT_F16, 2, &kv, &err), OATO_OK);
    const struct kv_layout *own = device_kv_layout(d);
    const size_t bytes = 2 * kv_cache_place(kv, 0, 0).bytes;
    uint8_t *pages = malloc(3 * bytes);
    assert_non_null(pages);
    for (size_t i = 0; i < bytes; i++)
        pages[i] = (uint8_t)(i * 2654435761u >> 11);
    own->from_shared(kv, 0, 2, pages + bytes, pages);
    assert_memory_not_equal(pages + bytes, pages, bytes);
    /* K of the second page, head 1: position 3, dimension 5 */
    const size_t head = bytes / 2 + 64 * 32 * 2;
    assert_memory_equal(pages + bytes + head + 2 * (3 * 32 + 5), pages + head + 2 * (5 * 64 + 3),
                        2);
    own->to_shared(kv, 0, 2, pages + 2 * bytes, pages + bytes);
    assert_memory_equal(pages + 2 * bytes, pages, bytes);
    free(pages);
    d->ops->kv_free(d, kv);
    d->ops->close(d);
    assert_int_equal(device_open("sim", 0, NULL, &d, &err), OATO_OK);
    assert_null(device_kv_layout(d));
    d->ops->close(d);
    assert_int_equal(device_open("sim:kv=columns", 0, NULL, &d, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "must be rows"));
}

static void other_types_are_refused(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_F16, 3);
    struct engine_options o = options;
    struct plan p;
    struct graph fused;
    plan_rows(&p, m, &fused, 0);
    o.kv = DT_Q8_0;
    o.kv_given = true;
    expect_refused(m, &p, &o, OATO_EFILE, "use another type of KV (--kv)");
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_the_shared_layout),
        cmocka_unit_test(what_one_saves_the_other_restores),
        cmocka_unit_test(a_page_is_another_and_comes_back),
        cmocka_unit_test(other_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
