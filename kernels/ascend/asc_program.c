/*
 * asc_program.c - programs of an NPU: what it supports and needs, compiling, and what a step sends
 * ahead. Compiling makes each record's first calls dry, for the largest steps: what CANN refuses is
 * found then, and areas are made large enough, so that running a step allocates nothing.
 *
 * CANN copies at full speed, and beside the host, only from page-locked memory. The engine's arena
 * is none, so copies go through memory of the program's that mirrors it.
 */
#include "kernels/ascend/asc_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    VALUE_ALIGN = 32,    /* of values in the arena, as CANN wants addresses */
    QUANTISED_K = 65535, /* that a product of quantised weights takes at most */
    FEW_PAGES = 16,
    MERGED_GAP = 16 << 10, /* bytes that are cheaper to send than a copy is to start */
};

/* ------------------------------------------------------------------------------ pricing --- */

static bool weights_fit(const struct asc_device *d, const struct oato_op *op)
{
    for (int i = 0; i < op_weight_least(op); i++) {
        const enum asc_form form = asc_form_of(d, op_weight_dtype(op, i), op_weight_use_at(op, i));
        int64_t rows = 0, k = 0;
        if (form == ASC_FORM_NONE || !op_weight_shape(op, i, &rows, &k))
            return false;
        if ((form == ASC_FORM_Q8 || form == ASC_FORM_Q4) && (k > QUANTISED_K || k % ASC_GROUP))
            return false;
    }
    return true;
}

static bool row_fits(const struct asc_device *d, const struct oato_op *op)
{
    const struct asc_kind *kind = &asc_kinds[op->kind];
    for (int i = 0; i < ASC_NEEDS && kind->needs[i]; i++)
        if (!asc_has(d->api, (enum asc_operator)kind->needs[i]))
            return false;
    return kind->emit && !op->sparse && !op->expert_slots && weights_fit(d, op) &&
           (!kind->supports || kind->supports(d, op));
}

/* A record of the operator alone. */
static struct program_record record_of(const struct asc_device *d, const struct oato_op *op)
{
    struct program_record r = {.op = *op, .kind = RECORD_RUN, .kv_layer = op_has_kv(op) ? 0 : -1};
    r.n_in = (uint8_t)(op_in_count(op) == OP_ANY ? 2 : op_in_count(op));
    for (int i = 0; i < r.n_in; i++) {
        const int64_t width = op_in_width(op, i);
        r.in_width[i] = width == OP_ANY ? op->n / 2 : (int32_t)width;
        r.in_type[i] = (uint8_t)value_type_in(d->values, op, i);
    }
    for (; r.n_out < RECORD_OUTPUTS && op_out_width(op, r.n_out); r.n_out++)
        r.out_type[r.n_out] = (uint8_t)value_type_out(d->values, op, r.n_out);
    r.n_weights = (uint8_t)op_weight_least(op);
    return r;
}

/* Makes the first calls of an operator, or of a program's record. */
static oato_status try_record(struct asc_device *d, struct compiled *c,
                              const struct program_record *r, const struct op_size *size,
                              int32_t kv_pages, struct asc_emit *e, struct oato_error *err)
{
    asc_enter(d);
    asc_emit_begin(e, d, c, r, NULL, true);
    e->rows = size->rows;
    e->seqs = size->seqs > 0 ? size->seqs : 1;
    e->kv_pages = kv_pages;
    asc_kinds[r->op.kind].emit(e);
    return asc_emit_end(e, err);
}

bool asc_supports(const struct oato_device *base, const struct oato_op *op)
{
    struct asc_device *d = asc_of(base);
    const struct op_size size = {.rows = 2, .seqs = 1};
    struct asc_emit e;
    struct oato_op example;
    struct oato_error why;
    if (!op_valid(op) || !row_fits(d, op))
        return false;
    int8_t *tried = &d->tried[op->kind][op->dtype];
    if (!*tried && !d->hung) {
        /* an ordinary shape speaks for all */
        const bool any = op_example((enum op_kind)op->kind, (oato_dtype)op->dtype, &example) &&
                         row_fits(d, &example);
        const struct program_record r = record_of(d, any ? &example : op);
        const oato_status status = try_record(d, NULL, &r, &size, 1, &e, &why);
        if (status == OATO_EFIT) /* says nothing of the operator */
            return true;
        *tried = status ? -1 : 1;
    }
    return *tried >= 0;
}

const char *asc_numerics(const struct oato_device *base, const struct oato_op *op,
                         enum numerics_choice choice)
{
    const struct asc_device *d = asc_of(base);
    (void)choice; /* a library's class: other companies of rows give other bits */
    for (int i = 0; i < op_weight_least(op); i++)
        switch (asc_form_of(d, op_weight_dtype(op, i), op_weight_use_at(op, i))) {
        case ASC_FORM_F16:
        case ASC_FORM_Q8:
        case ASC_FORM_Q4: return "f16.cann";
        case ASC_FORM_BF16: return "bf16.cann";
        case ASC_FORM_NONE:
        case ASC_FORM_F32: break;
        }
    return value_types_halve(d->values, op) || op_has_kv(op) ? "f16.cann" : "f32.cann";
}

static int32_t round_pages(int64_t pages)
{
    int64_t n = 1;
    while (n < pages && n < FEW_PAGES)
        n *= 2;
    return (int32_t)(pages <= n ? n : (pages + FEW_PAGES - 1) / FEW_PAGES * FEW_PAGES);
}

uint64_t asc_workspace_bytes(const struct oato_device *base, const struct oato_op *op,
                             const struct op_size *size)
{
    struct asc_device *d = asc_of(base);
    struct asc_emit e;
    struct oato_error ignored;
    const int64_t positions = size->rows > 0 ? size->kv_positions / size->rows : 0;
    if (!asc_supports(base, op) || d->hung)
        return 0;
    const struct program_record r = record_of(d, op);
    if (try_record(d, NULL, &r, size, round_pages(kv_pages_of(positions)), &e, &ignored))
        return 0;
    return e.room_most + size_align(e.workspace_most, ASC_ALIGN);
}

int32_t asc_kv_pages(const struct compiled *c, const struct step *step)
{
    int64_t most = 1;
    for (int32_t s = 0; c->program->kv && step->seq && s < step->n_seqs; s++)
        most = max_i64(most, kv_pages_of(step->seq[s].kv_len));
    return (int32_t)min_i64(round_pages(most), c->kv_pages_most);
}

/* ------------------------------------------------------------------------------- arrays --- */

static uint64_t ids_bytes(const struct compiled *c, const struct program_record *r, int32_t pages)
{
    (void)r, (void)pages;
    return (uint64_t)c->program->max_tokens * sizeof(int32_t);
}

static uint64_t rows_bytes(const struct compiled *c, const struct program_record *r, int32_t pages)
{
    (void)r, (void)pages;
    return (uint64_t)program_rows(c->program, ROWS_LOGITS) * sizeof(int32_t);
}

static uint64_t ints_fill(void *to, const int32_t *from, int32_t n)
{
    if (n <= 0 || !from)
        return 0;
    memcpy(to, from, (size_t)n * sizeof *from);
    return (uint64_t)n * sizeof *from;
}

static uint64_t ids_fill(const struct compiled *c, const struct program_record *r,
                         const struct step *step, int32_t pages, void *to)
{
    (void)c, (void)r, (void)pages;
    return ints_fill(to, step->token_id, step->n_tokens);
}

static uint64_t positions_fill(const struct compiled *c, const struct program_record *r,
                               const struct step *step, int32_t pages, void *to)
{
    (void)c, (void)r, (void)pages;
    return ints_fill(to, step->token_position, step->n_tokens);
}

static uint64_t rows_fill(const struct compiled *c, const struct program_record *r,
                          const struct step *step, int32_t pages, void *to)
{
    (void)c, (void)r, (void)pages;
    return ints_fill(to, step->row, step->n_rows);
}

const struct asc_array_kind asc_array_ids = {ids_bytes, ids_fill, NULL};
const struct asc_array_kind asc_array_positions = {ids_bytes, positions_fill, NULL};
const struct asc_array_kind asc_array_rows = {rows_bytes, rows_fill, NULL};

oato_status asc_need_array(struct compiled *c, uint32_t index, const struct asc_array_kind *kind,
                           uint8_t *number, struct oato_error *err)
{
    const struct program_record *r = &c->program->records[index];
    int i = 0;
    for (; i < c->n_arrays; i++)
        if (c->arrays[i].kind == kind && (!kind->same || kind->same(c->arrays[i].record, r)))
            break;
    if (i == ASC_ARRAYS)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: record %" PRIu32 ": its program needs more than %d arrays a step",
                         c->device->far.id, index, ASC_ARRAYS);
    if (i == c->n_arrays) {
        c->arrays[i] =
            (struct asc_array){kind, r, c->step_bytes, kind->bytes(c, r, c->kv_pages_most)};
        c->step_bytes += size_align(c->arrays[i].bytes, ASC_ALIGN);
        c->n_arrays++;
    }
    *number = (uint8_t)i;
    return OATO_OK;
}

oato_status asc_constant(struct compiled *c, uint32_t index, const void *bytes, uint64_t n,
                         struct oato_error *err)
{
    struct oato_device *d = &c->device->far.base;
    struct asc_record *r = &c->records[index];
    if (far_place(d, n, NULL, &r->constant, err))
        return err->status;
    return far_upload(d, r->constant, 0, bytes, n, NULL, err);
}

oato_status asc_step_send(struct compiled *c, const struct step *step, struct oato_error *err)
{
    struct asc_device *d = c->device;
    const int32_t pages = asc_kv_pages(c, step);
    uint64_t begin = 0, end = 0;
    int error = 0;
    for (int i = 0; i <= c->n_arrays && !error; i++) {
        const struct asc_array *a = &c->arrays[i];
        const bool more = i < c->n_arrays;
        const uint64_t bytes =
            more ? a->kind->fill(c, a->record, step, pages, c->host_step + a->offset) : 0;
        if (more && end > begin && bytes && a->offset - end <= MERGED_GAP) {
            end = a->offset + bytes;
            continue;
        }
        if (more && !bytes)
            continue;
        if (end > begin)
            error = d->api->rtMemcpyAsync(c->step_memory + begin, end - begin, c->host_step + begin,
                                          end - begin, ASC_TO_DEVICE, d->queue.stream);
        begin = more ? a->offset : 0;
        end = begin + bytes;
    }
    return error ? asc_fail(d->api, error, d->far.id, "sending a step", err) : OATO_OK;
}

/* ---------------------------------------------------------------------------- compiling --- */

static bool is_copy(const struct program_record *r)
{
    return r->kind == RECORD_UPLOAD || r->kind == RECORD_DOWNLOAD;
}

static bool is_aligned(const struct program_record *r)
{
    uint64_t all = 0;
    for (int i = 0; i < r->n_in; i++)
        all |= r->in[i];
    for (int i = 0; i < r->n_out; i++)
        all |= r->out[i];
    return all % VALUE_ALIGN == 0;
}

static oato_status check_records(const struct asc_device *d, const struct program *p,
                                 struct oato_error *err)
{
    char key[OP_KEY_SIZE];
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (r->kind != RECORD_RUN && !is_copy(r))
            return oato_fail(err, OATO_EUSAGE, "%s: record %" PRIu32 ": it cannot stream or swap",
                             d->far.id, i);
        if (r->kind == RECORD_RUN && !asc_supports(&d->far.base, &r->op))
            return oato_fail(err, OATO_EUSAGE, "%s: record %" PRIu32 ": cannot run %s", d->far.id,
                             i, oato_op_key(&r->op, NULL, key));
        if (r->kind == RECORD_RUN && !is_aligned(r))
            return oato_fail(err, OATO_EUSAGE,
                             "%s: record %" PRIu32 ": offsets of values must be multiples of %d",
                             d->far.id, i, VALUE_ALIGN);
    }
    return OATO_OK;
}

static bool same_calls(const struct program_record *a, const struct program_record *b)
{
    /* padding that differs costs another try only; keys do not have all that calls depend on */
    /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
    const bool same = !memcmp(&a->op, &b->op, sizeof a->op);
    return same && a->kind == RECORD_RUN && a->rows == b->rows && a->n_in == b->n_in &&
           a->n_weights == b->n_weights && !memcmp(a->in_type, b->in_type, sizeof a->in_type) &&
           !memcmp(a->out_type, b->out_type, sizeof a->out_type) &&
           !memcmp(a->in_width, b->in_width, sizeof a->in_width);
}

/* Whether a record not far before makes the same calls: that of another layer, as a rule. */
static bool was_tried(const struct program *p, uint32_t index)
{
    enum { BACK = 64 };
    for (uint32_t i = index > BACK ? index - BACK : 0; i < index; i++)
        if (same_calls(&p->records[i], &p->records[index]))
            return true;
    return false;
}

/* Tries all records in the largest steps and grows the areas. */
static oato_status try_all(struct compiled *c, struct oato_error *err)
{
    struct asc_device *d = c->device;
    const struct program *p = c->program;
    uint64_t room = d->rooms.bytes, workspace = d->workspace.bytes;
    struct asc_emit e;
    bool moved[2];
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        const int32_t rows = program_rows(p, r->rows);
        const struct op_size sizes[] = {
            {.rows = rows, .seqs = 1},
            {.rows = rows < p->max_seqs ? rows : p->max_seqs, .seqs = p->max_seqs}};
        if (r->kind != RECORD_RUN || was_tried(p, i))
            continue;
        for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
            if (sizes[s].rows < 1)
                continue;
            if (try_record(d, c, r, &sizes[s], c->kv_pages_most, &e, err))
                return oato_fail_at(err, "record %" PRIu32, i);
            room = e.room_most > room ? e.room_most : room;
            workspace = e.workspace_most > workspace ? e.workspace_most : workspace;
        }
    }
    if (job_queue_drain(&d->far.queue, err) ||
        asc_area_grow(d, &d->rooms, room, true, "temporaries", &moved[0], err) ||
        asc_area_grow(d, &d->workspace, workspace, true, "workspace", &moved[1], err))
        return err->status;
    d->areas_moved += moved[0] || moved[1];
    return OATO_OK;
}

static uint64_t host_offset(const struct program_record *r)
{
    return r->kind == RECORD_UPLOAD ? r->in[0] : r->out[0];
}

static uint64_t copy_bytes(const struct program_record *r, int32_t rows)
{
    return (uint64_t)rows * (uint64_t)r->in_width[0] * sizeof(float);
}

static oato_status make_mirror(struct compiled *c, struct oato_error *err)
{
    const struct program *p = c->program;
    uint64_t begin = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (!is_copy(r))
            continue;
        const uint64_t at = host_offset(r), last = at + copy_bytes(r, program_rows(p, r->rows));
        begin = at < begin ? at : begin;
        end = last > end ? last : end;
    }
    if (end <= begin || asc_host_locked((const uint8_t *)p->host_arena + begin, end - begin))
        return OATO_OK;
    c->mirror_at = begin;
    c->mirror_bytes = end - begin;
    c->mirror = asc_host_alloc(&c->device->far.base, c->mirror_bytes, true);
    return c->mirror ? OATO_OK
                     : oato_fail_memory(err, c->mirror_bytes, "page-locked memory for copies");
}

static oato_status make_step(struct compiled *c, struct oato_error *err)
{
    void *memory = NULL;
    if (!c->step_bytes)
        return OATO_OK;
    if (far_place(&c->device->far.base, c->step_bytes, NULL, &memory, err))
        return err->status;
    c->step_memory = memory;
    c->host_step = asc_host_alloc(&c->device->far.base, c->step_bytes, true);
    return c->host_step ? OATO_OK : oato_fail_memory(err, c->step_bytes, "a step's arrays");
}

oato_status asc_compile(struct oato_device *base, const struct program *p, int self,
                        struct compiled **out, struct oato_error *err)
{
    struct asc_device *d = asc_of(base);
    uint8_t *arena;
    if (far_memory_check(&d->far.memory, p, d->values, self, &arena, err) ||
        check_records(d, p, err))
        return err->status;
    struct compiled *c = calloc(1, sizeof *c);
    if (!c)
        return oato_fail_memory(err, sizeof *c, "a program");
    c->next = d->programs;
    d->programs = c;
    c->program = p;
    c->device = d;
    c->self = self;
    c->kv_pages_most = p->kv ? round_pages(p->kv->pages) : 1;
    c->records = calloc((size_t)p->n_records + 1, sizeof *c->records);
    if (!c->records) {
        oato_fail_memory(err, p->n_records * sizeof *c->records, "a program");
        goto fail;
    }
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (r->kind == RECORD_RUN && asc_kinds[r->op.kind].prepare &&
            asc_kinds[r->op.kind].prepare(c, i, err))
            goto fail;
    }
    if (make_step(c, err) || make_mirror(c, err) || try_all(c, err) || asc_graphs_create(c, err))
        goto fail;
    *out = c;
    return OATO_OK;

fail:
    asc_release(base, c);
    return err->status;
}

void asc_release(struct oato_device *base, struct compiled *c)
{
    struct asc_device *d = asc_of(base);
    struct compiled **at = &d->programs;
    if (!c)
        return;
    job_queue_cancel(&d->far.queue);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    asc_graphs_free(c);
    for (uint32_t i = 0; c->records && i < c->program->n_records; i++) {
        far_memory_return(&d->far.memory, c->records[i].constant);
        free(c->records[i].host);
    }
    far_memory_return(&d->far.memory, c->step_memory);
    asc_host_free(base, c->host_step);
    asc_host_free(base, c->mirror);
    free(c->records);
    free(c);
}

/* ---------------------------------------------------------------------------------- steps - */

static oato_status copy_record(struct compiled *c, const struct program_record *r, int32_t rows,
                               struct oato_error *err)
{
    struct asc_device *d = c->device;
    const uint64_t bytes = copy_bytes(r, rows), at = host_offset(r);
    uint8_t *own = c->program->arena, *host = (uint8_t *)c->program->host_arena + at;
    uint8_t *locked = c->mirror ? c->mirror + (at - c->mirror_at) : host;
    int error;
    if (!bytes)
        return OATO_OK;
    if (r->kind == RECORD_UPLOAD) {
        if (locked != host)
            memcpy(locked, host, bytes);
        error = d->api->rtMemcpyAsync(own + r->out[0], bytes, locked, bytes, ASC_TO_DEVICE,
                                      d->queue.stream);
    } else {
        error = d->api->rtMemcpyAsync(locked, bytes, own + r->in[0], bytes, ASC_TO_HOST,
                                      d->queue.stream);
        if (!error && locked != host)
            asc_queue_arrives(d, host, locked, bytes);
    }
    return error ? asc_fail(d->api, error, d->far.id, "copying", err) : OATO_OK;
}

oato_status asc_run_record(struct compiled *c, uint32_t index, const struct step *step,
                           struct asc_emit *e, struct oato_error *err)
{
    const struct program_record *r = &c->program->records[index];
    const int32_t rows = record_rows(r, step);
    if (!rows)
        return OATO_OK;
    if (r->kind != RECORD_RUN)
        return copy_record(c, r, rows, err);
    const bool captures = e->captures;
    asc_emit_begin(e, c->device, c, r, step, false);
    e->captures = captures;
    asc_kinds[r->op.kind].emit(e);
    return asc_emit_end(e, err);
}
