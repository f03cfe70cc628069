/*
 * What a profile must hold after a run: a row for everything that a plan may place, declared costs
 * where they are declared, what other runs measured, and nothing of another machine.
 */
#include "profiler/profiler_internal.h"

#include "tests/profiler/profiler_testing.h"

#include <math.h>

#define SIM "sim:vram=64MiB,read=100GB/s,flops=1T,link=10GB/s,latency=20us,launch=5us"

struct warnings {
    int n;
    char last[700];
};

static void count_warning(void *user, const char *text)
{
    struct warnings *w = user;
    if (strstr(text, "busy")) /* so it may be, when tests run in parallel */
        return;
    w->n++;
    snprintf(w->last, sizeof w->last, "%s", text);
}

static struct model *open_model(const char *path)
{
    struct oato_error err;
    struct model *m;
    if (model_open(path, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

static struct profiler_options quick_on(const char *devices)
{
    return (struct profiler_options){.devices = devices, .kv = DT_F16, .quick = true, .threads = 1};
}

static void measure(struct profile *p, const struct model *m, const struct profiler_options *o,
                    struct warnings *w, struct profiler_report *report)
{
    struct oato_error err;
    struct warnings ignored = {0};
    if (profiler_measure(p, m, o, count_warning, w ? w : &ignored, report, &err))
        fail_msg("%s", err.text);
}

static void begin(struct profile *p)
{
    struct oato_error err;
    if (profiler_begin(NULL, false, p, NULL, NULL, &err))
        fail_msg("%s", err.text);
}

static int32_t device_rows(const struct profile *p, const char *id)
{
    int32_t n = 0, device = profile_device_index(p, id);
    for (int32_t i = 0; i < p->n_rows; i++)
        n += p->rows[i].device == device;
    return n;
}

/* Every operator of the graph, as it is and fused, has a row at every number of tokens. */
static void assert_complete(const struct profile *p, const struct model *m, int32_t device,
                            const int32_t *tokens, int n_tokens)
{
    struct graph fused;
    struct oato_error err;
    assert_int_equal(graph_fuse_all(&m->graph, NULL, NULL, &fused, &err), OATO_OK);
    const struct graph *graphs[] = {&m->graph, &fused};
    for (int g = 0; g < 2; g++) {
        for (int32_t i = 0; i < graphs[g]->n_ops; i++) {
            struct oato_op op = graph_op_with_kv(&graphs[g]->ops[i], DT_F16);
            bool logits = graph_op_size(graphs[g], i, 2, 1, 1, 1).rows == 1;
            for (int t = 0; t < n_tokens; t++) {
                if (logits && tokens[t] > 32)
                    continue;
                struct op_size size = op_point_size(&op, &(struct op_point){tokens[t], 1, 512, 0});
                const struct profile_row *row = profile_find(p, device, &op, &size);
                char key[OP_KEY_SIZE];
                if (!row) {
                    fail_msg("no row for %s", oato_op_key(&op, &size, key));
                    return;
                }
                assert_true(row->supported);
                assert_true(row->median_ns > 0 && row->p10_ns <= row->median_ns &&
                            row->median_ns <= row->p90_ns && row->repeats > 0);
                assert_true(strlen(row->numerics) > 0);
            }
        }
    }
    graph_free(&fused);
}

static void a_full_profile_has_every_operator_at_every_size(void **state)
{
    (void)state;
    static const int32_t tokens[] = {1, 2, 4, 8, 32, 128, 512};
    char path[128], file[128];
    struct profile p, read;
    struct profiler_report report;
    struct oato_error err;
    struct model *m = open_model(make_model(path, "full.gguf", 64, DT_Q8_0, false));
    struct profiler_options o = {.devices = "cpu," SIM, .kv = DT_F16, .threads = 2};
    begin(&p);
    measure(&p, m, &o, NULL, &report);
    assert_int_equal(p.n_devices, 2);
    assert_int_equal(p.n_links, 2);
    assert_int_equal(report.rows_new, p.n_rows);
    assert_int_equal(report.rows_skipped, 0);
    assert_int_equal(profile_save(&p, path_in(file, "full.yaml"), &err), OATO_OK);
    struct warnings w = {0};
    if (profile_load(file, &read, count_warning, &w, &err))
        fail_msg("%s", err.text);
    assert_int_equal(w.n, 0);
    assert_int_equal(read.n_rows, p.n_rows);
    for (int32_t d = 0; d < 2; d++)
        assert_complete(&read, m, d, tokens, ARRAY_LEN(tokens));
    /* batches of sequences too */
    bool batch = false;
    for (int32_t i = 0; i < read.n_rows; i++)
        batch = batch || (read.rows[i].op.kind == OP_ATTENTION && read.rows[i].size.seqs == 4 &&
                          read.rows[i].size.kv_positions == 4 * 512);
    assert_true(batch);
    profile_free(&read);
    profile_free(&p);
    model_close(m);
}

static const struct profile_link *link_of(const struct profile *p, const char *from, const char *to)
{
    for (int32_t i = 0; i < p->n_links; i++)
        if (!strcmp(p->devices[p->links[i].from].id, from) &&
            !strcmp(p->devices[p->links[i].to].id, to))
            return &p->links[i];
    return NULL;
}

static void devices_that_reach_each_other_have_a_link(void **state)
{
    (void)state;
    static const char *const lists[] = {
        "cpu,sim:0:vram=64MiB,latency=20us,peer=4GB/s,sim:1:vram=64MiB,link=2GB/s",
        "sim:0:vram=64MiB,latency=20us,sim:1:vram=64MiB,link=2GB/s"};
    char path[128];
    struct profile p;
    struct profiler_report report;
    struct model *m = open_model(make_model(path, "peers.gguf", 64, DT_Q4_0, false));
    begin(&p);
    for (int i = 0; i < 2; i++) { /* the second time the way is gone */
        struct profiler_options o = quick_on(lists[i]);
        measure(&p, m, &o, NULL, &report);
        assert_int_equal(p.n_links, 5 - i);
        const struct profile_link *l = link_of(&p, "sim:1", "sim:0");
        assert_int_equal(l != NULL, !i); /* the other one declares none */
        assert_null(link_of(&p, "sim:0", "sim:1"));
        const struct profile_link *host = link_of(&p, "sim:1", "cpu:0");
        assert_non_null(host);
        assert_true(!l || !host ||
                    (fabs(l->latency_ns - 20000) <= 2 && fabs(l->bytes_per_s / 4e9 - 1) < 1e-3 &&
                     l->sync_ns >= host->sync_ns));
    }
    profile_free(&p);
    model_close(m);
}

/* How many rows the sim has, each as its declared rates have it. */
static int32_t declared_rows(const struct profile *p, int32_t sim)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_rows; i++) {
        const struct profile_row *r = &p->rows[i];
        if (r->device != sim)
            continue;
        double read = op_bytes(&r->op, &r->size) / 100e9,
               compute = op_flops(&r->op, &r->size) / 1e12;
        double ns = 1e9 * (5e-6 + (read > compute ? read : compute));
        assert_true(fabs(r->median_ns - ns) <= 1);
        n++;
    }
    return n;
}

static void sim_rows_are_what_it_declares(void **state)
{
    (void)state;
    char path[128];
    struct profile p;
    struct profiler_report report;
    struct model *m = open_model(make_model(path, "sim.gguf", 128, DT_Q4_0, false));
    struct profiler_options o = quick_on("cpu," SIM);
    begin(&p);
    measure(&p, m, &o, NULL, &report);
    int32_t sim = profile_device_index(&p, "sim:0");
    assert_true(declared_rows(&p, sim) > 20);
    assert_true(p.devices[sim].read_bytes_per_s == 100e9 && p.devices[sim].flops_per_s == 1e12);
    assert_true(p.devices[sim].step_overhead_ns == 0 && p.devices[sim].record_overhead_ns == 0);
    assert_true(p.devices[sim].rows_overhead == 0);
    assert_string_equal(p.devices[sim].spec, strchr(SIM, ':') + 1);
    for (int32_t d = 0; d < p.n_devices; d++) { /* also what the model does not have */
        assert_true(profile_runs(&p.devices[d], OP_MUL_MAT, DT_IQ2_XXS));
        assert_true(profile_runs(&p.devices[d], OP_ATTENTION, DT_Q8_0));
        assert_true(profile_runs(&p.devices[d], OP_SSM, DT_F32));
        assert_false(profile_runs(&p.devices[d], OP_ATTENTION, DT_Q4_0));
    }
    const struct oato_op wide = {.kind = OP_MUL_MAT, .dtype = DT_IQ2_XXS, .k = 8192, .n = 8192};
    assert_true(profile_workspace_bytes(&p.devices[sim], &wide, 16) > 16 * 8192);
    assert_null(p.devices[profile_device_index(&p, "cpu:0")].workspaces);
    for (int32_t i = 0; i < p.n_links; i++) {
        assert_true(fabs(p.links[i].latency_ns - 20000) <= 2);
        assert_true(fabs(p.links[i].bytes_per_s / 10e9 - 1) < 1e-3);
        assert_true(p.links[i].from != p.links[i].to);
        assert_true(p.links[i].pageable_bytes_per_s <= 0 && p.links[i].both_bytes_per_s <= 0 &&
                    p.links[i].stream_bytes_per_s <= 0);
    }
    assert_true(p.devices[sim].launch_ns <= 0);
    const struct profile_device *cpu = &p.devices[profile_device_index(&p, "cpu:0")];
    assert_true(cpu->is_host && cpu->threads == 1 && cpu->read_bytes_per_s > 1e8 &&
                cpu->flops_per_s > 1e7);
    assert_string_equal(cpu->spec, "");
    assert_true(strlen(p.machine.kernel_isa) > 0);
    profile_free(&p);
    model_close(m);
}

static void a_second_model_adds_rows_and_keeps_the_others(void **state)
{
    (void)state;
    char path[128], file[128];
    struct profile p;
    struct profiler_report report;
    struct oato_error err;
    struct profiler_options o = quick_on("cpu," SIM);
    struct model *first = open_model(make_model(path, "first.gguf", 64, DT_Q8_0, false));
    struct model *second = open_model(make_model(path, "second.gguf", 128, DT_Q4_K, false));
    path_in(file, "two.yaml");
    begin(&p);
    measure(&p, first, &o, NULL, &report);
    int32_t n = p.n_rows;
    assert_int_equal(profile_save(&p, file, &err), OATO_OK);
    profile_free(&p);
    if (profiler_begin(file, false, &p, NULL, NULL, &err))
        fail_msg("%s", err.text);
    assert_non_null(strstr(p.notes, "(quick)"));
    o.devices = SIM; /* the host is in the file: links can be measured without it */
    measure(&p, second, &o, NULL, &report);
    assert_int_equal(report.rows_new, p.n_rows - n);
    assert_int_equal(report.rows_kept, n - report.rows_replaced);
    assert_int_equal(device_rows(&p, "cpu:0"), n / 2);
    o.devices = "cpu";
    measure(&p, second, &o, NULL, &report);
    assert_int_equal(device_rows(&p, "cpu:0"), device_rows(&p, "sim:0"));
    static const int32_t tokens[] = {1, 8, 128, 512};
    for (int32_t d = 0; d < 2; d++) {
        assert_complete(&p, first, d, tokens, ARRAY_LEN(tokens));
        assert_complete(&p, second, d, tokens, ARRAY_LEN(tokens));
    }
    profile_free(&p);
    model_close(first);
    model_close(second);
}

static void a_changed_declaration_drops_the_devices_rows(void **state)
{
    (void)state;
    char path[128];
    struct profile p;
    struct profiler_report report;
    struct warnings w = {0};
    struct profiler_options o = quick_on("cpu," SIM);
    struct model *m = open_model(make_model(path, "changed.gguf", 64, DT_F32, false));
    struct model *other = open_model(make_model(path, "changed2.gguf", 128, DT_F32, false));
    begin(&p);
    measure(&p, m, &o, NULL, &report);
    int32_t n = device_rows(&p, "sim:0");
    o.devices = "sim:read=1GB/s";
    measure(&p, other, &o, &w, &report);
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.last, "sim:0"));
    assert_int_equal(device_rows(&p, "cpu:0"), n);
    int32_t sim = profile_device_index(&p, "sim:0");
    struct oato_op op = m->graph.ops[0].op;
    assert_null(profile_find(&p, sim, &op, &(struct op_size){.rows = 1, .seqs = 1}));
    assert_true(p.devices[sim].read_bytes_per_s == 1e9);
    assert_int_equal(p.n_links, 2);
    profile_free(&p);
    model_close(m);
    model_close(other);
}

static void another_machines_or_threads_file_is_refused(void **state)
{
    (void)state;
    char path[128], file[128];
    struct profile p;
    struct profiler_report report;
    struct oato_error err;
    struct profiler_options o = quick_on("cpu");
    struct model *m = open_model(make_model(path, "foreign.gguf", 64, DT_F32, false));
    path_in(file, "foreign.yaml");
    begin(&p);
    measure(&p, m, &o, NULL, &report);
    o.threads = 2;
    assert_int_equal(profiler_measure(&p, m, &o, NULL, NULL, &report, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "--threads 1"));
    p.machine.cores += 1;
    assert_int_equal(profile_save(&p, file, &err), OATO_OK);
    profile_free(&p);
    assert_int_equal(profiler_begin(file, false, &p, NULL, NULL, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "cores"));
    assert_non_null(strstr(err.text, "--replace"));
    assert_int_equal(profiler_begin(file, true, &p, NULL, NULL, &err), OATO_OK);
    assert_int_equal(p.n_rows, 0);
    p.machine.kernel_isa = "of another level";
    o.threads = 1;
    measure(&p, m, &o, NULL, &report); /* an empty profile has no kernels to keep to */
    p.machine.kernel_isa = "of another level";
    assert_int_equal(profiler_measure(&p, m, &o, NULL, NULL, &report, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "OATO_CPU_ISA"));
    profile_free(&p);
    model_close(m);
}

static void what_is_not_supported_is_a_row_that_says_so(void **state)
{
    (void)state;
    char path[128];
    struct oato_error err;
    struct random_model r = random_model_default();
    r.layers = 1;
    r.heads = r.kv_heads = 1; /* heads of 2048: above what kernels take */
    r.context = 8;            /* few sizes: the matrices are large */
    r.width = 2048;
    r.ffn = 64;
    r.vocab = 300;
    r.tokenizer = false;
    r.dtype = DT_Q4_0;
    if (random_model_save(&r, path_in(path, "wide.gguf"), &err))
        fail_msg("%s", err.text);
    struct profile p;
    struct profiler_report report;
    struct model *m = open_model(path);
    struct profiler_options o = quick_on("cpu");
    begin(&p);
    measure(&p, m, &o, NULL, &report);
    int unsupported = 0;
    for (int32_t i = 0; i < p.n_rows; i++) {
        if (p.rows[i].supported)
            continue;
        unsupported++;
        assert_true(p.rows[i].op.kind == OP_ATTENTION || p.rows[i].op.kind == OP_ROPE ||
                    p.rows[i].op.kind == OP_KV_STORE);
    }
    assert_int_equal(unsupported, 3); /* rope of q and k is one */
    assert_true(p.devices[0].record_overhead_ns == 0);
    profile_free(&p);
    model_close(m);
}

static void what_does_not_fit_is_skipped_with_a_reason(void **state)
{
    (void)state;
    char path[128];
    struct profile p;
    struct profiler_report report;
    struct warnings w = {0};
    struct model *m = open_model(make_model(path, "small.gguf", 256, DT_F32, false));
    struct profiler_options o = quick_on("cpu,sim:vram=300KiB");
    begin(&p);
    measure(&p, m, &o, &w, &report);
    assert_true(w.n > 0 && report.rows_skipped >= w.n);
    assert_non_null(strstr(w.last, "skipped at"));
    assert_true(device_rows(&p, "sim:0") > 0);
    assert_int_equal(device_rows(&p, "sim:0") + report.rows_skipped, device_rows(&p, "cpu:0"));
    profile_free(&p);
    model_close(m);
}

/* With weights and without; what the sim's rows cost is checked by sim_rows_are_what_it_declares.
 */
static void experts_are_profiled_with_choices_of_their_own(void **state)
{
    (void)state;
    static const int32_t tokens[] = {1, 8, 128, 512};
    for (int header_only = 0; header_only <= 1; header_only++) {
        char path[128];
        struct profile p;
        struct profiler_report report;
        struct model *m = open_model(make_experts(path, "experts.gguf", DT_Q4_0, header_only));
        struct profiler_options o = quick_on("cpu," SIM);
        begin(&p);
        measure(&p, m, &o, NULL, &report);
        assert_int_equal(report.rows_skipped, 0);
        for (int32_t d = 0; d < 2; d++)
            assert_complete(&p, m, d, tokens, ARRAY_LEN(tokens));
        assert_true(declared_rows(&p, 1) > 20);
        profile_free(&p);
        model_close(m);
    }
}

/* Different ids that rise, all of them about as often as the others, weights that sum to 1. */
static void made_up_choices_are_valid_and_uniform(void **state)
{
    (void)state;
    enum { EXPERTS = 32, USED = 5, ROWS = 100, TIMES = 7, STRIDE = ROWS * USED * 2 + 3 };
    const struct oato_op op = {.kind = OP_EXPERT_DOWN, .experts = EXPERTS, .experts_used = USED};
    float *memory = test_calloc(TIMES * STRIDE, sizeof *memory);
    int32_t taken[EXPERTS] = {0};
    struct rig r = {0};
    struct oato_error err;
    assert_int_equal(device_open("cpu", 0, NULL, &r.device, &err), OATO_OK);
    assert_int_equal(
        rig_fill_choices(&r, &op, memory, 0, ROWS, STRIDE * sizeof *memory, TIMES, &err), OATO_OK);
    for (int i = 0; i < TIMES * ROWS; i++) {
        const float *c = memory + (ptrdiff_t)(i / ROWS * STRIDE + i % ROWS * 2 * USED);
        float sum = 0;
        for (int u = 0; u < USED; u++) {
            assert_true(c[u] >= 0 && c[u] < EXPERTS && (u == 0 || c[u] > c[u - 1]));
            taken[(int)c[u]]++;
            sum += c[USED + u];
        }
        assert_true(fabsf(sum - 1) < 1e-5f);
    }
    for (int e = 0; e < EXPERTS; e++) /* 109 expected, +- 10 */
        assert_in_range(taken[e], 60, 160);
    r.device->ops->close(r.device);
    test_free(memory);
}

static void a_header_only_model_can_be_profiled(void **state)
{
    (void)state;
    static const int32_t tokens[] = {1, 8, 128, 512};
    char path[128];
    struct profile p;
    struct profiler_report report;
    struct model *m = open_model(make_model(path, "header.gguf", 256, DT_Q6_K, true));
    struct profiler_options o = quick_on("cpu");
    begin(&p);
    measure(&p, m, &o, NULL, &report);
    assert_complete(&p, m, 0, tokens, ARRAY_LEN(tokens));
    profile_free(&p);
    model_close(m);
}

static void devices_are_checked_before_anything_is_measured(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *says;
    } wrong[] = {
        {"gpu", "gpu"},
        {"cpu,sim:speed=1", "speed"},
        {"sim", "cpu,sim"},
        {"sim:0,sim:0", "twice"},
    };
    char path[128];
    struct profile p;
    struct profiler_report report;
    struct oato_error err;
    struct model *m = open_model(make_model(path, "devices.gguf", 64, DT_F32, false));
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct profiler_options o = quick_on(wrong[i].devices);
        begin(&p);
        assert_int_equal(profiler_measure(&p, m, &o, NULL, NULL, &report, &err), OATO_EUSAGE);
        assert_non_null(strstr(err.text, wrong[i].says));
        profile_free(&p);
    }
    model_close(m);
}

/* What was left is an estimate until the next run, which times that alone. */
static void a_run_that_must_end_goes_on_later(void **state)
{
    (void)state;
    static const char *const ids[] = {"cpu:0"};
    char path[128];
    struct profile p;
    struct profiler_report report;
    struct oato_error err;
    double seconds = 0;
    struct profiler_options o = quick_on("cpu");
    struct model *m = open_model(make_model(path, "late.gguf", 64, DT_F32, false));
    begin(&p);
    o.only_new = true;
    o.seconds = 1e-9;
    measure(&p, m, &o, NULL, &report);
    assert_int_equal(p.n_rows, 0);
    assert_true(p.devices[0].read_bytes_per_s > 0);
    o.seconds = 0;
    assert_int_equal(profiler_missing(&p, m, &o, ids, 1, &seconds, &err), OATO_OK);
    assert_true(seconds > 1);
    measure(&p, m, &o, NULL, &report);
    assert_true(report.rows_new > 10);
    const double median_ns = p.rows[0].median_ns;
    assert_int_equal(profiler_missing(&p, m, &o, ids, 1, &seconds, &err), OATO_OK);
    assert_true(seconds == 0);
    measure(&p, m, &o, NULL, &report);
    assert_int_equal(report.rows_new + report.rows_replaced, 0);
    assert_true(p.rows[0].median_ns == median_ns);
    profile_free(&p);
    model_close(m);
}

static void an_interrupt_ends_the_run(void **state)
{
    (void)state;
    char path[128];
    struct profile p;
    struct profiler_report report;
    struct oato_error err;
    struct model *m = open_model(make_model(path, "interrupt.gguf", 64, DT_F32, false));
    struct profiler_options o = quick_on("cpu");
    begin(&p);
    oato_interrupted = 1;
    assert_int_equal(profiler_measure(&p, m, &o, NULL, NULL, &report, &err), OATO_NEGATIVE);
    oato_interrupted = 0;
    assert_string_equal(err.text, "interrupted");
    profile_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_profile_has_every_operator_at_every_size),
        cmocka_unit_test(sim_rows_are_what_it_declares),
        cmocka_unit_test(devices_that_reach_each_other_have_a_link),
        cmocka_unit_test(a_second_model_adds_rows_and_keeps_the_others),
        cmocka_unit_test(a_changed_declaration_drops_the_devices_rows),
        cmocka_unit_test(another_machines_or_threads_file_is_refused),
        cmocka_unit_test(what_is_not_supported_is_a_row_that_says_so),
        cmocka_unit_test(what_does_not_fit_is_skipped_with_a_reason),
        cmocka_unit_test(experts_are_profiled_with_choices_of_their_own),
        cmocka_unit_test(made_up_choices_are_valid_and_uniform),
        cmocka_unit_test(a_header_only_model_can_be_profiled),
        cmocka_unit_test(devices_are_checked_before_anything_is_measured),
        cmocka_unit_test(a_run_that_must_end_goes_on_later),
        cmocka_unit_test(an_interrupt_ends_the_run),
    };
    return cmocka_run_group_tests(tests, folder_create, folder_remove);
}
