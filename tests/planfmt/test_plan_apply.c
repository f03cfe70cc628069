/*
 * test_plan_apply.c - what must stay true when a plan meets a model: a plan of another structure is
 * refused with both hashes; fusions and parts must be those of the graph; each operator is covered
 * exactly once in each phase, or lowering would compute a row twice or never.
 */
#include "random_planfmt.h"
#include "tests/models/random_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct model *model, *experts_model;

static struct model *make_model(int64_t width, int64_t experts, uint64_t seed)
{
    struct random_model shape = random_model_default();
    struct oato_error err = {.text = ""};
    struct model *m = NULL;
    shape.layers = 2;
    shape.width = width;
    shape.ffn = 4 * width;
    shape.heads = width / 32;
    shape.kv_heads = 2;
    shape.vocab = 300; /* no multiple of 64: the last part of the output ends with it */
    shape.dtype = DT_Q8_0;
    if (experts) {
        shape.architecture = "qwen3moe";
        shape.experts = experts;
        shape.experts_used = 2;
    }
    shape.seed = seed;
    shape.tokenizer = false;
    if (random_model_save(&shape, scratch_path("m.gguf"), &err) ||
        model_open(scratch_path("m.gguf"), &m, &err))
        fail_msg("%s", err.text);
    return m;
}

static int setup(void **state)
{
    (void)state;
    model = make_model(128, 0, 1);
    experts_model = make_model(128, 8, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(model);
    model_close(experts_model);
    scratch_clean();
    return 0;
}

/* A plan of two devices without anything placed. */
static void two_devices(struct plan *p)
{
    plan_init(p);
    p->structure_hash = gguf_structure_hash(model->gguf);
    p->model_name = "random";
    p->n_devices = 2;
    p->devices = arena_alloc(&p->arena, 2, sizeof *p->devices);
    assert_non_null(p->devices);
    strcpy(p->devices[0].id, "cpu:0");
    strcpy(p->devices[0].kind, "cpu");
    p->devices[0].is_host = true;
    strcpy(p->devices[1].id, "sim:0");
    strcpy(p->devices[1].kind, "sim");
}

static void assert_applies(const struct plan *p, const struct model *m, int32_t n_ops)
{
    struct graph g;
    struct oato_error err = {.text = ""};
    if (plan_apply(p, m, &g, &err))
        fail_msg("%s", err.text);
    assert_int_equal(g.n_ops, n_ops);
    graph_free(&g);
}

static void assert_refused(const struct plan *p, const struct model *m, const char *say)
{
    struct graph g;
    struct oato_error err = {.text = ""};
    oato_status status = plan_apply(p, m, &g, &err);
    if (status != OATO_EFILE || !strstr(err.text, say))
        fail_msg("status %d: '%s' is not in '%s'", status, say, err.text);
    assert_null(g.arena.blocks);
}

static void a_plan_for_another_model_shows_both_hashes(void **state)
{
    (void)state;
    struct plan p;
    struct oato_error err = {.text = ""};
    char ours[32], theirs[32];
    two_devices(&p);
    assert_int_equal(plan_check_model(&p, model->gguf, &err), OATO_OK);
    p.content_hash = 12345; /* a finetune: same structure, other data */
    assert_int_equal(plan_check_model(&p, model->gguf, &err), OATO_OK);
    struct model *other = make_model(192, 0, 1);
    snprintf(ours, sizeof ours, "%016llx", (unsigned long long)p.structure_hash);
    snprintf(theirs, sizeof theirs, "%016llx",
             (unsigned long long)gguf_structure_hash(other->gguf));
    assert_int_equal(plan_check_model(&p, other->gguf, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "made for another model"));
    assert_non_null(strstr(err.text, ours));
    assert_non_null(strstr(err.text, theirs));
    model_close(other);
    other = make_model(128, 0, 2); /* other weights */
    assert_int_equal(plan_check_model(&p, other->gguf, &err), OATO_OK);
    model_close(other);
    plan_free(&p);
}

static void an_empty_plan_leaves_the_graph_as_it_is(void **state)
{
    (void)state;
    struct plan p;
    two_devices(&p);
    assert_applies(&p, model, model->graph.n_ops);
    plan_free(&p);
}

static void all_matches_fuse_in_any_order(void **state)
{
    (void)state;
    struct plan p;
    struct graph_match m[64];
    two_devices(&p);
    int32_t n = graph_matches(&model->graph, m, 64), fewer = 0, end = 0;
    assert_in_range(n, 1, 64);
    p.fusions = arena_alloc(&p.arena, 64, sizeof *p.fusions);
    for (int32_t i = 0; i < n; i++) {
        if (m[i].first < end)
            continue;
        end = m[i].first + op_fusions[m[i].fusion].n_members;
        fewer += op_fusions[m[i].fusion].n_members - 1;
        p.fusions[p.n_fusions++] =
            (struct plan_fusion){op_fusions[m[i].fusion].name, model->graph.ops[m[i].first].name};
    }
    for (int32_t i = 0; i < p.n_fusions / 2; i++) { /* reversed */
        struct plan_fusion f = p.fusions[i];
        p.fusions[i] = p.fusions[p.n_fusions - 1 - i];
        p.fusions[p.n_fusions - 1 - i] = f;
    }
    assert_applies(&p, model, model->graph.n_ops - fewer);

    struct plan_fusion first = p.fusions[0];
    p.fusions[0].name = "five_in_one";
    assert_refused(&p, model, "fusion 0 of the plan, 'five_in_one', is unknown");
    p.fusions[0] = (struct plan_fusion){first.name, "blk.77.attn_q"};
    assert_refused(&p, model, "begins at operator 'blk.77.attn_q', which the model lacks");
    p.fusions[0] = (struct plan_fusion){first.name, model->graph.ops[0].name};
    assert_refused(&p, model, "fusions of the plan: ");
    p.fusions[0] = p.fusions[1];
    assert_refused(&p, model, "overlaps");
    plan_free(&p);
}

/* One operator, parts as given. */
static const struct {
    const char *op;
    struct {
        int axis, begin, end, phases, device;
    } part[4];
    const char *say; /* NULL: applies */
} covers[] = {
#define PART(axis, begin, end, phases, device)                                                     \
    {                                                                                              \
        AXIS_##axis, begin, end, phases, device                                                    \
    }
    {"blk.0.ffn_up", {PART(ROWS, 0, 512, 3, 1)}, NULL},
    {"blk.0.ffn_up", {PART(ROWS, 0, 512, 1, 1)}, NULL}, /* decode stays on the host */
    {"blk.0.ffn_up", {PART(ROWS, 320, 512, 3, 0), PART(ROWS, 0, 320, 3, 1)}, NULL},
    {"blk.0.ffn_up",
     {PART(ROWS, 0, 64, 1, 1), PART(ROWS, 64, 512, 1, 1), PART(ROWS, 0, 512, 2, 0)},
     NULL},
    {"blk.0.ffn_up",
     {PART(ROWS, 0, 64, 1, 0), PART(ROWS, 64, 512, 1, 1), PART(ROWS, 0, 512, 2, 1)},
     "rows 0 to 512 of one phase and rows 64 to 512 of the other would be loaded twice on "
     "sim:0"},
    {"blk.0.ffn_up",
     {PART(ROWS, 0, 256, 1, 1), PART(ROWS, 256, 512, 1, 0), PART(ROWS, 0, 256, 2, 1),
      PART(ROWS, 256, 512, 2, 1)},
     NULL},
    {"blk.0.ffn_up",
     {PART(ROWS, 0, 256, 1, 1), PART(ROWS, 256, 512, 1, 0)},
     "rows 256 to 512 of one phase and rows 0 to 512 of the other would be loaded twice on "
     "cpu:0"},
    {"blk.0.ffn_up", {PART(ROWS, 0, 512, 3, 1), PART(ROWS, 64, 64, 3, 0)}, NULL},
    {"output", {PART(ROWS, 0, 256, 3, 1), PART(ROWS, 256, 300, 3, 0)}, NULL},
    {"blk.1.attention", {PART(HEADS, 0, 1, 3, 1), PART(HEADS, 1, 2, 3, 0)}, NULL},
    {"blk.1.attention", {PART(HEADS, 0, 1, 3, 1)}, "heads 1 to 2 are planned nowhere in prefill"},
    {"blk.1.attention", {PART(HEADS, 0, 3, 3, 1)}, "heads 0 to 3, but the operator has 2"},
    {"blk.1.attention", {PART(ROWS, 0, 128, 1, 1), PART(HEADS, 0, 2, 2, 1)}, NULL},
    {"blk.1.attention",
     {PART(ROWS, 0, 64, 1, 1), PART(HEADS, 0, 2, 1, 1)},
     "divided along rows and along heads in prefill"},
    {"blk.0.ffn_up", {PART(HEADS, 0, 2, 3, 1)}, "mul_mat has no heads to divide"},
    {"blk.0.ffn_up", {PART(K, 0, 128, 3, 1)}, NULL},
    {"blk.0.ffn_up", {PART(K, 0, 64, 3, 1)}, "k 64 to 128 are planned nowhere in prefill"},
    {"blk.0.ffn_up", {PART(K, 0, 512, 3, 1)}, "k 0 to 512, but the operator has 128"},
    {"blk.0.ffn_up",
     {PART(K, 0, 32, 3, 1), PART(K, 32, 128, 3, 1)},
     "k 0 to 32 are not on multiples of 64"},
    {"blk.0.ffn_up",
     {PART(K, 0, 64, 3, 1), PART(K, 64, 128, 3, 0)},
     "k 0 to 64 match no part of 'blk.0.ffn_norm', which makes its input, in prefill"},
    {"blk.1.attention", {PART(K, 0, 128, 3, 1)}, "attention cannot be divided along k"},
    {"blk.0.ffn_up", {PART(EXPERTS, 0, 1, 3, 1)}, "mul_mat has no experts to divide"},
    {"blk.0.ffn_up",
     {PART(ROWS, 0, 100, 3, 1), PART(ROWS, 100, 512, 3, 0)},
     "rows 0 to 100 are not on multiples of 64"},
    {"blk.0.ffn_up", {PART(ROWS, 0, 576, 3, 1)}, "rows 0 to 576, but the operator has 512"},
    {"blk.0.ffn_up", {PART(ROWS, 0, 448, 3, 1)}, "rows 448 to 512 are planned nowhere in prefill"},
    {"blk.0.ffn_up", {PART(ROWS, 64, 512, 2, 1)}, "rows 0 to 64 are planned nowhere in decode"},
    {"blk.0.ffn_up",
     {PART(ROWS, 0, 128, 2, 1), PART(ROWS, 192, 512, 2, 0)},
     "rows 128 to 192 are planned nowhere in decode"},
    {"blk.0.ffn_up",
     {PART(ROWS, 0, 256, 2, 1), PART(ROWS, 192, 512, 3, 0)},
     "rows 0 to 192 are planned nowhere in prefill"},
    {"blk.0.ffn_up",
     {PART(ROWS, 0, 256, 2, 1), PART(ROWS, 192, 512, 2, 0)},
     "rows 192 to 256 are planned twice in decode"},
    {"blk.0.ffn_up",
     {PART(ROWS, 0, 512, 3, 1), PART(ROWS, 0, 512, 1, 0)},
     "rows 0 to 512 are planned twice in prefill"},
    {"blk.9.ffn_up", {PART(ROWS, 0, 512, 3, 1)}, "operator 'blk.9.ffn_up', which the model lacks"},
    {"blk.0.ffn_up", {PART(ROWS, 0, 512, 3, 2)}, "device 2 with home 2, of 2 devices"},
    {"blk.0.ffn_up", {PART(ROWS, 0, 512, 4, 1)}, "phases 0x4"},
#undef PART
};

static void parts_cover_each_operator_exactly_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(covers); i++) {
        struct plan p;
        struct plan_part parts[4];
        two_devices(&p);
        for (p.n_parts = 0; p.n_parts < 4 && covers[i].part[p.n_parts].phases; p.n_parts++) {
            int32_t j = p.n_parts;
            parts[j] = (struct plan_part){.op = covers[i].op,
                                          .axis = (enum op_axis)covers[i].part[j].axis,
                                          .begin = covers[i].part[j].begin,
                                          .end = covers[i].part[j].end,
                                          .phases = (uint32_t)covers[i].part[j].phases,
                                          .device = covers[i].part[j].device,
                                          .home = covers[i].part[j].device};
        }
        p.parts = parts;
        if (covers[i].say)
            assert_refused(&p, model, covers[i].say);
        else
            assert_applies(&p, model, model->graph.n_ops);
        plan_free(&p);
    }
}

/* Parts of several operators of the graph whose gate and up are fused, with homes. */
static const struct {
    struct {
        const char *op;
        int axis, begin, end, phases, device, home;
    } part[5];
    const char *say; /* NULL: applies */
} divided[] = {
#define GATE(begin, end, phases, device, home)                                                     \
    {                                                                                              \
        "blk.0.ffn_gate_up", AXIS_ROWS, begin, end, phases, device, home                           \
    }
#define DOWN(begin, end, phases, device, home)                                                     \
    {                                                                                              \
        "blk.0.ffn_down", AXIS_K, begin, end, phases, device, home                                 \
    }
    {{GATE(0, 192, 3, 1, 1), GATE(192, 512, 3, 0, 0), DOWN(0, 192, 3, 1, 1),
      DOWN(192, 512, 3, 0, 0)},
     NULL},
    /* the halves of the product may change places */
    {{GATE(0, 192, 3, 1, 1), GATE(192, 512, 3, 0, 0), DOWN(0, 192, 3, 0, 0),
      DOWN(192, 512, 3, 1, 1)},
     NULL},
    {{GATE(0, 192, 3, 1, 1), GATE(192, 512, 3, 0, 0), DOWN(0, 256, 3, 1, 1),
      DOWN(256, 512, 3, 0, 0)},
     "k 0 to 256 match no part of 'blk.0.ffn_gate_up', which makes its input, in prefill"},
    {{GATE(0, 512, 1, 1, 1), GATE(0, 192, 2, 0, 0), GATE(192, 512, 2, 0, 0), DOWN(0, 192, 3, 1, 1),
      DOWN(192, 512, 3, 1, 1)},
     "in prefill"},
    {{DOWN(0, 192, 3, 1, 1), DOWN(192, 512, 3, 0, 0)}, "match no part of"},
    {{DOWN(0, 512, 3, 1, 1)}, NULL},
    {{GATE(0, 512, 1, 1, 0), GATE(0, 512, 2, 0, 0), DOWN(0, 512, 1, 1, 0)}, NULL},
    /* a part of both phases stays; what is streamed is not resident */
    {{GATE(0, 192, 3, 1, 1), GATE(192, 512, 1, 1, 0), GATE(192, 512, 2, 0, 0)}, NULL},
    {{GATE(0, 512, 1, 1, 0), GATE(0, 192, 2, 1, 1), GATE(192, 512, 2, 0, 0)}, NULL},
    {{GATE(0, 512, 1, 1, 1), GATE(0, 192, 2, 1, 1), GATE(192, 512, 2, 0, 0)},
     "would be loaded twice"},
    {{GATE(0, 512, 1, 0, 0), GATE(0, 192, 2, 1, 1), GATE(192, 512, 2, 0, 0)},
     "loaded twice on cpu:0"},
    {{GATE(0, 512, 1, 0, 1)}, "streamed from the host to another device, not from sim:0 to cpu:0"},
    {{{"blk.0.ffn_norm", AXIS_ROWS, 0, 128, 3, 1, 0}},
     "has no matrix that could be streamed from cpu:0 to sim:0"},
    /* from a file, in both phases */
    {{GATE(0, 512, 3, 0, HOME_FILE), DOWN(0, 512, 3, 0, HOME_FILE)}, NULL},
    {{GATE(0, 192, 3, 0, HOME_FILE), GATE(192, 512, 3, 0, 0)}, NULL},
    {{GATE(0, 512, 3, 1, HOME_FILE)}, NULL},
    {{GATE(0, 512, 1, 0, HOME_FILE), GATE(0, 512, 2, 0, 0)}, "both phases, not in phases 0x1"},
    {{{"blk.0.ffn_norm", AXIS_ROWS, 0, 128, 3, 0, HOME_FILE}},
     "has no matrix that could be streamed from a file to cpu:0"},
#undef GATE
#undef DOWN
};

static void divided_products_fit_their_inputs_and_load_nothing_twice(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(divided); i++) {
        struct plan p;
        struct plan_part parts[5];
        struct plan_fusion fusion = {"gate_up", "blk.0.ffn_gate"};
        two_devices(&p);
        p.fusions = &fusion;
        p.n_fusions = 1;
        for (; p.n_parts < 5 && divided[i].part[p.n_parts].op; p.n_parts++) {
            int32_t j = p.n_parts;
            parts[j] = (struct plan_part){.op = divided[i].part[j].op,
                                          .axis = (enum op_axis)divided[i].part[j].axis,
                                          .begin = divided[i].part[j].begin,
                                          .end = divided[i].part[j].end,
                                          .phases = (uint32_t)divided[i].part[j].phases,
                                          .device = divided[i].part[j].device,
                                          .home = divided[i].part[j].home};
        }
        p.parts = parts;
        if (divided[i].say)
            assert_refused(&p, model, divided[i].say);
        else
            assert_applies(&p, model, model->graph.n_ops - 2);
        plan_free(&p);
    }
}

/* Parts of the experts of a layer: operators that make (UP) and read (DOWN) a value, with homes. */
static const struct {
    struct {
        const char *op;
        int axis, begin, end, phases, device, home;
    } part[7];
    const char *say; /* NULL: applies */
} mixtures[] = {
#define UP(begin, end, phases, device, home)                                                       \
    {                                                                                              \
        "blk.1.ffn_gate_up_exps", AXIS_EXPERTS, begin, end, phases, device, home                   \
    }
#define DOWN(begin, end, phases, device, home)                                                     \
    {                                                                                              \
        "blk.1.ffn_down_exps", AXIS_EXPERTS, begin, end, phases, device, home                      \
    }
    {{UP(0, 3, 3, 1, 1), UP(3, 8, 3, 0, 0), DOWN(0, 3, 3, 1, 1), DOWN(3, 8, 3, 0, 0)}, NULL},
    {{UP(0, 3, 3, 1, 1), UP(3, 8, 3, 0, 0), DOWN(0, 3, 3, 0, 0), DOWN(3, 8, 3, 1, 1)}, NULL},
    {{UP(0, 8, 3, 1, 1)}, NULL}, /* all of them: no division */
    {{DOWN(0, 8, 1, 1, 0)}, NULL},
    /* the host's experts streamed in prefill */
    {{UP(0, 3, 3, 1, 1), UP(3, 8, 1, 1, 0), UP(3, 8, 2, 0, 0), DOWN(0, 3, 3, 1, 1),
      DOWN(3, 8, 1, 1, 0), DOWN(3, 8, 2, 0, 0)},
     NULL},
    {{UP(0, 3, 3, 1, 1), UP(3, 9, 3, 0, 0)}, "experts 3 to 9, but the operator has 8"},
    {{UP(0, 3, 3, 1, 1), UP(4, 8, 3, 0, 0)}, "experts 3 to 4 are planned nowhere in prefill"},
    {{UP(0, 3, 3, 1, 1), UP(3, 8, 3, 0, 0)},
     "experts 0 to 3 match no part of 'blk.1.ffn_down_exps' in prefill; split both at the same"},
    {{DOWN(0, 3, 3, 1, 1), DOWN(3, 8, 3, 0, 0)},
     "experts 0 to 3 match no part of 'blk.1.ffn_gate_up_exps' in prefill"},
    {{UP(0, 3, 3, 1, 1), UP(3, 8, 3, 0, 0), DOWN(0, 4, 3, 1, 1), DOWN(4, 8, 3, 0, 0)},
     "experts 0 to 3 match no part of 'blk.1.ffn_down_exps' in prefill"},
    {{UP(0, 3, 3, 1, 1), UP(3, 8, 3, 0, 0), DOWN(0, 3, 3, 1, 1), DOWN(3, 6, 3, 0, 0),
      DOWN(6, 8, 3, 1, 1)},
     "experts 3 to 8 match no part of 'blk.1.ffn_down_exps' in prefill"},
    {{UP(0, 3, 3, 1, 1), UP(3, 8, 3, 0, 0), DOWN(0, 8, 3, 1, 1)}, "match no part of"},
    {{UP(0, 3, 2, 1, 1), UP(3, 8, 2, 1, 0), DOWN(0, 3, 3, 1, 1), DOWN(3, 8, 3, 1, 0)},
     "match no part of 'blk.1.ffn_gate_up_exps' in prefill"},
    {{UP(0, 3, 1, 1, 1), UP(3, 8, 1, 1, 0), UP(0, 4, 2, 1, 1), UP(4, 8, 2, 0, 0)},
     "experts 0 to 3 of one phase and experts 0 to 4 of the other would be loaded twice"},
    {{UP(0, 3, 3, 0, 1)}, "streamed from the host to another device, not from sim:0 to cpu:0"},
    {{{"blk.1.ffn_down_exps", AXIS_K, 0, 128, 3, 1, 1}}, "expert_down cannot be divided along k"},
    {{{"blk.1.ffn_route", AXIS_EXPERTS, 0, 8, 3, 1, 1}}, "route has no experts to divide"},
#undef UP
#undef DOWN
};

static void experts_are_divided_where_both_operators_are(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(mixtures); i++) {
        struct plan p;
        struct plan_part parts[7];
        two_devices(&p);
        p.structure_hash = gguf_structure_hash(experts_model->gguf);
        for (; p.n_parts < 7 && mixtures[i].part[p.n_parts].op; p.n_parts++) {
            int32_t j = p.n_parts;
            parts[j] = (struct plan_part){.op = mixtures[i].part[j].op,
                                          .axis = (enum op_axis)mixtures[i].part[j].axis,
                                          .begin = mixtures[i].part[j].begin,
                                          .end = mixtures[i].part[j].end,
                                          .phases = (uint32_t)mixtures[i].part[j].phases,
                                          .device = mixtures[i].part[j].device,
                                          .home = mixtures[i].part[j].home};
        }
        p.parts = parts;
        if (mixtures[i].say)
            assert_refused(&p, experts_model, mixtures[i].say);
        else
            assert_applies(&p, experts_model, experts_model->graph.n_ops);
        plan_free(&p);
    }
}

static void kv_heads_of_a_layer_are_placed_once(void **state)
{
    (void)state;
    struct plan p;
    struct plan_kv kv[3] = {{1, 1, 2, 0}, {0, 0, 2, 1}, {1, 0, 1, 1}};
    two_devices(&p);
    p.kv = kv;
    p.n_kv = 3;
    assert_applies(&p, model, model->graph.n_ops);
    p.n_kv = 2; /* head 0 of layer 1 is missing */
    assert_refused(&p, model, "KV heads 1 to 2 of layer 1, which has 2");
    kv[0] = (struct plan_kv){1, 0, 1, 0};
    assert_refused(&p, model, "KV heads 0 to 1 of layer 1, which has 2");
    kv[0] = (struct plan_kv){1, 0, 3, 0};
    assert_refused(&p, model, "KV heads 0 to 3 of layer 1, which has 2");
    kv[0] = (struct plan_kv){0, 0, 2, 0};
    assert_refused(&p, model, "of layer 0, which has 2");
    kv[0] = (struct plan_kv){2, 0, 2, 0};
    assert_refused(&p, model, "KV of layer 2, which the model lacks");
    plan_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_for_another_model_shows_both_hashes),
        cmocka_unit_test(an_empty_plan_leaves_the_graph_as_it_is),
        cmocka_unit_test(all_matches_fuse_in_any_order),
        cmocka_unit_test(parts_cover_each_operator_exactly_once),
        cmocka_unit_test(divided_products_fit_their_inputs_and_load_nothing_twice),
        cmocka_unit_test(experts_are_divided_where_both_operators_are),
        cmocka_unit_test(kv_heads_of_a_layer_are_placed_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
