/*
 * test_make_model.c - oato-make-model writes the model that its options describe, the same bytes
 * each time, and refuses what is no model with one line and status 2.
 */
#include "tests/models/gguf_testing.h"

#include <sys/wait.h>

/* Runs the program in the folder; returns its status and the first line that it printed. */
static int run(const char *arguments, char line[512])
{
    char command[1024];
    snprintf(command, sizeof command, "cd '%s' && '%s' %s 2>&1", test_folder, OATO_MAKE_MODEL,
             arguments);
    FILE *f = popen(command, "r"); // NOLINT(bugprone-command-processor)
    assert_non_null(f);
    line[0] = 0;
    if (!fgets(line, 512, f))
        line[0] = 0;
    char rest[512];
    while (fgets(rest, sizeof rest, f))
        continue;
    int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void options_shape_the_model(void **state)
{
    (void)state;
    char line[512];
    int64_t n = 0;
    assert_int_equal(run("--arch qwen2 --layers 3 --width 256 --ffn 512 --heads 8 --kv-heads 2 "
                         "--vocab 400 --type Q6_K --context 2048 --seed 7 --tied -o a.gguf",
                         line),
                     0);
    assert_string_equal(line, "");
    struct gguf *g = open_or_fail(at("a.gguf"));
    assert_true(gguf_get_i64(g, "qwen2.block_count", &n) && n == 3);
    assert_true(gguf_get_i64(g, "qwen2.context_length", &n) && n == 2048);
    assert_null(gguf_tensor(g, "output.weight"));
    assert_int_equal(gguf_tensor(g, "token_embd.weight")->ne[1], 400);
    assert_int_equal(gguf_tensor(g, "blk.2.ffn_down.weight")->dtype, DT_Q6_K);
    assert_int_equal(gguf_tensor(g, "blk.2.attn_k.bias")->ne[0], 64);
    gguf_close(g);
}

static void experts_are_tensors_of_three_dimensions(void **state)
{
    (void)state;
    char line[512];
    int64_t n = 0;
    assert_int_equal(
        run("--arch qwen3moe --width 256 --ffn 96 --heads 2 --head-dim 64 --kv-heads 1 "
            "--experts 8 --experts-used 3 --type Q4_0 a.gguf",
            line),
        0);
    assert_string_equal(line, "");
    struct gguf *g = open_or_fail(at("a.gguf"));
    assert_true(gguf_get_i64(g, "qwen3moe.expert_count", &n) && n == 8);
    assert_true(gguf_get_i64(g, "qwen3moe.expert_used_count", &n) && n == 3);
    assert_true(gguf_get_i64(g, "qwen3moe.attention.key_length", &n) && n == 64);
    const struct gguf_tensor *down = gguf_tensor(g, "blk.1.ffn_down_exps.weight");
    assert_int_equal(down->n_dims, 3);
    assert_int_equal(down->ne[0], 96);
    assert_int_equal(down->ne[1], 256);
    assert_int_equal(down->ne[2], 8);
    assert_int_equal(down->dtype, DT_Q4_0);
    assert_int_equal(gguf_tensor(g, "blk.1.ffn_gate_inp.weight")->dtype, DT_F32);
    assert_int_equal(gguf_tensor(g, "blk.1.attn_q_norm.weight")->ne[0], 64);
    gguf_close(g);
    assert_int_equal(run("--shape qwen3-235b-a22b --layers 3 --type Q4_K_M --header-only "
                         "--no-tokenizer b.gguf",
                         line),
                     0);
    g = open_or_fail(at("b.gguf"));
    assert_true(gguf_get_i64(g, "qwen3moe.block_count", &n) && n == 3);
    assert_int_equal(gguf_tensor(g, "blk.2.ffn_up_exps.weight")->ne[2], 128);
    gguf_close(g);
}

/* The layers that llama-quantize favours in a model of 16, as its own files have them. */
static void mixes_give_more_bits_to_the_same_matrices_as_llama_quantize(void **state)
{
    (void)state;
    static const char favoured[] = "1100100100100111";
    static const char *const wide[] = {"attn_v", "ffn_down"};
    static const char *const narrow[] = {"attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"};
    static const struct {
        const char *arguments, *name, *output;
        oato_dtype dtype;
        int64_t file_type;
    } rows[] = {{"--type Q4_K_M --tied", "tied.gguf", "token_embd.weight", DT_Q4_K, 15},
                {"--type Q5_K_M", "untied.gguf", "output.weight", DT_Q5_K, 17}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char line[512], command[128], name[64];
        int64_t file_type = 0;
        snprintf(command, sizeof command, "%s --layers 16 --width 256 --ffn 256 %s",
                 rows[i].arguments, rows[i].name);
        assert_int_equal(run(command, line), 0);
        struct gguf *g = open_or_fail(at(rows[i].name));
        assert_true(gguf_get_i64(g, "general.file_type", &file_type));
        assert_int_equal(file_type, rows[i].file_type);
        assert_int_equal(gguf_tensor(g, rows[i].output)->dtype, DT_Q6_K);
        for (int layer = 0; layer < 16; layer++) {
            for (size_t w = 0; w < ARRAY_LEN(wide); w++) {
                snprintf(name, sizeof name, "blk.%d.%s.weight", layer, wide[w]);
                assert_int_equal(gguf_tensor(g, name)->dtype,
                                 favoured[layer] == '1' ? DT_Q6_K : rows[i].dtype);
            }
            for (size_t n = 0; n < ARRAY_LEN(narrow); n++) {
                snprintf(name, sizeof name, "blk.%d.%s.weight", layer, narrow[n]);
                assert_int_equal(gguf_tensor(g, name)->dtype, rows[i].dtype);
            }
        }
        gguf_close(g);
    }
}

static void rows_without_whole_blocks_get_smaller_ones(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        oato_dtype dtype;
    } rows[] = {{"--type Q4_K a.gguf", DT_Q5_0},     {"--type Q5_K a.gguf", DT_Q5_1},
                {"--type Q6_K a.gguf", DT_Q8_0},     {"--type Q2_K a.gguf", DT_Q4_0},
                {"--type IQ4_XS a.gguf", DT_IQ4_NL}, {"--type Q4_0 --width 48 a.gguf", DT_F16}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char line[512];
        assert_int_equal(run(rows[i].arguments, line), 0);
        struct gguf *g = open_or_fail(at("a.gguf"));
        assert_int_equal(gguf_tensor(g, "blk.0.attn_q.weight")->dtype, rows[i].dtype);
        gguf_close(g);
    }
}

static void seeds_split_and_header_only_do_as_they_say(void **state)
{
    (void)state;
    char line[512];
    assert_int_equal(run("--type Q4_0 one.gguf", line), 0);
    assert_int_equal(run("--type Q4_0 --seed 2 two.gguf", line), 0);
    assert_int_equal(run("--type Q4_0 --split 4 many.gguf", line), 0);
    assert_int_equal(run("--type Q4_0 --header-only --no-tokenizer head.gguf", line), 0);
    struct gguf *one = open_or_fail(at("one.gguf")), *two = open_or_fail(at("two.gguf"));
    struct gguf *many = open_or_fail(at("many-00003-of-00004.gguf")),
                *head = open_or_fail(at("head.gguf"));
    assert_true(gguf_content_hash(one) == gguf_content_hash(many));
    assert_true(gguf_content_hash(one) != gguf_content_hash(two));
    assert_true(gguf_structure_hash(one) == gguf_structure_hash(two));
    assert_true(gguf_structure_hash(one) == gguf_structure_hash(head));
    assert_true(gguf_header_only(head));
    assert_null(gguf_find(head, "tokenizer.ggml.tokens"));
    gguf_close(one);
    gguf_close(two);
    gguf_close(many);
    gguf_close(head);
}

static void mistakes_are_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *says;
        int status;
    } rows[] = {
        {"", "name the file", 2},
        {"--type Q9 a.gguf", "--type: 'Q9'", 2},
        {"--type I32 a.gguf", "--type: 'I32'", 2},
        {"--seed -1 a.gguf", "--seed: '-1'", 2},
        {"--layers 0 a.gguf", "--layers: '0'", 2},
        {"--laiers 1 a.gguf", "did you mean '--layers'", 2},
        {"--arch gtp2 a.gguf", "architecture 'gtp2'", 2},
        {"--shape 9b a.gguf", "--shape: '9b'", 2},
        {"--arch qwen3moe a.gguf", "key qwen3moe.expert_count is missing", 2},
        {"--arch qwen3moe --experts 4 --experts-used 5 a.gguf",
         "expert_used_count is 5; allowed: 1 to 4", 2},
        {"--head-dim 33 a.gguf", "head's even dimension", 2},
        {"--vocab 100 a.gguf", "--no-tokenizer", 2},
        {"--layers 1000 --width 32768 --heads 64 --ffn 262144 a.gguf", "MB are free there", 6},
        {"none/a.gguf", "none/a.gguf", 6},
        {"--help", "usage: oato-make-model", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char line[512];
        assert_int_equal(run(rows[i].arguments, line), rows[i].status);
        if (!strstr(line, rows[i].says))
            fail_msg("'%s' does not say '%s'", line, rows[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(options_shape_the_model),
        FOLDER_TEST(experts_are_tensors_of_three_dimensions),
        FOLDER_TEST(mixes_give_more_bits_to_the_same_matrices_as_llama_quantize),
        FOLDER_TEST(rows_without_whole_blocks_get_smaller_ones),
        FOLDER_TEST(seeds_split_and_header_only_do_as_they_say),
        FOLDER_TEST(mistakes_are_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
