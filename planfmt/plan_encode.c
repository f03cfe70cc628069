/*
 * plan_encode.c - writes a plan as bytes (docs/plan-format.md): a hashed header, a hashed table of
 * sections, and sections of fixed-width little-endian records, each hashed. Equal plans give equal
 * bytes: sections in order of id, strings in order of first use, padding zero.
 */
#include "planfmt/planfmt_internal.h"

#include <stdlib.h>
#include <string.h>

const char plan_magic[8] = "OATOPLAN";

const struct section_kind section_kind[SEC_END] = {
    [SEC_STRINGS] = {"strings", PLAN_FLAG_REQUIRED, 1, false, false},
    [SEC_IDENTITY] = {"identity", PLAN_FLAG_REQUIRED, 32, true, false},
    [SEC_DEVICES] = {"devices", PLAN_FLAG_REQUIRED, 40, false, false},
    [SEC_PARTS] = {"parts", PLAN_FLAG_REQUIRED, 40, false, false},
    [SEC_KV] = {"kv", PLAN_FLAG_REQUIRED, 16, false, false},
    [SEC_FUSIONS] = {"fusions", PLAN_FLAG_REQUIRED, 8, false, false},
    [SEC_REQUEST] = {"request", PLAN_FLAG_REQUIRED, 32, true, false},
    [SEC_COSTS] = {"costs", 0, 32, false, false},
    [SEC_BASELINES] = {"baselines", 0, 16, false, false},
    [SEC_SUMMARY] = {"summary", PLAN_FLAG_REQUIRED, 56, true, false},
    [SEC_NEURONS] = {"neurons", PLAN_FLAG_REQUIRED, 8, true, true},
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

static void encode_people(struct encoder *e, const struct plan *p)
{
    struct text *t = &e->section[SEC_IDENTITY];
    add_u64(t, p->structure_hash);
    add_u64(t, p->content_hash);
    add_u64(t, p->profile_hash);
    add_u32(t, add_string(e, p->tool));
    add_u32(t, add_string(e, p->model_name));

    t = &e->section[SEC_DEVICES];
    for (int32_t i = 0; i < p->n_devices; i++) {
        const struct plan_device *d = &p->devices[i];
        add_u32(t, add_string(e, d->id));
        add_u32(t, add_string(e, d->kind));
        add_u32(t, add_string(e, d->model));
        add_u32(t, add_string(e, d->spec));
        add_u32(t, (uint32_t)d->rank);
        add_u32(t, 0);
        add_u64(t, d->budget_bytes);
        add_u64(t, d->planned_bytes);
    }
}

static void encode_placement(struct encoder *e, const struct plan *p)
{
    struct text *t = &e->section[SEC_PARTS];
    for (int32_t i = 0; i < p->n_parts; i++) {
        const struct plan_part *x = &p->parts[i];
        add_u32(t, add_string(e, x->op));
        add_u32(t, x->axis);
        add_u64(t, (uint64_t)x->begin);
        add_u64(t, (uint64_t)x->end);
        add_u32(t, x->phases);
        add_u32(t, (uint32_t)x->device);
        add_u32(t, (uint32_t)x->home);
        add_u32(t, 0);
    }
    t = &e->section[SEC_KV];
    for (int32_t i = 0; i < p->n_kv; i++) {
        add_u32(t, (uint32_t)p->kv[i].layer);
        add_u32(t, (uint32_t)p->kv[i].head_begin);
        add_u32(t, (uint32_t)p->kv[i].head_end);
        add_u32(t, (uint32_t)p->kv[i].device);
    }
    t = &e->section[SEC_FUSIONS];
    for (int32_t i = 0; i < p->n_fusions; i++) {
        add_u32(t, add_string(e, p->fusions[i].name));
        add_u32(t, add_string(e, p->fusions[i].op));
    }
}

static void encode_prediction(struct encoder *e, const struct plan *p)
{
    struct text *t = &e->section[SEC_REQUEST];
    add_u32(t, (uint32_t)p->request.prompt);
    add_u32(t, (uint32_t)p->request.generate);
    add_u32(t, (uint32_t)p->request.context);
    add_u32(t, (uint32_t)p->request.batch);
    add_u32(t, (uint32_t)p->request.ubatch);
    add_u32(t, p->request.kv);
    add_u32(t, p->request.deterministic);
    add_u32(t, p->request.objective);

    t = &e->section[SEC_COSTS];
    for (int32_t i = 0; i < p->n_costs; i++) {
        add_u32(t, add_string(e, p->costs[i].op));
        add_u32(t, p->costs[i].phase);
        add_u32(t, (uint32_t)p->costs[i].device);
        add_u32(t, p->costs[i].estimate);
        add_u64(t, p->costs[i].ns);
        add_u64(t, p->costs[i].transfer_ns);
    }
    t = &e->section[SEC_BASELINES];
    for (int32_t i = 0; i < p->n_baselines; i++) {
        add_u32(t, add_string(e, p->baselines[i].name));
        add_u32(t, 0);
        add_u64(t, p->baselines[i].objective_ns);
    }
    t = &e->section[SEC_SUMMARY];
    add_u64(t, p->prefill_ns);
    add_u64(t, p->decode_ns);
    add_u64(t, p->request_ns);
    add_u64(t, p->objective_ns);
    add_u64(t, p->bound_ns);
    for (int i = 0; i < PHASE_COUNT; i++)
        add_u32(t, add_string(e, p->numerics[i]));
    add_u32(t, add_string(e, p->solver));
    add_u32(t, p->timed_out);
    if (p->neurons_hash)
        add_u64(&e->section[SEC_NEURONS], p->neurons_hash);
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
    struct text file;
    *data = NULL;
    *bytes = 0;
    if (plan_validate(p, OATO_EUSAGE, err))
        return oato_fail_at(err, "plan not written");
    size_t references = 8 + 4 * (size_t)p->n_devices + (size_t)p->n_parts +
                        2 * (size_t)p->n_fusions + (size_t)p->n_costs + (size_t)p->n_baselines;
    while (e.n_slots < 2 * references)
        e.n_slots *= 2;
    e.slots = calloc(e.n_slots, sizeof *e.slots);
    if (!e.slots)
        return oato_fail_memory(err, e.n_slots * sizeof *e.slots, "encoding a plan");
    for (int id = 0; id < SEC_END; id++)
        text_init(&e.section[id]);
    text_add(&e.section[SEC_STRINGS], "", 1);
    encode_people(&e, p);
    encode_placement(&e, p);
    encode_prediction(&e, p);
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
