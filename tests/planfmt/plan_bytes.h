/*
 * plan_bytes.h - taking the bytes of a plan apart and putting them together with right checksums,
 * as docs/plan-format.md describes them and not as planfmt/ does it: a second implementation, so
 * that the document is tested too.
 */
#ifndef OATO_PLAN_BYTES_H
#define OATO_PLAN_BYTES_H

#include "base/base.h"

struct raw_section {
    uint32_t id, flags, count, record_bytes;
    uint8_t *data;
    size_t bytes;
};

enum { RAW_SECTIONS_MAX = 300 };

struct raw_plan {
    uint32_t version;
    struct raw_section section[RAW_SECTIONS_MAX];
    int n;
};

/* Splits bytes that are a plan; false when they are not. */
bool raw_split(const uint8_t *data, size_t bytes, struct raw_plan *out);
/* Puts the sections together, all checksums right. Free *data. */
void raw_join(const struct raw_plan *p, uint8_t **data, size_t *bytes);
void raw_free(struct raw_plan *p);
struct raw_section *raw_find(struct raw_plan *p, uint32_t id);
void raw_add(struct raw_plan *p, uint32_t id, uint32_t flags, const void *data, size_t bytes);
/* Checksums of header and table made right again after changing them in place. */
void raw_seal(uint8_t *data);

uint32_t raw_u32(const uint8_t *b);
uint64_t raw_u64(const uint8_t *b);
void raw_put32(uint8_t *b, uint32_t v);
void raw_put64(uint8_t *b, uint64_t v);

#endif
