/*
 * test_lowering.c - programs without a device: the facts are made up here. The same input gives the
 * same records; heads are cut out of whole values once a device; what cannot be split is refused;
 * what comes from a file has the same places in both phases, and none that is still read.
 */
#include "lowering/lowering.h"
#include "tests/models/random_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { HOST, DEVICE, DEVICES };

static struct model *small_model(void)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model shape = random_model_default();
    shape.layers = 2;
    shape.width = 256;
    shape.ffn = 512;
    shape.heads = 4;
    shape.kv_heads = 2;
    shape.header_only = true;
    shape.tokenizer = false;
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

static bool never(const void *user, int32_t device, const struct oato_op *op)
{
    const uint16_t *kind = user;
    return device == HOST || op->kind != *kind;
}

static const struct lowering_facts two_devices = {
    .n_devices = DEVICES, .host = HOST, .id = {"host", "device"}, .streams = {[DEVICE] = true}};

static struct lowering_input input_of(const struct graph *g, const struct placements *p,
                                      const struct lowering_facts *facts)
{
    return (struct lowering_input){.graph = g,
                                   .placements = p,
                                   .facts = facts,
                                   .limits = {{32, 4}, {4, 4}, .seqs = 4, .context = 512},
                                   .kv = DT_F16};
}

/* Both phases; the message of a failure goes to *err. */
static oato_status lower_both(const struct lowering_input *in, struct lowered *out,
                              struct oato_error *err)
{
    oato_status status = lowered_init(in, out, err);
    for (int phase = 0; phase < PHASE_COUNT && !status; phase++)
        status = lower(in, (enum plan_phase)phase, out, err);
    return status;
}

static void place(struct placements *p, int32_t op, enum op_axis axis, int32_t middle, int32_t end)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        p->phase[phase][op] =
            (struct placement){.n = 2,
                               .axis = axis,
                               .part = {{.device = HOST, .end = middle},
                                        {.device = DEVICE, .begin = middle, .end = end}}};
}

static struct placements on_the_host(const struct graph *g)
{
    struct placements p;
    struct oato_error err;
    assert_int_equal(placements_create(NULL, g, NULL, HOST, &p, &err), OATO_OK);
    return p;
}

static int32_t find_op(const struct graph *g, enum op_kind kind, int32_t layer)
{
    for (int32_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].op.kind == kind && g->ops[i].layer == layer)
            return i;
    fail_msg("no %s in layer %d", op_kind_name((int)kind), layer);
    return -1;
}

static int count_records(const struct lowered_program *p, enum record_kind kind, enum op_kind op)
{
    int n = 0;
    for (uint32_t i = 0; i < p->n_records; i++)
        n += p->records[i].kind == kind && p->records[i].op.kind == op;
    return n;
}

static void the_same_input_gives_the_same_records(void **state)
{
    (void)state;
    struct model *m = small_model();
    const struct graph *g = &m->graph;
    struct placements p = on_the_host(g);
    struct lowered a, b;
    struct oato_error err;
    place(&p, find_op(g, OP_SWIGLU, 1) + 1, AXIS_ROWS, 64, 256);
    const struct lowering_input in = input_of(g, &p, &two_devices);
    assert_int_equal(lower_both(&in, &a, &err), OATO_OK);
    assert_int_equal(lower_both(&in, &b, &err), OATO_OK);
    for (int d = 0; d < DEVICES; d++)
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            const struct lowered_program *x = &a.device[d].phase[phase];
            assert_true(x->n_records > 0);
            assert_int_equal(x->n_records, b.device[d].phase[phase].n_records);
            assert_memory_equal(x->records, b.device[d].phase[phase].records,
                                x->n_records * sizeof *x->records);
        }
    /* its input to the device, half of its output back */
    assert_int_equal(a.copies[PHASE_DECODE], 2);
    assert_int_equal(a.copy_bytes[PHASE_DECODE], (512 + 192) * sizeof(float));
    lowered_free(&a);
    lowered_free(&b);
    placements_free(&p);
    model_close(m);
}

static void heads_are_cut_out_of_whole_values(void **state)
{
    (void)state;
    struct model *m = small_model();
    const struct graph *g = &m->graph;
    struct placements p = on_the_host(g);
    struct lowered l;
    struct oato_error err;
    place(&p, find_op(g, OP_KV_STORE, 0), AXIS_HEADS, 1, 2);
    place(&p, find_op(g, OP_ATTENTION, 0), AXIS_HEADS, 1, 2);
    const struct lowering_input in = input_of(g, &p, &two_devices);
    assert_int_equal(lower_both(&in, &l, &err), OATO_OK);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const struct lowered_program *host = &l.device[HOST].phase[phase],
                                     *device = &l.device[DEVICE].phase[phase];
        /* k, v and q for both parts, all where they were made; their halves travel */
        assert_int_equal(count_records(host, RECORD_RUN, OP_SLICE), 6);
        assert_int_equal(count_records(device, RECORD_RUN, OP_SLICE), 0);
        assert_int_equal(count_records(device, RECORD_RUN, OP_ATTENTION), 1);
        assert_int_equal(count_records(host, RECORD_RUN, OP_MERGE), 1);
        for (uint32_t i = 0; i < device->n_records; i++) { /* its heads know their numbers */
            const struct oato_op *op = &device->records[i].op;
            if (op->kind == OP_ATTENTION)
                assert_true(op->heads > 0 && op->first == op->heads);
        }
        assert_int_equal(l.copies[phase], 4);
        assert_int_equal(l.copy_bytes[phase], (64 + 64 + 128 + 128) * sizeof(float));
    }
    assert_int_equal(l.device[DEVICE].n_kv, 1);
    assert_int_equal(l.device[HOST].n_kv, 2);
    assert_int_equal(l.device[DEVICE].kv_shapes[0].kv_heads, 1);
    lowered_free(&l);

    p.phase[PHASE_DECODE][find_op(g, OP_ATTENTION, 0)].part[1].device = HOST;
    assert_int_equal(lower_both(&in, &l, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "does not hold its layer's KV cache"));
    lowered_free(&l);
    placements_free(&p);
    model_close(m);
}

static void what_a_device_cannot_do_is_refused(void **state)
{
    (void)state;
    struct model *m = small_model();
    const struct graph *g = &m->graph;
    const int32_t norm = find_op(g, OP_RMS_NORM, 0), product = find_op(g, OP_MUL_MAT, 0);
    const uint16_t kind = OP_MUL_MAT;
    struct lowering_facts facts = two_devices;
    struct placements p = on_the_host(g);
    struct lowered l;
    struct oato_error err;
    const struct lowering_input in = input_of(g, &p, &facts);
    place(&p, norm, AXIS_ROWS, 64, 256);
    assert_int_equal(lower_both(&in, &l, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "cannot be split along the axis"));
    lowered_free(&l);
    placements_free(&p);

    p = on_the_host(g);
    place(&p, product, AXIS_ROWS, 64, 256);
    p.phase[PHASE_PREFILL][product].part[1].streamed = true;
    facts.streams[DEVICE] = false;
    assert_int_equal(lower_both(&in, &l, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "device with its own memory"));
    lowered_free(&l);
    facts.streams[DEVICE] = true;
    assert_int_equal(lower_both(&in, &l, &err), OATO_OK);
    assert_true(l.device[DEVICE].staging_bytes > 0);
    lowered_free(&l);

    facts.user = &kind;
    facts.supports = never;
    assert_int_equal(lower_both(&in, &l, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "cannot run on device"));
    assert_non_null(strstr(err.text, "; run oato-profile, then oato-plan again, or plan without"));
    assert_null(strchr(err.text, '\n'));
    lowered_free(&l);
    placements_free(&p);
    model_close(m);
}

/* Every product of the layers streams its weights from a file to the host. */
static void what_comes_from_a_file_has_a_place_in_a_ring(void **state)
{
    (void)state;
    struct model *m = small_model();
    const struct graph *g = &m->graph;
    struct placements p = on_the_host(g);
    struct lowering_facts facts = two_devices;
    struct lowering_input in = input_of(g, &p, &facts);
    struct lowered l;
    struct oato_error err;
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int32_t i = 0; i < g->n_ops; i++)
            if (g->ops[i].op.kind == OP_MUL_MAT && g->ops[i].layer < g->n_layers)
                p.phase[phase][i].part[0].streamed = p.phase[phase][i].part[0].stored = true;
    facts.streams[HOST] = true;
    assert_int_equal(lower_both(&in, &l, &err), OATO_OK);
    const struct lowered_device *d = &l.device[HOST];
    uint64_t all = 0, largest = 0, resident = 0;
    for (uint32_t i = 0; i < d->n_slots; i++) {
        const struct weight_slot *s = &d->slots[i];
        resident += s->streamed ? 0 : s->bytes;
        if (!s->stored)
            continue;
        assert_int_equal(s->staging_offset % READ_ALIGN, 0);
        assert_true(s->staging_offset + s->bytes <= d->staging_bytes);
        all += size_align(s->bytes, READ_ALIGN);
        largest = s->bytes > largest ? s->bytes : largest;
    }
    assert_int_equal(d->weight_bytes, resident);
    assert_int_equal(d->staging_bytes, all / 2 + size_align(largest, READ_ALIGN)); /* 2 layers */
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const struct lowered_program *x = &d->phase[phase];
        const struct weight_slot *ahead[64] = {NULL};
        int arrived = 0, read = 0;
        for (uint32_t i = 0; i < x->n_records; i++) {
            const struct program_record *r = &x->records[i];
            const struct weight_slot *s = r->n_weights ? &d->slots[r->weight[0]] : NULL;
            if (r->kind == RECORD_STREAM && s) {
                for (int k = read; k < arrived; k++) /* not where something waits to be read */
                    assert_true(s->staging_offset >= ahead[k]->staging_offset + ahead[k]->bytes ||
                                ahead[k]->staging_offset >= s->staging_offset + s->bytes);
                assert_true(arrived < 64);
                ahead[arrived++] = s;
            } else if (r->kind == RECORD_RUN && s && s->stored) {
                assert_ptr_equal(s, ahead[read]); /* in order, and the phases share them */
                read++;
            }
        }
        assert_int_equal(read, 2 * 7);
        assert_int_equal(arrived, read);
    }
    lowered_free(&l);
    placements_free(&p);
    model_close(m);
}

/* Modes choose operators by their activation, and set both of an FFN. */
static void neurons_are_skipped_where_zeros_are_exact(void **state)
{
    (void)state;
    struct model *m = small_model();
    struct graph g;
    struct oato_error err;
    struct sparse_choice choice;
    assert_int_equal(graph_fuse_all(&m->graph, NULL, NULL, &g, &err), OATO_OK);
    const int32_t up = find_op(&g, OP_GATE_UP, 1);
    struct oato_op *down = NULL;
    for (int32_t i = 0; i < g.n_ops; i++)
        if (g.ops[i].op.kind == OP_MUL_MAT && g.ops[i].in[0] == g.ops[up].out[0])
            down = &g.ops[i].op;
    if (!down) {
        fail();
        return;
    }
    choice = (struct sparse_choice){.mode = SPARSE_EXACT};
    assert_int_equal(sparse_apply(&g, &choice, NULL, &err), OATO_EUSAGE); /* SiLU */
    g.ops[up].op.activation = ACT_RELU_SQUARED;
    assert_int_equal(sparse_apply(&g, &choice, NULL, &err), OATO_OK);
    assert_true(g.ops[up].op.sparse && down->sparse && down->threshold == 0);
    assert_false(g.ops[find_op(&g, OP_GATE_UP, 0)].op.sparse);
    assert_int_equal(op_weight_use_at(down, 0), WEIGHT_COLUMNS);
    assert_int_equal(op_weight_use_at(&g.ops[up].op, 0), WEIGHT_MATRIX);
    assert_int_equal(op_weight_use_at(&g.ops[up].op, 1), WEIGHT_ROWS);
    choice = (struct sparse_choice){.mode = SPARSE_ABOVE, .threshold = 0.5f};
    assert_int_equal(sparse_apply(&g, &choice, NULL, &err), OATO_OK);
    assert_true(g.ops[find_op(&g, OP_GATE_UP, 0)].op.threshold == 0.5f && down->threshold == 0);
    graph_free(&g);
    model_close(m);
}

static void a_value_is_converted_once_where_something_else_is_wanted(void **state)
{
    (void)state;
    struct model *m = small_model();
    const struct graph *g = &m->graph;
    const int32_t norm = find_op(g, OP_RMS_NORM, 0);
    struct value_types values[OP_KIND_COUNT] = {[OP_RMS_NORM] = {.in = {DT_F16}, .out = {DT_F16}}};
    struct lowering_facts facts = two_devices;
    struct oato_error err;
    struct lowered low[2];
    int converts[2] = {0};
    for (int half = 0; half < 2; half++) { /* q, k and v read what the norm makes on the device */
        struct placements p = on_the_host(g);
        facts.values[DEVICE] = half ? values : NULL;
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            for (int32_t i = norm; i < norm + 4; i++)
                p.phase[phase][i].part[0].device = DEVICE;
        const struct lowering_input in = input_of(g, &p, &facts);
        assert_int_equal(lower_both(&in, &low[half], &err), OATO_OK);
        const struct lowered_program *q = &low[half].device[DEVICE].phase[PHASE_PREFILL];
        converts[half] = count_records(q, RECORD_RUN, OP_CONVERT);
        for (uint32_t i = 0; i < q->n_records; i++) {
            const struct program_record *r = &q->records[i];
            const bool typed = half && r->kind == RECORD_RUN;
            for (int j = 0; j < r->n_in; j++)
                assert_int_equal(r->in_type[j], typed ? value_type_in(values, &r->op, j) : DT_F32);
            for (int j = 0; j < r->n_out; j++)
                assert_int_equal(r->out_type[j],
                                 typed ? value_type_out(values, &r->op, j) : DT_F32);
        }
        placements_free(&p);
    }
    assert_int_equal(converts[0], 0);
    assert_int_equal(converts[1], 2); /* what comes from the host; what all three read */
    assert_int_equal(low[1].copies[PHASE_PREFILL], low[0].copies[PHASE_PREFILL]);
    lowered_free(&low[0]);
    lowered_free(&low[1]);
    model_close(m);
}

/* Whether something at the same place is a value that the span reads (n_out 0) or leaves. */
static bool names(const struct lowered_program *p, const struct program_span *s, bool out,
                  uint64_t offset)
{
    const struct span_value *v = p->span_values + s->value + (out ? s->n_in : 0);
    bool found = false;
    for (int i = 0; i < (out ? s->n_out : s->n_in); i++)
        found = found || v[i].offset == offset;
    return found;
}

/* Maximal runs, and what they read and leave, by the records' offsets alone: a value that a span
 * made is left if it is read behind the span before something else is written there. */
static void spans_good(const struct lowered_program *p, const struct lowered_program *host)
{
    uint32_t next = 0;
    for (uint32_t k = 0; k < p->n_spans; k++) {
        const struct program_span *s = &p->spans[k];
        for (; next < s->begin; next++)
            assert_false(p->records[next].kind == RECORD_RUN && op_spans(&p->records[next].op));
        assert_true(s->begin == next && s->end > s->begin && s->end <= p->n_records);
        for (uint32_t i = s->begin; i < s->end; i++) {
            const struct program_record *r = &p->records[i];
            assert_true(r->kind == RECORD_RUN && op_spans(&r->op));
            assert_true(i == s->begin || (!r->n_waits && r->rows == r[-1].rows));
            assert_true(i == s->end - 1 || !r->signal);
            for (int o = 0; o < r->n_out; o++) {
                bool alive = true, left = false;
                for (uint32_t j = i + 1; j < p->n_records && alive; j++) {
                    const struct program_record *later = &p->records[j];
                    for (int n = 0; n < later->n_in && later->kind != RECORD_UPLOAD; n++)
                        left = left || (j >= s->end && later->in[n] == r->out[o]);
                    for (int n = 0; n < later->n_out && later->kind != RECORD_DOWNLOAD; n++)
                        alive = alive && later->out[n] != r->out[o];
                }
                if (left)
                    assert_true(names(p, s, true, r->out[o]));
                assert_false(names(p, s, false, r->out[o]));
            }
        }
        next = s->end;
        if (next < p->n_records && k + 1 < p->n_spans && p->spans[k + 1].begin == next)
            assert_true(p->records[next].n_waits || p->records[next - 1].signal ||
                        p->records[next].rows != p->records[next - 1].rows);
    }
    assert_true(!host->n_spans && !host->spans);
}

static uint64_t a_thousand_a_row(const void *user, int32_t device, const struct oato_op *op,
                                 const struct op_size *size)
{
    (void)user, (void)op;
    return device == DEVICE ? 1000 * (uint64_t)size->rows : 0;
}

/* Each of its functions keeps buffers and what its operators take: for 1 and 2 rows, 3 together. */
static void check_functions_memory(const struct lowered *out)
{
    const struct lowered_program *p = out->device[DEVICE].phase;
    const struct device_memory m =
        lowered_memory(out, DEVICE, &(struct memory_limits){.host = HOST});
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n_spans; i++) {
        const struct program_span *s = &p->spans[i];
        const uint64_t rows = 3;
        for (uint32_t v = 0; v < (uint32_t)s->n_in + s->n_out; v++)
            bytes += rows * (uint64_t)p->span_values[s->value + v].width * sizeof(float);
        bytes += rows * 1000;
    }
    assert_int_equal(m.functions, p->n_spans); /* decode has the same */
    assert_int_equal(m.workspace, bytes);
}

static void spans_are_maximal_and_name_what_they_read_and_leave(void **state)
{
    (void)state;
    struct model *m = small_model();
    struct graph g;
    struct oato_error err;
    struct lowered out;
    struct lowering_facts facts = two_devices;
    assert_int_equal(graph_fuse_all(&m->graph, NULL, NULL, &g, &err), OATO_OK);
    struct placements p = on_the_host(&g);
    facts.rows[DEVICE] = (const int32_t[DEVICE_ROWS]){1, 2};
    facts.workspace_bytes = a_thousand_a_row;
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int32_t i = 0; i < g.n_ops; i++)
            if (op_spans(&g.ops[i].op))
                p.phase[phase][i].part[0].device = DEVICE;
    const struct lowering_input in = input_of(&g, &p, &facts);
    assert_int_equal(lower_both(&in, &out, &err), OATO_OK);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const struct lowered_program *d = &out.device[DEVICE].phase[phase];
        spans_good(d, &out.device[HOST].phase[phase]);
        /* before the first attention, between the two, after the last one, and the logits' rows */
        assert_int_equal(d->n_spans, 4);
        const struct program_span *middle = &d->spans[1];
        assert_int_equal(middle->n_in, 2);  /* attention's output, and the residual */
        assert_int_equal(middle->n_out, 4); /* q, k, v, and the residual */
        assert_true(middle->end - middle->begin >= 6);
    }
    check_functions_memory(&out);
    lowered_free(&out);
    placements_free(&p);
    graph_free(&g);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_is_converted_once_where_something_else_is_wanted),
        cmocka_unit_test(the_same_input_gives_the_same_records),
        cmocka_unit_test(heads_are_cut_out_of_whole_values),
        cmocka_unit_test(what_a_device_cannot_do_is_refused),
        cmocka_unit_test(what_comes_from_a_file_has_a_place_in_a_ring),
        cmocka_unit_test(spans_are_maximal_and_name_what_they_read_and_leave),
        cmocka_unit_test(neurons_are_skipped_where_zeros_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
