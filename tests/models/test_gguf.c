/*
 * test_gguf.c - what is written is what is read, by us and by the gguf package; a split model is
 * one model.
 */
#include "tests/models/gguf_testing.h"
#include "tests/models/random_model.h"

static void assert_refused(const char *path, oato_status status, const char *part)
{
    struct oato_error err;
    struct gguf *g;
    assert_int_equal(gguf_open(path, &g, &err), status);
    assert_null(g);
    if (!strstr(err.text, part))
        fail_msg("'%s' does not say '%s'", err.text, part);
}

static void random_or_fail(const struct random_model *m, const char *path)
{
    struct oato_error err;
    if (random_model_save(m, path, &err))
        fail_msg("%s", err.text);
}

/* One key of every type, arrays, two tensors. */
static struct gguf_writer *sample_writer(const int32_t *ints, const uint8_t *q8)
{
    struct gguf_writer *w = gguf_writer_create();
    assert_non_null(w);
    gguf_writer_string(w, "general.architecture", "test");
    gguf_writer_scalar(w, "u8", GGUF_U8, &(uint8_t){200});
    gguf_writer_scalar(w, "i8", GGUF_I8, &(int8_t){-100});
    gguf_writer_scalar(w, "u16", GGUF_U16, &(uint16_t){60000});
    gguf_writer_scalar(w, "i16", GGUF_I16, &(int16_t){-30000});
    gguf_writer_scalar(w, "u32", GGUF_U32, &(uint32_t){4000000000u});
    gguf_writer_scalar(w, "i32", GGUF_I32, &(int32_t){-2000000000});
    gguf_writer_scalar(w, "u64", GGUF_U64, &(uint64_t){UINT64_MAX});
    gguf_writer_scalar(w, "i64", GGUF_I64, &(int64_t){INT64_MIN});
    gguf_writer_scalar(w, "f32", GGUF_F32, &(float){0.1f});
    gguf_writer_scalar(w, "f64", GGUF_F64, &(double){0.1});
    gguf_writer_scalar(w, "yes", GGUF_BOOL, &(uint8_t){1});
    gguf_writer_string(w, "text", "replaced below");
    gguf_writer_string(w, "empty", "");
    gguf_writer_array(w, "ints", GGUF_I16, (int16_t[]){-1, 2, 3}, 3);
    gguf_writer_array(w, "none", GGUF_F64, NULL, 0);
    gguf_writer_strings(w, "words", (struct gguf_string[]){{"a\0b", 3}, {"", 0}, {"xyz", 3}}, 3);
    gguf_writer_string(w, "text", "gr\xc3\xbc\xc3\x9f");
    gguf_writer_tensor(w, "first", DT_I32, 3, (int64_t[]){3, 5, 7}, ints);
    gguf_writer_tensor(w, "second", DT_Q8_0, 2, (int64_t[]){64, 2}, q8);
    return w;
}

static bool get_i64_at(const struct gguf *g, const char *key, uint64_t i, int64_t *out)
{
    const struct gguf_value *v = gguf_find(g, key);
    return v && gguf_value_i64(v, i, out);
}

/* Of a number, not of an array. */
static bool get_f64(const struct gguf *g, const char *key, double *out)
{
    const struct gguf_value *v = gguf_find(g, key);
    return v && v->type != GGUF_ARRAY && gguf_value_f64(v, 0, out);
}

static void check_numbers(const struct gguf *g)
{
    static const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"u8", 200},         {"i8", -100},         {"u16", 60000},    {"i16", -30000},
                {"u32", 4000000000}, {"i32", -2000000000}, {"i64", INT64_MIN}};
    int64_t n;
    double f = 0;
    bool b = false;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_true(gguf_get_i64(g, rows[i].key, &n));
        assert_true(n == rows[i].value);
        assert_true(get_f64(g, rows[i].key, &f));
        assert_true(f == (double)rows[i].value);
        assert_true(get_i64_at(g, rows[i].key, 9, &n));
        assert_false(gguf_get_bool(g, rows[i].key, &b));
    }
    assert_false(gguf_get_i64(g, "u64", &n)); /* does not fit */
    assert_false(gguf_get_i64(g, "f32", &n));
    assert_false(gguf_get_i64(g, "yes", &n));
    assert_false(gguf_get_i64(g, "text", &n));
    assert_false(gguf_get_i64(g, "ints", &n));
    assert_false(gguf_get_i64(g, "missing", &n));
    assert_false(get_i64_at(g, "missing", 0, &n));
    assert_false(get_f64(g, "missing", &f));
    assert_false(get_f64(g, "text", &f));
    assert_false(get_f64(g, "yes", &f));
    assert_false(get_f64(g, "ints", &f));
    assert_true(get_f64(g, "f32", &f));
    assert_true(f == (double)0.1f);
    assert_true(get_f64(g, "f64", &f));
    assert_true(f == 0.1);
    assert_true(gguf_get_bool(g, "yes", &b));
    assert_true(b);
    assert_false(gguf_get_bool(g, "missing", &b));
    assert_true(get_i64_at(g, "ints", 0, &n));
    assert_int_equal(n, -1);
    assert_true(get_i64_at(g, "ints", 2, &n));
    assert_int_equal(n, 3);
    assert_false(get_i64_at(g, "ints", 3, &n));
    assert_false(get_i64_at(g, "words", 0, &n));
    assert_int_equal(gguf_find(g, "none")->count, 0);
    assert_false(gguf_value_f64(gguf_find(g, "none"), 0, &f));
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    int32_t ints[105];
    uint8_t q8[4 * 34];
    struct gguf_string s;
    for (int i = 0; i < 105; i++)
        ints[i] = i * 1000;
    memset(q8, 42, sizeof q8);
    save_or_fail(sample_writer(ints, q8), at("a.gguf"));

    struct gguf *g = open_or_fail(at("a.gguf"));
    assert_string_equal(gguf_path(g), at("a.gguf"));
    assert_false(gguf_header_only(g));
    assert_int_equal(gguf_kv_count(g), 17);
    assert_string_equal(gguf_kv_key(g, 0), "general.architecture");
    assert_string_equal(gguf_kv_key(g, 12), "text"); /* where it was first set */
    assert_int_equal(gguf_kv_value(g, 1)->type, GGUF_U8);
    check_numbers(g);
    assert_true(gguf_get_string(g, "text", &s));
    assert_int_equal(s.len, 6);
    assert_memory_equal(s.data, "gr\xc3\xbc\xc3\x9f", 6);
    assert_true(gguf_get_string(g, "empty", &s));
    assert_int_equal(s.len, 0);
    assert_false(gguf_get_string(g, "u8", &s));
    assert_false(gguf_get_string(g, "words", &s));
    const struct gguf_value *words = gguf_find(g, "words");
    assert_int_equal(words->count, 3);
    assert_memory_equal(words->strings[0].data, "a\0b", 3);
    assert_int_equal(words->strings[1].len, 0);

    assert_int_equal(gguf_tensor_count(g), 2);
    const struct gguf_tensor *t = gguf_tensor(g, "second");
    assert_ptr_equal(t, gguf_tensor_at(g, 1));
    assert_int_equal(t->bytes, sizeof q8);
    assert_memory_equal(t->data, q8, sizeof q8);
    assert_int_equal(t->ne[2], 1);
    t = gguf_tensor(g, "first");
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3], 105);
    assert_memory_equal(t->data, ints, sizeof ints);
    assert_true(t->data >= t->file->data && t->data < t->file->data + t->file->bytes);
    assert_null(gguf_tensor(g, "third"));
    assert_int_equal(gguf_data_bytes(g), sizeof ints + sizeof q8);
    gguf_close(g);
    gguf_close(NULL);
}

static void copied_keys_leave_out_what_belongs_to_the_file(void **state)
{
    (void)state;
    struct random_model m = random_model_default();
    m.header_only = true;
    random_or_fail(&m, at("a.gguf"));
    struct gguf *a = open_or_fail(at("a.gguf"));
    struct gguf_writer *w = gguf_writer_create();
    gguf_writer_copy_kv(w, a);
    gguf_writer_string(w, "general.name", "copy");
    save_or_fail(w, at("b.gguf"));
    struct gguf *b = open_or_fail(at("b.gguf"));
    struct gguf_string s;
    assert_int_equal(gguf_kv_count(b), gguf_kv_count(a) - 1);
    assert_null(gguf_find(b, "oato.header_only"));
    assert_true(gguf_get_string(b, "general.name", &s));
    assert_memory_equal(s.data, "copy", 4);
    assert_int_equal(gguf_find(b, "tokenizer.ggml.tokens")->count, m.vocab);
    gguf_close(a);
    gguf_close(b);
}

static void alignment_is_obeyed(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {8, 64, 65536};
    float data[3] = {1, 2, 3};
    for (size_t i = 0; i < ARRAY_LEN(alignments); i++) {
        struct gguf_writer *w = gguf_writer_create();
        gguf_writer_scalar(w, "general.alignment", GGUF_U32, &alignments[i]);
        gguf_writer_tensor(w, "a", DT_F32, 1, (int64_t[]){3}, data);
        gguf_writer_tensor(w, "b", DT_F32, 1, (int64_t[]){3}, data);
        save_or_fail(w, at("a.gguf"));
        struct gguf *g = open_or_fail(at("a.gguf"));
        const struct gguf_tensor *b = gguf_tensor(g, "b");
        assert_int_equal((size_t)(b->data - b->file->data) % alignments[i], 0);
        assert_memory_equal(b->data, data, sizeof data);
        gguf_close(g);
    }
}

static void mistakes_are_told_when_saving(void **state)
{
    (void)state;
    static const float data[64];
    static const char longest[] = "012345678901234567890123456789012345678901234567890123456789012";
    for (int kind = 0; kind < 12; kind++) {
        struct gguf_writer *w = gguf_writer_create();
        struct oato_error err = {0};
        int64_t ne[5] = {32, 2, 1, 1, 1};
        gguf_writer_tensor(w, longest, DT_F32, 2, ne, data); /* 63 bytes are allowed */
        switch (kind) {
        case 0: gguf_writer_tensor(w, longest, DT_F32, 2, ne, data); break;
        case 1: gguf_writer_tensor(w, "", DT_F32, 2, ne, data); break;
        case 2: gguf_writer_tensor(w, "b", DT_F32, 5, ne, data); break;
        case 3: gguf_writer_tensor(w, "b", DT_F32, 0, ne, data); break;
        case 4: gguf_writer_tensor(w, "b", DT_Q4_K, 2, ne, data); break;
        case 5: gguf_writer_tensor(w, "b", (oato_dtype)4, 2, ne, data); break;
        case 6: gguf_writer_tensor(w, "b", DT_F32, 2, ne, NULL); break;
        case 7: gguf_writer_scalar(w, "k", GGUF_STRING, "x"); break;
        case 8: gguf_writer_array(w, "k", GGUF_ARRAY, "x", 1); break;
        case 9: gguf_writer_string(w, "", "x"); break;
        case 10: gguf_writer_scalar(w, "general.alignment", GGUF_U32, &(uint32_t){24}); break;
        default: gguf_writer_scalar(w, "general.alignment", GGUF_U64, &(uint64_t){32}); break;
        }
        gguf_writer_string(w, "later", "is ignored");
        gguf_writer_tensor(w, "later", DT_F32, 2, ne, data);
        assert_int_equal(gguf_writer_save(w, at("a.gguf"), &err), OATO_EUSAGE);
        assert_non_null(strstr(err.text, "a.gguf: "));
        assert_int_equal(access(at("a.gguf"), F_OK), -1);
        gguf_writer_free(w);
    }
    struct gguf_writer *w = gguf_writer_create();
    struct oato_error err;
    assert_int_equal(gguf_writer_save(w, at("none/a.gguf"), &err), OATO_EIO);
    gguf_writer_free(w);
}

static void a_header_only_file_has_shapes_and_no_data(void **state)
{
    (void)state;
    struct random_model m = random_model_default();
    random_or_fail(&m, at("full.gguf"));
    m.header_only = true;
    random_or_fail(&m, at("header.gguf"));
    struct gguf *full = open_or_fail(at("full.gguf")), *header = open_or_fail(at("header.gguf"));
    assert_true(gguf_header_only(header));
    assert_int_equal(gguf_tensor_count(header), gguf_tensor_count(full));
    for (size_t i = 0; i < gguf_tensor_count(header); i++)
        assert_null(gguf_tensor_at(header, i)->data);
    assert_int_equal(gguf_data_bytes(header), gguf_data_bytes(full));
    assert_true(gguf_structure_hash(header) == gguf_structure_hash(full));
    assert_true(gguf_content_hash(header) == 0);
    assert_true(gguf_content_hash(full) != 0);
    gguf_close(full);
    gguf_close(header);
}

static void a_split_model_is_found_from_any_of_its_files(void **state)
{
    (void)state;
    struct random_model m = random_model_default();
    random_or_fail(&m, at("one.gguf"));
    struct gguf *one = open_or_fail(at("one.gguf"));
    m.parts = 3;
    random_or_fail(&m, at("many.gguf"));
    for (int part = 1; part <= 3; part++) {
        char name[64];
        snprintf(name, sizeof name, "many-%05d-of-00003.gguf", part);
        struct gguf *g = open_or_fail(at(name));
        assert_int_equal(gguf_tensor_count(g), gguf_tensor_count(one));
        for (size_t i = 0; i < gguf_tensor_count(g); i++) {
            const struct gguf_tensor *a = gguf_tensor_at(g, i), *b = gguf_tensor_at(one, i);
            assert_string_equal(a->name, b->name);
            assert_memory_equal(a->data, b->data, b->bytes);
            assert_true(a->data >= a->file->data && a->data < a->file->data + a->file->bytes);
        }
        assert_non_null(gguf_find(g, "general.architecture"));
        assert_true(gguf_structure_hash(g) == gguf_structure_hash(one));
        assert_true(gguf_content_hash(g) == gguf_content_hash(one));
        gguf_close(g);
    }
    gguf_close(one);
}

/* A part of a split model with one tensor. */
static void save_part(const char *name, uint16_t no, uint16_t count, int32_t total,
                      const char *tensor, bool with_data)
{
    static const float data[32];
    struct gguf_writer *w = gguf_writer_create();
    gguf_writer_scalar(w, "split.no", GGUF_U16, &no);
    gguf_writer_scalar(w, "split.count", GGUF_U16, &count);
    gguf_writer_scalar(w, "split.tensors.count", GGUF_I32, &total);
    gguf_writer_tensor(w, tensor, DT_F32, 1, (int64_t[]){32}, with_data ? data : NULL);
    save_or_fail(w, at(name));
}

static void wrong_parts_are_refused(void **state)
{
    (void)state;
    char first[160], second[160];
    snprintf(first, sizeof first, "%s", at("m-00001-of-00002.gguf"));
    snprintf(second, sizeof second, "%s", at("m-00002-of-00002.gguf"));
    save_part("m-00001-of-00002.gguf", 0, 2, 2, "a", true);
    assert_refused(first, OATO_EIO, "part 2 of 2 of a split model: ");
    save_part("m-00002-of-00002.gguf", 1, 2, 2, "b", true);
    gguf_close(open_or_fail(first));
    save_part("m-00002-of-00002.gguf", 1, 2, 2, "a", true);
    assert_refused(first, OATO_EFILE, "duplicate tensor 'a'");
    save_part("m-00002-of-00002.gguf", 0, 2, 2, "b", true);
    assert_refused(first, OATO_EFILE, "its header says part 1 of 2");
    assert_refused(second, OATO_EFILE, "must end in '-00001-of-00002.gguf'");
    save_part("m-00002-of-00002.gguf", 1, 3, 2, "b", true);
    assert_refused(first, OATO_EFILE, "its header says part 2 of 3");
    unlink(second); /* a header does not replace data */
    save_part("m-00002-of-00002.gguf", 1, 2, 2, "b", false);
    assert_refused(second, OATO_EFILE, "oato.header_only");
    save_part("m-00002-of-00002.gguf", 1, 2, 2, "b", true);
    save_part("m-00001-of-00002.gguf", 0, 2, 3, "a", true);
    assert_refused(second, OATO_EFILE, "hold 2 tensors, but the first says 3");
    assert_int_equal(truncate(second, 100), 0);
    assert_refused(first, OATO_EFILE, "part 2 of 2 of a split model: ");
    assert_refused(second, OATO_EFILE, "ends at byte 100");
    save_part("renamed.gguf", 0, 2, 2, "a", true);
    assert_refused(at("renamed.gguf"), OATO_EFILE, "must end in '-00001-of-00002.gguf'");
    save_part("x.gguf", 2, 2, 2, "a", true);
    assert_refused(at("x.gguf"), OATO_EFILE, "split.no");
    save_part("single.gguf", 0, 1, 1, "a", true);
    gguf_close(open_or_fail(at("single.gguf")));
    save_part("zero.gguf", 0, 0, 0, "a", true);
    gguf_close(open_or_fail(at("zero.gguf")));
    assert_refused(at("missing.gguf"), OATO_EIO, "missing.gguf: No such file");
    assert_refused(test_folder, OATO_EIO, "not a regular file");
}

/* A model as tests/models/read_gguf.py prints it. */
static void describe(const struct gguf *g, struct text *out)
{
    for (size_t i = 0; i < gguf_kv_count(g); i++) {
        const struct gguf_value *v = gguf_kv_value(g, i);
        int64_t n;
        double f;
        text_printf(out, "%s %d %d %llu", gguf_kv_key(g, i), (int)v->type, (int)v->elem,
                    (unsigned long long)v->count);
        for (uint64_t j = 0; j < v->count && j < 20; j++) {
            if (v->elem == GGUF_STRING)
                text_printf(out, " %016llx",
                            (unsigned long long)hash_bytes(v->strings[j].data, v->strings[j].len));
            else if (v->elem == GGUF_BOOL)
                text_printf(out, " %d", v->data[j] != 0);
            else if (gguf_value_i64(v, j, &n))
                text_printf(out, " %lld", (long long)n);
            else if (gguf_value_f64(v, j, &f))
                text_printf(out, " %.9g", f);
        }
        text_printf(out, "\n");
    }
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        uint64_t sum = 0;
        for (size_t j = 0; j < t->bytes; j++)
            sum += t->data[j];
        text_printf(out, "%s %s", t->name, dtype_name(t->dtype));
        for (int j = 0; j < t->n_dims; j++)
            text_printf(out, " %lld", (long long)t->ne[j]);
        text_printf(out, " %zu %llu\n", t->bytes, (unsigned long long)sum);
    }
}

static const char *cache_path(const char *name)
{
    static char path[512];
    const char *cache = getenv("OATO_CACHE"), *home = getenv("HOME");
    if (cache)
        snprintf(path, sizeof path, "%s/%s", cache, name);
    else
        snprintf(path, sizeof path, "%s/.cache/oato/%s", home ? home : "", name);
    return path;
}

/* The gguf package must print the n files as we do. Skips the test when it is not installed. */
static void compare_with_package(const char *const *paths, size_t n)
{
    const char *python = cache_path("venv/bin/python");
    char line[4096];
    struct text command, theirs, ours;
    if (access(python, X_OK))
        skip();
    text_init(&command);
    text_init(&theirs);
    text_init(&ours);
    text_printf(&command, "'%s' tests/models/read_gguf.py", python);
    for (size_t i = 0; i < n; i++)
        text_printf(&command, " '%s'", paths[i]);
    FILE *f = popen(command.data, "r"); // NOLINT(bugprone-command-processor)
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        text_add(&theirs, line, strlen(line));
    if (pclose(f))
        fail_msg("the gguf package refuses one of %s", command.data);
    for (size_t i = 0; i < n; i++) {
        struct gguf *g = open_or_fail(paths[i]);
        describe(g, &ours);
        gguf_close(g);
    }
    assert_string_equal(ours.data, theirs.data);
    text_free(&command);
    text_free(&theirs);
    text_free(&ours);
}

#define TYPE(type, ...) DT_##type,
static const oato_dtype types[] = {WEIGHT_TYPES(TYPE)};
#undef TYPE

static void the_gguf_package_reads_what_we_write(void **state)
{
    (void)state;
    char names[ARRAY_LEN(types) + 1][96];
    const char *paths[ARRAY_LEN(names)];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(names[i], sizeof names[i], "%s/%zu.gguf", test_folder, i);
        paths[i] = names[i];
    }
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct random_model m = random_model_default();
        m.architecture = i & 1 ? "qwen2" : "llama";
        m.tied = i & 1;
        m.width = 256;
        m.ffn = 512;
        m.layers = 1;
        m.dtype = types[i];
        random_or_fail(&m, paths[i]);
    }
    int32_t ints[105] = {0};
    uint8_t q8[4 * 34] = {0};
    save_or_fail(sample_writer(ints, q8), paths[ARRAY_LEN(types)]);
    compare_with_package(paths, ARRAY_LEN(paths));
}

static void the_default_model_reads_as_the_gguf_package_says(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", cache_path("models/SmolLM2-135M-Instruct.Q4_1.gguf"));
    if (access(path, R_OK)) {
        const char *required = getenv("OATO_REQUIRE_MODEL");
        if (required && !strcmp(required, "1"))
            fail_msg("%s is missing: scripts/fetch-model fetches it", path);
        skip();
    }
    struct gguf *g = open_or_fail(path);
    assert_int_equal(gguf_tensor_count(g), 272);
    assert_int_equal(gguf_kv_count(g), 33);
    gguf_close(g);
    compare_with_package((const char *const[]){path}, 1);
}

static void shapes_that_are_no_model_are_refused(void **state)
{
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        struct random_model m = random_model_default();
        struct oato_error err;
        switch (kind) {
        case 0: m.architecture = "gpt2"; break;
        case 1: m.layers = 0; break;
        case 2: m.heads = 3; break;
        case 3: m.kv_heads = 3; break;
        case 4: m.vocab = 100; break;
        case 5: m.parts = 1000; break;
        case 6: m.parts = 0; break;
        default:
            m.width = m.ffn = m.vocab = INT32_MAX - 1;
            m.heads = 1;
            m.kv_heads = 1;
            break;
        }
        oato_status status = random_model_save(&m, at("a.gguf"), &err);
        assert_true(status == OATO_EUSAGE || status == OATO_EFIT);
        assert_int_equal(access(at("a.gguf"), F_OK), -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(what_is_written_is_read),
        FOLDER_TEST(copied_keys_leave_out_what_belongs_to_the_file),
        FOLDER_TEST(alignment_is_obeyed),
        FOLDER_TEST(mistakes_are_told_when_saving),
        FOLDER_TEST(a_header_only_file_has_shapes_and_no_data),
        FOLDER_TEST(a_split_model_is_found_from_any_of_its_files),
        FOLDER_TEST(wrong_parts_are_refused),
        FOLDER_TEST(the_gguf_package_reads_what_we_write),
        FOLDER_TEST(the_default_model_reads_as_the_gguf_package_says),
        FOLDER_TEST(shapes_that_are_no_model_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
