/*
 * test_cuda_image.c - which piece of an image a GPU gets, and that the pieces of this build, if it
 * has any, hold what they say. The driver notes what it is given.
 */
#include "kernels/cuda/cuda_image.h"
#include "tests/kernels/test_cpu.h"

#include <zlib.h>

static char given[64];

static cu_result note(cu_module *module, const void *image)
{
    (void)module;
    snprintf(given, sizeof given, "%s", (const char *)image);
    return CU_OK;
}

static struct cuda_driver driver(void)
{
    struct cuda_driver cu = *cuda_driver_none();
    cu.module_load = note;
    return cu;
}

/* Adds a piece that holds its own name; returns where the next one begins. */
static unsigned char *add_piece(unsigned char *at, const char *name)
{
    struct cuda_code *p = (struct cuda_code *)at;
    uLongf packed = 100;
    memcpy(p->magic, CUDA_PIECE_MAGIC, sizeof p->magic);
    p->capability = (uint32_t)atoi(strchr(name, '_') + 1);
    p->ptx = *name == 'c';
    p->bytes = (uint32_t)strlen(name) + 1;
    assert_int_equal(compress(p->packed, &packed, (const Bytef *)name, p->bytes), Z_OK);
    p->packed_bytes = (uint32_t)packed;
    return at + (sizeof *p + packed + 7) / 8 * 8;
}

static void a_gpu_gets_the_code_that_it_runs_best(void **state)
{
    (void)state;
    static const char *const some[] = {"sm_90",       "compute_90", "sm_75",  "sm_80",
                                       "compute_120", "sm_86",      "sm_120", NULL};
    static const char *const few[] = {"compute_75", "sm_86", NULL};
    static const struct {
        const char *const *pieces;
        int capability;
        const char *gets; /* NULL: nothing that it runs, which the driver says of the first */
    } cases[] = {
        {some, 75, "sm_75"},
        {some, 80, "sm_80"},
        {some, 86, "sm_86"},
        {some, 87, "sm_86"},
        {some, 89, "sm_86"},
        {some, 90, "sm_90"},
        {some, 100, "compute_90"},
        {some, 103, "compute_90"},
        {some, 120, "sm_120"},
        {some, 121, "sm_120"},
        {some, 130, "compute_120"},
        {some, 72, NULL},
        {few, 75, "compute_75"},
        {few, 80, "compute_75"},
        {few, 86, "sm_86"},
        {few, 90, "compute_75"},
        {few, 70, NULL},
    };
    const struct cuda_driver cu = driver();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _Alignas(8) unsigned char image[1024] = {0};
        unsigned char *at = image;
        cu_module module;
        for (const char *const *name = cases[i].pieces; *name; name++)
            at = add_piece(at, *name);
        const struct cuda_code *chosen = cuda_image_choose(image, cases[i].capability);
        assert_int_equal(!chosen, !cases[i].gets);
        assert_int_equal(cuda_image_load(&cu, image, cases[i].capability, &module), CU_OK);
        assert_string_equal(given, cases[i].gets ? cases[i].gets : *cases[i].pieces);
    }
}

/* nvcc's, and the byte of a build without a compiler. */
static void other_images_are_the_drivers(void **state)
{
    (void)state;
    const struct cuda_driver cu = driver();
    cu_module module;
    assert_int_equal(cuda_image_load(&cu, "\x50\xed\x55\xba of nvcc", 90, &module), CU_OK);
    assert_string_equal(given, "\x50\xed\x55\xba of nvcc");
    assert_int_equal(cuda_image_load(&cu, "", 90, &module), CU_OK);
    assert_string_equal(given, "");
}

static void damage_is_noticed(void **state)
{
    (void)state;
    _Alignas(8) unsigned char image[1024] = {0};
    struct cuda_code *p = (struct cuda_code *)image;
    add_piece(image, "sm_90");
    p->bytes++;
    assert_null(cuda_image_unpack(p));
    p->bytes--;
    p->packed[3] ^= 1;
    assert_null(cuda_image_unpack(p));
}

/* ----------------------------------------------------------------- what compile-device made -- */

#define IMAGES(X)                                                                                  \
    X(rows)                                                                                        \
    X(matvec)                                                                                      \
    X(matrix)                                                                                      \
    X(attention)                                                                                   \
    X(attention_tile)                                                                              \
    X(sample)                                                                                      \
    X(sparse)                                                                                      \
    X(batch)                                                                                       \
    X(measure)                                                                                     \
    X(state)                                                                                       \
    X(route)                                                                                       \
    X(columns)                                                                                     \
    X(batch_float)
#define DECLARE(name) extern const unsigned char cuda_image_##name[];
IMAGES(DECLARE)
#undef DECLARE

enum { ELF_MACHINE = 18, ELF_FLAGS = 48, ELF_CUDA = 190 };

/* Machine code says for which GPU it is, as PTX does in a line. */
static void is_what_it_says(const char *image, const struct cuda_code *p)
{
    char target[32];
    unsigned char *content = cuda_image_unpack(p);
    assert_non_null(content);
    snprintf(target, sizeof target, ".target sm_%u", p->capability);
    if (p->ptx) {
        assert_int_equal(content[p->bytes - 1], 0);
        if (!strstr((const char *)content, target))
            fail_msg("%s: PTX without %s", image, target);
    } else {
        assert_true(p->bytes > 64);
        assert_memory_equal(content,
                            "\x7f"
                            "ELF",
                            4);
        assert_int_equal(content[ELF_MACHINE], ELF_CUDA);
        /* CUDA 12 has it in the first byte, CUDA 13 in the second */
        if (content[ELF_FLAGS] != p->capability && content[ELF_FLAGS + 1] != p->capability)
            fail_msg("%s: machine code that is not for %u", image, p->capability);
    }
    free(content);
}

static void pieces_of_this_build_hold_what_they_say(void **state)
{
    (void)state;
#define ROW(name) {#name, cuda_image_##name},
    static const struct {
        const char *name;
        const unsigned char *image;
    } images[] = {IMAGES(ROW)};
#undef ROW
    for (size_t i = 0; i < ARRAY_LEN(images); i++) {
        int kinds = 0;
        if (strcmp((const char *)images[i].image, CUDA_PIECE_MAGIC) != 0)
            skip(); /* nvcc made it, or nobody */
        const struct cuda_code *last = NULL;
        for (int capability = 75; capability < 200; capability++) {
            const struct cuda_code *p = cuda_image_choose(images[i].image, capability);
            if (p && p != last)
                is_what_it_says(images[i].name, p);
            kinds |= p ? 1 << p->ptx : 0;
            last = p;
        }
        assert_int_equal(kinds, 3); /* a GPU of the future gets PTX */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_gets_the_code_that_it_runs_best),
        cmocka_unit_test(other_images_are_the_drivers),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(pieces_of_this_build_hold_what_they_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
