/*
 * profile_yaml.c - reads a profile (docs/profile-format.md) from libyaml's stream of events, in
 * one pass and without building a tree: unknown keys give a warning and are skipped,
 * known ones are checked as they are read, so that every error names file, line and column.
 * Anchors, aliases, tags and second documents are refused.
 */
#include "planfmt/profile_reader_internal.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DEPTH_MAX = 16 };
static const size_t FILE_BYTES_MAX = (size_t)256 << 20;

/* ------------------------------------------------------------------ messages and events --- */

oato_status fail_at(struct reader *r, yaml_mark_t at, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return oato_fail(r->err, OATO_EFILE, "%s:%zu:%zu: %s", r->name, at.line + 1, at.column + 1,
                     text);
}

static const char *anchor_of(const yaml_event_t *e)
{
    const yaml_char_t *a = e->type == YAML_SCALAR_EVENT           ? e->data.scalar.anchor
                           : e->type == YAML_MAPPING_START_EVENT  ? e->data.mapping_start.anchor
                           : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.anchor
                                                                  : NULL;
    return (const char *)a;
}

static const char *tag_of(const yaml_event_t *e)
{
    const yaml_char_t *t = e->type == YAML_SCALAR_EVENT           ? e->data.scalar.tag
                           : e->type == YAML_MAPPING_START_EVENT  ? e->data.mapping_start.tag
                           : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.tag
                                                                  : NULL;
    return (const char *)t;
}

oato_status next_event(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        if (r->parser.error == YAML_MEMORY_ERROR)
            return oato_fail_memory(r->err, 0, "the YAML parser");
        if (r->parser.error == YAML_READER_ERROR)
            return oato_fail(r->err, OATO_EFILE, "%s: byte %zu: not UTF-8 text: %s", r->name,
                             r->parser.problem_offset, r->parser.problem);
        return fail_at(r, r->parser.problem_mark, "not YAML: %s",
                       r->parser.problem ? r->parser.problem : "cannot be parsed");
    }
    if (r->event.type == YAML_ALIAS_EVENT)
        return fail_at(r, r->event.start_mark,
                       "alias '*%.40s': %ss have no aliases; write the value out",
                       (const char *)r->event.data.alias.anchor, r->what);
    if (anchor_of(&r->event))
        return fail_at(r, r->event.start_mark, "anchor '&%.40s': %ss have no anchors; remove it",
                       anchor_of(&r->event), r->what);
    if (tag_of(&r->event))
        return fail_at(r, r->event.start_mark, "tag '%.40s': %ss have no tags; remove it",
                       tag_of(&r->event), r->what);
    return OATO_OK;
}

static const char *kind_of(const yaml_event_t *e)
{
    return e->type == YAML_SCALAR_EVENT           ? "a single value"
           : e->type == YAML_MAPPING_START_EVENT  ? "a mapping"
           : e->type == YAML_SEQUENCE_START_EVENT ? "a list"
                                                  : "nothing";
}

/* Warns about the unknown key at the event, and goes over its value, whatever that is. */
static oato_status skip_key(struct reader *r)
{
    const yaml_mark_t at = r->event.start_mark;
    int depth = 0;
    if (!r->profile)
        return fail_at(r, at, "unknown key '%.60s'", (const char *)r->event.data.scalar.value);
    warn_line(r->warn, r->user, "%s:%zu:%zu: unknown key '%.60s' is ignored", r->name, at.line + 1,
              at.column + 1, (const char *)r->event.data.scalar.value);
    for (;;) {
        oato_status status = next_event(r);
        if (status)
            return status;
        switch (r->event.type) {
        case YAML_MAPPING_START_EVENT:
        case YAML_SEQUENCE_START_EVENT:
            if (++depth > DEPTH_MAX)
                return fail_at(r, r->event.start_mark, "nested deeper than %d levels", DEPTH_MAX);
            break;
        case YAML_MAPPING_END_EVENT:
        case YAML_SEQUENCE_END_EVENT: depth--; break;
        default: break;
        }
        if (!depth)
            return OATO_OK;
    }
}

/* -------------------------------------------------------------------------------- values --- */

static bool all_digits(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == 0;
}

static oato_status read_u64(struct reader *r, const char *key, const char *s, uint64_t most,
                            uint64_t *out)
{
    yaml_mark_t at = r->event.start_mark;
    if (s[0] == '-' && all_digits(s + 1))
        return fail_at(r, at, "%s: %.40s is negative; allowed: 0 to %llu", key, s,
                       (unsigned long long)most);
    if (!all_digits(s))
        return fail_at(r, at, "%s: '%.40s' is not a whole number", key, s);
    errno = 0;
    unsigned long long v = strtoull(s, NULL, 10);
    if (errno || v > most)
        return fail_at(r, at, "%s: %.40s is too large; allowed: 0 to %llu", key, s,
                       (unsigned long long)most);
    *out = v;
    return OATO_OK;
}

/* digits [. digits] [e [sign] digits]: what strtod would take beyond that is no YAML number. */
static bool is_decimal(const char *s)
{
    size_t whole = strspn(s, "0123456789"), part = 0;
    s += whole;
    if (*s == '.') {
        part = strspn(++s, "0123456789");
        s += part;
    }
    if (!whole && !part)
        return false;
    if (*s != 'e' && *s != 'E')
        return !*s;
    s++;
    if (*s == '+' || *s == '-')
        s++;
    return all_digits(s);
}

static oato_status read_f64(struct reader *r, const char *key, const char *s, double *out)
{
    yaml_mark_t at = r->event.start_mark;
    const char *bare = s[0] == '-' || s[0] == '+' ? s + 1 : s;
    const char *word = *bare == '.' ? bare + 1 : bare;
    if (!strcasecmp(word, "inf") || !strcasecmp(word, "nan") || !strcasecmp(word, "infinity"))
        return fail_at(r, at, "%s: %.40s is not finite; allowed: numbers from 0", key, s);
    if (!is_decimal(bare))
        return fail_at(r, at, "%s: '%.40s' is not a number", key, s);
    double v = strtod(bare, NULL);
    if (!isfinite(v))
        return fail_at(r, at, "%s: %.40s is too large to be finite", key, s);
    if (s[0] == '-' && v != 0)
        return fail_at(r, at, "%s: %.40s is negative; allowed: numbers from 0", key, s);
    *out = v;
    return OATO_OK;
}

/* A list of rising numbers above 0. */
static oato_status read_rows(struct reader *r, const char *key, int32_t *out)
{
    uint64_t v = 0, last = 0;
    oato_status status;
    if (r->event.type != YAML_SEQUENCE_START_EVENT)
        return fail_at(r, r->event.start_mark, "%s: %s where a list is expected", key,
                       kind_of(&r->event));
    for (int n = 0; !(status = next_event(r)) && r->event.type != YAML_SEQUENCE_END_EVENT; n++) {
        if (r->event.type != YAML_SCALAR_EVENT || n == DEVICE_ROWS)
            return fail_at(r, r->event.start_mark, "%s: allowed are at most %d numbers", key,
                           DEVICE_ROWS);
        status = read_u64(r, key, (const char *)r->event.data.scalar.value, INT32_MAX, &v);
        if (!status && v <= last)
            status = fail_at(r, r->event.start_mark, "%s: must rise, but %d follows %d", key,
                             (int)v, (int)last);
        if (status)
            return status;
        last = v;
        out[n] = (int32_t)v;
    }
    return status;
}

/* The value of the key just read goes to its place in the structure at base. */
static oato_status read_scalar(struct reader *r, const struct field *f, void *base)
{
    oato_status status = next_event(r);
    if (status)
        return status;
    yaml_mark_t at = r->event.start_mark;
    if (f->type == FIELD_ROWS)
        return read_rows(r, f->name, (int32_t *)((char *)base + f->offset));
    if (r->event.type != YAML_SCALAR_EVENT)
        return fail_at(r, at, "%s: %s where a single value is expected", f->name,
                       kind_of(&r->event));
    const char *s = (const char *)r->event.data.scalar.value;
    size_t len = r->event.data.scalar.length;
    if (memchr(s, 0, len))
        return fail_at(r, at, "%s: has a zero byte", f->name);
    void *to = (char *)base + f->offset;
    uint64_t u = 0;
    switch (f->type) {
    case FIELD_TEXT:
        if (len > f->size)
            return fail_at(r, at, "%s: %zu bytes long; allowed: %u", f->name, len, f->size);
        const char *copy = arena_strndup(&r->profile->arena, s, len);
        if (!copy)
            return oato_fail_memory(r->err, len, "a profile");
        memcpy(to, &copy, sizeof copy);
        return OATO_OK;
    case FIELD_CHARS:
        if (len >= f->size)
            return fail_at(r, at, "%s: %zu bytes long; allowed: %u", f->name, len, f->size - 1);
        memcpy(to, s, len + 1);
        return OATO_OK;
    case FIELD_I32:
        status = read_u64(r, f->name, s, INT32_MAX, &u);
        if (!status)
            *(int32_t *)to = (int32_t)u;
        return status;
    case FIELD_U64: return read_u64(r, f->name, s, UINT64_MAX, (uint64_t *)to);
    case FIELD_F64: return read_f64(r, f->name, s, (double *)to);
    case FIELD_BOOL:
        if (strcmp(s, "true") != 0 && strcmp(s, "false") != 0)
            return fail_at(r, at, "%s: '%.40s'; allowed: true, false", f->name, s);
        *(bool *)to = s[0] == 't';
        return OATO_OK;
    case FIELD_ROWS: break; /* no single value */
    }
    return OATO_OK;
}

static int find_field(const struct schema *schema, const char *key)
{
    for (int i = 0; i < schema->n; i++)
        if (!strcmp(schema->field[i].name, key))
            return i;
    return -1;
}

static oato_status check_required(struct reader *r, const struct schema *schema, const void *base,
                                  const struct mapping_marks *m)
{
    const int n = schema_fields(schema, base);
    for (int i = 0; i < n; i++)
        if (schema->field[i].presence == REQUIRED && !(m->seen & 1u << i))
            return fail_at(r, m->begin, "%s: key '%s' is missing", schema->what,
                           schema->field[i].name);
    return OATO_OK;
}

oato_status read_mapping(struct reader *r, const struct schema *schema, void *base,
                         struct mapping_marks *m)
{
    m->seen = 0;
    m->begin = r->event.start_mark;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail_at(r, m->begin, "%s: %s where a mapping is expected", schema->what,
                       kind_of(&r->event));
    for (;;) {
        oato_status status = next_event(r);
        if (status)
            return status;
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return check_required(r, schema, base, m);
        yaml_mark_t at = r->event.start_mark;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_at(r, at, "%s: %s where a key is expected", schema->what,
                           kind_of(&r->event));
        const char *key = (const char *)r->event.data.scalar.value;
        int i = find_field(schema, key);
        if (i < 0) {
            status = skip_key(r);
        } else if (m->seen & 1u << i) {
            return fail_at(r, at, "%s: duplicate key '%s'", schema->what, key);
        } else {
            m->seen |= 1u << i;
            status = read_scalar(r, &schema->field[i], base);
            m->value[i] = r->event.start_mark;
        }
        if (status)
            return status;
    }
}

/* ------------------------------------------------------------------------------ sections --- */

void *array_of(struct reader *r, void *array, int32_t n, size_t size)
{
    void *p = array ? array : arena_alloc(&r->profile->arena, (size_t)n, size);
    if (!p)
        oato_fail_memory(r->err, (size_t)n * size, "a profile");
    return p;
}

static oato_status read_device(struct reader *r)
{
    struct profile *p = r->profile;
    struct profile_device d = {
        .id = "", .kind = "", .model = "", .spec = "", .isa = "", .layout = ""};
    struct mapping_marks m;
    if (read_mapping(r, &profile_device_schema, &d, &m))
        return r->err->status;
    if (!profile_device_id_ok(d.id, d.kind))
        return fail_at(r, m.value[DEVICE_ID],
                       "id '%s': must be the kind, '%s', a colon and a number", d.id, d.kind);
    if (profile_device_index(p, d.id) >= 0)
        return fail_at(r, m.value[DEVICE_ID], "duplicate device '%s'", d.id);
    if (!profile_may_have(d.model))
        return fail_at(r, m.begin,
                       "%s is a %s: its times are no hardware's, and nothing is planned with them",
                       d.id, d.model);
    if (p->n_devices == PROFILE_DEVICES_MAX)
        return fail_at(r, m.begin, "more than %d devices", PROFILE_DEVICES_MAX);
    p->devices = array_of(r, p->devices, PROFILE_DEVICES_MAX, sizeof d);
    if (!p->devices)
        return r->err->status;
    p->devices[p->n_devices++] = d;
    return OATO_OK;
}

oato_status read_list(struct reader *r, const char *key, oato_status (*item)(struct reader *r))
{
    oato_status status;
    if (r->event.type != YAML_SEQUENCE_START_EVENT)
        return fail_at(r, r->event.start_mark, "%s: %s where a list is expected", key,
                       kind_of(&r->event));
    while (!(status = next_event(r)) && r->event.type != YAML_SEQUENCE_END_EVENT)
        if ((status = item(r)))
            break;
    return status;
}

/* ---------------------------------------------------------------------------- the whole ---- */

static const struct {
    const char *name;
    oato_status (*item)(struct reader *r); /* NULL: no list, but one mapping */
} sections[] = {{"machine", NULL},         {"devices", read_device}, {"links", read_link},
                {"supports", read_runs},   {"operators", read_row},  {"restores", read_restore},
                {"storage", read_storage}, {"sums", read_sum}};

static const char no_devices[] = "'devices' is missing or empty";

static oato_status read_section(struct reader *r, size_t section)
{
    const char *name = sections[section].name;
    yaml_mark_t at = r->event.start_mark;
    struct mapping_marks m;
    if ((sections[section].item == read_link || sections[section].item == read_runs ||
         sections[section].item == read_row) &&
        !r->profile->n_devices)
        return fail_at(r, at, "'%s' must come after 'devices'", name);
    oato_status status = next_event(r);
    if (status)
        return status;
    if (!sections[section].item)
        return read_mapping(r, &profile_machine_schema, &r->profile->machine, &m);
    status = read_list(r, name, sections[section].item);
    return status || r->profile->n_devices ? status : fail_at(r, at, "%s", no_devices);
}

static oato_status check_version(struct reader *r)
{
    int32_t version = r->profile->version;
    if (version > PROFILE_VERSION)
        return fail_at(r, r->event.start_mark,
                       "oato_profile: version %d is newer than %d, which this program reads; use a "
                       "newer oato or run oato-profile again",
                       version, PROFILE_VERSION);
    if (version < 1)
        return fail_at(r, r->event.start_mark, "oato_profile: version %d; allowed: 1 to %d",
                       version, PROFILE_VERSION);
    return OATO_OK;
}

static oato_status read_profile(struct reader *r, yaml_mark_t begin)
{
    uint32_t seen = 0, seen_sections = 0;
    for (;;) {
        oato_status status = next_event(r);
        if (status)
            return status;
        if (r->event.type == YAML_MAPPING_END_EVENT)
            break;
        yaml_mark_t at = r->event.start_mark;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_at(r, at, "%s where a key is expected", kind_of(&r->event));
        const char *key = (const char *)r->event.data.scalar.value;
        int i = find_field(&profile_head_schema, key);
        size_t s = 0;
        if (!seen && i != 0)
            return fail_at(r, at, "'%.40s' where 'oato_profile: %d' must come first: not a profile",
                           key, PROFILE_VERSION);
        while (s < ARRAY_LEN(sections) && strcmp(key, sections[s].name) != 0)
            s++;
        if (i < 0 && s == ARRAY_LEN(sections)) {
            status = skip_key(r);
        } else if (i >= 0 ? seen & 1u << i : seen_sections & 1u << s) {
            return fail_at(r, at, "duplicate key '%s'", key);
        } else if (i >= 0) {
            seen |= 1u << i;
            status = read_scalar(r, &profile_head_schema.field[i], r->profile);
            if (!status && i == 0)
                status = check_version(r);
        } else {
            seen_sections |= 1u << s;
            status = read_section(r, s);
        }
        if (status)
            return status;
    }
    if (!seen)
        return fail_at(r, begin, "key 'oato_profile' is missing: not a profile");
    if (!r->profile->n_devices)
        return fail_at(r, begin, "%s", no_devices);
    return OATO_OK;
}

static oato_status read_stream(struct reader *r, read_head_fn *head)
{
    oato_status status = next_event(r); /* start of the stream */
    if (!status)
        status = next_event(r);
    if (status)
        return status;
    if (r->event.type == YAML_STREAM_END_EVENT)
        return oato_fail(r->err, OATO_EFILE, "%s: empty: not a %s", r->name, r->what);
    status = next_event(r);
    if (status)
        return status;
    yaml_mark_t begin = r->event.start_mark;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail_at(r, begin, "%s where a mapping is expected: not a %s", kind_of(&r->event),
                       r->what);
    status = head(r, begin);
    if (!status)
        status = next_event(r); /* end of the document */
    if (!status)
        status = next_event(r);
    if (!status && r->event.type != YAML_STREAM_END_EVENT)
        return fail_at(r, r->event.start_mark, "a second YAML document; a %s has exactly one",
                       r->what);
    return status;
}

oato_status read_yaml(struct reader *r, const void *data, size_t bytes, read_head_fn *head)
{
    if (bytes > FILE_BYTES_MAX)
        return oato_fail(r->err, OATO_EFILE, "%s: %zu bytes: too large for a %s (at most %zu)",
                         r->name, bytes, r->what, FILE_BYTES_MAX);
    const char *text = data ? data : "";
    if (text_mark_skip(r->name, &text, &bytes, r->err))
        return r->err->status;
    if (!yaml_parser_initialize(&r->parser))
        return oato_fail_memory(r->err, 0, "the YAML parser");
    yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, bytes);
    const oato_status status = read_stream(r, head);
    yaml_event_delete(&r->event);
    yaml_parser_delete(&r->parser);
    return status;
}

oato_status profile_load_memory(const void *data, size_t bytes, const char *name,
                                struct profile *out, warn_fn warn, void *user,
                                struct oato_error *err)
{
    struct reader r = {
        .name = name, .what = "profile", .profile = out, .warn = warn, .user = user, .err = err};
    profile_init(out);
    out->tool = out->date = out->notes = out->unfinished = "";
    out->machine.cpu = out->machine.isa = out->machine.kernel_isa = "";
    const oato_status status = read_yaml(&r, data, bytes, read_profile);
    if (status)
        profile_free(out);
    return status;
}

oato_status profile_load(const char *path, struct profile *out, warn_fn warn, void *user,
                         struct oato_error *err)
{
    struct mapped_file f;
    profile_init(out);
    oato_status status = file_map(path, &f, err);
    if (status)
        return status;
    status = profile_load_memory(f.data, f.bytes, path, out, warn, user, err);
    file_unmap(&f);
    if (!status && out->unfinished[0]) {
        profile_free(out);
        status = oato_fail(err, OATO_EFILE,
                           "%s: left by a run of oato-profile that was interrupted; the same "
                           "command goes on and writes the profile",
                           path);
    }
    return status;
}
