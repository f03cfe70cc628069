/*
 * plan_bytes.c - see plan_bytes.h: the document's reader and writer of sections.
 */
#include "plan_bytes.h"

#include <stdlib.h>
#include <string.h>

static const char magic[8] = "OATOPLAN";

uint32_t raw_u32(const uint8_t *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint64_t raw_u64(const uint8_t *b)
{
    return raw_u32(b) | (uint64_t)raw_u32(b + 4) << 32;
}

void raw_put32(uint8_t *b, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        b[i] = (uint8_t)(v >> (8 * i));
}

void raw_put64(uint8_t *b, uint64_t v)
{
    raw_put32(b, (uint32_t)v);
    raw_put32(b + 4, (uint32_t)(v >> 32));
}

void raw_add(struct raw_plan *p, uint32_t id, uint32_t flags, const void *data, size_t bytes)
{
    if (p->n == RAW_SECTIONS_MAX)
        abort();
    struct raw_section *s = &p->section[p->n++];
    *s = (struct raw_section){id, flags, (uint32_t)bytes, 1, malloc(bytes ? bytes : 1), bytes};
    if (!s->data)
        abort();
    if (bytes)
        memcpy(s->data, data, bytes);
}

bool raw_split(const uint8_t *data, size_t bytes, struct raw_plan *out)
{
    memset(out, 0, sizeof *out);
    if (bytes < 64 || memcmp(data, magic, sizeof magic) != 0 || raw_u64(data + 16) != bytes)
        return false;
    out->version = raw_u32(data + 8);
    uint32_t n = raw_u32(data + 40);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *row = data + 64 + (size_t)i * 40;
        raw_add(out, raw_u32(row), raw_u32(row + 4), data + raw_u64(row + 8),
                (size_t)raw_u64(row + 16));
        out->section[i].count = raw_u32(row + 32);
        out->section[i].record_bytes = raw_u32(row + 36);
    }
    return true;
}

void raw_seal(uint8_t *data)
{
    raw_put64(data + 32, hash_bytes(data + 64, (size_t)raw_u32(data + 40) * 40));
    raw_put64(data + 56, hash_bytes(data, 56));
}

void raw_join(const struct raw_plan *p, uint8_t **data, size_t *bytes)
{
    size_t at = 64 + (size_t)p->n * 40;
    for (int i = 0; i < p->n; i++)
        at = size_align(at, 8) + p->section[i].bytes;
    uint8_t *b = calloc(1, at);
    if (!b)
        abort();
    *bytes = at;
    *data = b;
    memcpy(b, magic, sizeof magic);
    raw_put32(b + 8, p->version);
    raw_put32(b + 12, 64);
    raw_put64(b + 16, at);
    raw_put64(b + 24, 64);
    raw_put32(b + 40, (uint32_t)p->n);
    raw_put32(b + 44, 40);
    at = 64 + (size_t)p->n * 40;
    for (int i = 0; i < p->n; i++) {
        const struct raw_section *s = &p->section[i];
        uint8_t *row = b + 64 + (size_t)i * 40;
        at = size_align(at, 8);
        raw_put32(row, s->id);
        raw_put32(row + 4, s->flags);
        raw_put64(row + 8, at);
        raw_put64(row + 16, s->bytes);
        raw_put64(row + 24, hash_bytes(s->data, s->bytes));
        raw_put32(row + 32, s->count);
        raw_put32(row + 36, s->record_bytes);
        if (s->bytes)
            memcpy(b + at, s->data, s->bytes);
        at += s->bytes;
    }
    raw_seal(b);
}

void raw_free(struct raw_plan *p)
{
    for (int i = 0; i < p->n; i++)
        free(p->section[i].data);
    p->n = 0;
}

struct raw_section *raw_find(struct raw_plan *p, uint32_t id)
{
    for (int i = 0; i < p->n; i++)
        if (p->section[i].id == id)
            return &p->section[i];
    return NULL;
}
