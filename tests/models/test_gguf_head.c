/*
 * test_gguf_head.c - the beginning of a file is a header as soon as all keys and descriptions of
 * tensors are in it: what comes from it is the same as from the whole, until then it is said how
 * much is needed at least, and damage is no reason to fetch more.
 */
#include "tests/models/gguf_testing.h"
#include "tests/models/random_model.h"

/* A small model; the smallest number of its bytes that are a header. */
static size_t save_model(const char *name, int64_t parts)
{
    struct random_model m = random_model_default();
    struct oato_error err;
    struct mapped_file f;
    m.vocab = 300;
    m.dtype = DT_Q4_0;
    m.parts = parts;
    if (random_model_save(&m, at(name), &err) || parts > 1)
        return 0;
    assert_int_equal(file_map(at(name), &f, &err), OATO_OK);
    uint64_t needs = 1;
    size_t n = 0;
    while (needs) {
        assert_int_equal(gguf_head_needs(f.data, n, name, &needs, &err), OATO_OK);
        assert_true(!needs || (needs > n && needs <= f.bytes));
        n = needs ? needs : n;
    }
    file_unmap(&f);
    return n;
}

/* Its header as gguf_save_header has it. */
static void save_header(struct gguf *g, const char *name)
{
    struct oato_error err;
    if (gguf_save_header(g, at(name), &err))
        fail_msg("%s", err.text);
    gguf_close(g);
}

static void assert_same_bytes(const char *a, const char *b)
{
    struct oato_error err;
    struct mapped_file x, y;
    assert_int_equal(file_map(at(a), &x, &err), OATO_OK);
    assert_int_equal(file_map(at(b), &y, &err), OATO_OK);
    assert_int_equal(x.bytes, y.bytes);
    assert_memory_equal(x.data, y.data, x.bytes);
    file_unmap(&x);
    file_unmap(&y);
}

static void every_cut_says_what_it_needs(void **state)
{
    (void)state;
    struct oato_error err;
    struct mapped_file f;
    const size_t header = save_model("m.gguf", 1);
    assert_int_equal(file_map(at("m.gguf"), &f, &err), OATO_OK);
    assert_true(header > 1000 && header < f.bytes);
    for (size_t n = 0; n <= f.bytes; n++) {
        uint64_t needs;
        uint8_t *exact = malloc(n + 1); /* a sanitizer sees what is read behind it */
        memcpy(exact, f.data, n);
        assert_int_equal(gguf_head_needs(exact, n, "cut", &needs, &err), OATO_OK);
        free(exact);
        assert_true(n < header ? needs > n && needs <= header : needs == 0);
        n += n > header ? 997 : 0;
    }
    file_unmap(&f);
}

static void a_cut_file_gives_the_header_of_the_whole(void **state)
{
    (void)state;
    struct oato_error err;
    struct gguf *g;
    struct mapped_file f;
    const size_t header = save_model("m.gguf", 1);
    save_header(open_or_fail(at("m.gguf")), "whole.gguf");
    assert_int_equal(file_map(at("m.gguf"), &f, &err), OATO_OK);
    assert_int_equal(gguf_open_head_memory(f.data, header, "cut", &g, &err), OATO_OK);
    assert_true(gguf_header_only(g) && !gguf_tensor_at(g, 0)->data);
    save_header(g, "memory.gguf");
    assert_same_bytes("memory.gguf", "whole.gguf");
    file_unmap(&f);
    assert_int_equal(truncate(at("m.gguf"), (off_t)header), 0);
    assert_int_equal(gguf_open_head(at("m.gguf"), &g, &err), OATO_OK);
    save_header(g, "file.gguf");
    assert_same_bytes("file.gguf", "whole.gguf");
    assert_int_equal(gguf_open(at("m.gguf"), &g, &err), OATO_EFILE); /* it is no model */
    assert_int_equal(truncate(at("m.gguf"), (off_t)header - 1), 0);
    assert_int_equal(gguf_open_head(at("m.gguf"), &g, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "at least the first 0.01 MB are needed"));
}

static void of_a_split_model_each_part_is_needed(void **state)
{
    (void)state;
    static const char *const parts[] = {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"};
    struct oato_error err;
    struct gguf *g;
    save_model("m.gguf", 2);
    save_header(open_or_fail(at(parts[1])), "whole.gguf");
    for (int i = 0; i < 2; i++) {
        struct mapped_file f;
        uint64_t needs = 1;
        size_t n = 0;
        assert_int_equal(file_map(at(parts[i]), &f, &err), OATO_OK);
        for (; needs; n = needs ? needs : n)
            assert_int_equal(gguf_head_needs(f.data, n, "part", &needs, &err), OATO_OK);
        assert_int_equal(gguf_open_head_memory(f.data, n, "part", &g, &err), OATO_EFILE);
        assert_non_null(strstr(err.text, "of a split model: open it by its file name"));
        file_unmap(&f);
        assert_int_equal(truncate(at(parts[i]), (off_t)n), 0);
    }
    assert_int_equal(gguf_open_head(at(parts[0]), &g, &err), OATO_OK);
    save_header(g, "cut.gguf");
    assert_same_bytes("cut.gguf", "whole.gguf");
    assert_int_equal(truncate(at(parts[1]), 100), 0);
    assert_int_equal(gguf_open_head(at(parts[0]), &g, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "part 2 of 2 of a split model: "));
}

static void damage_is_no_reason_to_fetch_more(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
    } rows[] = {
        {"XGUF", 4},                                          /* magic */
        {"GGUF\4\0\0\0", 8},                                  /* version */
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\1\1\0\0\0\0\0\0\0", 24}, /* tensors */
        {"GGUF\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0", 24}, /* keys */
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0",
         38},                                           /* length of a key */
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0" /* of an array */
         "\1\0\0\0\0\0\0\0a\t\0\0\0\4\0\0\0\0\0\0\0\0\0\0\1",
         49},
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0" /* of strings */
         "\1\0\0\0\0\0\0\0a\t\0\0\0\b\0\0\0\0\0\0\0\0\0\0\1",
         49},
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0" /* type of a value */
         "\1\0\0\0\0\0\0\0a\15\0\0\0\0",
         38},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct oato_error err;
        uint64_t needs;
        if (gguf_head_needs(rows[i].bytes, rows[i].n, "bad", &needs, &err) != OATO_EFILE)
            fail_msg("row %zu needs %llu", i, (unsigned long long)needs);
        assert_int_equal(needs, 0);
        assert_int_equal(strncmp(err.text, "bad: ", 5), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(every_cut_says_what_it_needs),
        FOLDER_TEST(a_cut_file_gives_the_header_of_the_whole),
        FOLDER_TEST(of_a_split_model_each_part_is_needed),
        FOLDER_TEST(damage_is_no_reason_to_fetch_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
