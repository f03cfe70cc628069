/*
 * test_gguf_damaged.c - a damaged file is refused with one line or read as what it says; nothing
 * outside it is ever touched. The kinds are those that llama.cpp's tests/test-gguf.cpp names and
 * the published holes of other readers. Run under AddressSanitizer to mean anything: every file is
 * an allocation of its exact size.
 */
#include "tests/models/random_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { F32 = DT_F32, I8 = DT_I8 };

static void put_u32(struct text *b, uint32_t v)
{
    text_add(b, (const char *)&v, sizeof v);
}

static void put_u64(struct text *b, uint64_t v)
{
    text_add(b, (const char *)&v, sizeof v);
}

static void put_string(struct text *b, const char *s)
{
    put_u64(b, strlen(s));
    text_add(b, s, strlen(s));
}

static void put_header(struct text *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    text_add(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, tensors);
    put_u64(b, keys);
}

static void put_key(struct text *b, const char *key, uint32_t type)
{
    put_string(b, key);
    put_u32(b, type);
}

static void put_key_u32(struct text *b, const char *key, uint32_t v)
{
    put_key(b, key, GGUF_U32);
    put_u32(b, v);
}

static void put_array(struct text *b, const char *key, uint32_t elem, uint64_t count)
{
    put_key(b, key, GGUF_ARRAY);
    put_u32(b, elem);
    put_u64(b, count);
}

static void put_tensor(struct text *b, const char *name, uint32_t dims, uint64_t n, uint32_t type,
                       uint64_t offset)
{
    put_string(b, name);
    put_u32(b, dims);
    for (uint32_t i = 0; i < dims; i++)
        put_u64(b, n);
    put_u32(b, type);
    put_u64(b, offset);
}

static void put_zeros(struct text *b, size_t n)
{
    for (; n; n--)
        text_add(b, "", 1);
}

static void put_padding(struct text *b, size_t alignment)
{
    put_zeros(b, size_align(b->len, alignment) - b->len);
}

/* A file that is right but for the tensor put in by the caller: header and padding. */
static void put_one_tensor(struct text *b, const char *name, uint32_t dims, uint64_t n,
                           uint32_t type, uint64_t offset, size_t data_bytes)
{
    put_header(b, 3, 1, 0);
    put_tensor(b, name, dims, n, type, offset);
    put_padding(b, 32);
    put_zeros(b, data_bytes);
}

/* Two tensors of 10 floats, the second at `offset`, the file padded to `alignment`. */
static void put_two_tensors(struct text *b, uint32_t declared, uint64_t offset, size_t alignment,
                            const char *second, size_t data_bytes)
{
    put_header(b, 3, 2, declared ? 1 : 0);
    if (declared)
        put_key_u32(b, "general.alignment", declared);
    put_tensor(b, "a", 1, 10, F32, 0);
    put_tensor(b, second, 1, 10, F32, offset);
    put_padding(b, alignment);
    put_zeros(b, data_bytes);
}

/* The header of a file of n keys and no tensor. */
static void keys(struct text *b, uint64_t n)
{
    put_header(b, 3, 0, n);
}

/* one kind a line reads best */
/* clang-format off */
static void empty_file(struct text *b) { (void)b; }
static void bad_magic(struct text *b) { text_add(b, "FUGG", 4); put_zeros(b, 20); }
static void only_magic(struct text *b) { text_add(b, "GGUF", 4); }
static void version_0(struct text *b) { put_header(b, 0, 0, 0); }
static void version_1(struct text *b) { put_header(b, 1, 0, 0); }
static void version_4(struct text *b) { put_header(b, 4, 0, 0); }
static void big_endian(struct text *b) { put_header(b, __builtin_bswap32(3), 0, 0); }
static void tensors_2_64(struct text *b) { put_header(b, 3, UINT64_MAX, 0); put_zeros(b, 100); }
static void keys_2_64(struct text *b) { put_header(b, 3, 0, UINT64_MAX); put_zeros(b, 100); }
static void keys_too_many(struct text *b) { put_header(b, 3, 0, 8); put_zeros(b, 100); }
static void header_empty(struct text *b) { put_header(b, 3, 0, 0); }
static void header_version_2(struct text *b) { put_header(b, 2, 0, 0); put_zeros(b, 100); }

static void key_size(struct text *b) { keys(b, 1); put_u64(b, UINT64_MAX); put_zeros(b, 20); }
static void key_size_long(struct text *b) { keys(b, 1); put_u64(b, 70000); put_zeros(b, 80000); }
static void key_empty(struct text *b) { keys(b, 1); put_key_u32(b, "", 1); }
static void key_with_zero(struct text *b) { keys(b, 1); put_u64(b, 3); text_add(b, "a\0b", 3); put_u32(b, GGUF_U64); put_u64(b, 0); }
static void key_type(struct text *b) { keys(b, 1); put_key(b, "a\x1b[2J", GGUF_TYPE_COUNT); put_u64(b, 0); }
static void key_twice(struct text *b) { keys(b, 3); put_key_u32(b, "a", 1); put_key_u32(b, "b", 1); put_key_u32(b, "a", 1); }
static void string_size(struct text *b) { keys(b, 1); put_key(b, "a", GGUF_STRING); put_u64(b, INT64_MAX); put_zeros(b, 9); }
static void array_type(struct text *b) { keys(b, 1); put_array(b, "a", 77, 1); put_zeros(b, 99); }
static void array_of_arrays(struct text *b) { keys(b, 1); put_array(b, "a", GGUF_ARRAY, 1); put_zeros(b, 99); }
static void array_2_63(struct text *b) { keys(b, 1); put_array(b, "a", GGUF_U8, (uint64_t)1 << 63); put_zeros(b, 99); }
static void array_wraps(struct text *b) { keys(b, 1); put_array(b, "a", GGUF_U64, ((uint64_t)1 << 61) + 1); put_zeros(b, 99); }
static void strings_2_61(struct text *b) { keys(b, 1); put_array(b, "a", GGUF_STRING, (uint64_t)1 << 61); put_zeros(b, 99); }
static void strings_inside(struct text *b) { keys(b, 1); put_array(b, "a", GGUF_STRING, 3); put_string(b, "x"); put_u64(b, 1000); put_zeros(b, 99); }
static void value_missing(struct text *b) { keys(b, 1); put_key(b, "abcdefg", GGUF_F64); put_u32(b, 0); }
static void align_13(struct text *b) { keys(b, 1); put_key_u32(b, "general.alignment", 13); }
static void align_0(struct text *b) { keys(b, 1); put_key_u32(b, "general.alignment", 0); }
static void align_1(struct text *b) { keys(b, 1); put_key_u32(b, "general.alignment", 1); }
static void align_2_31(struct text *b) { keys(b, 1); put_key_u32(b, "general.alignment", 1u << 31); }
static void align_2_30(struct text *b) { keys(b, 1); put_key_u32(b, "general.alignment", 1u << 30); }
static void align_type(struct text *b) { keys(b, 1); put_key(b, "general.alignment", GGUF_I32); put_u32(b, 32); }
static void split_count(struct text *b) { keys(b, 1); put_key_u32(b, "split.count", 100000); }
static void split_string(struct text *b) { keys(b, 1); put_key(b, "split.count", GGUF_STRING); put_string(b, "2"); }
static void split_no_number(struct text *b) { keys(b, 1); put_key_u32(b, "split.count", 2); }
static void split_in_memory(struct text *b) { keys(b, 2); put_key_u32(b, "split.count", 2); put_key_u32(b, "split.no", 1); }

static void name_long(struct text *b) { put_one_tensor(b, "a_tensor_whose_name_is_longer_than_what_any_tensor_s_name_may_be", 1, 8, F32, 0, 32); }
static void name_empty(struct text *b) { put_one_tensor(b, "", 1, 8, F32, 0, 32); }
static void dims_5(struct text *b) { put_one_tensor(b, "a", 5, 1, F32, 0, 32); }
static void dims_0(struct text *b) { put_one_tensor(b, "a", 0, 1, F32, 0, 32); }
static void dims_2_32(struct text *b) { put_header(b, 3, 1, 0); put_string(b, "a"); put_u32(b, UINT32_MAX); put_zeros(b, 99); }
static void ne_negative(struct text *b) { put_one_tensor(b, "a", 1, UINT64_MAX, F32, 0, 32); }
static void ne_zero(struct text *b) { put_one_tensor(b, "a", 2, 0, F32, 0, 32); }
static void ne_product(struct text *b) { put_one_tensor(b, "a", 2, 4 * (uint64_t)INT32_MAX, F32, 0, 32); }
static void ne_product_wraps(struct text *b) { put_one_tensor(b, "a", 4, 65536, F32, 0, 32); }
static void bytes_too_big(struct text *b) { put_one_tensor(b, "a", 2, 1534000000, DT_I64, 0, 32); }
static void bytes_pad_wrap(struct text *b)
{
    put_header(b, 3, 1, 0);
    put_string(b, "a");
    put_u32(b, 3);
    put_u64(b, 4);
    put_u64(b, 1073741823);
    put_u64(b, 1073741825); /* 2^64 - 16 bytes */
    put_u32(b, F32);
    put_u64(b, 0);
    put_zeros(b, 99);
}
static void rows_no_block(struct text *b) { put_one_tensor(b, "a", 1, 48, DT_Q4_0, 0, 99); }
static void type_41(struct text *b) { put_one_tensor(b, "a", 1, 32, 41, 0, 99); }
static void type_4(struct text *b) { put_one_tensor(b, "a", 1, 32, 4, 0, 99); }
static void type_2_32(struct text *b) { put_one_tensor(b, "a", 1, 32, UINT32_MAX, 0, 99); }
static void offset_end(struct text *b) { put_one_tensor(b, "a", 1, 8, F32, UINT64_MAX, 32); }
static void offset_32(struct text *b) { put_one_tensor(b, "a", 1, 8, F32, 32, 64); }
static void name_twice(struct text *b) { put_two_tensors(b, 0, 64, 32, "a", 128); }
static void overlap(struct text *b) { put_two_tensors(b, 0, 0, 32, "b", 128); }
static void gap(struct text *b) { put_two_tensors(b, 0, 96, 32, "b", 256); }
static void packed(struct text *b) { put_two_tensors(b, 0, 40, 1, "b", 128); }
static void aligned_else(struct text *b) { put_two_tensors(b, 64, 40, 64, "b", 128); }
static void size_sum(struct text *b)
{
    put_header(b, 3, 3, 0);
    put_tensor(b, "a", 1, 0x7fffffffffffffc0, I8, 0);
    put_tensor(b, "b", 1, 0x7fffffffffffffc0, I8, 0x7fffffffffffffc0);
    put_tensor(b, "c", 1, 0x7fffffffffffffc0, I8, 0xffffffffffffff80);
    put_padding(b, 32);
    put_zeros(b, 32);
}
static void size_sum_header_only(struct text *b)
{
    put_header(b, 3, 3, 1);
    put_key(b, "oato.header_only", GGUF_BOOL);
    text_add(b, "\1", 1);
    put_tensor(b, "a", 1, 0x7fffffffffffffc0, I8, 0);
    put_tensor(b, "b", 1, 0x7fffffffffffffc0, I8, 0x7fffffffffffffc0);
    put_tensor(b, "c", 1, 0x7fffffffffffffc0, I8, 0xffffffffffffff80);
}
static void header_only_is_no_bool(struct text *b) { put_header(b, 3, 1, 1); put_key_u32(b, "oato.header_only", 1); put_tensor(b, "a", 1, 1000, F32, 0); }
static void data_short(struct text *b) { put_two_tensors(b, 0, 64, 32, "b", 103); }
static void data_none(struct text *b) { put_two_tensors(b, 0, 64, 1, "b", 0); }
static void data_whole(struct text *b) { put_two_tensors(b, 0, 64, 32, "b", 128); }
static void data_unpadded(struct text *b) { put_two_tensors(b, 0, 64, 32, "b", 104); }
static void data_and_more(struct text *b) { put_two_tensors(b, 0, 64, 32, "b", 1000); }
static void data_aligned_8(struct text *b) { put_two_tensors(b, 8, 40, 8, "b", 80); }

/* clang-format on */

#define LOADS NULL

static const struct damage {
    void (*make)(struct text *b);
    const char *says; /* part of the message, or LOADS */
} damages[] = {
    {empty_file, "not a GGUF file"},
    {bad_magic, "not a GGUF file"},
    {only_magic, "ends at byte 4 inside the version"},
    {version_0, "version 0"},
    {version_1, "version 1: versions 2 and 3"},
    {version_4, "version 4"},
    {big_endian, "big-endian"},
    {tensors_2_64, "18446744073709551615 tensors"},
    {keys_2_64, "18446744073709551615 keys"},
    {keys_too_many, "claims 8 keys"},
    {header_empty, LOADS},
    {header_version_2, LOADS},
    {key_size, "a key of 18446744073709551615 bytes"},
    {key_size_long, "of 70000 bytes: must be 1 to 65535"},
    {key_empty, "of 0 bytes: must be 1 to 65535"},
    {key_with_zero, "'a?b' of 3 bytes"},
    {key_type, "key 'a?[2J' has value type 13"},
    {key_twice, "duplicate key 'a'"},
    {string_size, "a string of 9223372036854775807 bytes"},
    {array_type, "element type 77"},
    {array_of_arrays, "element type 9"},
    {array_2_63, "array of 9223372036854775808 elements"},
    {array_wraps, "array of 2305843009213693953 elements"},
    {strings_2_61, "array of 2305843009213693952 elements"},
    {strings_inside, "key 'a': byte"},
    {value_missing, "inside a value"},
    {align_13, "is 13: a power of two from 8"},
    {align_0, "is 0: a power of two from 8"},
    {align_1, "is 1: a power of two from 8"},
    {align_2_31, "is 2147483648: a power of two from 8"},
    {align_2_30, LOADS},
    {align_type, "general.alignment is an INT32, wanted a UINT32"},
    {split_count, "'split.count' must be an integer"},
    {split_string, "key split.count is a STRING, wanted an integer"},
    {split_no_number, "'split.no' must be an integer"},
    {split_in_memory, "part 2 of 2"},
    {name_long, "of 64 bytes: must be 1 to 63"},
    {name_empty, "of 0 bytes: must be 1 to 63"},
    {dims_5, "5 dimensions: 1 to 4"},
    {dims_0, "0 dimensions: 1 to 4"},
    {dims_2_32, "4294967295 dimensions"},
    {ne_negative, "shape -1"},
    {ne_zero, "shape 0 x 0"},
    {ne_product, "shape 8589934588 x 8589934588"},
    {ne_product_wraps, "shape 65536"},
    {bytes_too_big, "shape 1534000000"},
    {bytes_pad_wrap, "shape 4 x 1073741823 x 1073741825"},
    {rows_no_block, "the first a multiple of 32"},
    {type_41, "tensor 'a' has type 41"},
    {type_4, "tensor 'a' has type 4,"},
    {type_2_32, "tensor 'a' has type 4294967295"},
    {offset_end, "has offset 18446744073709551615"},
    {offset_32, "has offset 32, but those before it end at 0"},
    {name_twice, "duplicate tensor 'a'"},
    {overlap, "'b' has offset 0, but those before it end at 64"},
    {gap, "'b' has offset 96, but those before it end at 64"},
    {packed, "'b' has offset 40, but those before it end at 64"},
    {aligned_else, "'b' has offset 40"},
    {size_sum, "tensor 'a' ends at byte"},
    {size_sum_header_only, "overflows"},
    {header_only_is_no_bool, "key oato.header_only is a UINT32, wanted a BOOL"},
    {data_short, "tensor 'b' ends at byte"},
    {data_none, "tensor 'a' ends at byte"},
    {data_whole, LOADS},
    {data_unpadded, LOADS},
    {data_and_more, LOADS},
    {data_aligned_8, LOADS},
};

static volatile uint64_t touched;

/* Reads all that an open file offers. */
static void touch(const struct gguf *g)
{
    uint64_t sum = gguf_structure_hash(g) ^ gguf_content_hash(g) ^ gguf_data_bytes(g);
    for (size_t i = 0; i < gguf_kv_count(g); i++) {
        const struct gguf_value *v = gguf_kv_value(g, i);
        assert_ptr_equal(gguf_find(g, gguf_kv_key(g, i)), v);
        for (uint64_t j = 0; j < v->count; j++) {
            double f;
            if (v->elem == GGUF_STRING)
                sum += hash_bytes(v->strings[j].data, v->strings[j].len);
            else if (gguf_value_f64(v, j, &f))
                sum += isfinite(f);
        }
    }
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        assert_ptr_equal(gguf_tensor(g, t->name), t);
        if (t->data)
            sum += t->data[0] + t->data[t->bytes / 2] + t->data[t->bytes - 1];
    }
    touched += sum;
}

/* Opens a copy of exactly `bytes` bytes; true when it loads. A refusal must be one line. */
static bool try_open(const void *data, size_t bytes, struct oato_error *err)
{
    struct gguf *g;
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    if (bytes)
        memcpy(copy, data, bytes);
    memset(err, 0, sizeof *err);
    oato_status status = gguf_open_memory(bytes ? copy : NULL, bytes, "damaged", &g, err);
    if (status) {
        assert_int_equal(status, OATO_EFILE);
        assert_int_equal(err->status, OATO_EFILE);
        assert_null(g);
        assert_memory_equal(err->text, "damaged: ", 9);
        assert_true(strlen(err->text) < sizeof err->text - 1);
        for (const char *c = err->text; *c; c++)
            assert_true(*c >= ' ' && *c <= '~');
    } else {
        touch(g);
        gguf_close(g);
    }
    free(copy);
    return !status;
}

static void every_kind_of_damage_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(damages); i++) {
        struct text b;
        struct oato_error err;
        text_init(&b);
        damages[i].make(&b);
        bool loads = try_open(b.data ? b.data : "", b.len, &err);
        if (loads != !damages[i].says)
            fail_msg("kind %zu: %s", i, loads ? "loads" : err.text);
        if (damages[i].says && !strstr(err.text, damages[i].says))
            fail_msg("kind %zu: '%s' does not say '%s'", i, err.text, damages[i].says);
        text_free(&b);
    }
}

/* A small whole model in memory; free data. */
static uint8_t *small_model(bool header_only, size_t *bytes)
{
    char path[] = "/tmp/oato-small-XXXXXX";
    int fd = mkstemp(path);
    struct oato_error err;
    struct mapped_file f;
    struct random_model m = random_model_default();
    m.dtype = DT_Q4_0;
    m.header_only = header_only;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(random_model_save(&m, path, &err), OATO_OK);
    assert_int_equal(file_map(path, &f, &err), OATO_OK);
    uint8_t *data = malloc(f.bytes);
    assert_non_null(data);
    memcpy(data, f.data, f.bytes);
    *bytes = f.bytes;
    file_unmap(&f);
    unlink(path);
    return data;
}

static void no_truncated_model_loads(void **state)
{
    (void)state;
    for (int header_only = 0; header_only < 2; header_only++) {
        size_t bytes;
        uint8_t *data = small_model(header_only, &bytes);
        struct oato_error err;
        assert_true(try_open(data, bytes, &err));
        for (size_t n = 0; n < bytes - 32; n += 997)
            assert_false(try_open(data, n, &err));
        for (size_t n = 0; n < 200; n++) /* every cut in the header's first keys */
            assert_false(try_open(data, n, &err));
        free(data);
    }
}

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Flips bits, or writes one of the numbers that overflow somewhere, at random places. */
static void mutated_headers_do_no_harm(void **state)
{
    (void)state;
    static const uint64_t evil[] = {0,          1,          0x7f,      0xff,
                                    0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX};
    size_t bytes;
    uint8_t *data = small_model(true, &bytes), *copy = malloc(bytes);
    const char *given = getenv("OATO_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL), random = seed;
    int loaded = 0;
    print_message("seed %llu (OATO_TEST_SEED repeats it)\n", (unsigned long long)seed);
    assert_non_null(copy);
    for (int i = 0; i < 4000; i++) {
        struct oato_error err;
        memcpy(copy, data, bytes);
        for (uint64_t n = 1 + next(&random) % 4; n; n--) {
            size_t at = next(&random) % (bytes - 8);
            uint64_t r = next(&random);
            if (r & 1)
                copy[at] ^= (uint8_t)(1 << (r >> 1 & 7));
            else
                memcpy(copy + at, &evil[r >> 1 & 7], (size_t)1 << (r >> 4 & 3));
        }
        loaded += try_open(copy, bytes, &err);
    }
    print_message("%d of 4000 mutants load\n", loaded);
    free(data);
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_damage_is_named),
        cmocka_unit_test(no_truncated_model_loads),
        cmocka_unit_test(mutated_headers_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
