/*
 * test_program.c - a program that would read or wait beyond what exists is refused before it runs,
 * and its printed form says what each record does.
 */
#include "kernels/core/core_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARENA = 1 << 16, WIDTH = 64, RECORDS = 6 };

/* embed -> rms_norm -> rope -> kv_store, then a copy to the host and a merge of two halves. */
struct fixture {
    struct program_record record[RECORDS];
    struct program program;
    struct oato_error err;
};

static struct program_record run(const char *key, int n_in, int n_out, int n_weights)
{
    struct program_record r = {.kind = RECORD_RUN, .kv_layer = -1, .graph_op = UINT32_MAX};
    struct op_size size;
    assert_true(oato_op_parse(key, &r.op, &size));
    r.n_in = (uint8_t)n_in;
    r.n_out = (uint8_t)n_out;
    r.n_weights = (uint8_t)n_weights;
    for (int i = 0; i < n_in; i++) {
        r.in_width[i] = WIDTH;
        r.in[i] = (uint64_t)i * 4096;
    }
    for (int i = 0; i < n_out; i++)
        r.out[i] = 8192 + (uint64_t)i * 4096;
    for (uint32_t i = 0; i < RECORD_WEIGHTS; i++)
        r.weight[i] = i < (uint32_t)n_weights ? i : UINT32_MAX;
    return r;
}

static void fixture_fill(struct fixture *f)
{
    static const char *const ids[] = {"cpu:0", "sim:0"};
    static char host;
    static struct kv_layer_shape layers[3] = {{.kv_heads = 1, .head_dim = 64},
                                              {.kv_heads = 1, .head_dim = 64},
                                              {.kv_heads = 1, .head_dim = 64}};
    static struct kv_cache kv = {.n_layers = 3, .dtype = DT_F16, .layers = layers};
    memset(f, 0, sizeof *f);
    f->record[0] = run("embed/Q8_0/k64/n1000", 0, 1, 1);
    f->record[1] = run("rms_norm/k64", 1, 1, 1);
    f->record[2] = run("rope/h1/d64/r64/p0", 1, 1, 0);
    f->record[3] = run("kv_store/F16/g1/d64", 2, 0, 0);
    f->record[4] = run("add/k64", 1, 1, 0);
    f->record[4].kind = RECORD_DOWNLOAD;
    f->record[5] = run("merge/n128", 2, 1, 0);
    f->record[0].value = 12;
    f->record[0].signal = 1;
    f->record[3].kv_layer = 2;
    f->record[3].n_waits = 2;
    f->record[3].wait[0] = (struct record_wait){.device = 0, .ordinal = 1};
    f->record[3].wait[1] = (struct record_wait){.device = 1, .ordinal = 1};
    f->record[4].signal = 3;
    f->record[5].rows = ROWS_LOGITS;
    f->record[5].value = UINT32_MAX;
    f->program = (struct program){.records = f->record,
                                  .n_records = RECORDS,
                                  .n_signals = 3,
                                  .max_tokens = 8,
                                  .max_rows = 2,
                                  .max_seqs = 2,
                                  .n_weights = 2,
                                  .host_arena = &host,
                                  .kv = &kv,
                                  .device_ids = ids};
}

/* Inputs of different widths: a value and a choice of experts. */
static void inputs_of_experts_have_widths_of_their_own(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *key;
        int32_t in, choice;
        int weights;
    } rows[] = {{"expert_gate_up/F32/k64/n32/e8/u2", 64, 4, 2},
                {"expert_down/F32/k32/n64/e8/u2", 64, 4, 1},
                {"head_norm/h2/d32", 64, 0, 1},
                {"route/e64/u4", 64, 0, 0}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        fixture_fill(f);
        struct program_record *r = &f->record[1];
        *r = run(rows[i].key, rows[i].choice ? 2 : 1, 1, rows[i].weights);
        r->in_width[0] = rows[i].in;
        r->in_width[1] = rows[i].choice;
        if (program_check(&f->program, NULL, 1, ARENA, &f->err))
            fail_msg("%s", f->err.text);
        r->in_width[rows[i].choice ? 1 : 0]++;
        assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
        assert_non_null(strstr(f->err.text, "takes inputs of width"));
        r->in_width[rows[i].choice ? 1 : 0]--;
        r->n_in++;
        assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
        r->n_in--;
        r->out[0] = ARENA - 64; /* its width counts too */
        assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    }
    struct oato_op *op = &f->record[1].op;
    f->record[1] = run(rows[1].key, 2, 1, 1);
    f->record[1].in_width[1] = 4;
    op->expert_first = 3;
    op->experts_held = 5;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_OK);
    op->expert_first = 4;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    assert_non_null(strstr(f->err.text, "5 experts from 4 on exceed the 8 there are"));
    op->experts_held = 0;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    op->expert_first = -1;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
}

static void stream(struct program_record *r, int n_weights)
{
    *r = (struct program_record){.kind = RECORD_STREAM, .kv_layer = -1, .value = UINT32_MAX};
    r->n_weights = (uint8_t)n_weights;
    for (uint32_t i = 0; i < RECORD_WEIGHTS; i++)
        r->weight[i] = i < (uint32_t)n_weights ? i : UINT32_MAX;
}

static void a_sound_program_passes(void **state)
{
    struct fixture *f = *state;
    fixture_fill(f);
    if (program_check(&f->program, NULL, 1, ARENA, &f->err))
        fail_msg("%s", f->err.text);
    f->record[2] = run("rope/h1/d64/r64/p0", 1, 1, 1); /* divisors are optional */
    f->record[2].weight[0] = UINT32_MAX;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_OK);
    stream(&f->record[2], 2);
    f->record[5].op = (struct oato_op){.kind = OP_MERGE_SUM, .k = 2 * WIDTH, .n = WIDTH};
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_OK);
}

static void check_refused(struct fixture *f, const char *reason)
{
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    if (!strstr(f->err.text, reason))
        fail_msg("'%s' does not say '%s'", f->err.text, reason);
    fixture_fill(f);
}

static void what_lies_outside_the_arena_is_refused(void **state)
{
    struct fixture *f = *state;
    fixture_fill(f);
    f->record[1].out[0] = ARENA - 8 * WIDTH * 4 + 4;
    check_refused(f, "record 1: value at offset");
    f->record[1].in[0] = UINT64_MAX - 3;
    check_refused(f, "record 1: value at offset");
    f->record[1].in[0] = 2;
    check_refused(f, "record 1: value at offset 2");
    f->record[4].in[0] = ARENA;
    check_refused(f, "record 4: value");
    f->program.max_tokens = INT32_MAX;
    check_refused(f, "record 0: value");
    f->program.max_tokens = -1;
    check_refused(f, "negative");
    /* of the host's arena the device knows nothing */
    f->record[4].out[0] = ARENA;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_OK);
}

static void what_does_not_fit_the_operator_is_refused(void **state)
{
    struct fixture *f = *state;
    fixture_fill(f);
    f->record[1].in_width[0] = 63;
    check_refused(f, "rms_norm takes inputs of width 64, not 63");
    f->record[1].n_in = 2;
    check_refused(f, "rms_norm cannot have 2 inputs");
    f->record[1].n_out = 2;
    check_refused(f, "rms_norm has 2 outputs instead of 1");
    f->record[1].n_weights = 0;
    check_refused(f, "rms_norm cannot have 0 weights");
    f->record[1].weight[0] = 2;
    check_refused(f, "weight 2 is outside the table of 2");
    f->record[1].weight[0] = UINT32_MAX;
    check_refused(f, "weight");
    f->record[5].op.n = 127;
    check_refused(f, "merge has inputs of 128 columns instead of 127");
    f->record[5].n_in = 0;
    check_refused(f, "merge cannot have 0 inputs");
    f->record[3].kv_layer = -1;
    check_refused(f, "needs a KV layer");
    f->program.kv = NULL;
    check_refused(f, "needs a KV layer");
    f->record[4].n_out = 0;
    check_refused(f, "a copy must have");
    f->program.host_arena = NULL;
    check_refused(f, "host arena");
    f->record[0].op.kind = OP_KIND_COUNT;
    check_refused(f, "operator kind");
    f->record[5].op = (struct oato_op){.kind = OP_MERGE_SUM, .k = 3 * WIDTH, .n = WIDTH};
    check_refused(f, "merge_sum has inputs of 128 columns instead of 192");
    f->record[5].op = (struct oato_op){.kind = OP_MERGE_SUM, .k = 2 * WIDTH, .n = WIDTH};
    f->record[5].in_width[1] = 32;
    check_refused(f, "merge_sum takes inputs of width 64, not 32");
    f->record[0].kind = RECORD_SWAP + 1;
    check_refused(f, "kind 11");
    f->record[0].kind = RECORD_SWAP;
    check_refused(f, "a swap has one input, one output, or both, and no weight");
    f->record[0].kind = RECORD_SEND;
    check_refused(f, "a value that is sent has one input, one that is received one output");
    f->record[0].kind = RECORD_RECEIVE;
    check_refused(f, "a value that is sent has one input, one that is received one output");
    f->record[0].kind = RECORD_REDUCE;
    check_refused(f, "what ranks share has at most one input, one output and no weight");
    f->record[0].kind = RECORD_REDUCE;
    f->record[0].n_weights = 0;
    check_refused(f, "there are no other ranks");
    f->record[0].kind = RECORD_STREAM;
    check_refused(f, "a stream must have one to 6 weights and no values");
    stream(&f->record[0], 0);
    check_refused(f, "a stream must have one to 6 weights and no values");
    stream(&f->record[0], 2);
    f->record[0].weight[1] = 2;
    check_refused(f, "weight 2 is outside the table of 2");
}

/* From a layer of the host's cache to a room of the same shape. */
static void history_goes_to_a_room_of_its_shape(void **state)
{
    struct fixture *f = *state;
    struct kv_layer_shape rooms[2] = {{.kv_heads = 1, .head_dim = 64, .pages = 3, .staged = true},
                                      {.kv_heads = 1, .head_dim = 64, .pages = 3}};
    struct kv_layer_shape layers[2] = {{.kv_heads = 1, .head_dim = 64, .pages = 3},
                                       {.kv_heads = 1, .head_dim = 32, .pages = 3}};
    struct kv_cache own = {.n_layers = 2, .dtype = DT_F16, .layers = rooms},
                    host_kv = {.n_layers = 2, .dtype = DT_F16, .layers = layers};
    fixture_fill(f);
    f->record[3].kv_layer = 0;
    struct program_record *r = &f->record[1];
    stream(r, 0);
    r->kv_layer = 0;
    f->program.kv = &own;
    check_refused(f, "streams KV layer 0 of the host to 0, which are not there");
    fixture_fill(f);
    f->record[3].kv_layer = 0;
    stream(r, 0);
    r->kv_layer = 0;
    f->program.kv = &own;
    f->program.host_kv = &host_kv;
    if (program_check(&f->program, NULL, 1, ARENA, &f->err))
        fail_msg("%s", f->err.text);
    static const struct {
        int32_t to, from;
        const char *reason;
    } wrong[] = {{1, 0, "KV layer 1 is no room for layer 0 of the host"},
                 {0, 1, "KV layer 0 is no room for layer 1 of the host"},
                 {2, 0, "which are not there"},
                 {0, 2, "which are not there"}};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        r->kv_layer = wrong[i].to;
        r->kv_from = wrong[i].from;
        assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
        assert_non_null(strstr(f->err.text, wrong[i].reason));
    }
    r->kv_layer = r->kv_from = 0;
    layers[0].pages = 4;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    layers[0].pages = 3;
    layers[0].filed = true;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
}

/* mul_mat -> bias, of which only the second one's result is read later. */
static void spans_name_what_they_read_and_leave(void **state)
{
    struct fixture *f = *state;
    static const struct span_value good[] = {{0, 64, 0, DT_F32}, {12288, 64, 0, DT_F32}};
    struct span_value value[2];
    struct program_span span;
    enum { GOOD, WAITS, SIGNALS, LISTLESS, ROWS_DIFFER, NO_INPUT, NOT_MADE, OVER, ALIASED, N };
    static const char *const why[] = {
        [WAITS] = "waits or signals inside a span",
        [SIGNALS] = "waits or signals inside a span",
        [LISTLESS] = "cannot be in a span with record 1",
        [ROWS_DIFFER] = "cannot be in a span with record 1",
        [NO_INPUT] = "reads offset 0, which its span does not name",
        [NOT_MADE] = "nothing in span 0 makes its result at 4096",
        [OVER] = "span 0 is out of order or exceeds its tables",
        [ALIASED] = "writes offset 0, an input of its span",
    };
    for (int i = GOOD; i < N; i++) {
        fixture_fill(f);
        memcpy(value, good, sizeof value);
        span = (struct program_span){.begin = 1, .end = 3, .n_in = 1, .n_out = 1};
        f->record[1] = run("mul_mat/F32/k64/n64", 1, 1, 1);
        f->record[2] = run(i == LISTLESS ? "rope/h1/d64/r64/p0" : "bias/k64", 1, 1, i != LISTLESS);
        f->record[2].in[0] = f->record[1].out[0];
        f->record[2].out[0] = i == ALIASED ? 0 : 12288;
        f->record[2].n_waits = i == WAITS;
        f->record[2].wait[0] = (struct record_wait){.device = 0, .ordinal = 1};
        f->record[1].signal = i == SIGNALS ? 2 : 0;
        f->record[2].rows = i == ROWS_DIFFER ? ROWS_LOGITS : ROWS_TOKENS;
        value[0].offset = i == NO_INPUT ? 8192 + 4096 * 4 : 0;
        value[1].offset = i == NOT_MADE ? 4096 : value[1].offset;
        f->program.spans = &span;
        f->program.n_spans = 1;
        f->program.span_values = value;
        f->program.n_span_values = i == OVER ? 1 : 2;
        const oato_status status = program_check(&f->program, NULL, 1, ARENA, &f->err);
        if (i != GOOD)
            assert_non_null(strstr(f->err.text, why[i]));
        assert_int_equal(status, i == GOOD ? OATO_OK : OATO_EUSAGE);
    }
}

static void what_can_never_come_is_refused(void **state)
{
    struct fixture *f = *state;
    fixture_fill(f);
    f->record[4].signal = 1;
    check_refused(f, "signals 1 after 1");
    f->record[4].signal = 4;
    check_refused(f, "signals 4 after 1; signals must rise, up to 3");
    f->record[3].wait[1].ordinal = 2; /* its own, raised later */
    check_refused(f, "waits for 1#2");
    f->record[3].wait[0].ordinal = 0;
    check_refused(f, "waits for 0#0");
    f->record[3].wait[0].device = DEVICES_MAX;
    check_refused(f, "never signalled");
    f->record[3].n_waits = RECORD_WAITS + 1;
    check_refused(f, "9 waits");
    f->program.n_signals = TIMELINE_RING;
    check_refused(f, "8192 signals");
}

static void peers_are_those_that_are_reached(void **state)
{
    struct fixture *f = *state;
    static char device;
    const uint64_t value = (uint64_t)WIDTH * 8 * sizeof(float);
    struct program_peer peers[DEVICES_MAX] = {
        [1] = {(struct oato_device *)&device, NULL, value},
        [2] = {(struct oato_device *)&device, NULL, value},
    };
    fixture_fill(f);
    struct program_record *r = &f->record[2];
    *r = run("add/k64", 1, 1, 0);
    r->kind = RECORD_PEER;
    r->peer = 2;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    assert_non_null(strstr(f->err.text, "device 2 is not reachable"));
    f->program.peers = peers;
    if (program_check(&f->program, NULL, 1, ARENA, &f->err))
        fail_msg("%s", f->err.text);
    static const uint8_t others[] = {0, 1, DEVICES_MAX}; /* 1: itself */
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        r->peer = others[i];
        assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
        assert_non_null(strstr(f->err.text, "is not reachable"));
    }
    r->peer = 2;
    r->kind = RECORD_PUSH;
    r->out[0] = sizeof(float); /* behind the end of the other one's */
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    r->out[0] = 0;
    r->in[0] = value; /* anywhere in its own */
    if (program_check(&f->program, NULL, 1, ARENA, &f->err))
        fail_msg("%s", f->err.text);
    r->kind = RECORD_PEER;
    r->in[0] = sizeof(float);
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    assert_non_null(strstr(f->err.text, "is not inside the arena of 2048 bytes"));
    r->in[0] = 0;
    r->out[0] = ARENA;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    assert_non_null(strstr(f->err.text, "is not inside the arena of 65536 bytes"));
    r->out[0] = 0;
    f->program.host_arena = NULL;
    f->program.n_records = 3; /* without the download */
    f->program.n_signals = 1;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_OK);
}

/* Of a device that has F16 for norms. */
static void types_are_those_of_the_device(void **state)
{
    struct fixture *f = *state;
    struct value_types values[OP_KIND_COUNT] = {
        [OP_RMS_NORM] = {.in = {DT_F16}, .out = {DT_F16}}, [OP_ROUTE] = {.out = {DT_F16}}};
    struct program_record *r = &f->record[1];
    fixture_fill(f);
    assert_int_equal(program_check(&f->program, values, 1, ARENA, &f->err), OATO_EUSAGE);
    assert_non_null(strstr(f->err.text, "input 0 of rms_norm is of type 0, but here it is F16"));
    r->in_type[0] = DT_F16;
    assert_int_equal(program_check(&f->program, values, 1, ARENA, &f->err), OATO_EUSAGE);
    assert_non_null(strstr(f->err.text, "output 0 of rms_norm"));
    r->out_type[0] = DT_F16;
    assert_int_equal(program_check(&f->program, values, 1, ARENA, &f->err), OATO_OK);
    r->out[0] = ARENA - 8 * WIDTH * 2; /* half the bytes */
    assert_int_equal(program_check(&f->program, values, 1, ARENA, &f->err), OATO_OK);
    r->out[0] += 2;
    assert_int_equal(program_check(&f->program, values, 1, ARENA, &f->err), OATO_EUSAGE);
    assert_non_null(strstr(f->err.text, "64 halves, is not inside"));
    r->out[0] = 2;
    assert_int_equal(program_check(&f->program, values, 1, ARENA, &f->err), OATO_OK);
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_EUSAGE);
    f->record[4].in_type[0] = DT_F16; /* links carry float32 */
    assert_int_equal(program_check(&f->program, values, 1, ARENA, &f->err), OATO_EUSAGE);
    assert_non_null(strstr(f->err.text, "input 0 of a copy"));
    f->record[4].in_type[0] = DT_F32;
    *r = run("convert/F16/k64", 1, 1, 0); /* has types of its own, anywhere */
    r->out_type[0] = DT_F16;
    assert_int_equal(program_check(&f->program, NULL, 1, ARENA, &f->err), OATO_OK);
    *r = run("route/e64/u4", 1, 1, 0); /* ids are exact */
    assert_int_equal(program_check(&f->program, values, 1, ARENA, &f->err), OATO_OK);
}

static void sizes_come_from_the_step(void **state)
{
    (void)state;
    const struct step_seq seq[] = {{.query_len = 3, .kv_len = 3},
                                   {.query_begin = 3, .query_len = 1, .kv_len = 100}};
    const struct step step = {.n_tokens = 4, .n_seqs = 2, .n_rows = 2, .seq = seq};
    struct program_record r = run("attention/F16/h1/g1/d64", 1, 1, 0);
    struct op_size size = record_size(&r, &step);
    assert_int_equal(size.rows, 4);
    assert_int_equal(size.seqs, 2);
    assert_int_equal(size.kv_positions, 1 + 2 + 3 + 100);
    r = run("add/k64", 2, 1, 0);
    r.rows = ROWS_LOGITS;
    size = record_size(&r, &step);
    assert_int_equal(size.rows, 2);
    assert_int_equal(size.kv_positions, 0);
}

static void each_record_prints_as_a_line(void **state)
{
    struct fixture *f = *state;
    static const char *const lines[] = {
        "program of sim:0: 6 records",
        "    0 run      embed/Q8_0/k64/n1000 -> v12@8192  w0  signals 1\n",
        "    1 run      rms_norm/k64  @0 -> v0@8192  w0\n",
        "    2 stream     w0 w1\n",
        "    3 run      kv_store/F16/g1/d64  @0 @4096  kv2  after cpu:0#1, sim:0#1\n",
        "    4 download v0 width 64  @0 -> v0@8192  signals 3\n",
        "    5 run      merge/n128 [rows]  @0 @4096 -> @8192\n",
        "    1 peer     v0 width 64 of cpu:0  @0 -> v0@8192  w0\n",
        "    1 push     v0 width 64 to cpu:0  @0 -> v0@8192  w0\n",
    };
    char *text = NULL;
    size_t n;
    fixture_fill(f);
    stream(&f->record[2], 2);
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    program_print(&f->program, "sim:0", out);
    f->record[1].kind = RECORD_PEER;
    program_print(&f->program, "sim:0", out);
    f->record[1].kind = RECORD_PUSH;
    program_print(&f->program, "sim:0", out);
    f->program.device_ids = NULL;
    program_print(&f->program, "sim:0", out);
    fclose(out);
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        if (!strstr(text, lines[i]))
            fail_msg("no line '%s' in\n%s", lines[i], text);
    assert_non_null(strstr(text, "after device0#1, device1#1"));
    free(text);
}

int main(void)
{
    static struct fixture fixture;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_sound_program_passes, &fixture),
        cmocka_unit_test_prestate(inputs_of_experts_have_widths_of_their_own, &fixture),
        cmocka_unit_test_prestate(what_lies_outside_the_arena_is_refused, &fixture),
        cmocka_unit_test_prestate(what_does_not_fit_the_operator_is_refused, &fixture),
        cmocka_unit_test_prestate(history_goes_to_a_room_of_its_shape, &fixture),
        cmocka_unit_test_prestate(what_can_never_come_is_refused, &fixture),
        cmocka_unit_test_prestate(spans_name_what_they_read_and_leave, &fixture),
        cmocka_unit_test_prestate(peers_are_those_that_are_reached, &fixture),
        cmocka_unit_test_prestate(types_are_those_of_the_device, &fixture),
        cmocka_unit_test(sizes_come_from_the_step),
        cmocka_unit_test_prestate(each_record_prints_as_a_line, &fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
