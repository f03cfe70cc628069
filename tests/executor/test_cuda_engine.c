/*
 * test_cuda_engine.c - the engine with CUDA devices: weights that stay with the host and are
 * streamed give the bits of resident ones, in the memory of their staging buffers alone; values go
 * from one GPU to the other with the same bits, whichever way.
 */
#include "tests/executor/harness.h"

#include "kernels/device.h"

#include <stdlib.h>

enum { PROMPT = 9, ANSWER = 4 };

/* All of the model on the GPU; its matrices have their home there or with the host. */
static void plan_on_gpu(struct plan *p, const struct graph *g, bool streams)
{
    p->n_parts = p->n_kv = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        if (o->op.kind == OP_KV_STORE)
            p->kv[p->n_kv++] = (struct plan_kv){o->kv_layer, 0, o->op.kv_heads, 1};
        plan_add_part(p, o->name, 0, o->op.n, 1);
        if (streams && op_weight_use(&o->op) == WEIGHT_MATRIX)
            p->parts[p->n_parts - 1].home = 0;
    }
}

/* Logits of a prompt, and of tokens one by one behind it. */
static float *answer_of(struct engine *e, int32_t vocab)
{
    const size_t row = (size_t)vocab;
    int32_t ids[PROMPT + ANSWER], seq;
    struct oato_error err;
    fill_ids(ids, PROMPT + ANSWER, vocab, 5);
    float *all = realloc(logits_of(e, ids, PROMPT), (PROMPT + ANSWER) * row * sizeof *all);
    assert_non_null(all);
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, PROMPT, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < ANSWER; i++) {
        struct engine_input in = {seq, &ids[PROMPT + i], 1, LOGITS_LAST, false};
        if (engine_step(e, &in, 1, &err))
            fail_msg("%s", err.text);
        memcpy(all + (PROMPT + (size_t)i) * row, engine_logits(e, 0), row * sizeof *all);
    }
    engine_seq_free(e, seq);
    return all;
}

static void streamed_weights_give_the_bits_of_resident_ones(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        oato_dtype dtype;
    } models[] = {{"llama", DT_Q4_K}, {"llama", DT_Q8_0}, {"qwen3moe", DT_Q4_1}};
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct model *m = tiny_model_of(models[i].architecture, models[i].dtype, i);
        const struct engine_options options = {.threads = 1, .rows = 16, .ubatch = 16};
        float *logits[2];
        uint64_t weight_bytes[2];
        struct plan p;
        struct graph fused;
        plan_begin(&p, m, 1, "");
        snprintf(p.devices[1].kind, sizeof p.devices[1].kind, "cuda");
        snprintf(p.devices[1].id, sizeof p.devices[1].id, "cuda:0");
        plan_fuse_all(&p, m, &fused);
        for (int streams = 0; streams < 2; streams++) {
            struct engine_stats stats;
            plan_on_gpu(&p, &fused, streams);
            struct engine *e = open_engine(m, &p, options);
            logits[streams] = answer_of(e, m->shape.vocab);
            engine_get_stats(e, &stats);
            weight_bytes[streams] = stats.device[1].weight_bytes;
            assert_int_equal(stats.device[1].staging_bytes > 0, streams);
            assert_int_equal(stats.stream_bytes[PHASE_DECODE] > 0, streams);
            engine_close(e);
        }
        assert_true(weight_bytes[1] < weight_bytes[0]);
        assert_same_bits(logits[0], logits[1], (PROMPT + ANSWER) * (size_t)m->shape.vocab);
        free(logits[0]);
        free(logits[1]);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

/* All of the model on two GPUs, operator by operator in turns but for what touches KV. */
static void plan_on_two(struct plan *p, const struct graph *g)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const bool kv = o->op.kind == OP_KV_STORE || o->op.kind == OP_ATTENTION;
        if (o->op.kind == OP_KV_STORE)
            p->kv[p->n_kv++] =
                (struct plan_kv){o->kv_layer, 0, o->op.kv_heads, 1 + o->kv_layer % 2};
        plan_add_part(p, o->name, 0, o->op.n, kv ? 1 + o->kv_layer % 2 : 1 + i % 2);
    }
}

static bool goes_directly(const struct engine *e)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    engine_dump_programs(e, out);
    fclose(out);
    const bool direct = strstr(text, " peer ") != NULL;
    free(text);
    return direct;
}

static void two_gpus_give_the_bits_of_one(void **state)
{
    (void)state;
    setenv("OATO_CUDA_ON_CPU_DEVICES", "2", 1);
    const bool emulated = getenv("OATO_CUDA_DRIVER") != NULL;
    struct model *m = tiny_model_of("qwen3moe", DT_Q8_0, 3);
    const struct engine_options options = {.threads = 1, .rows = 16, .ubatch = 16};
    float *logits[3];
    int ways = 0;
    for (; ways < 3 && cuda_device_ops.probe() > 1; ways++) { /* one GPU, directly, by the host */
        struct plan p;
        struct graph fused;
        plan_begin(&p, m, 2, "");
        for (int d = 1; d < 3; d++) {
            snprintf(p.devices[d].kind, sizeof p.devices[d].kind, "cuda");
            snprintf(p.devices[d].id, sizeof p.devices[d].id, "cuda:%d", d - 1);
        }
        plan_fuse_all(&p, m, &fused);
        if (ways)
            plan_on_two(&p, &fused);
        else
            plan_on_gpu(&p, &fused, false);
        setenv("OATO_CUDA_ON_CPU_PEERS", ways == 2 ? "0" : "1", 1);
        struct engine *e = open_engine(m, &p, options);
        if (emulated)
            assert_int_equal(goes_directly(e), ways == 1);
        logits[ways] = answer_of(e, m->shape.vocab);
        engine_close(e);
        graph_free(&fused);
        plan_free(&p);
    }
    unsetenv("OATO_CUDA_ON_CPU_PEERS");
    unsetenv("OATO_CUDA_ON_CPU_DEVICES");
    assert_true(ways == 3 || !emulated);
    for (int i = 0; i < ways; i++)
        assert_same_bits(logits[0], logits[i], (PROMPT + ANSWER) * (size_t)m->shape.vocab);
    for (int i = 0; i < ways; i++)
        free(logits[i]);
    model_close(m);
}

int main(void)
{
    struct oato_error err;
    struct oato_device *d;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_weights_give_the_bits_of_resident_ones),
        cmocka_unit_test(two_gpus_give_the_bits_of_one),
    };
    if (device_open("cuda", 0, NULL, &d, &err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    d->ops->close(d);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
