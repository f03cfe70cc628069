/*
 * profile.c - the machine profile in memory. Rows are found by device and operator key through an
 * open-addressed table of their hashes, so that adding thousands of rows stays linear; table and
 * rows grow by doubling inside the profile's arena, which owns everything.
 */
#include "planfmt/planfmt_internal.h"

#include <string.h>

struct index_slot {
    uint64_t hash;
    int32_t row; /* -1: free */
};

/* Describes rows [0, n_indexed) of the array `rows`; rebuilt when someone else changed it. */
struct profile_index {
    const struct profile_row *rows;
    int32_t n_indexed, cap;
    struct index_slot *slots;
    uint32_t n_slots; /* a power of two, at least twice cap */
};

void profile_init(struct profile *p)
{
    memset(p, 0, sizeof *p);
    arena_init(&p->arena);
    p->version = PROFILE_VERSION;
}

void profile_free(struct profile *p)
{
    arena_free(&p->arena);
    memset(p, 0, sizeof *p);
}

const char *profile_string(struct profile *p, const char *s)
{
    return arena_strndup(&p->arena, or_empty(s), strlen(or_empty(s)));
}

int32_t profile_device_index(const struct profile *p, const char *id)
{
    for (int32_t i = 0; i < p->n_devices; i++)
        if (!strcmp(or_empty(p->devices[i].id), id))
            return i;
    return -1;
}

/* ------------------------------------------------------------------- rows and their index --- */

static uint64_t row_hash(const struct profile_row *r)
{
    struct {
        int64_t device;
        char key[OP_KEY_SIZE];
    } id = {.device = r->device};
    oato_op_key(&r->op, &r->size, id.key);
    return hash_bytes(&id, sizeof id.device + strlen(id.key));
}

static bool same_row(const struct profile_row *a, const struct profile_row *b)
{
    char ka[OP_KEY_SIZE], kb[OP_KEY_SIZE];
    return a->device == b->device &&
           !strcmp(oato_op_key(&a->op, &a->size, ka), oato_op_key(&b->op, &b->size, kb));
}

/* The slot of a row with that key, or the free one where it belongs. */
static struct index_slot *find_slot(struct profile_index *x, const struct profile_row *row,
                                    uint64_t hash)
{
    uint32_t mask = x->n_slots - 1;
    for (uint32_t i = (uint32_t)hash & mask;; i = (i + 1) & mask) {
        struct index_slot *s = &x->slots[i];
        if (s->row < 0 || (s->hash == hash && same_row(&x->rows[s->row], row)))
            return s;
    }
}

/* Makes room for at least n rows and indexes those that are there. */
static bool index_rebuild(struct profile *p, int32_t n)
{
    int32_t cap = 64;
    while (cap < n) {
        if (cap > INT32_MAX / 4)
            return false;
        cap *= 2;
    }
    struct profile_row *rows = arena_alloc(&p->arena, (size_t)cap, sizeof *rows);
    struct index_slot *slots = arena_alloc(&p->arena, 2 * (size_t)cap, sizeof *slots);
    struct profile_index *x =
        p->index ? p->index : arena_alloc(&p->arena, 1, sizeof(struct profile_index));
    if (!rows || !slots || !x)
        return false;
    if (p->n_rows)
        memcpy(rows, p->rows, (size_t)p->n_rows * sizeof *rows);
    for (int32_t i = 0; i < 2 * cap; i++)
        slots[i].row = -1;
    *x = (struct profile_index){rows, p->n_rows, cap, slots, 2 * (uint32_t)cap};
    p->rows = rows;
    p->index = x;
    for (int32_t i = 0; i < p->n_rows; i++) {
        uint64_t hash = row_hash(&rows[i]);
        struct index_slot *s = find_slot(x, &rows[i], hash);
        if (s->row < 0)
            *s = (struct index_slot){hash, i};
    }
    return true;
}

/* Classes are few: a row shares the string of an earlier row. */
static const char *shared_numerics(struct profile *p, const char *s)
{
    for (int32_t i = p->n_rows - 1; i >= 0 && i >= p->n_rows - 16; i--)
        if (p->rows[i].numerics && !strcmp(p->rows[i].numerics, s))
            return p->rows[i].numerics;
    return profile_string(p, s);
}

bool profile_add(struct profile *p, const struct profile_row *row, bool replace, bool *existed)
{
    struct profile_index *x = p->index;
    if (!x || x->rows != p->rows || x->n_indexed != p->n_rows || p->n_rows == x->cap) {
        if (!index_rebuild(p, p->n_rows + 1))
            return false;
        x = p->index;
    }
    struct profile_row copy = *row;
    copy.numerics = shared_numerics(p, or_empty(row->numerics));
    if (!copy.numerics)
        return false;
    uint64_t hash = row_hash(row);
    struct index_slot *s = find_slot(x, row, hash);
    *existed = s->row >= 0;
    if (*existed) {
        if (replace)
            p->rows[s->row] = copy;
        return true;
    }
    *s = (struct index_slot){hash, p->n_rows};
    p->rows[p->n_rows++] = copy;
    x->n_indexed = p->n_rows;
    return true;
}

bool profile_put(struct profile *p, const struct profile_row *row)
{
    bool existed;
    return profile_add(p, row, true, &existed);
}

/* ------------------------------------------------------------------------------ restores --- */

enum { RESTORES_STEP = 64 };

bool profile_add_restore(struct profile *p, const struct profile_restore *r)
{
    if (p->n_restores % RESTORES_STEP == 0) { /* the arena keeps the old array, too */
        struct profile_restore *more =
            arena_alloc(&p->arena, (size_t)p->n_restores + RESTORES_STEP, sizeof *more);
        if (!more)
            return false;
        if (p->n_restores)
            memcpy(more, p->restores, (size_t)p->n_restores * sizeof *more);
        p->restores = more;
    }
    p->restores[p->n_restores++] = *r;
    return true;
}

bool profile_put_restores(struct profile *p, uint64_t model, const char *devices,
                          const struct profile_restore *restores, int32_t n)
{
    const struct profile before = *p;
    const char *text = profile_string(p, devices);
    bool good = text != NULL;
    p->restores = NULL;
    p->n_restores = 0;
    for (int32_t i = 0; i < before.n_restores && good; i++) {
        const struct profile_restore *r = &before.restores[i];
        if (r->model != model || strcmp(r->devices, devices) != 0)
            good = profile_add_restore(p, r);
    }
    for (int32_t i = 0; i < n && good; i++) {
        struct profile_restore r = restores[i];
        r.model = model;
        r.devices = text;
        good = profile_add_restore(p, &r);
    }
    if (!good) {
        p->restores = before.restores;
        p->n_restores = before.n_restores;
    }
    return good;
}

/* ------------------------------------------------------------------------------- storage --- */

bool profile_put_storage(struct profile *p, const struct profile_storage *rows, int32_t n)
{
    struct profile_storage *own = arena_alloc(&p->arena, (size_t)n + 1, sizeof *own);
    if (!own)
        return false;
    for (int32_t i = 0; i < n; i++)
        own[i] = rows[i];
    p->storage = own;
    p->n_storage = n;
    return true;
}

const struct profile_storage *profile_storage_ahead(const struct profile *p)
{
    const struct profile_storage *most = NULL;
    for (int32_t i = 0; i < p->n_storage; i++) {
        const struct profile_storage *s = &p->storage[i];
        if (!most ||
            (double)s->depth * (double)s->bytes > (double)most->depth * (double)most->bytes)
            most = s;
    }
    return most;
}

double profile_storage_rate(const struct profile *p)
{
    const struct profile_storage *ahead = profile_storage_ahead(p);
    return ahead ? ahead->bytes_per_s : 0;
}

/* ---------------------------------------------------------------------------------- sums --- */

/* As ways to sum; NULL: it is one. */
static const char *const exchange_name[] = {NULL, "message", "step"};

static bool sum_ok(const struct profile_sum *s)
{
    return s->ranks > 0 && s->hosts > 0 && s->hosts <= s->ranks && s->bytes &&
           (unsigned)s->way < SUM_WAYS && sum_wire_ok(s->wire, 0) && s->median_ns > 0;
}

bool sum_text_read(struct sum_text *t)
{
    int way = 0, what = EXCHANGE_STEP;
    while (what && strcmp(t->by, exchange_name[what]) != 0)
        what--;
    while (!what && way < SUM_WAYS && strcmp(t->by, sum_way_name[way]) != 0)
        way++;
    t->row.what = (enum profile_exchange)what;
    t->row.way = (enum sum_way)way;
    return dtype_parse(t->wire, &t->row.wire) && sum_ok(&t->row);
}

bool sum_text_write(struct sum_text *t)
{
    if (!sum_ok(&t->row))
        return false;
    snprintf(t->by, sizeof t->by, "%s",
             t->row.what ? exchange_name[t->row.what] : sum_way_name[t->row.way]);
    snprintf(t->wire, sizeof t->wire, "%s", dtype_name(t->row.wire));
    return true;
}

bool profile_put_sums(struct profile *p, const struct profile_sum *rows, int32_t n)
{
    struct profile_sum *all =
        arena_alloc(&p->arena, (size_t)p->n_sums + (size_t)n + 1, sizeof *all);
    int32_t kept = 0;
    if (!all)
        return false;
    for (int32_t i = 0; i < p->n_sums; i++)
        if (!n || p->sums[i].ranks != rows->ranks || p->sums[i].hosts != rows->hosts)
            all[kept++] = p->sums[i];
    for (int32_t i = 0; i < n; i++)
        all[kept++] = rows[i];
    p->sums = all;
    p->n_sums = kept;
    return true;
}

/* ------------------------------------------------------------------------------- hashing --- */

/* Fields one after the other, strings with their end, so that no two lists read alike. */
struct hash_input {
    uint8_t bytes[1024];
    size_t n;
};

static void in_bytes(struct hash_input *h, const void *data, size_t n)
{
    if (n > sizeof h->bytes - h->n) { /* long strings: fold what is there */
        uint64_t folded = hash_bytes(h->bytes, h->n);
        memcpy(h->bytes, &folded, sizeof folded);
        h->n = sizeof folded;
        folded = hash_bytes(data, n);
        memcpy(h->bytes + h->n, &folded, sizeof folded);
        h->n += sizeof folded;
        return;
    }
    if (n)
        memcpy(h->bytes + h->n, data, n);
    h->n += n;
}

static void in_text(struct hash_input *h, const char *s)
{
    in_bytes(h, or_empty(s), strlen(or_empty(s)) + 1);
}

static void in_u64(struct hash_input *h, uint64_t v)
{
    uint8_t b[8]; /* little-endian: the hash is stored in plans that other hosts read */
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    in_bytes(h, b, sizeof b);
}

static void in_f64(struct hash_input *h, double v)
{
    uint64_t bits = 0; /* also of -0 */
    if (v != 0)
        memcpy(&bits, &v, sizeof bits);
    in_u64(h, bits);
}

/* A key that profiles which came before it lack: those keep their hash. */
static void in_known(struct hash_input *h, const char *name, double v)
{
    if (!(v > 0))
        return;
    in_text(h, name);
    in_f64(h, v);
}

static void in_device(struct hash_input *h, const struct profile *p, int32_t i)
{
    in_text(h, i >= 0 && i < p->n_devices ? p->devices[i].id : "");
}

uint64_t profile_hash(const struct profile *p)
{
    struct hash_input h = {.n = 0};
    for (int32_t i = 0; i < p->n_devices; i++) {
        const struct profile_device *d = &p->devices[i];
        in_text(&h, d->id);
        in_text(&h, d->kind);
        in_text(&h, d->model);
        in_text(&h, d->spec);
        in_u64(&h, d->memory_bytes);
        in_u64(&h, d->free_bytes);
        in_u64(&h, (uint64_t)d->threads);
        in_u64(&h, d->is_host);
        in_f64(&h, d->read_bytes_per_s);
        in_f64(&h, d->flops_per_s);
        in_f64(&h, d->record_overhead_ns);
        in_f64(&h, d->step_overhead_ns);
        /* profiles that came before these keys keep their hash */
        if (d->data_sheet)
            in_text(&h, "data sheet");
        if (d->refills)
            in_text(&h, "refills");
        if (d->keeps)
            in_text(&h, "keeps");
        for (int kind = 0; kind < OP_KIND_COUNT && d->runs; kind++) {
            const struct profile_workspace *w = d->workspaces ? &d->workspaces[kind] : NULL;
            if (!d->runs[kind])
                continue;
            in_text(&h, op_kind_name(kind));
            in_u64(&h, d->runs[kind]);
            for (int v = 0; v < OP_INPUTS && d->values; v++)
                in_u64(&h, d->values[kind].in[v]);
            for (int v = 0; v < OP_OUTPUTS && d->values; v++)
                in_u64(&h, d->values[kind].out[v]);
            if (!w)
                continue;
            in_f64(&h, w->bytes);
            in_f64(&h, w->per_input);
            in_f64(&h, w->per_output);
            in_f64(&h, w->per_partial);
        }
        if (d->spans)
            in_text(&h, "spans");
        for (int k = 0; k < DEVICE_ROWS; k++)
            in_known(&h, "rows", d->rows[k]);
        in_known(&h, "unit", d->unit_overhead_ns);
        in_known(&h, "rows overhead", d->rows_overhead);
        in_known(&h, "launch", d->launch_ns);
        for (int j = 0; j < JOIN_COUNT; j++)
            in_known(&h, op_join_names[j], d->join_ns[j]);
    }
    uint64_t devices = hash_bytes(h.bytes, h.n), links = 0, rows = 0;
    for (int32_t i = 0; i < p->n_links; i++) {
        const struct profile_link *l = &p->links[i];
        h.n = 0;
        in_device(&h, p, l->from);
        in_device(&h, p, l->to);
        in_f64(&h, l->latency_ns);
        in_f64(&h, l->bytes_per_s);
        in_f64(&h, l->sync_ns);
        if (l->pageable_bytes_per_s > 0)
            in_known(&h, "pageable latency", l->pageable_latency_ns);
        in_known(&h, "pageable", l->pageable_bytes_per_s);
        in_known(&h, "both", l->both_bytes_per_s);
        in_known(&h, "stream", l->stream_bytes_per_s);
        links += hash_bytes(h.bytes, h.n);
    }
    /* Sums, because the order of rows in memory is that of measuring and means nothing. */
    for (int32_t i = 0; i < p->n_rows; i++) {
        const struct profile_row *r = &p->rows[i];
        char key[OP_KEY_SIZE];
        h.n = 0;
        in_device(&h, p, r->device);
        in_text(&h, oato_op_key(&r->op, &r->size, key));
        in_u64(&h, r->supported);
        if (r->supported) {
            in_u64(&h, r->prepared_bytes);
            in_u64(&h, r->workspace_bytes);
            in_text(&h, r->numerics);
            in_f64(&h, r->median_ns);
            in_f64(&h, r->p10_ns);
            in_f64(&h, r->p90_ns);
            in_u64(&h, (uint64_t)r->repeats);
            in_known(&h, "own", r->own_ns);
        }
        rows += hash_bytes(h.bytes, h.n);
    }
    h.n = 0;
    in_u64(&h, devices);
    in_u64(&h, (uint64_t)p->n_links);
    in_u64(&h, links);
    in_u64(&h, (uint64_t)p->n_rows);
    in_u64(&h, rows);
    for (int32_t i = 0; i < p->n_storage; i++) { /* profiles without them keep their hash */
        in_u64(&h, (uint64_t)p->storage[i].depth);
        in_u64(&h, p->storage[i].bytes);
        in_f64(&h, p->storage[i].bytes_per_s);
    }
    for (int32_t i = 0; i < p->n_sums; i++) {
        const struct profile_sum *s = &p->sums[i];
        in_u64(&h, (uint64_t)s->ranks << 32 | (uint64_t)s->hosts);
        in_u64(&h, (uint64_t)s->what << 32 | (uint64_t)s->way << 16 | (uint64_t)s->wire);
        in_u64(&h, s->bytes);
        in_f64(&h, s->median_ns);
    }
    return hash_bytes(h.bytes, h.n);
}
