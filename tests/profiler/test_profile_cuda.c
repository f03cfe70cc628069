/*
 * A profile of the emulated GPU: rows are the time that CUPTI's records say, to the nanosecond,
 * without the host's launches; and without CUPTI there is a profile too, and one line about it. The
 * way that took the least time is in the profile. Nothing of it depends on what kernels compute,
 * so they compute nothing.
 */
#include "profiler/profiler_internal.h"

#include "tests/kernels/cuda_counts.h"
#include "tests/profiler/profiler_testing.h"

#include <time.h>

enum { KERNEL_NS = 10000000 };

struct warnings {
    int without_records, others;
    char last[700];
};

static void count_warning(void *user, const char *text)
{
    struct warnings *w = user;
    if (strstr(text, "busy")) /* emulation takes other times than it declares */
        return;
    w->without_records += strstr(text, "own records are not available") != NULL;
    w->others += !strstr(text, "own records are not available");
    snprintf(w->last, sizeof w->last, "%s", text);
}

static void measure(struct profile *p, struct warnings *w)
{
    struct oato_error err;
    struct model *m = NULL;
    struct profiler_report report = {0};
    char path[128];
    const struct profiler_options o = {
        .devices = "cpu,cuda", .kv = DT_F16, .quick = true, .threads = 1};
    memset(w, 0, sizeof *w);
    make_model(path, "tiny.gguf", 64, DT_Q4_0, false);
    if (profiler_begin(NULL, true, p, NULL, NULL, &err) || model_open(path, &m, &err) ||
        profiler_measure(p, m, &o, count_warning, w, &report, &err))
        fail_msg("%s", err.text);
    assert_int_equal(report.rows_skipped, 0);
    model_close(m);
}

static const struct profile_device *the_gpu(const struct profile *p, int32_t *index)
{
    *index = profile_device_index(p, "cuda:0");
    assert_in_range(*index, 1, p->n_devices - 1);
    return &p->devices[*index];
}

/* Kernels that an operator takes on a GPU of compute capability 9.0. */
static int kernels_of(const struct profile_row *r)
{
    const bool packs = op_weight_use(&r->op) == WEIGHT_MATRIX && r->op.kind != OP_EMBED;
    const bool gates = r->op.kind == OP_GATE_UP && r->size.rows > NUMERICS_DECODE_ROWS;
    const bool divided = r->op.kind == OP_ATTENTION && r->size.kv_positions / r->size.rows > 256;
    switch (r->op.kind) {
    case OP_MUL_MAT:
    case OP_QKV:
    case OP_GATE_UP: return 1 + packs + gates;
    case OP_ATTENTION: return divided && r->size.rows <= 16 ? 2 : 1;
    default: return 1;
    }
}

static void rows_are_what_the_records_say(void **state)
{
    struct profile p;
    struct warnings w;
    int32_t gpu, n = 0;
    (void)state;
    count_begin();
    measure(&p, &w);
    count_end();
    const struct profile_device *d = the_gpu(&p, &gpu);
    assert_true(graph_launches > 0);
    assert_string_equal(d->spec, "");
    assert_int_equal(w.without_records, 0);
    if (w.others)
        fail_msg("%s", w.last);
    for (int32_t i = 0; i < p.n_rows; i++) {
        const struct profile_row *r = &p.rows[i];
        char key[OP_KEY_SIZE];
        if (r->device != gpu)
            continue;
        assert_true(r->supported);
        if (r->median_ns != (double)KERNEL_NS * kernels_of(r) || r->p10_ns != r->median_ns ||
            r->p90_ns != r->median_ns)
            fail_msg("%s takes %.0f ns", oato_op_key(&r->op, &r->size, key), r->median_ns);
        n++;
    }
    assert_in_range(n, 30, 1000);
    assert_true(d->read_bytes_per_s > 1e6 && d->flops_per_s > 1e6);
    assert_true(d->free_bytes > 0 && d->free_bytes <= d->memory_bytes);
    assert_string_equal(d->model, "CUDA on CPU");
    assert_true(d->launch_ns > 0 && d->launch_ns < 1e8);
    int links = 0;
    for (int32_t i = 0; i < p.n_links; i++) {
        const struct profile_link *l = &p.links[i];
        links += l->from == gpu || l->to == gpu;
        assert_true(l->bytes_per_s > 1e6 && l->bytes_per_s < 1e13 && l->latency_ns < 1e8);
        assert_true(l->pageable_bytes_per_s > 1e6 && l->pageable_bytes_per_s < 1e13);
        assert_true(l->both_bytes_per_s > 1e6 && l->both_bytes_per_s < 1e13);
        /* weights go one way only */
        assert_true(l->to == gpu ? l->stream_bytes_per_s > 1e5 && l->stream_bytes_per_s < 1e13
                                 : l->stream_bytes_per_s <= 0);
    }
    assert_int_equal(links, 2);
    profile_free(&p);
}

static void without_records_there_are_rows(void **state)
{
    struct profile p;
    struct warnings w;
    int32_t gpu, n = 0;
    (void)state;
    /* a mark of the first step that is measured */
    setenv("OATO_CUDA_ON_CPU_CUPTI_DROPS", "3", 1);
    measure(&p, &w);
    unsetenv("OATO_CUDA_ON_CPU_CUPTI_DROPS");
    the_gpu(&p, &gpu);
    assert_int_equal(w.without_records, 1);
    assert_non_null(strstr(w.last, "cuda:0"));
    for (int32_t i = 0; i < p.n_rows; i++)
        n += p.rows[i].device == gpu && p.rows[i].median_ns > 0;
    assert_in_range(n, 30, 1000);
    profile_free(&p);
}

/* The kernels of cuBLAS, one for each matrix, make a product of many rows faster unless there are
 * three of them. */
static void check_rows(const struct rig *gpu, const struct op_case *c)
{
    enum { PRODUCT_NS = KERNEL_NS * 2 / 5 };
    static const int32_t rows[] = {NUMERICS_DECODE_ROWS, 2 * NUMERICS_DECODE_ROWS};
    struct oato_error err;
    struct op_bench *bench;
    char number[16], key[OP_KEY_SIZE];
    snprintf(number, sizeof number, "%d", PRODUCT_NS);
    setenv("OATO_CUDA_ON_CPU_PRODUCT_NS", number, 1);
    if (bench_open(gpu, c, &bench, &err))
        fail_msg("%s", err.text);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct profile_row row;
        const struct op_point at = {.rows = rows[i], .seqs = 1};
        const bool many = rows[i] > NUMERICS_DECODE_ROWS, library = many && c->op.kind != OP_QKV;
        if (bench_time(bench, &at, true, &row, &err))
            fail_msg("%s", err.text);
        const double ns = !many                      ? KERNEL_NS /* which packs no halves */
                          : !library                 ? (double)KERNEL_NS * kernels_of(&row)
                          : c->op.kind == OP_MUL_MAT ? KERNEL_NS + PRODUCT_NS
                                                     : 2 * KERNEL_NS + 2 * PRODUCT_NS;
        if (row.median_ns != ns || strcmp(row.numerics, library ? "f16.cublas"
                                                        : many  ? "f16"
                                                                : "f32") != 0)
            fail_msg("%s takes %.0f ns in class %s", oato_op_key(&row.op, &row.size, key),
                     row.median_ns, row.numerics);
        assert_true(row.workspace_bytes > 32 << 20 || !many); /* with room for the library */
        assert_int_equal(row.own_ns > row.median_ns, library);
    }
    unsetenv("OATO_CUDA_ON_CPU_PRODUCT_NS");
    bench_close(bench);
}

static void the_faster_of_kernel_and_library_counts(void **state)
{
    struct oato_error err;
    struct model *m = NULL;
    struct op_set set = {0};
    struct rig gpu = {.cache_bytes = 1};
    char path[128];
    int kinds = 0;
    (void)state;
    make_model(path, "halves.gguf", 64, DT_F16, false);
    if (model_open(path, &m, &err) || op_set_collect(&m->graph, DT_F16, &set, &err) ||
        device_open("cuda", 0, NULL, &gpu.device, &err))
        fail_msg("%s", err.text);
    assert_true(rig_clock(&gpu, CLOCK_WORKS, &err));
    for (int32_t i = 0; i < set.n; i++) {
        const struct op_case *c = &set.cases[i];
        if (op_weight_use(&c->op) != WEIGHT_MATRIX || kinds >> c->op.kind & 1)
            continue;
        check_rows(&gpu, c);
        kinds |= 1 << c->op.kind;
    }
    assert_int_equal(kinds, 1 << OP_MUL_MAT | 1 << OP_QKV | 1 << OP_GATE_UP);
    rig_clock(&gpu, CLOCK_USUAL, NULL);
    gpu.device->ops->close(gpu.device);
    op_set_free(&set);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_what_the_records_say),
        cmocka_unit_test(the_faster_of_kernel_and_library_counts),
        cmocka_unit_test(without_records_there_are_rows),
    };
    char number[16];
    snprintf(number, sizeof number, "%d", KERNEL_NS);
    setenv("OATO_CUDA_ON_CPU_KERNEL_NS", number, 1);
    return cmocka_run_group_tests(tests, folder_create, folder_remove);
}
