/*
 * test_gguf_hash.c - a model's hashes change with what they identify and with nothing else.
 */
#include "tests/models/gguf_testing.h"

/* What the structure hash of a tiny model is when one thing about it is different. */
enum change {
    NOTHING,
    KEY_ORDER,
    TENSOR_ORDER,
    TEMPLATE,
    INTEGER_TYPE,
    FLOAT_TYPE,
    SPLIT_KEYS,
    NAME_KEY,
    STRING_HYPER,
    OTHER_PREFIX, /* the same model up to here */
    WIDTH,
    EPSILON,
    ARCHITECTURE,
    NEW_HYPER,
    FLAG_HYPER,
    ARRAY_HYPER,
    TENSOR_NAME,
    TENSOR_TYPE,
    TENSOR_SHAPE,
    TENSOR_GONE,
    CHANGES
};

static void add_keys(struct gguf_writer *w, enum change c)
{
    const char *arch = c == ARCHITECTURE ? "b" : "a";
    uint32_t width = c == WIDTH ? 65 : 64;
    float eps = c == EPSILON ? 0.5f : 0.25f;
    gguf_writer_string(w, "general.architecture", arch);
    gguf_writer_string(w, "tokenizer.chat_template", c == TEMPLATE ? "new" : "old");
    gguf_writer_string(w, "general.name", c == NAME_KEY ? "new" : "old");
    if (c == INTEGER_TYPE)
        gguf_writer_scalar(w, "a.width", GGUF_I64, &(int64_t){64});
    else
        gguf_writer_scalar(w, "a.width", GGUF_U32, &width);
    if (c == FLOAT_TYPE)
        gguf_writer_scalar(w, "a.eps", GGUF_F64, &(double){0.25});
    else
        gguf_writer_scalar(w, "a.eps", GGUF_F32, &eps);
    gguf_writer_scalar(w, "a.large", GGUF_U64, &(uint64_t){UINT64_MAX});
    if (c == SPLIT_KEYS)
        gguf_writer_scalar(w, "split.count", GGUF_U16, &(uint16_t){1});
    if (c == STRING_HYPER)
        gguf_writer_string(w, "a.rope.scaling.type", "none");
    if (c == OTHER_PREFIX)
        gguf_writer_scalar(w, "ab.width", GGUF_U32, &(uint32_t){1});
    if (c == NEW_HYPER)
        gguf_writer_scalar(w, "a.heads", GGUF_U32, &(uint32_t){4});
    if (c == FLAG_HYPER)
        gguf_writer_scalar(w, "a.flag", GGUF_BOOL, &(uint8_t){1});
    if (c == ARRAY_HYPER)
        gguf_writer_array(w, "a.width", GGUF_U32, (uint32_t[]){64, 64}, 2);
}

static uint64_t changed_hash(enum change c)
{
    struct gguf_writer *w = gguf_writer_create();
    int64_t ne[2] = {32, c == TENSOR_SHAPE ? 3 : 2};
    if (c == KEY_ORDER)
        gguf_writer_scalar(w, "a.eps", GGUF_F32, &(float){0.25f});
    add_keys(w, c);
    if (c == TENSOR_ORDER)
        gguf_writer_tensor(w, "y", DT_F32, 1, ne, NULL);
    gguf_writer_tensor(w, c == TENSOR_NAME ? "z" : "x", c == TENSOR_TYPE ? DT_F16 : DT_F32, 2, ne,
                       NULL);
    if (c != TENSOR_ORDER && c != TENSOR_GONE)
        gguf_writer_tensor(w, "y", DT_F32, 1, ne, NULL);
    save_or_fail(w, at("hash.gguf"));
    struct gguf *g = open_or_fail(at("hash.gguf"));
    uint64_t h = gguf_structure_hash(g);
    gguf_close(g);
    return h;
}

static void the_structure_hash_sees_shapes_only(void **state)
{
    (void)state;
    uint64_t same = changed_hash(NOTHING), seen[CHANGES];
    for (int c = 0; c < CHANGES; c++) {
        seen[c] = changed_hash((enum change)c);
        if ((seen[c] == same) != (c < WIDTH))
            fail_msg("change %d: hash %s", c, seen[c] == same ? "is the same" : "differs");
        for (int d = WIDTH; d < c; d++)
            assert_true(seen[d] != seen[c]);
    }
}

static void the_content_hash_sees_the_samples(void **state)
{
    (void)state;
    enum { ELEMENTS = 40000 };
    float *data = calloc(ELEMENTS, sizeof *data);
    static const size_t changed[] = {0, ELEMENTS / 2, ELEMENTS - 1};
    uint64_t hashes[1 + ARRAY_LEN(changed)];
    for (size_t i = 0; i < ARRAY_LEN(hashes); i++) {
        if (i)
            data[changed[i - 1]] = 1;
        struct gguf_writer *w = gguf_writer_create();
        gguf_writer_string(w, "general.name", i ? "b" : "a");
        gguf_writer_tensor(w, "t", DT_F32, 1, (int64_t[]){ELEMENTS}, data);
        save_or_fail(w, at("a.gguf"));
        struct gguf *g = open_or_fail(at("a.gguf"));
        hashes[i] = gguf_content_hash(g);
        gguf_close(g);
        for (size_t j = 0; j < i; j++)
            assert_true(hashes[i] != hashes[j]);
    }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(the_structure_hash_sees_shapes_only),
        FOLDER_TEST(the_content_hash_sees_the_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
