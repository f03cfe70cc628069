/*
 * fuzz_plan.c - whatever the bytes, the plan reader refuses them or gives a plan that can be
 * written, and reading that gives the same bytes again. Every input is tried twice: as it is, and
 * with its checksums made right, so that what stands behind them is reached.
 */
#include "planfmt/planfmt.h"
#include "tests/planfmt/plan_bytes.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Magic, sizes and every checksum that lies inside the file. */
static void seal(uint8_t *data, size_t bytes)
{
    memcpy(data, "OATOPLAN", 8);
    raw_put64(data + 16, bytes);
    uint32_t n = raw_u32(data + 40);
    if (n > (bytes - 64) / 40)
        raw_put32(data + 40, n = (uint32_t)(bytes - 64) / 40);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *row = data + 64 + (size_t)i * 40;
        uint64_t offset = raw_u64(row + 8), length = raw_u64(row + 16);
        if (offset <= bytes && length <= bytes - offset)
            raw_put64(row + 24, hash_bytes(data + offset, (size_t)length));
    }
    raw_seal(data);
}

static void encode(const struct plan *p, uint8_t **data, size_t *bytes)
{
    struct oato_error err;
    if (plan_encode(p, data, bytes, &err))
        abort(); /* what was read must be writable */
}

static void try_plan(const uint8_t *data, size_t bytes)
{
    struct oato_error err = {.text = ""};
    struct plan p, q;
    uint8_t *one, *two;
    size_t n1, n2;
    oato_status status = plan_load_memory(data, bytes, "fuzz", &p, &err);
    if (status) {
        if (status != OATO_EFILE || err.status != OATO_EFILE || !err.text[0] || p.arena.blocks)
            abort();
        return;
    }
    encode(&p, &one, &n1);
    if (plan_load_memory(one, n1, "fuzz", &q, &err))
        abort();
    encode(&q, &two, &n2);
    if (n1 != n2 || memcmp(one, two, n1) != 0)
        abort();
    free(one);
    free(two);
    plan_free(&p);
    plan_free(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    try_plan(data, bytes);
    if (bytes < 64)
        return 0;
    uint8_t *sealed = malloc(bytes);
    if (!sealed)
        return 0;
    memcpy(sealed, data, bytes);
    seal(sealed, bytes);
    try_plan(sealed, bytes);
    free(sealed);
    return 0;
}
