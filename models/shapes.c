/*
 * shapes.c - the data files of models/shapes, which are compiled in: a line "KEY: VALUE" for each
 * field of struct shape_spec, further keys of the model indented below "keys:", comments behind '#'
 * at the start of a line. This is YAML, but no more of it than that is read.
 */
#include "models/shape_internal.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

extern const struct embedded_file shape_files[]; /* the last one has no name */

enum { LINE_SIZE = 256, NAMES_MAX = 128 };

enum field_kind { FIELD_TEXT, FIELD_COUNT, FIELD_FLAG, FIELD_TYPE };

static const struct field {
    const char *key;
    enum field_kind kind;
    size_t at, size; /* in struct shape_spec; of texts */
} fields[] = {
#define TEXT_FIELD(name)                                                                           \
    {                                                                                              \
#name, FIELD_TEXT, offsetof(struct shape_spec, name), sizeof((struct shape_spec *)0)->name \
    }
#define COUNT_FIELD(name)                                                                          \
    {                                                                                              \
#name, FIELD_COUNT, offsetof(struct shape_spec, name), 0                                   \
    }
    TEXT_FIELD(title),
    TEXT_FIELD(aliases),
    TEXT_FIELD(architecture),
    TEXT_FIELD(optional),
    TEXT_FIELD(plain),
    TEXT_FIELD(type),
    COUNT_FIELD(layers),
    COUNT_FIELD(width),
    COUNT_FIELD(ffn),
    COUNT_FIELD(heads),
    COUNT_FIELD(kv_heads),
    COUNT_FIELD(head_dim),
    COUNT_FIELD(vocab),
    COUNT_FIELD(context),
    COUNT_FIELD(experts),
    COUNT_FIELD(experts_used),
    {"tied", FIELD_FLAG, offsetof(struct shape_spec, tied), 0},
    {"least_v", FIELD_TYPE, offsetof(struct shape_spec, least_v), 0},
};

const struct embedded_file *shape_file(size_t i)
{
    for (size_t k = 0; k <= i; k++)
        if (!shape_files[k].name)
            return NULL;
    return &shape_files[i];
}

static bool set_field(struct shape_spec *s, const char *key, const char *value)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const struct field *f = &fields[i];
        void *to = (char *)s + f->at;
        if (strcmp(f->key, key) != 0)
            continue;
        switch (f->kind) {
        case FIELD_TEXT: return (size_t)snprintf(to, f->size, "%s", value) < f->size;
        case FIELD_COUNT: return parse_i64(value, 0, INT32_MAX, to);
        case FIELD_TYPE: return dtype_parse(value, to);
        case FIELD_FLAG: *(bool *)to = !strcmp(value, "true"); return *(bool *)to;
        }
    }
    return false;
}

/* A key of the model, indented below "keys:". */
static bool add_key(struct shape_spec *s, const char *key, const char *value)
{
    const size_t n = strlen(s->keys);
    return (size_t)snprintf(s->keys + n, sizeof s->keys - n, "%s%s=%s", n ? " " : "", key, value) <
           sizeof s->keys - n;
}

/* A line without its end; false when it says nothing that is known. */
static bool take_line(struct shape_spec *s, char *line, bool *in_keys)
{
    const size_t indent = strspn(line, " ");
    char *colon = strchr(line, ':');
    if (!line[indent] || line[indent] == '#')
        return true;
    if (!colon || colon == line + indent)
        return false;
    const char *value = colon + 1 + strspn(colon + 1, " ");
    *colon = 0;
    if (indent)
        return *in_keys && *value && add_key(s, line + indent, value);
    *in_keys = !strcmp(line, "keys");
    return *in_keys ? !*value : *value && set_field(s, line, value);
}

oato_status shape_parse(const struct embedded_file *file, struct shape_spec *out,
                        struct oato_error *err)
{
    const char *at = (const char *)file->data, *const end = at + file->bytes;
    bool in_keys = false;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", file->name);
    snprintf(out->type, sizeof out->type, "Q4_K_M");
    for (int line = 1; at < end; line++) {
        char text[LINE_SIZE];
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const size_t n = (size_t)((newline ? newline : end) - at);
        snprintf(text, sizeof text, "%.*s", (int)(n < LINE_SIZE ? n : LINE_SIZE - 1), at);
        if (n >= LINE_SIZE || !take_line(out, text, &in_keys))
            return oato_fail(err, OATO_EFILE, "shape %s, line %d: '%.60s' is no field of a shape",
                             file->name, line, text);
        at += n + (newline != NULL);
    }
    out->mix = mix_find(out->type);
    return out->mix
               ? OATO_OK
               : oato_fail(err, OATO_EFILE, "shape %s: unknown type '%s'", file->name, out->type);
}

/* Whether a name of the file is this one, of n bytes. */
static bool is_named(const struct shape_spec *s, const char *name, size_t n)
{
    if (strlen(s->name) == n && !strncasecmp(s->name, name, n))
        return true;
    for (const char *word = s->aliases; *word;) {
        const size_t length = strcspn(word, " ");
        if (length == n && !strncasecmp(word, name, n))
            return true;
        word += length + strspn(word + length, " ");
    }
    return false;
}

static oato_status fail_name(const char *name, size_t n, struct oato_error *err)
{
    const char *names[NAMES_MAX];
    struct text all;
    char wrong[SHAPE_NAME];
    size_t count = 0;
    snprintf(wrong, sizeof wrong, "%.*s", (int)n, name);
    text_init(&all);
    for (const struct embedded_file *f; count < NAMES_MAX && (f = shape_file(count)); count++) {
        names[count] = f->name;
        text_printf(&all, "%s%s", count ? ", " : "", f->name);
    }
    const char *near = nearest_name(wrong, names, count);
    oato_fail(err, OATO_EUSAGE, "no shape '%s'%s%s%s; there are: %s", wrong,
              near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "",
              all.data ? all.data : "none");
    text_free(&all);
    return err->status;
}

oato_status shape_find(const char *text, struct shape_spec *out, struct oato_error *err)
{
    const size_t n = strcspn(text, ":");
    const char *type = text[n] ? text + n + 1 : NULL;
    const struct embedded_file *f;
    for (size_t i = 0; (f = shape_file(i)); i++) {
        if (shape_parse(f, out, err))
            return err->status;
        if (is_named(out, text, n))
            break;
    }
    if (!f)
        return fail_name(text, n, err);
    const struct mix *m = type ? mix_find(type) : out->mix;
    out->mix = m;
    return m ? OATO_OK : mix_fail(type, err);
}
