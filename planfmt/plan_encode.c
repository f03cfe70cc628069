/*
 * plan_encode.c - the fields of every section of a plan, in tables that the decoder uses, too, and
 * how a plan is written as bytes (docs/plan-format.md): a hashed header, a hashed table of
 * sections, and sections of fixed-width little-endian records, each hashed. Equal plans give equal
 * bytes: sections in order of id, strings in order of first use, padding zero.
 */
#include "planfmt/planfmt_internal.h"

#include <stdlib.h>
#include <string.h>

const char plan_magic[8] = "OATOPLAN";

#define FIELD(type, structure, member)                                                             \
    {                                                                                              \
        type, offsetof(struct structure, member), sizeof(((struct structure *)0)->member)          \
    }

static const struct plan_field identity[] = {
    FIELD(PLAN_U64, plan, structure_hash), FIELD(PLAN_U64, plan, content_hash),
    FIELD(PLAN_U64, plan, profile_hash),   FIELD(PLAN_TEXT, plan, tool),
    FIELD(PLAN_TEXT, plan, model_name),
};

static const struct plan_field device[] = {
    FIELD(PLAN_CHARS, plan_device, id),         FIELD(PLAN_CHARS, plan_device, kind),
    FIELD(PLAN_CHARS, plan_device, model),      FIELD(PLAN_CHARS, plan_device, spec),
    FIELD(PLAN_U32, plan_device, rank),         FIELD(PLAN_U32, plan_device, host),
    FIELD(PLAN_U64, plan_device, budget_bytes), FIELD(PLAN_U64, plan_device, planned_bytes),
};

static const struct plan_field part[] = {
    FIELD(PLAN_TEXT, plan_part, op),    FIELD(PLAN_U32, plan_part, axis),
    FIELD(PLAN_U64, plan_part, begin),  FIELD(PLAN_U64, plan_part, end),
    FIELD(PLAN_U32, plan_part, phases), FIELD(PLAN_U32, plan_part, device),
    FIELD(PLAN_U32, plan_part, home),   {PLAN_ZERO, 0, 0},
};

static const struct plan_field kv[] = {
    FIELD(PLAN_U32, plan_kv, layer),
    FIELD(PLAN_U32, plan_kv, head_begin),
    FIELD(PLAN_U32, plan_kv, head_end),
    FIELD(PLAN_U32, plan_kv, device),
};

static const struct plan_field fusion[] = {
    FIELD(PLAN_TEXT, plan_fusion, name),
    FIELD(PLAN_TEXT, plan_fusion, op),
};

static const struct plan_field request[] = {
    FIELD(PLAN_U32, plan, request.prompt),         FIELD(PLAN_U32, plan, request.generate),
    FIELD(PLAN_U32, plan, request.context),        FIELD(PLAN_U32, plan, request.batch),
    FIELD(PLAN_U32, plan, request.ubatch),         FIELD(PLAN_U32, plan, request.kv),
    FIELD(PLAN_BOOL, plan, request.deterministic), FIELD(PLAN_U32, plan, request.objective),
};

static const struct plan_field cost[] = {
    FIELD(PLAN_TEXT, plan_cost, op),    FIELD(PLAN_U32, plan_cost, phase),
    FIELD(PLAN_U32, plan_cost, device), FIELD(PLAN_BOOL, plan_cost, estimate),
    FIELD(PLAN_U64, plan_cost, ns),     FIELD(PLAN_U64, plan_cost, transfer_ns),
};

static const struct plan_field baseline[] = {
    FIELD(PLAN_TEXT, plan_baseline, name),
    {PLAN_ZERO, 0, 0},
    FIELD(PLAN_U64, plan_baseline, objective_ns),
};

static const struct plan_field summary[] = {
    FIELD(PLAN_U64, plan, prefill_ns),
    FIELD(PLAN_U64, plan, decode_ns),
    FIELD(PLAN_U64, plan, request_ns),
    FIELD(PLAN_U64, plan, objective_ns),
    FIELD(PLAN_U64, plan, bound_ns),
    FIELD(PLAN_TEXT, plan, numerics[PHASE_PREFILL]),
    FIELD(PLAN_TEXT, plan, numerics[PHASE_DECODE]),
    FIELD(PLAN_TEXT, plan, solver),
    FIELD(PLAN_BOOL, plan, timed_out),
};

static const struct plan_field cache[] = {
    FIELD(PLAN_TEXT, plan_cache, op),   FIELD(PLAN_U32, plan_cache, device),
    FIELD(PLAN_U32, plan_cache, slots), FIELD(PLAN_U32, plan_cache, margin),
    FIELD(PLAN_U32, plan_cache, hits),  {PLAN_ZERO, 0, 0},
};

static const struct plan_field sparse[] = {
    FIELD(PLAN_U32, plan_sparse, layer),
    FIELD(PLAN_U32, plan_sparse, threshold),
    FIELD(PLAN_U32, plan_sparse, dense),
    FIELD(PLAN_U32, plan_sparse, predicts),
};

static const struct plan_field input[] = {
    FIELD(PLAN_TEXT, plan_input, tensor),
    FIELD(PLAN_U32, plan_input, threshold),
    FIELD(PLAN_U32, plan_input, silent),
    {PLAN_ZERO, 0, 0},
};

static const struct plan_field sum[] = {
    FIELD(PLAN_U64, sum_choice, bytes),
    FIELD(PLAN_U32, sum_choice, way),
    FIELD(PLAN_U32, sum_choice, wire),
};

static const struct plan_field kernels[] = {
    FIELD(PLAN_U32, plan_kernels, device),
    FIELD(PLAN_TEXT, plan_kernels, isa),
    FIELD(PLAN_TEXT, plan_kernels, layout),
    {PLAN_ZERO, 0, 0},
};

static const struct plan_field point[] = {
    FIELD(PLAN_U32, plan_point, prompt),     FIELD(PLAN_U32, plan_point, generate),
    FIELD(PLAN_U32, plan_point, depth),      FIELD(PLAN_U32, plan_point, weight),
    FIELD(PLAN_U64, plan_point, prefill_ns), FIELD(PLAN_U64, plan_point, decode_ns),
};

static const struct plan_field choice[] = {
    FIELD(PLAN_TEXT, plan_choice, option),
    FIELD(PLAN_BOOL, plan_choice, chosen),
};

static const struct plan_field alternative[] = {
    FIELD(PLAN_TEXT, plan_alternative, option),    FIELD(PLAN_TEXT, plan_alternative, why),
    FIELD(PLAN_U64, plan_alternative, prefill_ns), FIELD(PLAN_U64, plan_alternative, decode_ns),
    FIELD(PLAN_U64, plan_alternative, request_ns),
};

static const struct plan_field neurons[] = {FIELD(PLAN_U64, plan, neurons_hash)};

#define FIELDS(table) table, ARRAY_LEN(table)
#define ONE(table)    FIELDS(table), 0, 0, 0, 0
#define ARRAY(table, structure, array)                                                             \
    FIELDS(table), sizeof(struct structure), offsetof(struct plan, array),                         \
        offsetof(struct plan, n_##array), 0

enum { NEEDED = PLAN_FLAG_REQUIRED };

const struct section_kind section_kind[SEC_END] = {
    [SEC_STRINGS] = {"strings", NEEDED, 1, false, false, NULL, 0, 0, 0, 0, 0},
    [SEC_IDENTITY] = {"identity", NEEDED, 32, true, false, ONE(identity)},
    [SEC_DEVICES] = {"devices", NEEDED, 40, false, false, ARRAY(device, plan_device, devices)},
    [SEC_PARTS] = {"parts", NEEDED, 40, false, false, ARRAY(part, plan_part, parts)},
    [SEC_KV] = {"kv", NEEDED, 16, false, false, ARRAY(kv, plan_kv, kv)},
    [SEC_FUSIONS] = {"fusions", NEEDED, 8, false, false, ARRAY(fusion, plan_fusion, fusions)},
    [SEC_REQUEST] = {"request", NEEDED, 32, true, false, ONE(request)},
    [SEC_COSTS] = {"costs", 0, 32, false, false, ARRAY(cost, plan_cost, costs)},
    [SEC_BASELINES] = {"baselines", 0, 16, false, false, ARRAY(baseline, plan_baseline, baselines)},
    [SEC_SUMMARY] = {"summary", NEEDED, 56, true, false, ONE(summary)},
    [SEC_NEURONS] = {"neurons", NEEDED, 8, true, true, ONE(neurons)},
    [SEC_CACHES] = {"caches", 0, 24, false, true, ARRAY(cache, plan_cache, caches)},
    [SEC_SPARSE] = {"sparse", 0, 16, false, true, ARRAY(sparse, plan_sparse, sparse)},
    [SEC_INPUTS] = {"inputs", 0, 16, false, true, ARRAY(input, plan_input, inputs)},
    [SEC_SUMS] = {"sums", 0, 16, false, true, ARRAY(sum, sum_choice, sums)},
    [SEC_KERNELS] = {"kernels", 0, 16, false, true, ARRAY(kernels, plan_kernels, kernels)},
    [SEC_POINTS] = {"points", 0, 32, false, true, FIELDS(point), sizeof(struct plan_point),
                    offsetof(struct plan, request.points), offsetof(struct plan, request.n_points),
                    REQUEST_POINTS_MAX},
    [SEC_CHOICES] = {"choices", 0, 8, false, true, ARRAY(choice, plan_choice, choices)},
    [SEC_ALTERNATIVES] = {"alternatives", 0, 32, false, true,
                          ARRAY(alternative, plan_alternative, alternatives)},
};

static void add_u32(struct text *t, uint32_t v)
{
    char b[4];
    for (int i = 0; i < 4; i++)
        b[i] = (char)(v >> (8 * i));
    text_add(t, b, sizeof b);
}

static void add_u64(struct text *t, uint64_t v)
{
    add_u32(t, (uint32_t)v);
    add_u32(t, (uint32_t)(v >> 32));
}

/* Strings are stored once each, in order of first use. The table holds offset + 1, 0 = free. */
struct encoder {
    struct text section[SEC_END];
    uint32_t *slots;
    size_t n_slots; /* a power of two, at least twice the number of references */
};

/* The offset of s in the strings section. Control characters, which a terminal would obey, and
 * bytes that are no UTF-8 become '?'. */
static uint32_t add_string(struct encoder *e, const char *s)
{
    struct text *strings = &e->section[SEC_STRINGS];
    size_t begin = strings->len, len = strlen(or_empty(s));
    if (!len || strings->failed)
        return 0; /* the section begins with the empty string */
    text_add(strings, s, len + 1);
    if (strings->failed || strings->len > UINT32_MAX) {
        strings->failed = true;
        return 0;
    }
    for (size_t i = begin; i < begin + len; i++)
        if (strings->data[i] == '\n' || strings->data[i] == '\r' || strings->data[i] == '\t')
            strings->data[i] = '?';
    text_tame(strings->data + begin, len);
    size_t mask = e->n_slots - 1;
    size_t i = (size_t)hash_bytes(strings->data + begin, len) & mask;
    while (e->slots[i] && strcmp(strings->data + e->slots[i] - 1, strings->data + begin) != 0)
        i = (i + 1) & mask;
    if (e->slots[i])
        strings->len = begin; /* it was there: take the new copy back */
    else
        e->slots[i] = (uint32_t)begin + 1;
    return e->slots[i] - 1;
}

static void encode_field(struct encoder *e, struct text *t, const struct plan_field *f,
                         const void *from)
{
    const char *s;
    uint32_t u32 = 0;
    uint64_t u64;
    switch (f->type) {
    case PLAN_TEXT:
        memcpy(&s, from, sizeof s);
        add_u32(t, add_string(e, s));
        break;
    case PLAN_CHARS: add_u32(t, add_string(e, from)); break;
    case PLAN_U32:
        memcpy(&u32, from, sizeof u32);
        add_u32(t, u32);
        break;
    case PLAN_U64:
        memcpy(&u64, from, sizeof u64);
        add_u64(t, u64);
        break;
    case PLAN_BOOL: add_u32(t, *(const bool *)from); break;
    case PLAN_ZERO: add_u32(t, 0); break;
    }
}

/* How many records a section has, and where the first one's structure is. */
static int32_t section_records(const struct plan *p, int id, const char **first)
{
    const struct section_kind *kind = &section_kind[id];
    const char *plan = (const char *)p;
    int32_t n;
    *first = plan;
    if (kind->one)
        return !kind->missing || p->neurons_hash;
    *first = plan + kind->array;
    if (!kind->most)
        memcpy(first, plan + kind->array, sizeof *first);
    memcpy(&n, plan + kind->length, sizeof n);
    return n;
}

static void encode_section(struct encoder *e, const struct plan *p, int id)
{
    const struct section_kind *kind = &section_kind[id];
    const char *base;
    const int32_t n = section_records(p, id, &base);
    for (int32_t i = 0; base && i < n; i++, base += kind->size)
        for (uint32_t f = 0; f < kind->n_fields; f++)
            encode_field(e, &e->section[id], &kind->fields[f], base + kind->fields[f].offset);
}

static bool is_written(const struct encoder *e, int id)
{
    return !section_kind[id].missing || e->section[id].len;
}

/* Header, table and sections one behind the other. False when memory is short. */
static bool assemble(const struct encoder *e, struct text *file)
{
    struct text table;
    uint32_t n = 0;
    bool good = true;
    for (int id = 1; id < SEC_END; id++) {
        good = good && !e->section[id].failed;
        n += is_written(e, id);
    }
    uint64_t offset = PLAN_HEADER_BYTES + n * PLAN_ENTRY_BYTES;
    text_init(&table);
    for (int id = 1; id < SEC_END; id++) {
        const struct text *s = &e->section[id];
        if (!is_written(e, id))
            continue;
        offset = size_align(offset, PLAN_SECTION_ALIGN);
        add_u32(&table, (uint32_t)id);
        add_u32(&table, section_kind[id].flags);
        add_u64(&table, offset);
        add_u64(&table, s->len);
        add_u64(&table, hash_bytes(s->data ? s->data : "", s->len));
        add_u32(&table, (uint32_t)(s->len / section_kind[id].record_bytes));
        add_u32(&table, section_kind[id].record_bytes);
        offset += s->len;
    }
    if (good && !table.failed) {
        text_add(file, plan_magic, sizeof plan_magic);
        add_u32(file, PLAN_FORMAT);
        add_u32(file, PLAN_HEADER_BYTES);
        add_u64(file, offset);
        add_u64(file, PLAN_HEADER_BYTES); /* offset of the table */
        add_u64(file, hash_bytes(table.data, table.len));
        add_u32(file, n);
        add_u32(file, PLAN_ENTRY_BYTES);
        add_u64(file, 0);
        add_u64(file, file->failed ? 0 : hash_bytes(file->data, file->len));
        text_add(file, table.data, table.len);
        for (int id = 1; id < SEC_END; id++) {
            if (!is_written(e, id))
                continue;
            text_add(file, "\0\0\0\0\0\0\0", size_align(file->len, PLAN_SECTION_ALIGN) - file->len);
            text_add(file, e->section[id].data, e->section[id].len);
        }
    }
    good = good && !table.failed && !file->failed;
    text_free(&table);
    return good;
}

oato_status plan_encode(const struct plan *p, uint8_t **data, size_t *bytes, struct oato_error *err)
{
    struct encoder e = {.n_slots = 64};
    const char *first;
    struct text file;
    *data = NULL;
    *bytes = 0;
    if (plan_validate(p, OATO_EUSAGE, err))
        return oato_fail_at(err, "plan not written");
    size_t references = 0; /* at most: as if every field named a string */
    for (int id = SEC_IDENTITY; id < SEC_END; id++)
        references += (size_t)section_records(p, id, &first) * section_kind[id].n_fields;
    while (e.n_slots < 2 * references)
        e.n_slots *= 2;
    e.slots = calloc(e.n_slots, sizeof *e.slots);
    if (!e.slots)
        return oato_fail_memory(err, e.n_slots * sizeof *e.slots, "encoding a plan");
    for (int id = 0; id < SEC_END; id++)
        text_init(&e.section[id]);
    text_add(&e.section[SEC_STRINGS], "", 1);
    for (int id = SEC_IDENTITY; id < SEC_END; id++)
        encode_section(&e, p, id);
    text_init(&file);
    oato_status status = OATO_OK;
    if (assemble(&e, &file)) {
        *data = (uint8_t *)file.data;
        *bytes = file.len;
    } else {
        status = oato_fail_memory(err, file.len, "encoding a plan");
        text_free(&file);
    }
    for (int id = 0; id < SEC_END; id++)
        text_free(&e.section[id]);
    free(e.slots);
    return status;
}

oato_status plan_save(const struct plan *p, const char *path, struct oato_error *err)
{
    uint8_t *data;
    size_t bytes;
    struct outfile f;
    if (plan_encode(p, &data, &bytes, err))
        return oato_fail_at(err, "%s", path);
    oato_status status = outfile_open(&f, path, err);
    if (!status && !(status = outfile_write(&f, data, bytes, err)))
        status = outfile_commit(&f, err);
    free(data);
    return status;
}
