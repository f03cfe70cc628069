/*
 * damage_headers.c - oato-damage-headers, a program for tests: of each header of a GGUF given,
 * every hyperparameter and tensor is damaged in every way that its reader may have to refuse:
 * missing, too small, too large, no number, of another shape or type; where that is slow, an
 * eighth of these (tests/pace.h). Every such file must open as a model or be refused in one line
 * with OATO_EFILE or OATO_EFIT. Headers are files cut off where
 * the data begins.
 */
#include "models/models.h"
#include "tests/pace.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAMPLE = 8 };

static struct {
    uint8_t *bytes;
    size_t n;
} header;
static const char *path;
static int opened, refused, faults;
static size_t damages, sample; /* those are tried of which the number is one of the sample */

/* 'what' was done to 'name'. */
static void open_damaged(const char *what, const char *name)
{
    struct oato_error err = {0};
    struct gguf *g;
    struct model *m = NULL;
    oato_status status = gguf_open_memory(header.bytes, header.n, "damaged", &g, &err);
    if (!status)
        status = model_from_gguf(g, &m, &err);
    model_close(m);
    if (!status) {
        opened++;
        return;
    }
    refused++;
    const bool right = status == OATO_EFILE || status == OATO_EFIT;
    if (right && err.text[0] && !strpbrk(err.text, "\n\r"))
        return;
    printf("%s: %s of %s: status %d, '%s'\n", path, what, name, (int)status, err.text);
    faults++;
}

/* Opens it with n bytes at `at` replaced, and puts them back. */
static void with_bytes(uint8_t *at, const void *bytes, size_t n, const char *what, const char *name)
{
    uint8_t kept[8];
    if (damages++ % pace_step(SAMPLE) != sample)
        return;
    memcpy(kept, at, n);
    memcpy(at, bytes, n);
    open_damaged(what, name);
    memcpy(at, kept, n);
}

/* Where the file has the name, behind its length. */
static uint8_t *find_name(const char *name)
{
    uint8_t wanted[512];
    const uint64_t n = strlen(name);
    memcpy(wanted, &n, sizeof n);
    memcpy(wanted + sizeof n, name, n + 1);
    uint8_t *at = memmem(header.bytes, header.n, wanted, sizeof n + n);
    return at ? at + sizeof n : NULL;
}

static void damage_element(uint8_t *at, enum gguf_type type, const char *name)
{
    static const uint32_t integers[] = {0, 1, 2, 3, 7, 0x10000, INT32_MAX, UINT32_MAX};
    static const uint32_t floats[] = {0,          0x80000000, 0xbf800000,
                                      0x7f800000, 0x7fc00000, 0x7f7fffff};
    if (type == GGUF_F32)
        for (size_t i = 0; i < ARRAY_LEN(floats); i++)
            with_bytes(at, &floats[i], 4, "a value", name);
    if (type == GGUF_U32 || type == GGUF_I32)
        for (size_t i = 0; i < ARRAY_LEN(integers); i++)
            with_bytes(at, &integers[i], 4, "a value", name);
    if (type == GGUF_BOOL)
        for (uint8_t v = 0; v < 3; v++)
            with_bytes(at, &v, 1, "a value", name);
}

static void damage_key(const char *key, const struct gguf_value *v)
{
    uint8_t *name = find_name(key);
    if (!name)
        return;
    with_bytes(name, "?", 1, "absence", key);
    const size_t type_at = strlen(key);
    for (uint32_t type = 0; type < GGUF_TYPE_COUNT; type++)
        with_bytes(name + type_at, &type, 4, "the type", key);
    if (v->type == GGUF_STRING || v->elem == GGUF_STRING || !v->count)
        return;
    const bool array = v->type == GGUF_ARRAY;
    uint8_t *data = name + type_at + (array ? 16 : 4);
    const enum gguf_type elem = array ? v->elem : v->type;
    damage_element(data, elem, key);
    if (array && (elem == GGUF_U32 || elem == GGUF_I32 || elem == GGUF_F32))
        damage_element(data + 4 * (v->count - 1), elem, key);
}

/* A tensor's name is followed by its number of dimensions, each dimension, and its type. */
static void damage_tensor(const struct gguf_tensor *t)
{
    static const uint64_t extents[] = {0, 1, 2, 1u << 31, UINT64_MAX};
    uint8_t *name = find_name(t->name);
    if (!name)
        return;
    with_bytes(name, "?", 1, "absence", t->name);
    uint8_t *dims = name + strlen(t->name);
    for (uint32_t n = 0; n < 6; n++)
        with_bytes(dims, &n, 4, "dimensions", t->name);
    for (int32_t d = 0; d < t->n_dims; d++) {
        const uint64_t near[] = {(uint64_t)t->ne[d] - 1, (uint64_t)t->ne[d] + 1,
                                 (uint64_t)t->ne[d] * 2};
        for (size_t i = 0; i < ARRAY_LEN(extents); i++)
            with_bytes(dims + 4 + 8 * d, &extents[i], 8, "an extent", t->name);
        for (size_t i = 0; i < ARRAY_LEN(near); i++)
            with_bytes(dims + 4 + 8 * d, &near[i], 8, "an extent", t->name);
    }
    for (uint32_t type = 0; type < DT_COUNT + 1; type++)
        with_bytes(dims + 4 + 8 * t->n_dims, &type, 4, "the type", t->name);
}

/* The header with oato.header_only in front of its keys. */
static bool read_header(void)
{
    static const char key[] = "\x10\0\0\0\0\0\0\0oato.header_only\x07\0\0\0\x01";
    enum { AT = 24, KEYS_AT = 16, KEY_BYTES = sizeof key - 1 };
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    fseek(f, 0, SEEK_END);
    const long n = ftell(f);
    rewind(f);
    header.n = (size_t)n + KEY_BYTES;
    header.bytes = n >= AT ? malloc(header.n) : NULL;
    const bool read = header.bytes && fread(header.bytes, 1, AT, f) == AT &&
                      fread(header.bytes + AT + KEY_BYTES, 1, (size_t)n - AT, f) == (size_t)n - AT;
    fclose(f);
    if (!read)
        return false;
    memcpy(header.bytes + AT, key, KEY_BYTES);
    uint64_t keys;
    memcpy(&keys, header.bytes + KEYS_AT, sizeof keys);
    keys++;
    memcpy(header.bytes + KEYS_AT, &keys, sizeof keys);
    return true;
}

static int damage_all(void)
{
    struct oato_error err;
    struct gguf *g;
    struct gguf_string architecture;
    if (!read_header() || gguf_open_memory(header.bytes, header.n, path, &g, &err)) {
        printf("%s: no header of a GGUF\n", path);
        return 1;
    }
    const int before = opened;
    open_damaged("nothing", "it");
    if (opened == before) {
        printf("%s: is refused as it is\n", path);
        faults++;
    }
    gguf_get_string(g, "general.architecture", &architecture);
    for (size_t i = 0; i < gguf_kv_count(g); i++)
        if (!strncmp(gguf_kv_key(g, i), architecture.data, architecture.len))
            damage_key(gguf_kv_key(g, i), gguf_kv_value(g, i));
    for (size_t i = 0; i < gguf_tensor_count(g); i++)
        damage_tensor(gguf_tensor_at(g, i));
    gguf_close(g);
    free(header.bytes);
    return 0;
}

int main(int argc, char **argv)
{
    const char *given = getenv("OATO_TEST_SEED");
    const unsigned long long seed =
        given ? strtoull(given, NULL, 10) : (unsigned long long)time(NULL);
    printf("OATO_TEST_SEED=%llu\n", seed);
    sample = (size_t)(seed % pace_step(SAMPLE));
    for (int i = 1; i < argc; i++) {
        path = argv[i];
        if (damage_all())
            return 1;
    }
    printf("%d headers: %d damaged files open, %d are refused, %d faults\n", argc - 1, opened,
           refused, faults);
    return faults || !opened || !refused;
}
