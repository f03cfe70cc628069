/*
 * plan_decode.c - reads a plan (docs/plan-format.md) and trusts nothing: every byte of the file is
 * covered by a hash or must be zero, and values are checked even when the hashes match. Checks that
 * also apply to a plan in memory are in plan.c.
 */
#include "planfmt/planfmt_internal.h"

#include <stdarg.h>
#include <string.h>

static uint32_t get_u32(const uint8_t *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint64_t get_u64(const uint8_t *b)
{
    return get_u32(b) | (uint64_t)get_u32(b + 4) << 32;
}

struct section {
    const uint8_t *data; /* NULL: the file has no such section */
    uint64_t bytes;
    int32_t n;
};

struct decoder {
    const uint8_t *data;
    size_t bytes;
    const char *name; /* of the file */
    struct section section[SEC_END];
    char *strings; /* copy in the plan's arena */
    struct plan *plan;
    struct oato_error *err;
};

static oato_status refuse(struct decoder *d, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static oato_status refuse(struct decoder *d, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return oato_fail(d->err, OATO_EFILE, "%s: %s", d->name, text);
}

/* "4 (parts)", or the number alone. */
static const char *section_label(uint32_t id, char out[32])
{
    if (id > 0 && id < SEC_END)
        snprintf(out, 32, "%u (%s)", id, section_kind[id].name);
    else
        snprintf(out, 32, "%u", id);
    return out;
}

static oato_status decode_header(struct decoder *d, uint32_t *n_sections)
{
    const uint8_t *h = d->data;
    size_t n = d->bytes < sizeof plan_magic ? d->bytes : sizeof plan_magic;
    if (!d->bytes)
        return refuse(d, "empty file: not a plan");
    if (memcmp(h, plan_magic, n) != 0)
        return refuse(d, "not a plan: does not begin with 'OATOPLAN'");
    if (d->bytes < PLAN_HEADER_BYTES)
        return refuse(d, "truncated: %zu bytes; the header alone has %d", d->bytes,
                      PLAN_HEADER_BYTES);
    if (get_u64(h + 56) != hash_bytes(h, 56))
        return refuse(d,
                      "checksum of the header is wrong: the file is damaged; run oato-plan again");
    if (get_u32(h + 8) != PLAN_FORMAT)
        return refuse(d,
                      "plan format %u; this program reads %d: use the oato that wrote it or "
                      "run oato-plan again",
                      get_u32(h + 8), PLAN_FORMAT);
    uint64_t bytes = get_u64(h + 16);
    if (d->bytes < bytes)
        return refuse(d, "truncated: %zu of %llu bytes; copy it again, or run oato-plan again",
                      d->bytes, (unsigned long long)bytes);
    if (d->bytes > bytes)
        return refuse(d, "%zu extra bytes after the end of the plan at %llu",
                      d->bytes - (size_t)bytes, (unsigned long long)bytes);
    *n_sections = get_u32(h + 40);
    if (get_u32(h + 12) != PLAN_HEADER_BYTES || get_u64(h + 24) != PLAN_HEADER_BYTES ||
        get_u32(h + 44) != PLAN_ENTRY_BYTES || get_u64(h + 48) != 0)
        return refuse(d, "header: sizes %u, %llu, %u, reserved %llu; allowed: 64, 64, 40, 0",
                      get_u32(h + 12), (unsigned long long)get_u64(h + 24), get_u32(h + 44),
                      (unsigned long long)get_u64(h + 48));
    if (*n_sections > PLAN_SECTIONS_MAX ||
        PLAN_HEADER_BYTES + (uint64_t)*n_sections * PLAN_ENTRY_BYTES > d->bytes)
        return refuse(d, "header: %u sections do not fit into %zu bytes (at most %d)", *n_sections,
                      d->bytes, PLAN_SECTIONS_MAX);
    if (get_u64(h + 32) !=
        hash_bytes(h + PLAN_HEADER_BYTES, (size_t)*n_sections * PLAN_ENTRY_BYTES))
        return refuse(
            d, "checksum of the section table is wrong: the file is damaged; run oato-plan again");
    return OATO_OK;
}

/* One row of the table. *end: where the section before ended; moves on. */
static oato_status decode_entry(struct decoder *d, const uint8_t *row, uint64_t *end)
{
    uint32_t id = get_u32(row), flags = get_u32(row + 4);
    uint64_t offset = get_u64(row + 8), bytes = get_u64(row + 16);
    uint32_t n = get_u32(row + 32), record = get_u32(row + 36);
    bool known = id > 0 && id < SEC_END;
    char label[32];
    section_label(id, label);
    if (flags & ~(uint32_t)PLAN_FLAG_REQUIRED)
        return refuse(d, "section %s: flags %#x; allowed: 0, 1", label, flags);
    if (offset != size_align(*end, PLAN_SECTION_ALIGN) || offset > d->bytes ||
        bytes > d->bytes - offset)
        return refuse(d, "section %s: %llu bytes at %llu; must begin at %llu and end by %zu", label,
                      (unsigned long long)bytes, (unsigned long long)offset,
                      (unsigned long long)size_align(*end, PLAN_SECTION_ALIGN), d->bytes);
    for (uint64_t i = *end; i < offset; i++)
        if (d->data[i])
            return refuse(d, "byte %llu before section %s must be zero: the file is damaged",
                          (unsigned long long)i, label);
    *end = offset + bytes;
    if (get_u64(row + 24) != hash_bytes(d->data + offset, (size_t)bytes))
        return refuse(
            d, "checksum of section %s is wrong: the file is damaged; run oato-plan again", label);
    if ((uint64_t)n * record != bytes || n > INT32_MAX)
        return refuse(d, "section %s: %u records of %u bytes in %llu bytes", label, n, record,
                      (unsigned long long)bytes);
    if (!known && flags & PLAN_FLAG_REQUIRED)
        return refuse(d,
                      "section %s is required and unknown to this program: a newer oato wrote "
                      "the plan; use that one or run oato-plan again",
                      label);
    if (!known)
        return OATO_OK;
    const struct section_kind *kind = &section_kind[id];
    if (record != kind->record_bytes || (kind->one && n != 1))
        return refuse(d, "section %s: %u records of %u bytes; must be %s of %u", label, n, record,
                      kind->one ? "1" : "some", kind->record_bytes);
    if (flags != kind->flags)
        return refuse(d, "section %s: flags %u; must be %u", label, flags, kind->flags);
    if (kind->missing && !n)
        return refuse(d, "section %s: no records; a plan without any has no such section", label);
    d->section[id] = (struct section){d->data + offset, bytes, (int32_t)n};
    return OATO_OK;
}

static oato_status decode_table(struct decoder *d, uint32_t n)
{
    const uint8_t *table = d->data + PLAN_HEADER_BYTES;
    uint64_t end = PLAN_HEADER_BYTES + (uint64_t)n * PLAN_ENTRY_BYTES;
    char label[32];
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *row = table + (size_t)i * PLAN_ENTRY_BYTES;
        for (uint32_t j = 0; j < i; j++)
            if (get_u32(table + (size_t)j * PLAN_ENTRY_BYTES) == get_u32(row))
                return refuse(d, "duplicate section %s", section_label(get_u32(row), label));
        if (decode_entry(d, row, &end))
            return d->err->status;
    }
    if (end != d->bytes)
        return refuse(d, "%llu extra bytes after the last section",
                      (unsigned long long)(d->bytes - end));
    for (uint32_t id = 1; id < SEC_END; id++)
        if (section_kind[id].flags & PLAN_FLAG_REQUIRED && !section_kind[id].missing &&
            !d->section[id].data)
            return refuse(d, "section %s is missing", section_label(id, label));
    return OATO_OK;
}

static oato_status decode_strings(struct decoder *d)
{
    const struct section *s = &d->section[SEC_STRINGS];
    if (!s->bytes || s->data[0] || s->data[s->bytes - 1])
        return refuse(d, "section 1 (strings): must begin and end with a zero byte");
    for (uint64_t i = 0; i < s->bytes; i++)
        if (s->data[i] && (s->data[i] < 0x20 || s->data[i] == 0x7f))
            return refuse(d, "section 1 (strings): control character %#x at %llu", s->data[i],
                          (unsigned long long)i);
    d->strings = arena_strndup(&d->plan->arena, (const char *)s->data, (size_t)s->bytes);
    if (!d->strings)
        return oato_fail_memory(d->err, (size_t)s->bytes, "a plan");
    return OATO_OK;
}

/* The string whose offset is at b; NULL, with a message, when none begins there. */
static const char *get_string(struct decoder *d, const uint8_t *b, const char *label, int32_t i)
{
    const uint32_t at = get_u32(b);
    if (at < d->section[SEC_STRINGS].bytes && !(at && d->strings[at - 1]))
        return d->strings + at;
    refuse(d, "section %s, record %d: no string begins at %u", label, i, at);
    return NULL;
}

/* The field at b of record i. Negative numbers do not occur in the format; those that would be are
 * caught by plan_validate. */
static oato_status decode_field(struct decoder *d, const uint8_t *b, const char *label, int32_t i,
                                const struct plan_field *f, char *to)
{
    const uint32_t u32 = get_u32(b);
    const bool is_text = f->type == PLAN_TEXT || f->type == PLAN_CHARS;
    const char *s = is_text ? get_string(d, b, label, i) : "";
    uint64_t u64;
    if (!s)
        return d->err->status;
    switch (f->type) {
    case PLAN_TEXT: memcpy(to, &s, sizeof s); break;
    case PLAN_CHARS:
        if (strlen(s) >= f->size)
            return refuse(d, "section %s, record %d: text of %zu bytes; allowed: %zu", label, i,
                          strlen(s), f->size - 1);
        memcpy(to, s, strlen(s) + 1);
        break;
    case PLAN_U32: memcpy(to, &u32, sizeof u32); break;
    case PLAN_U64:
        u64 = get_u64(b);
        memcpy(to, &u64, sizeof u64);
        break;
    case PLAN_BOOL:
        if (u32 > 1)
            return refuse(d, "section %s, record %d: flag %u; allowed: 0, 1", label, i, u32);
        *(bool *)to = u32;
        break;
    case PLAN_ZERO:
        if (u32)
            return refuse(d, "section %s, record %d: reserved field is %u; must be 0", label, i,
                          u32);
        break;
    }
    return OATO_OK;
}

static oato_status decode_section(struct decoder *d, uint32_t id)
{
    const struct section_kind *kind = &section_kind[id];
    const int32_t n = d->section[id].n;
    const uint8_t *b = d->section[id].data;
    char label[32], *plan = (char *)d->plan, *base = plan;
    section_label(id, label);
    if (n > kind->most && kind->most)
        return refuse(d, "section %s: %d records; at most %d", label, n, kind->most);
    if (kind->most) {
        base = plan + kind->array;
        memcpy(plan + kind->length, &n, sizeof n);
    } else if (!kind->one) {
        base = arena_alloc(&d->plan->arena, (size_t)n, kind->size);
        if (!base)
            return oato_fail_memory(d->err, (size_t)n * kind->size, "a plan");
        memcpy(plan + kind->array, &base, sizeof base);
        memcpy(plan + kind->length, &n, sizeof n);
    }
    for (int32_t i = 0; i < n; i++, base += kind->size)
        for (const struct plan_field *f = kind->fields; f < kind->fields + kind->n_fields; f++) {
            if (decode_field(d, b, label, i, f, base + f->offset))
                return d->err->status;
            b += f->type == PLAN_U64 ? 8 : 4;
        }
    return OATO_OK;
}

/* The file has no flag for it: the device that computes in the host's memory is the processor. */
static void find_hosts(struct plan *p)
{
    for (int32_t i = 0; i < p->n_devices; i++)
        p->devices[i].is_host = !strcmp(p->devices[i].kind, "cpu");
}

oato_status plan_load_memory(const void *data, size_t bytes, const char *name, struct plan *out,
                             struct oato_error *err)
{
    struct decoder d = {
        .data = data, .bytes = data ? bytes : 0, .name = name, .plan = out, .err = err};
    uint32_t n_sections = 0;
    plan_init(out);
    oato_status status = decode_header(&d, &n_sections);
    if (!status)
        status = decode_table(&d, n_sections);
    if (!status)
        status = decode_strings(&d);
    for (uint32_t id = SEC_IDENTITY; id < SEC_END && !status; id++)
        status = decode_section(&d, id);
    if (!status)
        find_hosts(out);
    if (!status && d.section[SEC_NEURONS].data && !out->neurons_hash)
        status =
            refuse(&d, "section 11 (neurons): hash 0; a plan in natural order has no such section");
    if (!status && (status = plan_validate(out, OATO_EFILE, err)))
        oato_fail_at(err, "%s", name);
    if (status)
        plan_free(out);
    return status;
}

oato_status plan_load(const char *path, struct plan *out, struct oato_error *err)
{
    struct mapped_file f;
    plan_init(out);
    oato_status status = file_map(path, &f, err);
    if (status)
        return status;
    status = plan_load_memory(f.data, f.bytes, path, out, err);
    file_unmap(&f);
    return status;
}
