/*
 * cuda_program.c - programs of a GPU: what it supports and needs, compiling (which finds every
 * kernel, so that running a step looks up nothing), and what a step sends ahead: its tokens, its
 * sequences and their block tables.
 */
#include "kernels/cuda/cuda_device.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHARED_MOST = 48 << 10, /* bytes that a block has without asking */
    GRID_MOST = 65535,      /* blocks along the second and third dimension */
    VALUE_ALIGN = 16,       /* of values in the arena: kernels load four numbers at once */
};

/* ------------------------------------------------------------------------------ pricing --- */

bool cuda_supports(const struct oato_device *base, const struct oato_op *op)
{
    (void)base;
    if (!op_valid(op) || !cuda_has_sparse(op) || op->expert_slots < 0 || !cuda_has_kernel(op))
        return false;
    if (op->kind == OP_ATTENTION)
        return op->head_dim % 2 == 0 && op_v_dim(op) % 2 == 0 &&
               cuda_attention_shared(op->head_dim, op_v_dim(op)) <= SHARED_MOST;
    if (op->kind == OP_HEAD_MUL_MAT && (op->head_dim % 8 || op->k % 8))
        return false; /* rows of floats are read 16 bytes at a time */
    const int64_t rows = op->experts ? (int64_t)op_experts_held(op) * op->n : op->n;
    return (!cuda_takes_rows(op) && op_weight_use_at(op, 0) != WEIGHT_LOOKUP) ||
           (rows <= INT32_MAX && cuda_layout_bytes((oato_dtype)op->dtype, 1, op->k) > 0);
}

/* The classes of README.md. */
const char *cuda_numerics(const struct oato_device *base, const struct oato_op *op,
                          enum numerics_choice choice)
{
    const bool tensor = cuda_takes_matrix(cuda_of(base), op, choice);
    if (cuda_takes_blas(cuda_of(base), op, choice))
        return op->dtype == DT_BF16 ? "bf16.cublas" : "f16.cublas";
    if (cuda_takes_tile(op, choice))
        return "f16";
    if (!cuda_takes_rows(op) || op->dtype == DT_F32)
        return "f32";
    if (op->dtype == DT_F16 || op->dtype == DT_BF16)
        return !tensor ? "f32" : op->dtype == DT_F16 ? "f16" : "bf16";
    return tensor ? "a8b32s" : "a8b32";
}

uint64_t cuda_workspace_bytes(const struct oato_device *base, const struct oato_op *op,
                              const struct op_size *size)
{
    const struct cuda_device *d = cuda_of(base);
    /* before anybody has asked for its class, none of its products is planned or run */
    const bool blas = d->blas.library && size->rows > NUMERICS_DECODE_ROWS &&
                      cuda_takes_blas(d, op, NUMERICS_LIBRARY);
    return cuda_op_workspace(d, op, size->rows, blas);
}

/* ---------------------------------------------------------------------------- compiling --- */

static bool is_aligned(const struct program_record *r)
{
    bool good = true;
    for (int i = 0; i < r->n_in; i++)
        good = good && r->in[i] % VALUE_ALIGN == 0;
    for (int i = 0; i < r->n_out; i++)
        good = good && r->out[i] % VALUE_ALIGN == 0;
    return good;
}

static oato_status check_records(const struct cuda_device *d, const struct program *p,
                                 struct oato_error *err)
{
    char key[OP_KEY_SIZE];
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (record_is_peer(r->kind) && p->peers[r->peer].device->ops != &cuda_device_ops)
            return oato_fail(err, OATO_EUSAGE, "%s: record %" PRIu32 ": its peer is not a GPU",
                             d->far.id, i);
        if (r->kind != RECORD_RUN)
            continue;
        if (!is_aligned(r))
            return oato_fail(err, OATO_EUSAGE,
                             "%s: record %" PRIu32 ": offsets of values must be multiples of %d",
                             d->far.id, i, VALUE_ALIGN);
        if ((int64_t)p->max_tokens * max_i64(r->op.experts_used, 1) > GRID_MOST)
            return oato_fail(err, OATO_EUSAGE,
                             "%s: record %" PRIu32 ": steps of %" PRId32
                             " tokens are too long for %s; use a smaller --ubatch",
                             d->far.id, i, p->max_tokens, oato_op_key(&r->op, NULL, key));
    }
    return OATO_OK;
}

/* What the largest step needs; the kernels rely on it, so the program's word is not enough. While
 * it grows nothing uses it; when it cannot, programs compiled before keep what they have. */
static oato_status grow_workspace(struct cuda_device *d, const struct program *p,
                                  struct oato_error *err)
{
    uint64_t bytes = p->workspace_bytes;
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        const int32_t rows = program_rows(p, r->rows);
        if (r->kind != RECORD_RUN)
            continue;
        const uint64_t one =
            cuda_op_workspace(d, &r->op, rows, cuda_takes_blas(d, &r->op, r->numerics));
        bytes = one > bytes ? one : bytes;
    }
    return far_memory_grow(&d->far.memory, &d->workspace, bytes, "workspace", err);
}

static uint64_t turns_of(const struct program_record *r)
{
    return r->kind == RECORD_RUN && r->op.kind == OP_ROPE ? (uint64_t)r->op.rope_dims / 2 : 0;
}

/* How far a position turns each pair, as a fraction of a circle in 64 bits. */
static oato_status rope_turns(struct oato_device *base, const struct program *p,
                              const struct program_record *r, uint64_t *turn,
                              struct oato_error *err)
{
    float divisors[HEAD_DIM_MAX / 2];
    const struct oato_weight *w = NULL;
    const int32_t pairs = r->op.rope_dims / 2;
    if (r->n_weights && r->weight[0] != UINT32_MAX)
        w = p->weights[r->weight[0]];
    if (w && weight_vector_read(base, w, divisors, (uint64_t)pairs, err))
        return err->status;
    for (int32_t i = 0; i < pairs; i++) {
        const double circles = rope_turn(&r->op, i, w ? divisors : NULL) / (2 * M_PI);
        turn[i] = (uint64_t)((circles - floor(circles)) * 0x1p64);
    }
    return OATO_OK;
}

static oato_status upload_turns(struct oato_device *base, struct compiled *c,
                                struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    const struct program *p = c->program;
    uint64_t n = 0, at = 0;
    for (uint32_t i = 0; i < p->n_records; i++)
        n += turns_of(&p->records[i]);
    if (!n)
        return OATO_OK;
    uint64_t *turn = calloc(n, sizeof *turn);
    if (!turn)
        return oato_fail_memory(err, n * sizeof *turn, "rotary turns");
    void *there = NULL;
    oato_status status =
        far_memory_give(&d->far.memory, n * sizeof *turn, "rotary turns", &there, err);
    c->turns = there;
    for (uint32_t i = 0; i < p->n_records && !status; i++) {
        c->records[i].turn = (cu_address)(uintptr_t)(c->turns + at);
        if (turns_of(&p->records[i]))
            status = rope_turns(base, p, &p->records[i], turn + at, err);
        at += turns_of(&p->records[i]);
    }
    if (!status)
        status = far_upload(base, there, 0, turn, n * sizeof *turn, NULL, err);
    free(turn);
    return status;
}

/* Which tables of slots the records read, and how long they are. */
static oato_status find_caches(struct cuda_device *d, struct compiled *c, struct oato_error *err)
{
    const struct program *p = c->program;
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (r->kind != RECORD_RUN || !r->op.expert_slots)
            continue;
        if (!c->cached && !(c->cached = calloc((size_t)p->n_caches, sizeof *c->cached)))
            return oato_fail_memory(err, (size_t)p->n_caches * sizeof *c->cached, "a program");
        c->cached[r->cache] = r->op.experts;
        c->cached_most = r->op.experts > c->cached_most ? r->op.experts : c->cached_most;
    }
    return c->cached ? weights_refills_open(&d->far.base, err) : OATO_OK;
}

/* Room for the arrays of the largest step. */
static oato_status make_step(struct cuda_device *d, struct compiled *c, struct oato_error *err)
{
    const struct program *p = c->program;
    const uint64_t tokens = (uint64_t)p->max_tokens * sizeof(int32_t);
    c->copies_most = p->kv ? p->kv->pages * (1 + p->kv->windows) : 0;
    c->pages_most = (int32_t)min_i64(INT32_MAX, c->copies_most * max_i64(p->max_seqs, 1));
    c->rows_at = 3 * tokens;
    c->seqs_at =
        size_align(c->rows_at + (uint64_t)program_rows(p, ROWS_LOGITS) * sizeof(int32_t), 16);
    c->pages_at = c->seqs_at + (uint64_t)p->max_seqs * sizeof(struct cuda_seq);
    c->copies_at = c->pages_at + (uint64_t)c->pages_most * sizeof(int32_t);
    c->states_at =
        size_align(c->copies_at + (uint64_t)c->copies_most * sizeof(struct cuda_page_copy), 16);
    c->slots_at = c->states_at + (uint64_t)p->max_seqs * sizeof(struct cuda_state_copy);
    c->step_bytes = cuda_slots_at(c, c->cached ? p->n_caches : 0);
    void *host = NULL, *there = NULL;
    if (far_memory_give(&d->far.memory, c->step_bytes, "a step's tokens", &there, err))
        return err->status;
    c->step_memory = (cu_address)(uintptr_t)there;
    const cu_result result = d->cu->host_alloc(&host, c->step_bytes ? c->step_bytes : 1, 0);
    if (result)
        return cuda_fail(d->cu, result, d->far.id, "allocating pinned memory", err);
    c->host_step = host;
    const uint8_t *at = there;
    c->step = (struct cuda_step){
        .token_id = (const int32_t *)(const void *)at,
        .token_position = (const int32_t *)(const void *)(at + tokens),
        .token_seq = (const int32_t *)(const void *)(at + 2 * tokens),
        .row = (const int32_t *)(const void *)(at + c->rows_at),
        .seq = (const struct cuda_seq *)(const void *)(at + c->seqs_at),
        .pages = (const int32_t *)(const void *)(at + c->pages_at),
        .page_copy = (const struct cuda_page_copy *)(const void *)(at + c->copies_at),
        .state_copy = (const struct cuda_state_copy *)(const void *)(at + c->states_at),
    };
    return OATO_OK;
}

/* What comes from a file, and its ring in memory that cannot be moved. */
static oato_status find_files(struct cuda_device *d, struct compiled *c, struct oato_error *err)
{
    const struct program *p = c->program;
    struct file_stream *file = weights_file(&d->far.base);
    uint32_t *needs;
    uint64_t bytes;
    oato_status status = file_stream_compile(file, p, RECORD_STREAM, &needs, err);
    if (!status && needs) {
        c->file_uses = calloc((size_t)p->n_records + 1, sizeof *c->file_uses);
        if (!c->file_uses)
            status = oato_fail_memory(err, p->n_records * sizeof *c->file_uses, "a program");
    }
    for (uint32_t i = 0; c->file_uses && needs && i < p->n_records; i++)
        c->file_uses[i] = (struct weight_file_use){file, needs[i]};
    void *ring = file_stream_ring(file, &bytes);
    c->ring_pinned = !status && ring && cuda_pin(d, ring, bytes);
    free(needs);
    return status;
}

/* Events of rooms for history, and the host's KV that it comes from in memory that cannot be moved.
 */
static oato_status find_rooms(struct cuda_device *d, struct compiled *c, struct oato_error *err)
{
    const struct kv_cache *kv = c->program->kv, *host = c->program->host_kv;
    for (int32_t i = 0; kv && i < kv->n_layers; i++) {
        if (!kv->layers[i].staged)
            continue;
        if (!c->kv_arrived && !(c->kv_arrived = calloc((size_t)kv->n_layers, sizeof(cu_event))))
            return oato_fail_memory(err, (size_t)kv->n_layers * sizeof(cu_event), "a program");
        const cu_result result =
            cuda_events_create(d, &c->kv_arrived[i], 1, CU_EVENT_DISABLE_TIMING);
        if (result)
            return cuda_fail(d->cu, result, d->far.id, "making events", err);
    }
    c->kv_pinned = c->kv_arrived && host && cuda_pin(d, host->data, host->bytes);
    return OATO_OK;
}

oato_status cuda_compile(struct oato_device *base, const struct program *p, int self,
                         struct compiled **out, struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    uint8_t *arena;
    if (far_check(&d->far, p, self, &arena, err) || check_records(d, p, err) ||
        grow_workspace(d, p, err))
        return err->status;
    struct compiled *c = calloc(1, sizeof *c);
    if (!c)
        return oato_fail_memory(err, sizeof *c, "a program");
    c->next = d->programs;
    d->programs = c;
    c->program = p;
    c->self = self;
    c->records = calloc(p->n_records ? p->n_records : 1, sizeof *c->records);
    if (!c->records) {
        oato_fail_memory(err, p->n_records * sizeof *c->records, "a program");
        goto fail;
    }
    for (uint32_t i = 0; i < p->n_records; i++)
        if (p->records[i].kind == RECORD_RUN &&
            cuda_record_kernels(d, &p->records[i], &c->records[i], err))
            goto fail;
    if (cuda_join_records(d, c, err))
        goto fail;
    c->pinned = cuda_pin(d, p->host_arena, p->host_arena_bytes);
    if (find_files(d, c, err) || find_rooms(d, c, err) || cuda_graphs_create(c, err) ||
        find_caches(d, c, err) || make_step(d, c, err) || upload_turns(base, c, err))
        goto fail;
    *out = c;
    return OATO_OK;

fail:
    cuda_release(base, c);
    return err->status;
}

void cuda_release(struct oato_device *base, struct compiled *c)
{
    struct cuda_device *d = cuda_of(base);
    struct compiled **at = &d->programs;
    struct oato_error ignored;
    if (!c)
        return;
    job_queue_cancel(&d->far.queue);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    cuda_enter(d);
    if (c->file_uses)
        weights_drain(base, &ignored); /* for what the driver's thread has still to call */
    file_stream_stop(weights_file(base));
    cuda_graphs_free(d, c);
    if (c->ring_pinned) {
        uint64_t bytes;
        void *ring = file_stream_ring(weights_file(base), &bytes);
        cuda_unpin(d, ring, bytes);
    }
    free(c->file_uses);
    if (c->kv_pinned)
        cuda_unpin(d, c->program->host_kv->data, c->program->host_kv->bytes);
    if (c->kv_arrived)
        cuda_events_destroy(d, c->kv_arrived, c->program->kv->n_layers);
    free(c->kv_arrived);
    if (c->pinned)
        cuda_unpin(d, c->program->host_arena, c->program->host_arena_bytes);
    far_memory_return(&d->far.memory, c->turns);
    far_memory_return(&d->far.memory, (void *)(uintptr_t)c->step_memory);
    if (c->host_step)
        d->cu->host_free(c->host_step);
    free(c->cached);
    free(c->records);
    free(c);
}

/* --------------------------------------------------------------------------------- steps -- */

/* What no record of the program reads may be absent. */
static void copy_ints(uint8_t *to, const int32_t *from, int32_t n)
{
    if (from && n > 0)
        memcpy(to, from, (size_t)n * sizeof *from);
}

/* A sequence's state is copied at most once in a step. */
static cu_result states_upload(struct cuda_device *d, const struct compiled *c,
                               const struct step *step)
{
    struct cuda_state_copy *copy = (struct cuda_state_copy *)(void *)(c->host_step + c->states_at);
    const int32_t n = (int32_t)min_i64(step->n_state_copies, c->program->max_seqs);
    for (int32_t i = 0; i < n; i++)
        copy[i] = (struct cuda_state_copy){step->state_copy[i].from, step->state_copy[i].to};
    return d->cu->upload(c->step_memory + c->states_at, copy, (size_t)n * sizeof *copy,
                         d->queue.stream);
}

/* The tables of slots, if any has changed. */
static cu_result slots_upload(struct cuda_device *d, struct compiled *c, const struct step *step)
{
    const uint64_t bytes = cuda_slots_at(c, c->program->n_caches) - c->slots_at;
    bool changed = !c->slots_sent;
    for (int32_t i = 0; i < c->program->n_caches; i++) {
        uint8_t *to = c->host_step + cuda_slots_at(c, i);
        const size_t one = (size_t)c->cached[i] * sizeof(int32_t);
        if (!one || (c->slots_sent && !memcmp(to, step->cached[i], one)))
            continue;
        memcpy(to, step->cached[i], one);
        changed = true;
    }
    c->slots_sent = true;
    return changed ? d->cu->upload(c->step_memory + c->slots_at, c->host_step + c->slots_at, bytes,
                                   d->queue.stream)
                   : CU_OK;
}

oato_status cuda_step_upload(struct cuda_device *d, struct compiled *c, const struct step *step,
                             struct oato_error *err)
{
    const bool windows = c->program->kv && c->program->kv->windows;
    const uint64_t tokens = (uint64_t)c->program->max_tokens * sizeof(int32_t);
    struct cuda_seq *seq = (struct cuda_seq *)(void *)(c->host_step + c->seqs_at);
    int64_t pages = 0;
    if (c->program->max_seqs > 0) /* those that the step has not have no queries */
        memset(seq, 0, (size_t)c->program->max_seqs * sizeof *seq);
    copy_ints(c->host_step, step->token_id, step->n_tokens);
    copy_ints(c->host_step + tokens, step->token_position, step->n_tokens);
    copy_ints(c->host_step + 2 * tokens, step->token_seq, step->n_tokens);
    copy_ints(c->host_step + c->rows_at, step->row, step->n_rows);
    for (int32_t s = 0; step->seq && s < step->n_seqs; s++) {
        const struct step_seq *from = &step->seq[s];
        const int64_t n = (from->kv_len + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS;
        seq[s] = (struct cuda_seq){.kv_len = from->kv_len,
                                   .query_begin = from->query_begin,
                                   .query_len = from->query_len,
                                   .pages_at = {(int32_t)pages, (int32_t)(pages + n)},
                                   .state = from->state};
        if (!c->pages_most) /* no KV here: nobody reads a table */
            continue;
        if (pages + n * (1 + windows) > c->pages_most)
            return oato_fail(err, OATO_EUSAGE, "%s: the block tables exceed %" PRId32 " pages",
                             d->far.id, c->pages_most);
        copy_ints(c->host_step + c->pages_at + (uint64_t)pages * sizeof(int32_t), from->pages,
                  (int32_t)n);
        if (windows)
            copy_ints(c->host_step + c->pages_at + (uint64_t)(pages + n) * sizeof(int32_t),
                      from->window_pages, (int32_t)n);
        pages += n * (1 + windows);
    }
    cu_result result =
        d->cu->upload(c->step_memory, c->host_step, c->pages_at + (uint64_t)pages * sizeof(int32_t),
                      d->queue.stream);
    const int32_t copies = c->copies_most ? step->n_page_copies : 0;
    if (copies > c->copies_most)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: %" PRId32 " page copies; at most %" PRId32 " are possible", d->far.id,
                         copies, c->copies_most);
    struct cuda_page_copy *copy = (struct cuda_page_copy *)(void *)(c->host_step + c->copies_at);
    for (int32_t i = 0; i < copies; i++)
        copy[i] = (struct cuda_page_copy){step->page_copy[i].from, step->page_copy[i].to,
                                          step->page_copy[i].positions, step->page_copy[i].window};
    if (!result && copies)
        result = d->cu->upload(c->step_memory + c->copies_at, copy, (size_t)copies * sizeof *copy,
                               d->queue.stream);
    if (!result && step->n_state_copies)
        result = states_upload(d, c, step);
    if (!result && c->cached)
        result = slots_upload(d, c, step);
    return result ? cuda_fail(d->cu, result, d->far.id, "sending a step", err) : OATO_OK;
}
