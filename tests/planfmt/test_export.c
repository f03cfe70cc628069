/*
 * test_export.c - a plan's command line, read by llama.cpp's rules, must put every tensor and every
 * layer's KV where the plan has it, or say that it can't; what a plan divides goes where most of it
 * is, as far as budgets hold.
 */
#include "llama_line.h"
#include "placed_plan.h"
#include "tests/models/random_model.h"
#include "tests/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = PLACED_LAYERS, DEVICES = PLACED_DEVICES };
static const char *const names[DEVICES] = {"CUDA0", "CPU", "CUDA1"};

static struct model *model, *tied, *experts;

static int setup(void **state)
{
    (void)state;
    model = placed_model("llama", false);
    tied = placed_model("llama", true);
    experts = placed_model("qwen3moe", false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(model);
    model_close(tied);
    model_close(experts);
    scratch_clean();
    return 0;
}

/* ----------------------------------------------------------------------------------- plans - */

static void export_to(const struct placed *x, const struct model *m, struct line *l,
                      struct text *lost)
{
    struct oato_error err = {.text = ""};
    struct export_options o = {.target = EXPORT_LLAMA_CPP};
    struct text command;
    text_init(&command);
    text_init(lost);
    if (plan_export(&x->plan, m, &o, &command, lost, &err))
        fail_msg("%s", err.text);
    line_split(l, command.data);
    text_free(&command);
}

static int count_lost(const struct placed *x, const struct line *l)
{
    int n = 0;
    for (int i = 0; i < LAYERS; i++)
        n += strcmp(line_layer(l, i), names[x->kv[i]]) != 0;
    return n;
}

static void tensors_are_where_they_were_planned(const struct placed *x, const struct model *m,
                                                const struct line *l)
{
    for (size_t t = 0; t < gguf_tensor_count(m->gguf); t++) {
        const char *name = gguf_tensor_at(m->gguf, t)->name, *device = line_tensor(l, name);
        if (m == model && !strcmp(name, "token_embd.weight"))
            continue; /* an input, which is the CPU's whatever is said */
        if (strcmp(device, names[x->tensor[t]]) != 0)
            fail_msg("%s on %s, not %s", name, device, names[x->tensor[t]]);
    }
}

/* ------------------------------------------------------------------------------------ tests --- */

static uint64_t seed = 1;

static uint64_t next_random(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}

static int32_t layer_of[LAYERS + 2]; /* device by layer; the first is that of what is before them */
static int scattered;                /* of 16 operators so many go anywhere */

static int32_t by_layer(const struct graph_op *op)
{
    if ((int)(next_random() % 16) < scattered)
        return (int32_t)(next_random() % DEVICES);
    return layer_of[op->layer + 1];
}

/* The plan with its layers in the order of their KV's devices: the CPU, cuda:0, cuda:1. All are
 * alike, so that it is as good. */
static bool sort_layers(struct placed *x, const struct model *m)
{
    static const int rank[DEVICES] = {1, 0, 2};
    int32_t kv[LAYERS], *tensor = calloc(gguf_tensor_count(m->gguf), sizeof *tensor);
    int from[LAYERS], n = 0;
    bool sorted = true;
    assert_non_null(tensor);
    for (int r = 0; r < DEVICES; r++)
        for (int i = 0; i < LAYERS; i++)
            if (rank[x->kv[i]] == r)
                from[n++] = i;
    for (size_t t = 0; t < gguf_tensor_count(m->gguf); t++) {
        const char *name = gguf_tensor_at(m->gguf, t)->name;
        char other[128];
        int layer, behind = 0;
        tensor[t] = x->tensor[t];
        if (sscanf(name, "blk.%d.%n", &layer, &behind) != 1)
            continue;
        snprintf(other, sizeof other, "blk.%d.%s", from[layer], name + behind);
        tensor[t] = x->tensor[gguf_tensor(m->gguf, other) - gguf_tensor_at(m->gguf, 0)];
    }
    for (int i = 0; i < LAYERS; i++) {
        kv[i] = x->kv[from[i]];
        sorted = sorted && from[i] == i;
    }
    memcpy(x->kv, kv, sizeof kv);
    memcpy(x->tensor, tensor, gguf_tensor_count(m->gguf) * sizeof *tensor);
    free(tensor);
    return sorted;
}

static void any_plan_is_told_exactly_or_its_loss_is_listed(void **state)
{
    (void)state;
    for (int round = 0, rounds = pace_rounds(400, 5); round < rounds; round++) {
        const struct model *m = round % 4 ? model : tied;
        struct placed x;
        struct line l = {.n = 0};
        struct text lost;
        const bool ascending = round % 3;
        scattered = round % 5;
        for (int i = 0, r = 0; i < LAYERS + 2; i++) { /* ranks: CPU, cuda:0, cuda:1 */
            static const int32_t ranked[] = {1, 0, 2};
            r = ascending ? r + (r < 2 && !(next_random() % 6)) : (int)(next_random() % 3);
            layer_of[i] = ranked[r];
        }
        plan_placed(&x, m, by_layer);
        x.plan.neurons_hash = round % 7 == 0; /* layers that differ stay where they are */
        export_to(&x, m, &l, &lost);
        const bool sorted = x.plan.neurons_hash || sort_layers(&x, m);
        tensors_are_where_they_were_planned(&x, m, &l);
        if (!x.plan.neurons_hash || (ascending && !scattered))
            assert_int_equal(count_lost(&x, &l), 0);
        assert_int_equal(count_lost(&x, &l) > 0 || !sorted, lost.len > 0);
        text_free(&lost);
        plan_free(&x.plan);
    }
}

static int32_t feed_forward_on_cpu(const struct graph_op *op)
{
    return strstr(op->name, "ffn") && op->layer >= 3 && op->layer < 7 ? 1 : 0;
}

static void layers_share_a_pattern(void **state)
{
    (void)state;
    struct placed x;
    struct line l = {.n = 0};
    struct text lost;
    plan_placed(&x, model, feed_forward_on_cpu);
    export_to(&x, model, &l, &lost);
    assert_string_equal(l.word[0], "llama-server");
    assert_string_equal(line_value(&l, "-m"), scratch_path("it's a model.gguf"));
    assert_string_equal(line_value(&l, "-ngl"), "13");
    assert_string_equal(line_value(&l, "-dev"), "CUDA0");
    assert_null(line_value(&l, "-ts"));
    assert_string_equal(line_value(&l, "-ot"),
                        "^blk\\.(3|4|5|6)\\.(ffn_norm\\.weight|ffn_gate\\.weight|ffn_up\\.weight|"
                        "ffn_down\\.weight)$=CPU");
    assert_string_equal(line_value(&l, "-c"), "512");
    assert_string_equal(line_value(&l, "-np"), "2");
    assert_string_equal(line_value(&l, "-ub"), "128");
    assert_string_equal(line_value(&l, "-ctk"), "q8_0");
    assert_int_equal(lost.len, 0);
    text_free(&lost);
    plan_free(&x.plan);
}

static int32_t all_on_cpu(const struct graph_op *op)
{
    (void)op;
    return 1;
}

static void without_accelerators_nothing_is_offloaded(void **state)
{
    (void)state;
    struct placed x;
    struct line l = {.n = 0};
    struct text lost;
    plan_placed(&x, model, all_on_cpu);
    export_to(&x, model, &l, &lost);
    assert_string_equal(line_value(&l, "-ngl"), "0");
    assert_null(line_value(&l, "-dev"));
    assert_null(line_value(&l, "-ot"));
    text_free(&lost);
    plan_free(&x.plan);
}

static int32_t all_on_first(const struct graph_op *op)
{
    (void)op;
    return 0;
}

static void what_cannot_be_said_is_listed(void **state)
{
    (void)state;
    struct placed x;
    struct line l = {.n = 0};
    struct text lost;
    plan_placed(&x, model, all_on_first);
    const int32_t n = x.plan.n_parts; /* ffn_up of layer 2 is divided, ffn_down streamed */
    for (int32_t i = 0; i < n; i++) {
        struct plan_part *p = &x.plan.parts[i];
        if (!strcmp(p->op, "blk.2.ffn_down"))
            p->home = 1;
        if (strcmp(p->op, "blk.2.ffn_up") != 0)
            continue;
        struct plan_part *rest = &x.plan.parts[x.plan.n_parts++];
        *rest = *p;
        rest->begin = p->end = 64;
        rest->device = rest->home = 1;
    }
    export_to(&x, model, &l, &lost);
    assert_non_null(strstr(lost.data, "the FFN of layer 2: divided between cuda:0 and cpu:0; "
                                      "llama.cpp can only place whole tensors: placed where the "
                                      "larger share is\n"));
    assert_non_null(strstr(lost.data, "weights of the FFN of layer 2: streamed to cuda:0"));
    /* equal halves, and what is streamed, are the host's */
    assert_string_equal(line_tensor(&l, "blk.2.ffn_up.weight"), "CPU");
    assert_string_equal(line_tensor(&l, "blk.2.ffn_down.weight"), "CPU");
    assert_string_equal(line_tensor(&l, "blk.2.ffn_gate.weight"), "CUDA0");
    text_free(&lost);
    plan_free(&x.plan);
}

static bool has_word(const struct line *l, const char *word)
{
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->word[i], word))
            return true;
    return false;
}

/* The other engine streams all of the host's matrices or none. */
static void streaming_is_left_on_where_most_is_streamed(void **state)
{
    (void)state;
    for (int streamed = 0; streamed < 2; streamed++) {
        struct placed x;
        struct line l = {.n = 0};
        struct text lost;
        plan_placed(&x, model, feed_forward_on_cpu);
        for (int32_t i = 0, n = x.plan.n_parts; streamed && i < n; i++) {
            struct plan_part *p = &x.plan.parts[i], *rest = &x.plan.parts[x.plan.n_parts];
            if (p->home != PLACED_CPU || model->graph.ops[i].op.kind != OP_MUL_MAT)
                continue;
            *rest = *p;
            x.plan.n_parts++;
            p->phases = 1u << PHASE_PREFILL;
            p->device = 0;
            rest->phases = 1u << PHASE_DECODE;
        }
        export_to(&x, model, &l, &lost);
        assert_int_equal(has_word(&l, "--no-op-offload"), !streamed);
        assert_string_equal(line_tensor(&l, "blk.3.ffn_up.weight"), "CPU");
        if (streamed)
            assert_string_equal(lost.data, "weights of the FFN of 4 layers: streamed to cuda:0; "
                                           "llama.cpp has its own rules for that\n");
        text_free(&lost);
        plan_free(&x.plan);
    }
}

/* ----------------------------------------------------------------------------- divided plans - */

/* Experts of one layer in a divided plan: how many each device has. */
struct dealt {
    int32_t n[DEVICES];
    bool divided;
};

static bool has_experts(const struct graph_op *op)
{
    return op->op.kind == OP_EXPERT_GATE_UP || op->op.kind == OP_EXPERT_DOWN;
}

/* The device with most of them, the CPU before others. */
static int32_t larger_share(const struct dealt *e)
{
    int32_t best = PLACED_CPU;
    for (int32_t d = 0; d < DEVICES; d++)
        best = e->n[d] > e->n[best] ? d : best;
    return best;
}

/* Deals the experts of most layers among the devices. */
static void deal_experts(struct placed *x, struct dealt all[LAYERS])
{
    const struct graph *g = &experts->graph;
    struct plan *p = &x->plan;
    for (int i = 0; i < LAYERS; i++) {
        all[i] = (struct dealt){.divided = next_random() % 4 != 0};
        for (int e = 0; e < 8; e++)
            all[i].n[next_random() % (i % 2 ? 2 : 3)]++;
        for (int d = 0; d < DEVICES; d++)
            all[i].divided = all[i].divided && all[i].n[d] < 8;
    }
    for (int32_t i = 0, n = p->n_parts; i < n; i++) {
        const struct graph_op *op = &g->ops[i];
        assert_string_equal(p->parts[i].op, op->name);
        if (!has_experts(op))
            continue;
        struct dealt *e = &all[op->layer];
        if (!e->divided) {
            memset(e->n, 0, sizeof e->n);
            e->n[layer_of[op->layer + 1]] = 8;
            p->parts[i].device = p->parts[i].home = layer_of[op->layer + 1];
            continue;
        }
        const struct plan_part whole = p->parts[i];
        int64_t at = 0;
        bool first = true;
        for (int32_t d = 0; d < DEVICES; d++) {
            if (!e->n[d])
                continue;
            struct plan_part *part = &p->parts[first ? i : p->n_parts++];
            *part = whole;
            part->axis = AXIS_EXPERTS;
            part->begin = at;
            part->end = at += e->n[d];
            part->device = part->home = d;
            first = false;
        }
        assert_int_equal(at, 8);
    }
}

/* Bytes that a plan has on a device: weights, in shares where they are divided. */
static double bytes_planned(const struct placed *x, const struct dealt all[LAYERS], int32_t d)
{
    double sum = 0;
    for (int32_t i = 0; i < experts->graph.n_ops; i++) {
        const struct graph_op *op = &experts->graph.ops[i];
        for (int w = 0; w < op->n_weights && op->op.kind != OP_EMBED; w++) {
            const double bytes = op->weight[w] ? (double)op->weight[w]->bytes : 0;
            const size_t t =
                op->weight[w] ? (size_t)(op->weight[w] - gguf_tensor_at(experts->gguf, 0)) : 0;
            sum += has_experts(op) ? bytes * all[op->layer].n[d] / 8 : bytes * (x->tensor[t] == d);
        }
    }
    return sum;
}

static int32_t device_named(const char *name)
{
    for (int32_t d = 0; d < DEVICES; d++)
        if (!strcmp(names[d], name))
            return d;
    fail_msg("no device %s", name);
    return -1;
}

/* The device of a layer's experts; all three tensors are on it. */
static int32_t device_of_experts(const struct line *l, int layer)
{
    static const char *const kinds[] = {"gate", "up", "down"};
    int32_t device = -1;
    for (int k = 0; k < 3; k++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", layer, kinds[k]);
        const int32_t d = device_named(line_tensor(l, name));
        assert_true(device < 0 || device == d);
        device = d;
    }
    return device;
}

static double bytes_there(const struct line *l, int32_t d)
{
    double sum = 0;
    for (size_t t = 0; t < gguf_tensor_count(experts->gguf); t++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(experts->gguf, t);
        if (strcmp(tensor->name, "token_embd.weight") != 0)
            sum += (double)tensor->bytes * !strcmp(line_tensor(l, tensor->name), names[d]);
    }
    return sum;
}

/* What did not fit has a smaller share than all that is on its device. */
static void smallest_shares_were_left(const struct dealt all[LAYERS], const int32_t there[LAYERS])
{
    for (int i = 0; i < LAYERS; i++) {
        const int32_t want = larger_share(&all[i]);
        if (there[i] == want)
            continue;
        assert_int_equal(there[i], PLACED_CPU);
        assert_true(all[i].divided);
        for (int j = 0; j < LAYERS; j++)
            if (all[j].divided && there[j] == want)
                assert_true(all[j].n[want] >= all[i].n[want]);
    }
}

/* What a device's budget must hold beside weights: KV, and a compute buffer as large as
 * llama.cpp's.
 */
static double kv_and_buffer(const struct placed *x, const struct model *m, int32_t d)
{
    const double output = m->shape.vocab + m->shape.width, layer = 16.0 * m->shape.width;
    const bool logits = layer_of[LAYERS + 1] == d && output > layer;
    double sum = 4.0 * x->plan.request.ubatch * (logits ? output : layer);
    for (int i = 0; i < LAYERS; i++) /* Q8_0 */
        sum += x->kv[i] == d ? 2.0 * 512 * m->shape.kv_heads * m->shape.head_dim * 34 / 32 : 0;
    return sum;
}

static void divided_experts_go_where_most_are_within_budgets(void **state)
{
    (void)state;
    int left = 0, rounded = 0;
    for (int round = 0, rounds = pace_rounds(300, 5); round < rounds; round++) {
        struct placed x;
        struct dealt all[LAYERS];
        struct line l = {.n = 0};
        struct text lost;
        double room[DEVICES];
        int32_t there[LAYERS], moved = 0;
        scattered = 0;
        for (int i = 0; i < LAYERS + 2; i++)
            layer_of[i] = i < LAYERS / 2 ? 0 : 2;
        plan_placed(&x, experts, by_layer);
        deal_experts(&x, all);
        for (int32_t d = 0; d < DEVICES; d++) {
            const double planned = bytes_planned(&x, all, d),
                         others = kv_and_buffer(&x, experts, d) + (double)(next_random() % 9999);
            struct plan_device *device = &x.plan.devices[d];
            device->planned_bytes = (uint64_t)(planned + others);
            device->budget_bytes = device->planned_bytes + next_random() % (1 << 20);
            room[d] = (double)device->budget_bytes - others + 1;
            if (round % 10 == 0) /* no budget: as it comes */
                device->budget_bytes = 0;
        }
        export_to(&x, experts, &l, &lost);
        for (int i = 0; i < LAYERS; i++) {
            there[i] = device_of_experts(&l, i);
            moved += there[i] != larger_share(&all[i]);
            rounded += all[i].divided && there[i] != PLACED_CPU;
        }
        smallest_shares_were_left(all, there);
        for (int32_t d = 0; d < DEVICES && round % 10; d++)
            if (d != PLACED_CPU && bytes_there(&l, d) > room[d])
                fail_msg("%.0f bytes on %s, which has room for %.0f", bytes_there(&l, d), names[d],
                         room[d]);
        if (round % 10 == 0)
            assert_int_equal(moved, 0);
        assert_int_equal(moved > 0, lost.data && strstr(lost.data, "exceed the budget"));
        int lines = 0;
        for (const char *s = lost.data; s && *s; s++)
            lines += *s == '\n';
        assert_in_range(lines, 0, 4); /* two or three devices of three, however many layers */
        left += moved;
        text_free(&lost);
        plan_free(&x.plan);
    }
    print_message("%d layers on accelerators, %d left on the CPU\n", rounded, left);
    assert_true(left > 0 && rounded > 0);
}

/* KV that follows its layer counts, and where there is nothing divided to give up, whole tensors
 * are: the feed-forward before the attention, the first layers before the last. */
static void whole_tensors_and_kv_hold_budgets(void **state)
{
    (void)state;
    int refused = 0, moved = 0;
    for (int round = 0, rounds = pace_rounds(200, 5); round < rounds; round++) {
        struct oato_error err = {.text = ""};
        struct export_options o = {.target = EXPORT_LLAMA_CPP};
        struct placed x;
        struct line l = {.n = 0};
        struct text lost, command;
        double weights = 0, there = 0;
        for (int i = 0; i < LAYERS + 2; i++)
            layer_of[i] = i < LAYERS / 2 ? 1 : 0;
        scattered = round % 4;
        plan_placed(&x, model, by_layer);
        x.plan.neurons_hash = round % 2; /* as they are: some KV goes astray */
        for (size_t t = 0; t < gguf_tensor_count(model->gguf); t++)
            if (strcmp(gguf_tensor_at(model->gguf, t)->name, "token_embd.weight") != 0)
                weights += x.tensor[t] == 0 ? (double)gguf_tensor_at(model->gguf, t)->bytes : 0;
        x.plan.devices[0].planned_bytes = (uint64_t)(weights + kv_and_buffer(&x, model, 0));
        x.plan.devices[0].budget_bytes =
            x.plan.devices[0].planned_bytes * ((round % 10 ? 70 : 5) + next_random() % 40) / 100;
        text_init(&lost);
        text_init(&command);
        if (plan_export(&x.plan, model, &o, &command, &lost, &err)) {
            assert_int_equal(err.status, OATO_EFIT);
            assert_non_null(strstr(err.text, "its budget is"));
            refused++;
        } else {
            line_split(&l, command.data);
            for (size_t t = 0; t < gguf_tensor_count(model->gguf); t++) {
                const struct gguf_tensor *tensor = gguf_tensor_at(model->gguf, t);
                if (strcmp(tensor->name, "token_embd.weight") != 0 &&
                    !strcmp(line_tensor(&l, tensor->name), "CUDA0"))
                    there += (double)tensor->bytes;
            }
            for (int i = 0; i < LAYERS; i++)
                x.kv[i] = strcmp(line_layer(&l, i), "CUDA0") ? PLACED_CPU : 0;
            there += kv_and_buffer(&x, model, 0);
            if (there > (double)x.plan.devices[0].budget_bytes + 2)
                fail_msg("%.0f bytes, budget %.0f", there, (double)x.plan.devices[0].budget_bytes);
            moved += lost.data && strstr(lost.data, "exceed the budget");
        }
        text_free(&command);
        text_free(&lost);
        plan_free(&x.plan);
    }
    print_message("%d refused, %d moved\n", refused, moved);
    assert_true(refused > 0 && moved > 0);
}

static void devices_need_names(void **state)
{
    (void)state;
    struct oato_error err = {.text = ""};
    struct placed x;
    struct text command, lost;
    struct export_name name = {"sim:0", "RPC0[127.0.0.1:50052]"};
    struct export_options o = {.target = EXPORT_IK_LLAMA_CPP};
    text_init(&command);
    text_init(&lost);
    plan_placed(&x, model, all_on_first);
    snprintf(x.plan.devices[0].id, sizeof x.plan.devices[0].id, "sim:0");
    snprintf(x.plan.devices[0].kind, sizeof x.plan.devices[0].kind, "sim");
    assert_int_equal(plan_export(&x.plan, model, &o, &command, &lost, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "--device-name sim:0=NAME"));
    o.names = &name;
    o.n_names = 1;
    err.status = OATO_OK;
    assert_int_equal(plan_export(&x.plan, model, &o, &command, &lost, &err), OATO_OK);
    assert_non_null(strstr(command.data, " -dev RPC0 "));
    assert_null(strstr(command.data, "-fit"));
    snprintf(name.id, sizeof name.id, "sim:7");
    assert_int_equal(plan_export(&x.plan, model, &o, &command, &lost, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "no device 'sim:7'"));
    text_free(&command);
    text_free(&lost);
    plan_free(&x.plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan_is_told_exactly_or_its_loss_is_listed),
        cmocka_unit_test(layers_share_a_pattern),
        cmocka_unit_test(without_accelerators_nothing_is_offloaded),
        cmocka_unit_test(what_cannot_be_said_is_listed),
        cmocka_unit_test(streaming_is_left_on_where_most_is_streamed),
        cmocka_unit_test(divided_experts_go_where_most_are_within_budgets),
        cmocka_unit_test(whole_tensors_and_kv_hold_budgets),
        cmocka_unit_test(devices_need_names),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
