/*
 * selftest_cases.c - which operators a self-test tries: of every kind some shapes, odd ones among
 * them, with what may vary beside the shape; each with every type that the kind can have, and with
 * several numbers of rows. A new kind is a row here.
 */
#include "profiler/selftest_internal.h"

#include <math.h>
#include <string.h>

void vary_embed(struct trial *t, int variant)
{
    t->op.scale = variant == 1 ? 3.5f : 0;
    t->op.by_position = variant == 2 ? 3 : 0;
}

void vary_norm(struct trial *t, int variant)
{
    static const int32_t flags[] = {0,           NORM_CENTRED,
                                    NORM_PLAIN,  NORM_CENTRED | NORM_BIASED,
                                    NORM_BIASED, NORM_CENTRED | NORM_PLAIN};
    t->op.norm = flags[variant];
}

static void vary_head_norm(struct trial *t, int variant)
{
    static const int32_t flags[] = {0, NORM_CENTRED | NORM_OWN_HEADS, NORM_PLAIN, NORM_HEAD_GAINS};
    t->op.norm = flags[variant];
}

void vary_scale(struct trial *t, int variant)
{
    t->op.scale = 0.3f;
    t->absent[0] = variant == 0 || variant == 3;
    t->op.divides = variant == 2;
    if (variant == 3) {
        t->op.temperature = 0.1f;
        t->op.temperature_step = 100;
        t->op.temperature_offset = 1;
    }
}

void vary_rope(struct trial *t, int variant)
{
    t->absent[0] = variant != 1;
    t->op.rope_scale = variant ? 0.25f : 1;
    if (variant == 2) { /* YaRN */
        t->op.rope_low = 2;
        t->op.rope_high = 7.5f;
        t->op.rope_magnitude = 1.2f;
    }
}

void vary_activation(struct trial *t, int variant)
{
    /* of a single input this one means nothing */
    t->op.activation = t->op.kind == OP_ACTIVATE && variant == ACT_CLAMPED ? ACT_SILU : variant;
    t->op.scale = 3;
}

void vary_attention(struct trial *t, int variant)
{
    t->op.scale = 1 / sqrtf((float)t->op.head_dim);
    t->absent[0] = variant != 4;
    t->op.window = variant == 1 ? 40 : variant == 2 ? 64 : 0;
    t->op.chunked = variant == 2;
    t->op.soft_cap = variant == 3 ? 2 : 0;
    if (variant == 5) {
        t->op.alibi = 8;
        t->op.alibi_heads = t->op.heads;
    }
}

static void vary_route(struct trial *t, int variant)
{
    t->op.route_score = variant % ROUTE_SCORE_COUNT;
    t->op.route_norm = variant >= ROUTE_SCORE_COUNT;
    t->op.scale = 2.5f;
    t->absent[0] = variant % 2;
    t->absent[1] = variant != 4;
    if (variant >= ROUTE_SCORE_COUNT && t->op.experts % 9 == 0 && !t->op.route_share) {
        t->op.route_groups = 9;
        t->op.route_groups_used = 2;
    }
}

/* Plain; some of the experts, and weights of the choice at the input; factors and biases; one
 * matrix; gate and up in one tensor; in a cache, and the others. */
static void vary_experts(struct trial *t, int variant)
{
    for (int i = op_weight_least(&t->op); i < RECORD_WEIGHTS; i++)
        t->absent[i] = variant != 2;
    if (variant == 1) {
        t->op.expert_first = 2;
        t->op.experts_held = 5;
        t->op.weighs_input = 1;
    }
    t->op.single = variant == 3 && t->op.kind == OP_EXPERT_GATE_UP;
    t->op.one_tensor = variant == 4 && t->op.kind == OP_EXPERT_GATE_UP;
    t->op.expert_slots = variant == 5 ? t->op.experts / 2 : variant == 6 ? -1 : 0;
}

static void vary_sparse(struct trial *t, int variant)
{
    (void)variant;
    t->op.activation = t->op.kind == OP_GATE_UP ? ACT_RELU : 0;
    t->op.threshold = t->op.kind == OP_MUL_MAT && t->op.sparse == SPARSE_ABOVE ? 0.5f : 0;
}

static void vary_slice(struct trial *t, int variant)
{
    t->op.heads = variant ? 3 : 0;
    t->op.first = variant ? 5 : (t->op.k - t->op.n) / 2;
}

static void vary_merge(struct trial *t, int variant)
{
    const int32_t third = t->op.n / 3;
    (void)variant;
    t->n_in = 3;
    for (int i = 0; i < 3; i++)
        t->in_width[i] = t->op.kind == OP_MERGE_SUM ? t->op.n
                         : i < 2                    ? third - 1
                                                    : t->op.n - 2 * (third - 1);
}

static void vary_delta(struct trial *t, int variant)
{
    t->op.cyclic = variant;
    t->op.scale = variant ? -3 : 0;
}

static void vary_ssm(struct trial *t, int variant)
{
    if (variant && !t->op.per_channel) {
        t->op.alibi = 8;
        t->op.alibi_heads = t->op.heads;
        t->op.scale = 0.5f;
    }
}

static void vary_active(struct trial *t, int variant)
{
    t->absent[0] = variant;
    t->op.threshold = 0.2f;
}

/* The first row of a kind is what --quick tries. */
static const struct recipe recipes[] = {
    {OP_EMBED, "k256/n300", 3, vary_embed, false},
    {OP_EMBED, "k96/n70", 0, NULL, false},
    {OP_MUL_MAT, "k512/n70", 0, NULL, false},
    {OP_MUL_MAT, "k256/n33", 0, NULL, false},
    {OP_MUL_MAT, "k2048/n37", 0, NULL, false}, /* long rows, which threads or warps may share */
    {OP_MUL_MAT, "k96/n50", 0, NULL, false},
    {OP_MUL_MAT, "k512/n70/z1", 1, vary_sparse, false},
    {OP_MUL_MAT, "k512/n70/z2", 1, vary_sparse, false},
    {OP_MUL_MAT, "k512/n70/z3", 1, vary_sparse, false},
    {OP_QKV, "k256/n90/m30", 0, NULL, false},
    {OP_QKV, "k512/n64/m7", 0, NULL, false},
    {OP_GATE_UP, "k768/n40", 0, NULL, false},
    {OP_GATE_UP, "k256/n19", ACT_COUNT, vary_activation, true},
    {OP_GATE_UP, "k256/n40/z1", 1, vary_sparse, false},
    {OP_GATE_UP, "k256/n40/z2", 1, vary_sparse, false},
    {OP_HEAD_MUL_MAT, "k256/n48/h4/d320", 0, NULL, false},
    {OP_HEAD_MUL_MAT, "k128/n48/h5/d192", 0, NULL, false},
    {OP_MUL_MAT_T, "k70/n256", 0, NULL, false},
    {OP_EXPERT_GATE_UP, "k256/n70/e8/u3", 7, vary_experts, false},
    {OP_EXPERT_DOWN, "k256/n70/e8/u3", 7, vary_experts, false},
    {OP_EXPERT_GATE_UP, "k256/n64/e24/u8", 1, vary_experts, true},
    {OP_EXPERT_SUM, "n300/e8/u3", 0, NULL, false},
    {OP_ATTENTION, "h4/g2/d64", 6, vary_attention, false}, /* of what KV_STORE stored */
    {OP_ATTENTION, "h7/g1/d128", 6, vary_attention, false},
    {OP_ATTENTION, "h3/g3/d96", 2, vary_attention, false},
    {OP_ATTENTION, "h8/g2/d32/v64", 1, vary_attention, false},
    {OP_ATTENTION, "h4/g1/d96/c64", 1, vary_attention, false},
    {OP_CONV, "k100/s3", 0, NULL, false},
    {OP_CONV, "k64/s1", 0, NULL, false},
    {OP_DELTA, "h4/g2/d64/c0", 2, vary_delta, false},
    {OP_DELTA, "h6/g3/d40/c0", 2, vary_delta, false},
    {OP_DELTA, "h2/g2/d128/c1", 2, vary_delta, false},
    {OP_SSM, "h4/g2/d64/s24/c0", 2, vary_ssm, false},
    {OP_SSM, "h6/g1/d20/s128/c0", 2, vary_ssm, false},
    {OP_SSM, "h100/g1/d1/s16/c1", 0, NULL, false},
    {OP_RMS_NORM, "k576", 6, vary_norm, false},
    {OP_RMS_NORM, "k9000", 2, vary_norm, false},
    {OP_ADD_NORM, "k200", 6, vary_norm, false},
    {OP_ADD_NORM, "k2500", 2, vary_norm, false},
    {OP_HEAD_NORM, "h9/d64", 4, vary_head_norm, false},
    {OP_HEAD_NORM, "h3/d80", 4, vary_head_norm, false},
    {OP_BIAS, "k333", 0, NULL, false},
    {OP_ADD, "k333", 0, NULL, false},
    {OP_SCALE, "k333", 4, vary_scale, false},
    {OP_ROPE, "h3/d64/r64/p0", 3, vary_rope, false},
    {OP_ROPE, "h5/d64/r64/p1", 3, vary_rope, false},
    {OP_ROPE, "h2/d80/r20/p1", 3, vary_rope, false},
    {OP_SWIGLU, "k1000", ACT_COUNT, vary_activation, false},
    {OP_ACTIVATE, "k333", ACT_COUNT, vary_activation, false},
    {OP_GATE, "k640/h10", 1, vary_activation, false},
    {OP_GATE, "k333/h333", 0, NULL, false},
    {OP_CONVERT, "k333", 0, NULL, false},
    {OP_SELECT, "k77", 0, NULL, false},
    {OP_MERGE, "n300", 1, vary_merge, false},
    {OP_MERGE_SUM, "k600/n200", 1, vary_merge, false},
    {OP_SLICE, "k300/n75", 2, vary_slice, false},
    {OP_ROUTE, "e72/u6", 6, vary_route, false},
    {OP_ROUTE, "e33/u6/x2", 2, vary_route, false},
    {OP_ACTIVE, "k777", 2, vary_active, false},
    {OP_TOP_K, "k5000/n80", 0, NULL, false},
};

bool selftest_few_types(oato_dtype dtype)
{
    return dtype == DT_F32 || dtype == DT_F16 || dtype == DT_Q4_0 || dtype == DT_Q6_K;
}

/* Types that a kind can have. */
static const oato_dtype weight_types[] = {
#define TYPE(type, ...) DT_##type,
    WEIGHT_TYPES(TYPE)
#undef TYPE
};

static const int32_t rows_full[] = {1, 3, 7, 17, 64}, rows_quick[] = {1, 7, 17};
enum { SOME_ROWS = 7 };

/* One operator at several sizes, with the same weights. */
static oato_status run_sizes(struct selftest *s, struct trial *t, const struct trial_pair *pair,
                             struct oato_error *err)
{
    const int32_t *rows = s->o->quick ? rows_quick : rows_full;
    const int n = s->o->quick ? ARRAY_LEN(rows_quick) : ARRAY_LEN(rows_full);
    const struct oato_device *d = s->rig.device;
    const bool keeps = t->op.kind == OP_ATTENTION || op_state_floats(&t->op);
    for (int i = 0; i < n && !oato_interrupted; i++) {
        const char *class[NUMERICS_LIBRARY + 1];
        for (int c = 0; c <= NUMERICS_LIBRARY; c++)
            class[c] = d->ops->numerics(d, &t->op, (enum numerics_choice)c);
        t->rows = rows[i];
        t->seqs = keeps && rows[i] == 1 ? 1 : keeps ? 2 : 1;
        if (keeps) /* whole tokens of each sequence, after others that cross pages */
            t->rows = (rows[i] + t->seqs - 1) / t->seqs * t->seqs;
        t->before = t->op.kind == OP_ATTENTION ? (i % 2 ? 70 : 300) : i % 2 ? 5 : 1000;
        if (op_state_floats(&t->op))
            t->before = i % 3 * 2;
        /* a class once each; libraries compute many rows */
        const bool many = t->rows > NUMERICS_DECODE_ROWS;
        const int first = many ? NUMERICS_PREFILL : NUMERICS_DECODE;
        const int last = many ? NUMERICS_LIBRARY : NUMERICS_PREFILL;
        for (int c = first; c <= last; c++) {
            struct trial_result result;
            if (c > first && (!strcmp(class[c], class[c - 1]) || t->rows < SOME_ROWS))
                continue;
            t->numerics = (enum numerics_choice)c;
            const oato_status status = trial_run(pair, t, &result, err);
            if (status == OATO_EDEVICE || status == OATO_NEGATIVE)
                return status;
            if (status && status != OATO_EFIT)
                selftest_note_error(s, t, err->text);
            else
                selftest_note(s, t, status ? NULL : &result);
        }
    }
    return oato_interrupted ? oato_fail(err, OATO_NEGATIVE, "interrupted") : OATO_OK;
}

bool recipe_trial(const struct recipe *r, oato_dtype dtype, int variant, struct trial *t)
{
    struct oato_op example;
    struct op_size size;
    char key[OP_KEY_SIZE];
    const bool typed = op_example(r->kind, DT_F16, &example);
    *t = (struct trial){.numerics = NUMERICS_DECODE, .variant = variant};
    snprintf(key, sizeof key, "%s/%s%s%s", op_kind_name(r->kind), typed ? dtype_name(dtype) : "",
             typed ? "/" : "", r->shape);
    if (!oato_op_parse(key, &t->op, &size))
        return false; /* rows that are no whole blocks of the type */
    t->op.eps = 1e-5f;
    t->op.rope_base = 10000;
    t->op.rope_scale = 1;
    for (int i = op_weight_least(&t->op); i < RECORD_WEIGHTS; i++)
        t->absent[i] = true;
    if (r->vary)
        r->vary(t, variant);
    for (int i = 0; i < op_weight_least(&t->op); i++)
        t->absent[i] = false;
    trial_shape(t);
    return op_valid(&t->op);
}

/* One variant of a recipe with one type. */
static oato_status run_variant(struct selftest *s, const struct recipe *r, oato_dtype dtype,
                               int variant, struct oato_error *err)
{
    struct trial t;
    struct trial_pair pair;
    if (!recipe_trial(r, dtype, variant, &t))
        return OATO_OK;
    if (!s->rig.device->ops->supports(s->rig.device, &t.op) ||
        !s->reference.device->ops->supports(s->reference.device, &t.op)) {
        selftest_note(s, &t, NULL);
        return OATO_OK;
    }
    oato_status status = trial_pair_open(&s->rig, &s->reference, &t, &pair, err);
    if (status == OATO_EFIT)
        selftest_note(s, &t, NULL);
    else if (status && status != OATO_EDEVICE)
        selftest_note_error(s, &t, err->text);
    if (status)
        return status == OATO_EDEVICE ? status : OATO_OK;
    status = run_sizes(s, &t, &pair, err);
    trial_pair_close(&pair);
    return status;
}

static oato_status run_recipe(struct selftest *s, const struct recipe *r, oato_dtype dtype,
                              struct oato_error *err)
{
    struct oato_op example;
    oato_status status = OATO_OK;
    if (!op_example(r->kind, dtype, &example) || (r->few_types && !selftest_few_types(dtype)))
        return OATO_OK;
    for (int v = 0; v < (r->variants ? r->variants : 1) && !status; v++)
        status = run_variant(s, r, dtype, v, err);
    return status;
}

static bool is_wanted(const struct selftest *s, const struct recipe *r, const struct recipe *before)
{
    const enum op_kind only =
        s->only_kind == OP_KV_STORE || s->only_kind == OP_KV_COPY ? OP_ATTENTION : s->only_kind;
    if (only && r->kind != only)
        return false;
    return !s->o->quick || before == r || before->kind != r->kind;
}

oato_status selftest_operators(struct selftest *s, struct oato_error *err)
{
    const size_t n = ARRAY_LEN(recipes), types = ARRAY_LEN(weight_types);
    oato_status status = OATO_OK;
    for (size_t i = 0; i < n && !status; i++) {
        const struct recipe *r = &recipes[i];
        if (!is_wanted(s, r, i ? r - 1 : r))
            continue;
        for (size_t j = 0; j < types && !status; j++) {
            if (s->only_dtype >= 0 && (int)weight_types[j] != s->only_dtype)
                continue;
            progress_update(&s->progress, (double)(i * types + j) / (double)(n * types),
                            op_kind_name(r->kind));
            status = run_recipe(s, r, weight_types[j], err);
        }
    }
    return status;
}
