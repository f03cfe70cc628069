/*
 * test_neurons_refused.c - contradictory sidecars are refused with one line, and never written.
 */
#include "random_planfmt.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int teardown(void **state)
{
    (void)state;
    scratch_clean();
    return 0;
}

static void expect_refused(const char *name, const char *words)
{
    struct neurons n;
    struct oato_error err = {.text = ""};
    assert_int_equal(neurons_load(scratch_path(name), &n, &err), OATO_EFILE);
    if (!strstr(err.text, words) || !strstr(err.text, name) || strchr(err.text, '\n'))
        fail_msg("not one line with '%s' and the name: %s", words, err.text);
}

/* A sidecar by hand, still without tensors. */
static struct gguf_writer *craft(uint32_t version)
{
    struct gguf_writer *w = gguf_writer_create();
    const uint64_t one = 1;
    assert_non_null(w);
    gguf_writer_string(w, "general.architecture", "oato.neurons");
    gguf_writer_scalar(w, "oato.neurons.version", GGUF_U32, &version);
    gguf_writer_scalar(w, "oato.neurons.structure_hash", GGUF_U64, &one);
    gguf_writer_scalar(w, "oato.neurons.content_hash", GGUF_U64, &one);
    gguf_writer_scalar(w, "oato.neurons.tokens", GGUF_U64, &one);
    return w;
}

static void craft_tensor(struct gguf_writer *w, const char *name, oato_dtype dtype, int64_t n,
                         const void *data)
{
    gguf_writer_tensor(w, name, dtype, 1, &n, data);
}

static void expect_crafted(struct gguf_writer *w, const char *words)
{
    struct oato_error err;
    if (gguf_writer_save(w, scratch_path("crafted.neurons.gguf"), &err))
        fail_msg("%s", err.text);
    gguf_writer_free(w);
    expect_refused("crafted.neurons.gguf", words);
}

static void tensors_that_say_nonsense_are_refused(void **state)
{
    (void)state;
    static const float fine[4] = {0, 1, 0.5F, 0.25F}, high[4] = {0, 1, 1.5F, 0},
                       nan[4] = {0, 0, 0, NAN};
    static const int32_t order[4] = {2, 0, 3, 1}, twice[4] = {2, 0, 2, 1}, beyond[4] = {0, 1, 2, 4};
    static const struct {
        const char *name;
        oato_dtype dtype;
        const void *data;
        const char *words;
    } cases[] = {
        {"blk.0.ffn_predictor", DT_F32, fine, "no tensor blk.N.ffn_freq"},
        {"blk.00.ffn_freq", DT_F32, fine, "no tensor blk.N.ffn_freq"},
        {"blk.5000.ffn_freq", DT_F32, fine, "0 to 4095"},
        {"blk.0.ffn_freq", DT_F32, NULL, "it has a header but no data"},
        {"blk.0.ffn_freq", DT_I32, order, "allowed: one dimension of F32"},
        {"blk.0.ffn_freq", DT_F32, high, "blk.0.ffn_freq: element 2 is 1.5"},
        {"blk.3.exp_freq", DT_F32, nan, "blk.3.exp_freq: element 3 is"},
        {"blk.0.ffn_order", DT_I32, twice, "blk.0.ffn_order: entry 2 is 2"},
        {"blk.0.ffn_order", DT_I32, beyond, "blk.0.ffn_order: entry 3 is 4"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct gguf_writer *w = craft(1);
        craft_tensor(w, cases[i].name, cases[i].dtype, 4, cases[i].data);
        expect_crafted(w, cases[i].words);
    }
    struct gguf_writer *w = craft(1);
    gguf_writer_tensor(w, "blk.0.ffn_freq", DT_F32, 2, (const int64_t[]){2, 2}, fine);
    expect_crafted(w, "allowed: one dimension");
    w = craft(1);
    craft_tensor(w, "blk.0.ffn_order", DT_I32, 4, order);
    craft_tensor(w, "blk.0.ffn_freq", DT_F32, 4, fine);
    expect_crafted(w, "both frequencies and an order");
    w = craft(1);
    craft_tensor(w, "blk.0.ffn_freq", DT_F32, 4, fine);
    craft_tensor(w, "blk.0.predict_up", DT_F32, 4, fine);
    expect_crafted(w, "blk.0.predict_up: type F32 and 1 dimensions");
    w = craft(1);
    craft_tensor(w, "blk.0.ffn_freq", DT_F32, 4, fine);
    craft_tensor(w, "blk.0.predict_bias", DT_F32, 4, fine);
    expect_crafted(w, "lacks its predict_down");
}

static void counts_that_say_nonsense_are_refused(void **state)
{
    (void)state;
    static float rising[NEURONS_QUANTILES], falls[NEURONS_QUANTILES], nan[NEURONS_QUANTILES];
    static int64_t fine[NEURONS_BINS], negative[NEURONS_BINS], huge[NEURONS_BINS];
    static const float freq[4] = {0, 1, 0.5F, 0.25F};
    for (int i = 0; i < NEURONS_QUANTILES; i++)
        rising[i] = falls[i] = nan[i] = (float)i;
    falls[50] = 48;
    nan[3] = NAN;
    negative[7] = -1;
    huge[1] = huge[2] = INT64_MAX;
    const struct {
        const char *name, *second;
        oato_dtype dtype;
        int64_t n;
        const void *data, *data2;
        const char *words;
    } cases[] = {
        {"blk.0.ffn_act_quantiles", NULL, DT_F32, NEURONS_QUANTILES, falls, NULL,
         "blk.0.ffn_act_quantiles: element 50 is 48 after 49"},
        {"blk.0.ffn_act_quantiles", NULL, DT_F32, NEURONS_QUANTILES, nan, NULL, "element 3 is"},
        {"blk.0.ffn_act_quantiles", NULL, DT_F32, 4, rising, NULL, "one dimension of 101 F32"},
        {"blk.0.ffn_act_quantiles", NULL, DT_I32, NEURONS_QUANTILES, rising, NULL, "type I32"},
        {"blk.1.attn_q.in_quantiles", NULL, DT_F32, NEURONS_QUANTILES, rising, NULL,
         "in a layer with neurons"},
        {"blk.0.ffn_up.in_shares", NULL, DT_F32, NEURONS_QUANTILES, rising, NULL,
         "no longer reads; remove the file and count anew with oato-profile --calibrate TEXT"},
        {"blk.0.ffn_act_counts", NULL, DT_I64, NEURONS_BINS, fine, NULL, "does not follow"},
        {"blk.0.ffn_act_quantiles", "blk.0.ffn_up_counts", DT_F32, NEURONS_QUANTILES, rising, fine,
         "does not follow"},
        {"blk.0.ffn_act_quantiles", "blk.0.ffn_act_counts", DT_F32, NEURONS_QUANTILES, rising,
         negative, "blk.0.ffn_act_counts: element 7 is -1"},
        {"blk.0.ffn_act_quantiles", "blk.0.ffn_act_counts", DT_F32, NEURONS_QUANTILES, rising, huge,
         "blk.0.ffn_act_counts: element 1 is"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct gguf_writer *w = craft(1);
        craft_tensor(w, "blk.0.ffn_freq", DT_F32, 4, freq);
        craft_tensor(w, cases[i].name, cases[i].dtype, cases[i].n, cases[i].data);
        if (cases[i].second)
            craft_tensor(w, cases[i].second, DT_I64, NEURONS_BINS, cases[i].data2);
        expect_crafted(w, cases[i].words);
    }
    static const struct {
        const char *key;
        float value;
        const char *words;
    } numbers[] = {{"oato.neurons.level", NAN, "level is"},
                   {"oato.neurons.level", 2, "level is 2"},
                   {"oato.neurons.ffn_threshold", 1, "not an array of 1 float32"},
                   {"oato.neurons.text_hash", 1, "text_hash is a FLOAT32, wanted a UINT64"}};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        struct gguf_writer *w = craft(1);
        gguf_writer_scalar(w, numbers[i].key, GGUF_F32, &numbers[i].value);
        craft_tensor(w, "blk.0.ffn_freq", DT_F32, 4, freq);
        expect_crafted(w, numbers[i].words);
    }
    struct gguf_writer *w = craft(1);
    gguf_writer_array(w, "oato.neurons.ffn_threshold", GGUF_F32, &(float){-1}, 1);
    craft_tensor(w, "blk.0.ffn_freq", DT_F32, 4, freq);
    expect_crafted(w, "the threshold of its neurons is -1");
}

/* A sidecar whose only mistake is in its keys. */
static struct gguf_writer *craft_fine(uint32_t version)
{
    static const int32_t order[4] = {2, 0, 3, 1};
    struct gguf_writer *w = craft(version);
    craft_tensor(w, "blk.1.ffn_order", DT_I32, 4, order);
    return w;
}

static void keys_that_say_nonsense_are_refused(void **state)
{
    (void)state;
    static const int32_t hot[2] = {0, 5};
    static const uint64_t sum = 1;
    expect_crafted(craft_fine(2), "this program reads 1");
    struct gguf_writer *w = craft_fine(1);
    gguf_writer_string(w, "general.architecture", "llama");
    expect_crafted(w, "'llama', not 'oato.neurons'");
    w = craft_fine(1);
    gguf_writer_string(w, "oato.neurons.tokens", "many");
    expect_crafted(w, "oato.neurons.tokens");
    w = craft_fine(1);
    gguf_writer_array(w, "oato.neurons.ffn_hot", GGUF_I32, hot, 2);
    expect_crafted(w, "5 hot neurons of 4");
    w = craft_fine(1);
    gguf_writer_array(w, "oato.neurons.ffn_hot", GGUF_I32, hot, 1);
    expect_crafted(w, "array of 2 int32");
    w = craft_fine(1);
    gguf_writer_scalar(w, "oato.neurons.checksum", GGUF_U64, &sum);
    expect_crafted(w, "damaged");
}

static void wrong_ones_are_not_written(void **state)
{
    (void)state;
    struct neurons n;
    struct neurons_layer l[2] = {{.n_ff = 2, .ffn_freq = (const float[]){0, 2}}};
    struct oato_error err;
    neurons_init(&n);
    const int before = scratch_files();
    assert_int_equal(neurons_save(&n, scratch_path("none.gguf"), &err), OATO_EUSAGE);
    n.layers = l;
    n.n_layers = 1;
    assert_int_equal(neurons_save(&n, scratch_path("none.gguf"), &err), OATO_EUSAGE);
    l[0].ffn_freq = (const float[]){0, 1};
    n.n_layers = 2;
    assert_int_equal(neurons_save(&n, scratch_path("none.gguf"), &err), OATO_EUSAGE);
    assert_int_equal(scratch_files(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_that_say_nonsense_are_refused),
        cmocka_unit_test(counts_that_say_nonsense_are_refused),
        cmocka_unit_test(keys_that_say_nonsense_are_refused),
        cmocka_unit_test(wrong_ones_are_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
