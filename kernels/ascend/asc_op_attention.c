/*
 * asc_op_attention.c - attention over pages of KV. The pages of each sequence are gathered, as many
 * as the step's longest one has, and distances mask what a token does not see: D = its position -
 * that of a column is negative for what comes later, and larger than its reach before a window.
 *
 * Where the chip has it there is one call for the rest; what that cannot do (caps, slopes, sinks,
 * other widths of V) is put together: products, softmax in float32, products. Sequences with
 * equally many queries are computed together, as long as their scores and pages are not too large.
 */
#include "kernels/ascend/asc_kv.h"
#include "kernels/ascend/asc_ops.h"

#include <stdlib.h>
#include <string.h>

enum {
    SLOT = 8,          /* elements of four bytes from one position to the next: 32 bytes */
    PAGES_STEP = 8,    /* pages are gathered by as many, so that lists of them are aligned */
    FUSED_WIDTH = 512, /* limits of the fused call */
    FUSED_SHARE = 64,
    FUSED_HEADS = 256
};
#define SCORES_MOST ((int64_t)1 << 24) /* of one piece: 64 MB */
#define PAGES_MOST  ((int64_t)1 << 27) /* elements that are gathered at once */
#define FAR         1e30f              /* what a step too far away takes off a score */
#define LARGEST     3e38f

bool asc_supports_attention(const struct asc_device *d, const struct oato_op *op)
{
    return asc_supports_kv(d, op) && (int64_t)op->heads * op->head_dim % 16 == 0 &&
           (int64_t)op->heads * op_v_dim(op) % 16 == 0;
}

/* The first position that a token sees. */
static int64_t first_seen(const struct oato_op *op, int64_t position)
{
    if (!op->window)
        return 0;
    return op->chunked ? position / op->window * op->window : max_i64(0, position - op->window + 1);
}

/* ------------------------------------------------------------------------ what a step sees - */

/* Pages that are gathered for a sequence with so many queries: all, or those of the window. */
static int64_t pages_seen(const struct oato_op *op, int64_t queries, int64_t kv_pages)
{
    int64_t pages = kv_pages;
    if (op->window) /* so many neighbours touch */
        pages = min_i64(
            pages,
            ((int64_t)op->window + queries - 1 + KV_PAGE_POSITIONS - 2) / KV_PAGE_POSITIONS + 1);
    return (max_i64(pages, 1) + PAGES_STEP - 1) / PAGES_STEP * PAGES_STEP;
}

/* The most queries of a sequence: by which all sequences of a step gather. */
static int64_t queries_most(const struct step *step)
{
    int64_t most = 1;
    for (int32_t s = 0; s < step->n_seqs; s++)
        most = max_i64(most, step->seq[s].query_len);
    return most;
}

/* The first page that a sequence gathers. */
static int64_t first_page(const struct oato_op *op, const struct step *step, int32_t seq)
{
    const struct step_seq *s = &step->seq[seq];
    return s->query_len ? first_seen(op, s->kv_len - s->query_len) / KV_PAGE_POSITIONS : 0;
}

static uint64_t seen_bytes(const struct compiled *c, const struct program_record *r,
                           int32_t kv_pages)
{
    return (uint64_t)(c->program->max_seqs * pages_seen(&r->op, c->program->max_tokens, kv_pages));
}

static uint64_t k_pages_bytes(const struct compiled *c, const struct program_record *r,
                              int32_t kv_pages)
{
    const struct asc_kv_shape s = asc_kv_shape(&r->op);
    return seen_bytes(c, r, kv_pages) * (uint64_t)s.k_units * sizeof(int32_t);
}

static uint64_t v_pages_bytes(const struct compiled *c, const struct program_record *r,
                              int32_t kv_pages)
{
    const struct asc_kv_shape s = asc_kv_shape(&r->op);
    return seen_bytes(c, r, kv_pages) * (uint64_t)s.v_units * sizeof(int32_t);
}

/* Of each sequence the blocks of K, or of V, of its pages; behind its last one that again. */
static uint64_t pages_fill(const struct compiled *c, const struct program_record *r,
                           const struct step *step, int32_t kv_pages, bool v, int32_t *to)
{
    const struct asc_kv_shape s = asc_kv_shape(&r->op);
    const int64_t each = v ? s.v_units : s.k_units, all = s.k_units + s.v_units;
    const int64_t n = pages_seen(&r->op, queries_most(step), kv_pages);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        const int32_t *table = kv_table(c->program->kv, r->kv_layer, &step->seq[i]);
        const int64_t first = first_page(&r->op, step, i), end = kv_pages_of(step->seq[i].kv_len);
        for (int64_t p = 0; p < n; p++) {
            const int64_t page = end > first ? table[min_i64(first + p, end - 1)] : 0;
            for (int64_t u = 0; u < each; u++)
                *to++ = (int32_t)(page * all + (v ? s.k_units : 0) + u);
        }
    }
    return (uint64_t)(step->n_seqs * n * each) * sizeof *to;
}

static uint64_t k_pages_fill(const struct compiled *c, const struct program_record *r,
                             const struct step *step, int32_t kv_pages, void *to)
{
    return pages_fill(c, r, step, kv_pages, false, to);
}

static uint64_t v_pages_fill(const struct compiled *c, const struct program_record *r,
                             const struct step *step, int32_t kv_pages, void *to)
{
    return pages_fill(c, r, step, kv_pages, true, to);
}

static bool seen_same(const struct program_record *a, const struct program_record *b)
{
    return asc_kv_same(a, b) && a->op.window == b->op.window && a->op.chunked == b->op.chunked;
}

/* Positions of the columns: of each sequence, or without a window once for all. */
static uint64_t columns_bytes_most(const struct compiled *c, const struct program_record *r,
                                   int32_t kv_pages)
{
    return seen_bytes(c, r, kv_pages) * KV_PAGE_POSITIONS * sizeof(float);
}

static uint64_t columns_fill(const struct compiled *c, const struct program_record *r,
                             const struct step *step, int32_t kv_pages, void *to)
{
    const int64_t n = pages_seen(&r->op, queries_most(step), kv_pages) * KV_PAGE_POSITIONS;
    const int32_t seqs = r->op.window ? step->n_seqs : 1;
    float *column = to;
    (void)c;
    for (int32_t s = 0; s < seqs; s++) {
        const int64_t first = first_page(&r->op, step, s) * KV_PAGE_POSITIONS;
        for (int64_t i = 0; i < n; i++)
            *column++ = (float)(first + i);
    }
    return (uint64_t)(seqs * n) * sizeof *column;
}

/* Of each token its position, then how far back it sees, and room that aligns the next one. */
static uint64_t tokens_bytes(const struct compiled *c, const struct program_record *r,
                             int32_t kv_pages)
{
    (void)r, (void)kv_pages;
    return (uint64_t)c->program->max_tokens * 2 * SLOT * sizeof(float);
}

static uint64_t tokens_fill(const struct compiled *c, const struct program_record *r,
                            const struct step *step, int32_t kv_pages, void *to)
{
    float *token = to;
    (void)c, (void)kv_pages;
    memset(to, 0, (size_t)step->n_tokens * 2 * SLOT * sizeof *token);
    for (int32_t t = 0; t < step->n_tokens; t++, token += 2 * SLOT) {
        const int64_t at = step->token_position[t];
        token[0] = (float)at;
        token[SLOT] = (float)(at - first_seen(&r->op, at));
    }
    return (uint64_t)step->n_tokens * 2 * SLOT * sizeof *token;
}

static const struct asc_array_kind k_pages = {k_pages_bytes, k_pages_fill, seen_same},
                                   v_pages = {v_pages_bytes, v_pages_fill, seen_same},
                                   columns = {columns_bytes_most, columns_fill, seen_same},
                                   tokens = {tokens_bytes, tokens_fill, seen_same};

oato_status asc_prepare_attention(struct compiled *c, uint32_t index, struct oato_error *err)
{
    const struct oato_op *op = &c->program->records[index].op;
    struct asc_record *r = &c->records[index];
    if (asc_need_array(c, index, &k_pages, &r->array[0], err) ||
        asc_need_array(c, index, &columns, &r->array[1], err) ||
        asc_need_array(c, index, &tokens, &r->array[2], err) ||
        (!op->v_in_k && asc_need_array(c, index, &v_pages, &r->array[3], err)))
        return err->status;
    if (op->alibi == 0)
        return OATO_OK;
    float *slopes = malloc((size_t)op->heads * sizeof *slopes);
    if (!slopes)
        return oato_fail_memory(err, (uint64_t)op->heads * sizeof *slopes, "slopes");
    for (int32_t h = 0; h < op->heads; h++)
        slopes[h] = -op_slope(op, h);
    const oato_status status =
        asc_constant(c, index, slopes, (uint64_t)op->heads * sizeof *slopes, err);
    free(slopes);
    return status;
}

/* ------------------------------------------------------------------------------ attention - */

/* Sequences [seq, seq + S) with q queries each, of which the first is token `token`. */
struct batch {
    struct asc_emit *e;
    const struct oato_op *op;
    int64_t seq, token, S, q;
    int64_t L;                 /* columns */
    struct asc_part k, v;      /* S x L x K heads x width */
    struct asc_part q_in, out; /* S x q x heads x width */
};

static struct asc_part gathered(struct batch *b, int array, int64_t each, int64_t width)
{
    struct asc_emit *e = b->e;
    const struct asc_kv_shape s = asc_kv_shape(b->op);
    const int64_t blocks = b->L / KV_PAGE_POSITIONS * each;
    const struct asc_part made = asc_part_new(e, ASC_F16, ASC_DIMS(b->S, b->L, s.kv_heads, width));
    int32_t *index = asc_array_address(e, array);
    if (!e->dry)
        index += b->seq * blocks;
    asc_select(e, asc_kv_units(e, &s, KV_PAGE_POSITIONS), 0,
               asc_part(ASC_I32, index, ASC_DIMS(b->S * blocks)),
               asc_shaped(made, ASC_DIMS(b->S * blocks, KV_PAGE_POSITIONS * s.kv_heads * s.unit)));
    return made;
}

/* S x q x L: how far each token is from each column; and what is further than it sees. */
static void distances(struct batch *b, struct asc_part *distance, struct asc_part *beyond)
{
    struct asc_emit *e = b->e;
    const int64_t window = b->op->window, token = e->dry ? 0 : b->token;
    float *at = (float *)asc_array_address(e, 2) + token * 2 * SLOT;
    struct asc_part position = asc_part(ASC_F32, at, ASC_DIMS(b->S, b->q, 2 * SLOT));
    struct asc_part column = asc_part(ASC_F32, asc_array_address(e, 1), ASC_DIMS(1, 1, b->L));
    if (window)
        column = asc_part(ASC_F32, (float *)asc_array_address(e, 1) + (e->dry ? 0 : b->seq * b->L),
                          ASC_DIMS(b->S, 1, b->L));
    *distance = asc_part_new(e, ASC_F32, ASC_DIMS(b->S, b->q, b->L));
    asc_sub(e, asc_cut(position, 2, 0, 1), column, *distance);
    if (window) {
        *beyond = asc_part_new(e, ASC_F32, ASC_DIMS(b->S, b->q, b->L));
        asc_sub(e, asc_cut(position, 2, SLOT, 1), *distance, *beyond);
    }
}

/* What is below zero of them, at most `most`, times `by`: zero for what a token sees. */
static struct asc_part mask(struct batch *b, const struct asc_part *distance,
                            const struct asc_part *beyond, float most, float by)
{
    struct asc_emit *e = b->e;
    const struct asc_part made = asc_part_new(e, ASC_F32, distance->n, distance->dims);
    const struct asc_part low = asc_part_new(e, ASC_F32, distance->n, distance->dims);
    asc_clamp(e, *distance, -most, 0, low);
    if (!b->op->window) {
        asc_scale(e, low, by, made);
        return made;
    }
    const struct asc_part other = asc_part_new(e, ASC_F32, distance->n, distance->dims);
    const struct asc_part both = asc_part_new(e, ASC_F32, distance->n, distance->dims);
    asc_clamp(e, *beyond, -most, 0, other);
    asc_add(e, low, other, both);
    asc_scale(e, both, by, made);
    return made;
}

static bool is_fused(const struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    return e->d->chip->fused && asc_has(e->api, ASC_FusedInferAttentionScoreV2) &&
           op->soft_cap == 0 && op->alibi == 0 && !e->r->n_weights && !op->v_in_k &&
           op_v_dim(op) == op->head_dim && op->head_dim % 16 == 0 && op->head_dim <= FUSED_WIDTH &&
           op->heads <= FUSED_HEADS && op->heads / op->kv_heads <= FUSED_SHARE;
}

static void attend_fused(struct batch *b)
{
    struct asc_emit *e = b->e;
    const struct oato_op *op = b->op;
    const int64_t width = (int64_t)op->kv_heads * op->head_dim, all = INT32_MAX;
    char layout[] = "BSH";
    struct asc_part distance, beyond = {0};
    distances(b, &distance, &beyond);
    const struct asc_part hidden = asc_as(e, mask(b, &distance, &beyond, 1, -1), ASC_BOOL);
    asc_tensor *k = asc_t(e, asc_shaped(b->k, ASC_DIMS(b->S, b->L, width)));
    asc_tensor *v = asc_t(e, asc_shaped(b->v, ASC_DIMS(b->S, b->L, width)));
    const struct asc_part seen = b->q == 1 ? asc_shaped(hidden, ASC_DIMS(b->S, b->L)) : hidden;
    ASC_CALL(e, FusedInferAttentionScoreV2,
             asc_t(e, asc_shaped(b->q_in, ASC_DIMS(b->S, b->q, op->n))), asc_list(e, 1, &k),
             asc_list(e, 1, &v), NULL, asc_t(e, seen), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
             NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, op->heads,
             (double)op->scale, all, all, layout, op->kv_heads, 0, 0, 0, 0, false, 0, 0,
             asc_t(e, asc_shaped(b->out, ASC_DIMS(b->S, b->q, op->n))), NULL);
}

/* a x b, whose first dimensions are the same. */
static void products(struct asc_emit *e, struct asc_part a, struct asc_part b, struct asc_part out)
{
    const struct asc_mark mark = asc_mark(e);
    ASC_CALL(e, Matmul, asc_t(e, a), asc_t(e, b), asc_t(e, out), 0);
    asc_rewind(e, (struct asc_mark){.room = e->room, .held = mark.held});
}

/* Scores of S x heads x q x L, of float32, with caps, slopes and masks. */
static struct asc_part scores(struct batch *b)
{
    struct asc_emit *e = b->e;
    const struct oato_op *op = b->op;
    const int64_t S = b->S, q = b->q, L = b->L, heads = op->heads, g = op->kv_heads;
    const int64_t each = heads / g, d = op->head_dim;
    const enum asc_type type = e->d->chip->f32 ? ASC_F32 : ASC_F16;
    const int64_t dims[] = {S, heads, q, L};
    struct asc_part distance, beyond = {0};
    struct asc_part made = asc_part_new(e, ASC_F32, 4, dims),
                    other = asc_part_new(e, ASC_F32, 4, dims);
    const struct asc_part in = asc_part_new(e, type, ASC_DIMS(S, heads, q, d));
    const struct asc_part scaled = asc_part_new(e, type, ASC_DIMS(S, g, each * q, d));
    asc_copy(e, asc_turned(b->q_in, 1, 2), in);
    asc_scale(e, in, op->scale, asc_shaped(scaled, ASC_DIMS(S, heads, q, d)));
    const struct asc_part k = asc_as(e, b->k, type); /* S x L x g x d */
    products(e, scaled, asc_turned(asc_turned(k, 1, 2), 2, 3),
             asc_shaped(made, ASC_DIMS(S, g, each * q, L)));
    if (op->soft_cap != 0) {
        const int held = e->n_held;
        asc_scale(e, made, 1 / op->soft_cap, other);
        ASC_CALL(e, Tanh, asc_t(e, other), asc_t(e, made));
        asc_rewind(e, (struct asc_mark){.room = e->room, .held = held});
        asc_scale(e, made, op->soft_cap, other);
        const struct asc_part swap = made;
        made = other;
        other = swap;
    }
    distances(b, &distance, &beyond);
    if (op->alibi != 0) {
        const struct asc_part slopes =
            asc_part(ASC_F32, asc_constant_address(e), ASC_DIMS(1, heads, 1, 1));
        const struct asc_part slanted = asc_part_new(e, ASC_F32, 4, dims);
        asc_mul(e, asc_shaped(distance, ASC_DIMS(S, 1, q, L)), slopes, slanted);
        asc_add(e, made, slanted, other);
        const struct asc_part swap = made;
        made = other;
        other = swap;
    }
    const struct asc_part hidden = mask(b, &distance, &beyond, LARGEST / FAR, FAR);
    asc_add(e, made, asc_shaped(hidden, ASC_DIMS(S, 1, q, L)), other);
    return other;
}

/* With a sink of each head as one more column, which then is left out. */
static struct asc_part shares(struct batch *b, struct asc_part score)
{
    struct asc_emit *e = b->e;
    const int64_t S = b->S, q = b->q, L = b->L, heads = b->op->heads;
    struct asc_part sinks, both[2] = {score};
    const bool has = asc_weight_part(e, 0, ASC_DIMS(1, heads, 1, 1), &sinks);
    if (has) {
        both[1] = asc_part_new(e, ASC_F32, ASC_DIMS(S, heads, q, 1));
        asc_copy(e, sinks, both[1]);
        score = asc_part_new(e, ASC_F32, ASC_DIMS(S, heads, q, L + 1));
        asc_cat(e, 2, both, 3, score);
    }
    const struct asc_part share = asc_part_new(e, ASC_F32, score.n, score.dims);
    const struct asc_part half = asc_part_new(e, ASC_F16, ASC_DIMS(S, heads, q, L));
    const int held = e->n_held;
    ASC_CALL(e, Softmax, asc_t(e, score), -1, asc_t(e, share));
    asc_rewind(e, (struct asc_mark){.room = e->room, .held = held});
    asc_copy(e, asc_cut(share, 3, 0, L), half);
    return half;
}

static void attend_composed(struct batch *b)
{
    struct asc_emit *e = b->e;
    const int64_t S = b->S, q = b->q, heads = b->op->heads, g = b->op->kv_heads;
    const int64_t v_dim = op_v_dim(b->op);
    const struct asc_part share = shares(b, scores(b));
    const struct asc_part v = asc_turned(asc_cut(b->v, 3, 0, v_dim), 1, 2); /* S x g x L x v */
    const struct asc_part made = asc_part_new(e, ASC_F16, ASC_DIMS(S, heads, q, v_dim));
    products(e, asc_shaped(share, ASC_DIMS(S, g, heads / g * q, b->L)), v,
             asc_shaped(made, ASC_DIMS(S, g, heads / g * q, v_dim)));
    asc_copy(e, asc_turned(made, 1, 2), b->out);
}

/* Pieces of a sequence's queries, so that scores are not too many. */
static void attend(struct batch *b)
{
    struct asc_emit *e = b->e;
    const struct asc_kv_shape s = asc_kv_shape(b->op);
    const struct asc_mark mark = asc_mark(e);
    const int64_t d = b->op->head_dim, v_dim = op_v_dim(b->op), heads = b->op->heads, q = b->q;
    const int64_t rows_each = is_fused(e) ? 1 : heads; /* that are made of a query */
    const int64_t first = b->token, row = b->S > 1 ? q : max_i64(1, SCORES_MOST / rows_each / b->L);
    b->k = gathered(b, 0, s.k_units, d);
    b->v = s.v_dim ? gathered(b, 3, s.v_units, v_dim) : b->k;
    for (int64_t at = 0; at < q && !e->failed; at += row) {
        const struct asc_mark piece = asc_mark(e);
        const int64_t token = first + at;
        b->token = token;
        b->q = min_i64(row, q - at);
        b->q_in = asc_part(asc_in_type(e, 0),
                           (uint8_t *)asc_in_address(e, 0) +
                               (uint64_t)(token * heads * d) * sizeof(uint16_t),
                           ASC_DIMS(b->S, b->q, heads, d));
        b->out = asc_part(asc_out_type(e, 0),
                          (uint8_t *)asc_out_address(e, 0) +
                              (uint64_t)(token * heads * v_dim) * sizeof(uint16_t),
                          ASC_DIMS(b->S, b->q, heads, v_dim));
        if (is_fused(e))
            attend_fused(b);
        else
            attend_composed(b);
        asc_rewind(e, piece);
    }
    asc_rewind(e, mark);
}

/* Sequences [seq, seq + S) of `most` pages; together if that is not too much. */
static void attend_seqs(struct asc_emit *e, int64_t seq, int64_t token, int64_t S, int64_t q,
                        int64_t L)
{
    const struct oato_op *op = &e->r->op;
    const int64_t stored = (int64_t)op->kv_heads * (op->head_dim + op_v_dim(op));
    const int64_t both = S * L, rows_each = is_fused(e) ? 1 : op->heads;
    const bool fits =
        S == 1 || (both * rows_each * q <= SCORES_MOST && both * stored <= PAGES_MOST);
    const int64_t some = fits ? S : 1;
    for (int64_t i = 0; i < S; i += some) {
        struct batch b = {.e = e, .op = op, .seq = seq + i, .token = token + i * q, .S = some};
        b.q = q;
        b.L = L;
        attend(&b);
    }
}

void asc_emit_attention(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const struct step *step = e->step;
    const int64_t seqs = max_i64(1, step ? step->n_seqs : min_i64(e->seqs, e->rows));
    const int64_t most = step ? queries_most(step) : (e->rows + seqs - 1) / seqs;
    const int64_t L = pages_seen(op, most, e->kv_pages) * KV_PAGE_POSITIONS;
    bool even = true;
    for (int64_t s = 0; step && s < seqs; s++)
        even = even && step->seq[s].query_len == most;
    if (even)
        attend_seqs(e, 0, 0, seqs, most, L);
    for (int64_t s = 0; !even && s < seqs; s++)
        if (step->seq[s].query_len)
            attend_seqs(e, s, step->seq[s].query_begin, 1, step->seq[s].query_len, L);
    if (!step && seqs > 1) /* what sequences of other lengths take at most */
        attend_seqs(e, 0, 0, 1, e->rows, L);
}
