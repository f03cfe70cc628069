/*
 * placed_plan.c - see placed_plan.h.
 */
#include "placed_plan.h"

#include "tests/models/random_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const char *const ids[PLACED_DEVICES] = {"cuda:0", "cpu:0", "cuda:1"};

struct model *placed_model(const char *architecture, bool tied)
{
    struct random_model shape = random_model_default();
    struct oato_error err = {.text = ""};
    struct model *m = NULL;
    shape.architecture = architecture;
    shape.layers = PLACED_LAYERS;
    shape.experts = strcmp(architecture, "qwen3moe") ? 0 : 8;
    shape.experts_used = shape.experts / 4;
    shape.header_only = true;
    shape.tokenizer = false;
    shape.tied = tied;
    if (random_model_save(&shape, scratch_path("it's a model.gguf"), &err) ||
        model_open(scratch_path("it's a model.gguf"), &m, &err))
        fail_msg("%s", err.text);
    return m;
}

void plan_placed(struct placed *x, const struct model *m,
                 int32_t (*choose)(const struct graph_op *op))
{
    const struct graph *g = &m->graph;
    struct plan *p = &x->plan;
    plan_init(p);
    p->structure_hash = gguf_structure_hash(m->gguf);
    p->request = (struct plan_request){
        .prompt = 64, .generate = 32, .context = 512, .batch = 2, .ubatch = 128, .kv = DT_Q8_0};
    p->devices = arena_alloc(&p->arena, PLACED_DEVICES, sizeof *p->devices);
    /* and spare ones for tests that divide */
    p->parts = arena_alloc(&p->arena, (size_t)g->n_ops * PLACED_DEVICES, sizeof *p->parts);
    p->kv = arena_alloc(&p->arena, PLACED_LAYERS, sizeof *p->kv);
    x->tensor = arena_alloc(&p->arena, gguf_tensor_count(m->gguf), sizeof *x->tensor);
    assert_true(p->devices && p->parts && p->kv && x->tensor);
    p->n_devices = PLACED_DEVICES;
    for (int d = 0; d < PLACED_DEVICES; d++) {
        snprintf(p->devices[d].id, sizeof p->devices[d].id, "%s", ids[d]);
        snprintf(p->devices[d].kind, sizeof p->devices[d].kind, d == 1 ? "cpu" : "cuda");
        p->devices[d].is_host = d == 1;
    }
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        const int32_t d = op->op.kind == OP_EMBED ? 1 : choose(op);
        p->parts[p->n_parts++] = (struct plan_part){.op = op->name,
                                                    .end = op->op.n,
                                                    .axis = AXIS_ROWS,
                                                    .phases = 3,
                                                    .device = d,
                                                    .home = d};
        for (int w = 0; w < op->n_weights; w++)
            if (op->weight[w])
                x->tensor[op->weight[w] - gguf_tensor_at(m->gguf, 0)] = d;
        if (op->op.kind != OP_KV_STORE)
            continue;
        p->kv[p->n_kv++] =
            (struct plan_kv){.layer = op->kv_layer, .head_end = op->op.kv_heads, .device = d};
        x->kv[op->kv_layer] = d;
    }
}
