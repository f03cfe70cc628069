/*
 * test_kv_stream.c - KV of the host that is streamed: prompts attend on an accelerator to K and V
 * that stay in the host's memory, decode attends where these are. The bits are those of a run on
 * the host, or with KV on the accelerator; the rooms are the memory that is counted; other
 * placements of the kind are refused with a line.
 */
#include "tests/executor/story.h"

#include <stdlib.h>

static const struct engine_options options = {
    .threads = 2, .rows = STORY_CHUNK, .ubatch = STORY_CHUNK, .seqs = STORY_SEQS, .context = 1024};

/* All on device 1 but the KV of the layers of the mask, which is the host's and streamed. */
static void plan_streamed(struct plan *p, const struct graph *fused, uint32_t layers)
{
    plan_on_gpu(p, fused, false);
    for (int32_t i = 0, n = p->n_parts; i < n; i++) {
        const struct graph_op *o = &fused->ops[i];
        const bool attends = o->op.kind == OP_ATTENTION;
        if (o->kv_layer < 0 || !(layers >> o->kv_layer & 1))
            continue;
        p->parts[i].device = p->parts[i].home = 0;
        if (!attends)
            continue;
        p->parts[i].phases = 1u << PHASE_DECODE;
        plan_add_part(p, o->name, 0, o->op.n, 1);
        p->parts[p->n_parts - 1].home = 0;
        p->parts[p->n_parts - 1].phases = 1u << PHASE_PREFILL;
    }
    for (int32_t i = 0; i < p->n_kv; i++)
        p->kv[i].device = !(layers >> p->kv[i].layer & 1);
}

static struct told told_by(const struct model *m, const struct plan *p, oato_dtype kv)
{
    struct engine_options o = options;
    o.kv = kv;
    o.kv_given = true;
    return story_of(m, p, o);
}

static void told_free(struct told *t)
{
    engine_close(t->e);
    free(t->said);
}

static void the_bits_are_those_of_the_host(void **state)
{
    (void)state;
    enum { ALL = -1 };
    static const struct {
        const char *architecture, *keys;
        oato_dtype kv;
        uint32_t layers;
    } cases[] = {
        {"llama", NULL, DT_F16, (uint32_t)ALL},
        {"llama", NULL, DT_Q8_0, 1},
        {"llama", NULL, DT_F32, 6},
        {"gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=3", DT_F16,
         (uint32_t)ALL},
        /* the last layer attends to what the first one keeps */
        {"gemma4",
         "attention.sliding_window=40 attention.sliding_window_pattern=true,false,true "
         "attention.shared_kv_layers=1 embedding_length_per_layer_input=0 feed_forward_length=512",
         DT_F16, (uint32_t)ALL},
        {"qwen35", NULL, DT_F16, (uint32_t)ALL}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model *m =
            cases[i].keys ? tiny_model_with(cases[i].architecture, cases[i].keys, DT_F32, 3 + i)
                          : tiny_model_of(cases[i].architecture, i % 2 ? DT_Q4_0 : DT_F16, 3 + i);
        struct plan p;
        struct graph fused;
        struct engine_stats stats;
        plan_begin(&p, m, 1, "vram=1GiB");
        plan_fuse_all(&p, m, &fused);
        plan_streamed(&p, &fused, cases[i].layers);
        struct told expected = told_by(m, NULL, cases[i].kv), got = told_by(m, &p, cases[i].kv);
        assert_int_equal(expected.n, got.n);
        assert_same_bits(got.said, expected.said, got.n * got.vocab);
        engine_get_stats(got.e, &stats);
        assert_true(stats.device[0].kv_bytes > 0 && stats.device[1].staging_bytes > 0);
        assert_int_equal(stats.device[1].kv_bytes > 0,
                         cases[i].layers != (uint32_t)ALL ||
                             !strcmp(cases[i].architecture, "qwen35"));
        told_free(&expected);
        told_free(&got);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

/* What the engine says that it takes is what it has allocated: with a byte less it does not open.
 */
static void rooms_are_counted(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_F16, 3);
    struct engine_stats stats[2];
    struct plan p;
    struct graph fused;
    plan_begin(&p, m, 1, "vram=1GiB");
    plan_fuse_all(&p, m, &fused);
    for (int streams = 0; streams < 2; streams++) {
        plan_streamed(&p, &fused, streams ? 7 : 0);
        struct engine *e = open_engine(m, &p, options);
        engine_get_stats(e, &stats[streams]);
        engine_close(e);
    }
    const uint64_t layer = stats[0].device[1].kv_bytes / 3;
    assert_int_equal(stats[1].device[1].kv_bytes, 0);
    assert_int_equal(stats[1].device[0].kv_bytes, 3 * layer);
    assert_int_equal(stats[1].device[1].staging_bytes, KV_ROOMS * layer);
    snprintf(p.devices[1].spec, sizeof p.devices[1].spec, "vram=%llu",
             (unsigned long long)stats[1].device[1].memory_bytes);
    engine_close(open_engine(m, &p, options));
    snprintf(p.devices[1].spec, sizeof p.devices[1].spec, "vram=%llu",
             (unsigned long long)stats[1].device[1].memory_bytes - 1);
    expect_refused(m, &p, &options, OATO_EFIT, "staging");
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* Sequences are saved from the host's pages, not from rooms. */
static void sequences_are_saved_without_rooms(void **state)
{
    (void)state;
    enum { N = 90 };
    struct model *m = tiny_model(DT_F16, 3);
    const size_t vocab = (size_t)m->shape.vocab;
    struct plan p;
    struct graph fused;
    struct oato_error err;
    struct engine_saved *saved = NULL;
    int32_t ids[N + 10], seq[2] = {0};
    float *row = malloc(vocab * sizeof *row);
    assert_non_null(row);
    plan_begin(&p, m, 1, "vram=1GiB");
    plan_fuse_all(&p, m, &fused);
    plan_streamed(&p, &fused, 5);
    struct engine *e = open_engine(m, &p, options);
    fill_ids(ids, N + 10, m->shape.vocab, 5);
    if (engine_seq_create(e, &seq[0], &err) ||
        engine_feed(e, seq[0], ids, N, LOGITS_LAST, NULL, NULL, &err) ||
        engine_seq_save(e, seq[0], &saved, &err) || engine_seq_restore(e, saved, &seq[1], &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < 2; i++) {
        if (engine_feed(e, seq[i], ids + N, 10, LOGITS_LAST, NULL, NULL, &err))
            fail_msg("%s", err.text);
        if (i)
            assert_same_bits(engine_logits(e, 0), row, vocab);
        memcpy(row, engine_logits(e, 0), vocab * sizeof *row);
    }
    engine_saved_free(saved);
    engine_close(e);
    free(row);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* A GPU attends to prompts with the bits that it has where KV is its own. */
static void a_gpu_has_the_bits_of_its_own_kv(void **state)
{
    (void)state;
    enum { PROMPT = 100 };
    static const oato_dtype kinds[] = {DT_F16, DT_Q8_0};
    if (!gpu_is_there())
        skip();
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct model *m = tiny_model(DT_Q8_0, 3 + i);
        struct engine_options o = options;
        int32_t ids[PROMPT];
        float *logits[2];
        struct plan p;
        struct graph fused;
        o.kv = kinds[i];
        o.kv_given = true;
        fill_ids(ids, PROMPT, m->shape.vocab, 5);
        plan_begin_gpu(&p, m, &fused);
        for (int streams = 0; streams < 2; streams++) {
            plan_streamed(&p, &fused, streams ? 7 : 0);
            struct engine *e = open_engine(m, &p, o);
            logits[streams] = logits_of(e, ids, PROMPT);
            engine_close(e);
        }
        assert_same_bits(logits[1], logits[0], PROMPT * (size_t)m->shape.vocab);
        free(logits[0]);
        free(logits[1]);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

static struct plan_part *attention_of(struct plan *p, const struct graph *fused, uint32_t phases)
{
    for (int32_t i = 0; i < p->n_parts; i++)
        for (int32_t j = 0; j < fused->n_ops; j++)
            if (fused->ops[j].op.kind == OP_ATTENTION && p->parts[i].phases == phases &&
                !strcmp(fused->ops[j].name, p->parts[i].op))
                return &p->parts[i];
    fail_msg("there is no such part");
    return NULL;
}

static void what_is_not_possible_is_refused(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_F16, 3);
    struct plan p;
    struct graph fused;
    plan_begin(&p, m, 1, "vram=1GiB");
    plan_fuse_all(&p, m, &fused);
    plan_streamed(&p, &fused, 7); /* decode's, too */
    attention_of(&p, &fused, 1u << PHASE_DECODE)->device = 1;
    expect_refused(m, &p, &options, OATO_EFILE, "KV is streamed from the host to another device");
    plan_streamed(&p, &fused, 7); /* from the device to the host */
    struct plan_part *part = attention_of(&p, &fused, 1u << PHASE_PREFILL);
    part->device = 0;
    part->home = 1;
    expect_refused(m, &p, &options, OATO_EFILE, "KV is streamed from the host to another device");
    plan_streamed(&p, &fused, 0); /* KV that is not the host's */
    part = attention_of(&p, &fused, 3);
    part->phases = 1u << PHASE_DECODE;
    const struct plan_part decode = *part;
    plan_add_part(&p, decode.op, 0, decode.end, 1);
    p.parts[p.n_parts - 1].home = 0;
    p.parts[p.n_parts - 1].phases = 1u << PHASE_PREFILL;
    expect_refused(m, &p, &options, OATO_EFILE, "attends on sim:0 to KV of the host");
    plan_streamed(&p, &fused, 7); /* or is in a file */
    for (int32_t i = 0; i < fused.n_ops; i++)
        if (fused.ops[i].op.kind == OP_KV_STORE)
            p.parts[i].home = HOME_FILE;
    expect_refused(m, &p, &options, OATO_EFILE, "attends on sim:0 to KV of the host");
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_the_host),
        cmocka_unit_test(rooms_are_counted),
        cmocka_unit_test(sequences_are_saved_without_rooms),
        cmocka_unit_test(a_gpu_has_the_bits_of_its_own_kv),
        cmocka_unit_test(what_is_not_possible_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
