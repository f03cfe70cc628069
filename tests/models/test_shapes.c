/*
 * test_shapes.c - shapes are those of the models that they name: their files take what public ones
 * take and have as many tensors, a random model of a shape has its structure, and a data file with
 * a mistake is refused with its line.
 */
#include "tests/models/gguf_testing.h"
#include "tests/models/random_model.h"

static struct gguf *open_shape(const char *name)
{
    struct shape_spec s;
    struct oato_error err;
    struct gguf *g = NULL;
    if (shape_find(name, &s, &err) || shape_open(&s, &g, &err))
        fail_msg("%s: %s", name, err.text);
    return g;
}

/* From the pages of those who publish the files (bartowski, ggml-org, unsloth, ubergarm on Hugging
 * Face; Ollama), and what llama.cpp prints when it loads them. */
static void files_are_as_large_as_public_ones(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double gb;
    } rows[] = {{"llama-3.1-8b:Q2_K", 3.18},
                {"llama-3.1-8b:Q3_K_S", 3.66},
                {"llama-3.1-8b:Q3_K_M", 4.02},
                {"llama-3.1-8b:Q3_K_L", 4.32},
                {"llama-3.1-8b:IQ4_XS", 4.45},
                {"llama-3.1-8b:Q4_K_S", 4.69},
                {"llama-3.1-8b:Q4_K_M", 4.92},
                {"llama-3.1-8b:Q5_K_S", 5.60},
                {"llama-3.1-8b:Q5_K_M", 5.73},
                {"llama-3.1-8b:Q6_K", 6.60},
                {"llama-3.1-8b:Q8_0", 8.54},
                {"llama-3.2-3b:Q4_K_M", 2.019377696},
                {"llama-3.3-70b:Q4_K_M", 42.52},
                {"qwen3-4b:Q4_0", 2.38},
                {"qwen3-4b:Q4_1", 2.60},
                {"qwen3-4b:Q4_K_S", 2.38},
                {"qwen3-4b:Q4_K_M", 2.50},
                {"qwen3-4b:Q5_K_S", 2.82},
                {"qwen3-4b:Q5_K_M", 2.89},
                {"qwen3-4b:Q6_K", 3.31},
                {"qwen3-4b:Q8_0", 4.28},
                {"qwen3-4b:BF16", 8.05},
                {"qwen3-8b:Q4_K_M", 5.03},
                {"qwen3-14b:Q4_K_M", 9.00},
                {"qwen3-32b:Q4_K_M", 19.76},
                {"qwen3-32b:Q8_0", 34.82},
                {"qwen3-32b:BF16", 65.53},
                {"qwen3-30b-a3b:Q4_K_M", 18.56},
                {"qwen3-235b-a22b", 142.2},
                {"qwq-32b:Q4_K_M", 19.85},
                {"qwen2.5-72b:Q4_K_M", 47.42},
                {"gemma-3-4b:Q4_K_M", 2.49},
                {"gemma-3-12b:Q4_K_M", 7.30},
                {"gemma-3-27b:Q4_K_M", 16.55},
                {"mistral-small-24b", 14.33},
                {"gpt-oss-20b:mxfp4", 12.11},
                {"gpt-oss-120b:mxfp4", 63.37},
                {"deepseek-r1:Q4_K_M", 404},
                {"glm-4.5-air:Q4_K_M", 73.0},
                {"glm-4.5-air:Q8_0", 117.45},
                {"glm-4.5-air:BF16", 220.99},
                {"phi-4:Q4_0", 8.41},
                {"phi-4:Q4_K_S", 8.44},
                {"phi-4:Q4_K_M", 9.05},
                {"phi-4:Q4_1", 9.27},
                {"phi-4:Q5_K_S", 10.15},
                {"phi-4:Q5_K_M", 10.60},
                {"phi-4:Q6_K", 12.03},
                {"phi-4:Q8_0", 15.58},
                {"phi-4:F16", 29.32}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct gguf *g = open_shape(rows[i].name);
        const double gb = (double)gguf_data_bytes(g) * 1e-9;
        if (gb < 0.99 * rows[i].gb || gb > 1.01 * rows[i].gb)
            fail_msg("%s: %.3f GB, the file has %.3f", rows[i].name, gb, rows[i].gb);
        gguf_close(g);
    }
}

static void files_have_as_many_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t n;
    } rows[] = {{"llama-3.1-8b", 292}, {"qwen3-30b-a3b", 579}, {"gpt-oss-120b", 687},
                {"glm-4.5-air", 803},  {"deepseek-v3", 1086},  {"phi-4", 243}};
    size_t of_type[DT_COUNT] = {0};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct gguf *g = open_shape(rows[i].name);
        assert_int_equal(gguf_tensor_count(g), rows[i].n);
        for (size_t t = 0; !strcmp(rows[i].name, "gpt-oss-120b") && t < rows[i].n; t++)
            of_type[gguf_tensor_at(g, t)->dtype]++;
        gguf_close(g);
    }
    assert_int_equal(of_type[DT_F32], 433); /* as llama.cpp counts them */
    assert_int_equal(of_type[DT_Q8_0], 146);
    assert_int_equal(of_type[DT_MXFP4], 108);
}

/* Each shape is a model that runs, and the random one of the same name is the same. */
static void each_is_what_random_models_are_made_of(void **state)
{
    (void)state;
    const struct embedded_file *f;
    size_t n = 0;
    for (; (f = shape_file(n)); n++) {
        struct oato_error err;
        struct model *m, *made;
        struct random_model random = random_model_default();
        char name[64];
        snprintf(name, sizeof name, "%s:Q5_K_M", f->name);
        if (model_from_gguf(open_shape(name), &m, &err))
            fail_msg("%s: %s", name, err.text);
        assert_true(random_model_set_shape(&random, name));
        random.header_only = true;
        random.tokenizer = false;
        assert_int_equal(random_model_open(&random, &made, &err), OATO_OK);
        assert_true(gguf_structure_hash(m->gguf) == gguf_structure_hash(made->gguf));
        assert_true(gguf_header_only(m->gguf));
        model_close(m);
        model_close(made);
    }
    assert_true(n >= 12);
}

static void names_are_found_and_mistakes_listed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {{"llama-3.1-9b", "did you mean 'llama-3.1-8b'"},
                {"", "no shape ''"},
                {":Q4_K_M", "no shape ''"},
                {"phi-4:", "no type ''"},
                {"phi-4:Q4_K", "no type 'Q4_K' of files; there are:"},
                {"phi", "no shape 'phi'"}};
    struct shape_spec a, b;
    struct oato_error err;
    assert_int_equal(shape_find("DeepSeek-R1:q4_k_s", &a, &err), OATO_OK);
    assert_int_equal(shape_find("deepseek-v3:Q4_K_S", &b, &err), OATO_OK);
    assert_memory_equal(&a, &b, sizeof a);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(shape_find(rows[i].text, &a, &err), OATO_EUSAGE);
        if (!strstr(err.text, rows[i].says))
            fail_msg("'%s' does not say '%s'", err.text, rows[i].says);
    }
}

static void a_mistake_in_a_data_file_names_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {{"layers: 2\nlayer: 2\n", "line 2: 'layer"},
                {"layers: two\n", "line 1: 'layers"},
                {"tied: yes\n", "line 1"},
                {"least_v: Q9\n", "line 1"},
                {"title:\n", "line 1"},
                {"  rope.freq_base: 1.0\n", "line 1"},
                {"keys:\n  rope.freq_base:\n", "line 2"},
                {"keys: 2\n", "line 1"},
                {"no colon\n", "line 1"},
                {": 3\n", "line 1"},
                {"architecture: a-name-that-is-longer-than-any\n", "line 1"},
                {"type: Q9\n", "unknown type 'Q9'"}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct embedded_file f = {"x", (const uint8_t *)rows[i].text, strlen(rows[i].text)};
        struct shape_spec s;
        struct oato_error err;
        assert_int_equal(shape_parse(&f, &s, &err), OATO_EFILE);
        if (!strstr(err.text, rows[i].says))
            fail_msg("'%s' does not say '%s'", err.text, rows[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_as_large_as_public_ones),
        cmocka_unit_test(files_have_as_many_tensors),
        cmocka_unit_test(each_is_what_random_models_are_made_of),
        cmocka_unit_test(names_are_found_and_mistakes_listed),
        cmocka_unit_test(a_mistake_in_a_data_file_names_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
