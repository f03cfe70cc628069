/*
 * gguf_types.c - whether keys are of the types that their readers want. A file from a faulty
 * converter is refused by the name of the key, which is neither missing nor passed over.
 */
#include "models/gguf_internal.h"

static const char *const type_names[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = "UINT8",      [GGUF_I8] = "INT8",     [GGUF_U16] = "UINT16",  [GGUF_I16] = "INT16",
    [GGUF_U32] = "UINT32",    [GGUF_I32] = "INT32",   [GGUF_F32] = "FLOAT32", [GGUF_BOOL] = "BOOL",
    [GGUF_STRING] = "STRING", [GGUF_ARRAY] = "ARRAY", [GGUF_U64] = "UINT64",  [GGUF_I64] = "INT64",
    [GGUF_F64] = "FLOAT64"};

enum {
    INTEGERS = 1 << GGUF_U8 | 1 << GGUF_I8 | 1 << GGUF_U16 | 1 << GGUF_I16 | 1 << GGUF_U32 |
               1 << GGUF_I32 | 1 << GGUF_U64 | 1 << GGUF_I64,
    NUMBERS = INTEGERS | 1 << GGUF_F32 | 1 << GGUF_F64
};

static const struct {
    const char *text;
    bool array;
    unsigned types; /* a bit each */
} wanted_rows[] = {
    [GGUF_WANT_INTEGER] = {"an integer", false, INTEGERS},
    [GGUF_WANT_U32] = {"a UINT32", false, 1 << GGUF_U32},
    [GGUF_WANT_U64] = {"a UINT64", false, 1 << GGUF_U64},
    [GGUF_WANT_NUMBER] = {"a number", false, NUMBERS},
    [GGUF_WANT_BOOL] = {"a BOOL", false, 1 << GGUF_BOOL},
    [GGUF_WANT_STRING] = {"a STRING", false, 1 << GGUF_STRING},
    [GGUF_WANT_INTEGERS] = {"an ARRAY of integers", true, INTEGERS},
    [GGUF_WANT_BYTES] = {"an ARRAY of INT8 or UINT8", true, 1 << GGUF_I8 | 1 << GGUF_U8},
    [GGUF_WANT_NUMBERS] = {"an ARRAY of numbers", true, NUMBERS},
    [GGUF_WANT_STRINGS] = {"an ARRAY of STRING", true, 1 << GGUF_STRING},
};

oato_status gguf_mistyped(const char *file, const char *key, const struct gguf_value *v,
                          const char *wanted, struct oato_error *err)
{
    const char *name = type_names[v->type], *of = v->type == GGUF_ARRAY ? type_names[v->elem] : "";
    const bool vowel = name[0] == 'I' || name[0] == 'A';
    return oato_fail(err, OATO_EFILE, "%s%skey %s is %s %s%s%s, wanted %s", file, *file ? ": " : "",
                     key, vowel ? "an" : "a", name, *of ? " of " : "", of, wanted);
}

oato_status gguf_value_check(const char *file, const char *key, const struct gguf_value *v,
                             enum gguf_wanted wanted, struct oato_error *err)
{
    const bool array = v->type == GGUF_ARRAY;
    if (array == wanted_rows[wanted].array &&
        wanted_rows[wanted].types >> (array ? v->elem : v->type) & 1)
        return OATO_OK;
    return gguf_mistyped(file, key, v, wanted_rows[wanted].text, err);
}

oato_status gguf_check_keys(const struct gguf *g, const char *file,
                            const struct gguf_key_type *rows, size_t n, struct oato_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct gguf_value *v = gguf_find(g, rows[i].key);
        if (v && gguf_value_check(file, rows[i].key, v, rows[i].wanted, err))
            return err->status;
    }
    return OATO_OK;
}
