/*
 * test_profile.c - what must stay true of profiles: what is saved loads back exactly and saves to
 * the same bytes; adding rows replaces those of the same key; the hash follows costs and nothing
 * else; what could not be loaded is not saved; a full disk leaves the old file.
 */
#include "random_planfmt.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static void load(const char *path, struct profile *p)
{
    struct oato_error err = {.text = ""};
    if (profile_load(path, p, NULL, NULL, &err))
        fail_msg("%s", err.text);
}

static void save(const struct profile *p, const char *path)
{
    struct oato_error err = {.text = ""};
    if (profile_save(p, path, &err))
        fail_msg("%s", err.text);
}

static void assert_same_row(const struct profile_row *a, const struct profile_row *b)
{
    char ka[OP_KEY_SIZE], kb[OP_KEY_SIZE];
    assert_string_equal(oato_op_key(&a->op, &a->size, ka), oato_op_key(&b->op, &b->size, kb));
    assert_int_equal(a->device, b->device);
    assert_int_equal(a->supported, b->supported);
    assert_string_equal(a->numerics, b->numerics);
    assert_true(a->median_ns == b->median_ns);
    assert_true(a->p10_ns == b->p10_ns);
    assert_true(a->own_ns == b->own_ns);
    assert_true(a->p90_ns == b->p90_ns);
    assert_true(a->prepared_bytes == b->prepared_bytes);
    assert_true(a->workspace_bytes == b->workspace_bytes);
    assert_int_equal(a->repeats, b->repeats);
    assert_int_equal(a->disturbed, b->disturbed);
}

static void assert_same_head(const struct profile *a, const struct profile *b)
{
    const struct profile_machine *m = &a->machine, *n = &b->machine;
    assert_int_equal(a->version, b->version);
    assert_string_equal(a->tool, b->tool);
    assert_string_equal(a->date, b->date);
    assert_string_equal(a->notes, b->notes);
    assert_string_equal(m->cpu, n->cpu);
    assert_string_equal(m->isa, n->isa);
    assert_string_equal(m->kernel_isa, n->kernel_isa);
    assert_memory_equal(&m->sockets, &n->sockets,
                        sizeof *m - offsetof(struct profile_machine, sockets));
    assert_int_equal(a->n_devices, b->n_devices);
    for (int32_t i = 0; i < a->n_devices; i++) {
        const struct profile_device *d = &a->devices[i], *e = &b->devices[i];
        assert_string_equal(d->id, e->id);
        assert_string_equal(d->kind, e->kind);
        assert_string_equal(d->model, e->model);
        assert_string_equal(d->spec, e->spec);
        assert_string_equal(or_empty(d->isa), or_empty(e->isa));
        assert_string_equal(or_empty(d->layout), or_empty(e->layout));
        assert_true(d->memory_bytes == e->memory_bytes && d->free_bytes == e->free_bytes);
        assert_true(d->threads == e->threads && d->is_host == e->is_host);
        assert_true(d->read_bytes_per_s == e->read_bytes_per_s && d->flops_per_s == e->flops_per_s);
        assert_true(d->record_overhead_ns == e->record_overhead_ns &&
                    d->rows_overhead == e->rows_overhead &&
                    d->step_overhead_ns == e->step_overhead_ns && d->launch_ns == e->launch_ns);
        for (int j = 0; j < JOIN_COUNT; j++)
            assert_true(d->join_ns[j] == e->join_ns[j]);
        assert_int_equal(d->keeps, e->keeps);
        assert_true(d->spans == e->spans && d->compile_cached == e->compile_cached);
        assert_memory_equal(d->rows, e->rows, sizeof d->rows);
        assert_true(d->unit_overhead_ns == e->unit_overhead_ns && d->compile_s == e->compile_s);
        assert_true(d->library_bytes == e->library_bytes);
        assert_int_equal(d->runs != NULL, e->runs != NULL);
        if (d->runs)
            assert_memory_equal(d->runs, e->runs, OP_KIND_COUNT * sizeof *d->runs);
        assert_int_equal(d->values != NULL, e->values != NULL);
        if (d->values)
            assert_memory_equal(d->values, e->values, OP_KIND_COUNT * sizeof *d->values);
        assert_int_equal(d->workspaces != NULL, e->workspaces != NULL);
        if (d->workspaces)
            assert_memory_equal(d->workspaces, e->workspaces,
                                OP_KIND_COUNT * sizeof *d->workspaces);
    }
    assert_int_equal(a->n_links, b->n_links);
    for (int32_t i = 0; i < a->n_links; i++) {
        const struct profile_link *l = &a->links[i], *k = &b->links[i];
        assert_int_equal(l->from, k->from);
        assert_int_equal(l->to, k->to);
        assert_true(l->latency_ns == k->latency_ns);
        assert_true(l->bytes_per_s == k->bytes_per_s);
        assert_true(l->sync_ns == k->sync_ns);
        assert_true(l->pageable_latency_ns == k->pageable_latency_ns);
        assert_true(l->pageable_bytes_per_s == k->pageable_bytes_per_s);
        assert_true(l->both_bytes_per_s == k->both_bytes_per_s);
        assert_true(l->stream_bytes_per_s == k->stream_bytes_per_s);
    }
    assert_int_equal(a->n_storage, b->n_storage);
    for (int32_t i = 0; i < a->n_storage; i++) {
        const struct profile_storage *s = &a->storage[i], *t = &b->storage[i];
        assert_int_equal(s->depth, t->depth);
        assert_int_equal(s->bytes, t->bytes);
        assert_int_equal(s->direct, t->direct);
        assert_true(s->bytes_per_s == t->bytes_per_s);
        assert_true(s->p10_bytes_per_s == t->p10_bytes_per_s);
        assert_true(s->p90_bytes_per_s == t->p90_bytes_per_s);
        assert_int_equal(s->passes, t->passes);
        assert_true(s->latency_ns == t->latency_ns);
    }
    assert_true(profile_storage_rate(a) == profile_storage_rate(b));
    assert_int_equal(a->n_sums, b->n_sums);
    for (int32_t i = 0; i < a->n_sums; i++) {
        const struct profile_sum *s = &a->sums[i], *t = &b->sums[i];
        assert_true(s->ranks == t->ranks && s->hosts == t->hosts && s->what == t->what);
        assert_true(s->way == t->way && s->wire == t->wire && s->bytes == t->bytes);
        assert_true(s->median_ns == t->median_ns);
    }
}

/* Saving sorts, so rows are compared by key. */
static void assert_same_rows(const struct profile *a, const struct profile *b)
{
    assert_int_equal(a->n_rows, b->n_rows);
    for (int32_t i = 0; i < b->n_rows; i++) {
        char key[OP_KEY_SIZE], other[OP_KEY_SIZE];
        const struct profile_row *r = &b->rows[i];
        int32_t j = 0;
        oato_op_key(&r->op, &r->size, key);
        while (j < a->n_rows &&
               (a->rows[j].device != r->device ||
                strcmp(key, oato_op_key(&a->rows[j].op, &a->rows[j].size, other)) != 0))
            j++;
        assert_true(j < a->n_rows);
        assert_same_row(&a->rows[j], r);
    }
}

static void saved_profiles_load_back_exactly(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (int round = 0; round < 200; round++) {
        struct profile p, q;
        size_t n1, n2;
        random_profile(&rng, (int32_t)rng_range(&rng, 0, 60), &p);
        save(&p, scratch_path("a.yaml"));
        char *one = read_whole(scratch_path("a.yaml"), &n1);
        load(scratch_path("a.yaml"), &q);
        assert_same_head(&p, &q);
        assert_same_rows(&p, &q);
        assert_true(profile_hash(&p) == profile_hash(&q));
        save(&q, scratch_path("b.yaml"));
        char *two = read_whole(scratch_path("b.yaml"), &n2);
        assert_int_equal(n1, n2);
        assert_memory_equal(one, two, n1);
        free(one);
        free(two);
        profile_free(&p);
        profile_free(&q);
    }
    scratch_clean();
}

static void a_small_profile(struct profile *p)
{
    struct rng rng = {42};
    do {
        random_profile(&rng, 20, p);
        if (p->n_devices > 1)
            return;
        profile_free(p);
    } while (true);
}

static void extreme_numbers_survive(void **state)
{
    (void)state;
    static const double values[] = {0,
                                    -0.0,
                                    1,
                                    0.1,
                                    1.0 / 3,
                                    123456789.123456789,
                                    1e15,
                                    1e16,
                                    1e22,
                                    1e23,
                                    9007199254740993.0,
                                    DBL_MAX,
                                    DBL_MIN,
                                    4.9e-324,
                                    5e-5,
                                    1.7976931348623155e308};
    struct profile p, q;
    a_small_profile(&p);
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        p.devices[0].flops_per_s = values[i];
        save(&p, scratch_path("a.yaml"));
        load(scratch_path("a.yaml"), &q);
        assert_true(q.devices[0].flops_per_s == values[i]);
        assert_false(signbit(q.devices[0].flops_per_s));
        assert_true(profile_hash(&p) == profile_hash(&q));
        profile_free(&q);
    }
    profile_free(&p);
    scratch_clean();
}

static void rows_are_sorted_by_device_and_natural_key(void **state)
{
    (void)state;
    static const char *const keys[] = {"mul_mat/Q4_0/k64/n64/t128", "mul_mat/Q4_0/k64/n64/t2",
                                       "add/k64/t1", "mul_mat/Q4_0/k64/n64/t1"};
    static const char *const want[] = {"add/k64/t1", "mul_mat/Q4_0/k64/n64/t1",
                                       "mul_mat/Q4_0/k64/n64/t2", "mul_mat/Q4_0/k64/n64/t128"};
    struct profile p, q;
    a_small_profile(&p);
    p.n_rows = 0;
    for (int device = 1; device >= 0; device--) {
        for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
            struct profile_row row = {.device = device};
            assert_true(oato_op_parse(keys[i], &row.op, &row.size));
            assert_true(profile_put(&p, &row));
        }
    }
    save(&p, scratch_path("a.yaml"));
    load(scratch_path("a.yaml"), &q);
    assert_int_equal(q.n_rows, 8);
    for (int32_t i = 0; i < 8; i++) {
        char key[OP_KEY_SIZE];
        assert_int_equal(q.rows[i].device, i / 4);
        assert_string_equal(oato_op_key(&q.rows[i].op, &q.rows[i].size, key), want[i % 4]);
    }
    profile_free(&p);
    profile_free(&q);
    scratch_clean();
}

static void putting_a_key_again_replaces_its_row(void **state)
{
    (void)state;
    struct profile p;
    profile_init(&p);
    struct profile_row row = {.supported = true, .median_ns = 1, .numerics = "f32"};
    for (int32_t round = 0; round < 2; round++) {
        for (int32_t t = 1; t <= 1000; t++) {
            char key[OP_KEY_SIZE], class[8];
            snprintf(key, sizeof key, "mul_mat/Q4_0/k64/n64/t%d", t);
            snprintf(class, sizeof class, "c%d", round);
            assert_true(oato_op_parse(key, &row.op, &row.size));
            row.device = t % 3;
            row.median_ns = t + 5000 * round;
            row.numerics = class; /* copied: class goes out of scope */
            assert_true(profile_put(&p, &row));
        }
        assert_int_equal(p.n_rows, 1000);
    }
    for (int32_t i = 0; i < 1000; i++) {
        assert_true(p.rows[i].median_ns == i + 1 + 5000);
        assert_string_equal(p.rows[i].numerics, "c1");
    }
    /* rows that were put there by hand are found too */
    struct profile_row own[2] = {p.rows[3], p.rows[4]};
    p.rows = own;
    p.n_rows = 2;
    row = own[1];
    row.median_ns = 7;
    assert_true(profile_put(&p, &row));
    assert_int_equal(p.n_rows, 2);
    assert_true(p.rows[1].median_ns == 7);
    profile_free(&p);
}

static void the_hash_follows_costs_and_not_dates(void **state)
{
    (void)state;
    struct profile p;
    a_small_profile(&p);
    uint64_t hash = profile_hash(&p);
    p.date = "2031-01-01";
    p.notes = "other notes";
    p.tool = "oato 9";
    p.machine.cores++;
    struct profile_row row = p.rows[0];
    p.rows[0] = p.rows[5];
    p.rows[5] = row;
    assert_true(profile_hash(&p) == hash);
    p.rows[5].supported = true;
    p.rows[5].median_ns = 2 * p.rows[5].median_ns + 1;
    assert_true(profile_hash(&p) != hash);
    p.rows[5] = row;
    assert_true(profile_hash(&p) == hash);
    p.devices[0].free_bytes++;
    assert_true(profile_hash(&p) != hash);
    p.devices[0].free_bytes--;
    p.devices[0].rows_overhead += 1;
    assert_true(profile_hash(&p) != hash);
    p.devices[0].rows_overhead -= 1;
    assert_true(profile_hash(&p) == hash);
    p.links[0].sync_ns += 1;
    assert_true(profile_hash(&p) != hash);
    p.links[0].sync_ns -= 1;
    double *const measured[] = {&p.devices[0].launch_ns, &p.devices[0].join_ns[JOIN_ADD],
                                &p.links[0].pageable_bytes_per_s, &p.links[0].both_bytes_per_s,
                                &p.links[0].stream_bytes_per_s};
    uint64_t with[ARRAY_LEN(measured)];
    for (size_t i = 0; i < ARRAY_LEN(measured); i++) {
        const double was = *measured[i];
        *measured[i] = 3e9;
        with[i] = profile_hash(&p);
        assert_true(with[i] != hash);
        for (size_t j = 0; j < i; j++)
            assert_true(with[i] != with[j]);
        *measured[i] = was;
    }
    assert_true(profile_hash(&p) == hash);
    uint64_t runs[OP_KIND_COUNT] = {[OP_MUL_MAT] = 1 << DT_Q4_0}, *const listed = p.devices[1].runs;
    p.devices[1].runs = runs;
    const uint64_t one = profile_hash(&p);
    runs[OP_MUL_MAT] |= 1 << DT_Q4_1;
    assert_true(one != hash && profile_hash(&p) != hash && profile_hash(&p) != one);
    struct profile_workspace takes[OP_KIND_COUNT] = {[OP_QKV] = {.per_input = 2}},
                             *const asked = p.devices[1].workspaces;
    runs[OP_QKV] = 1;
    p.devices[1].workspaces = NULL;
    const uint64_t unasked = profile_hash(&p);
    p.devices[1].workspaces = takes;
    const uint64_t before = profile_hash(&p);
    takes[OP_QKV].per_input = 3;
    assert_true(before != unasked && profile_hash(&p) != unasked && profile_hash(&p) != before);
    p.devices[1].workspaces = asked;
    p.devices[1].runs = listed;
    p.n_rows--;
    assert_true(profile_hash(&p) != hash);
    profile_free(&p);
}

static void the_hash_sees_every_one_of_many_devices(void **state)
{
    (void)state;
    struct profile p;
    struct profile_device devices[64];
    char text[160];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    profile_init(&p);
    p.devices = devices;
    p.n_devices = 64;
    for (int i = 0; i < 64; i++)
        devices[i] = (struct profile_device){.id = "sim:1", .spec = text, .memory_bytes = 1};
    uint64_t hash = profile_hash(&p);
    for (int i = 0; i < 64; i++) {
        devices[i].memory_bytes = 2;
        assert_true(profile_hash(&p) != hash);
        devices[i].memory_bytes = 1;
        devices[i].spec = "y";
        assert_true(profile_hash(&p) != hash);
        devices[i].spec = text;
    }
    assert_true(profile_hash(&p) == hash);
}

static void assert_not_saved(const struct profile *p, const char *why)
{
    struct oato_error err = {.text = ""};
    assert_int_equal(profile_save(p, scratch_path("bad.yaml"), &err), OATO_EUSAGE);
    if (!strstr(err.text, why))
        fail_msg("'%s' is not in '%s'", why, err.text);
    assert_int_equal(scratch_files(), 0);
}

static void what_could_not_be_loaded_is_not_saved(void **state)
{
    (void)state;
    struct profile good;
    a_small_profile(&good);
    for (int32_t i = 0; i < good.n_rows; i++)
        good.rows[i].supported = true;
#define TRY(change, why)                                                                           \
    do {                                                                                           \
        struct profile p = good;                                                                   \
        struct profile_device device = p.devices[0];                                               \
        struct profile_link link = p.links[0];                                                     \
        struct profile_row row = p.rows[3];                                                        \
        change;                                                                                    \
        assert_not_saved(&p, why);                                                                 \
        p.devices = good.devices;                                                                  \
        p.devices[0] = device;                                                                     \
        p.links[0] = link;                                                                         \
        p.rows[3] = row;                                                                           \
    } while (0)
    TRY(p.n_devices = 0, "devices");
    TRY(p.n_devices = 65, "devices");
    TRY(p.devices[0].id = "gpu", "kind:number");
    TRY(p.devices[0].id = NULL, "kind:number");
    TRY(p.devices[0].id = "cpu:12345678901234567890", "too long");
    TRY(p.devices[0].id = p.devices[1].id; p.devices[0].kind = p.devices[1].kind, "duplicate");
    TRY(p.devices[0].threads = -1, "threads is negative");
    TRY(p.devices[0].flops_per_s = NAN, "not finite");
    TRY(p.devices[0].model = "\xff\xfe", "UTF-8");
    TRY(p.links[0].bytes_per_s = 0, "link 0");
    TRY(p.links[0].latency_ns = -1, "latency_ns is negative");
    TRY(p.links[0].to = 99, "link 0");
    TRY(p.links[0].to = p.links[0].from, "link 0");
    TRY(p.links[0] = p.links[1], "duplicate");
    TRY(p.rows[3].device = -1, "device -1 of");
    TRY(p.rows[3].median_ns = INFINITY, "median_ns");
    TRY(p.rows[3].repeats = -5, "repeats");
    TRY(p.rows[3].size.rows = 0, "step of 0 rows");
    TRY(p.rows[3].numerics = "a class of far more than thirty-one bytes", "numerics");
    TRY(p.rows[3] = p.rows[4], "duplicate");
#undef TRY
    profile_free(&good);
    scratch_clean();
}

/* Its model names it; only tests of this program have such a profile. */
static void times_of_a_stand_in_are_neither_saved_nor_loaded(void **state)
{
    static const char yaml[] = "oato_profile: 1\n"
                               "devices:\n"
                               "- {id: 'ascend:0', kind: ascend, model: stand-in for Ascend910B4,"
                               " memory_bytes: 1, free_bytes: 1, is_host: false}\n";
    struct profile p;
    struct oato_error err = {.text = ""};
    (void)state;
    unsetenv("OATO_STAND_IN");
    assert_int_equal(profile_load_memory(yaml, sizeof yaml - 1, "p", &p, NULL, NULL, &err),
                     OATO_EFILE);
    assert_non_null(strstr(err.text, "stand-in for Ascend910B4"));
    setenv("OATO_STAND_IN", "1", 1);
    if (profile_load_memory(yaml, sizeof yaml - 1, "p", &p, NULL, NULL, &err))
        fail_msg("%s", err.text);
    save(&p, scratch_path("s.yaml"));
    assert_int_equal(remove(scratch_path("s.yaml")), 0);
    unsetenv("OATO_STAND_IN");
    assert_int_equal(profile_save(&p, scratch_path("s.yaml"), &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "stand-in for Ascend910B4"));
    assert_int_equal(remove(scratch_path("s.yaml")), -1); /* nothing was written */
    p.devices[0].model = "Ascend910B4";
    save(&p, scratch_path("s.yaml"));
    profile_free(&p);
    scratch_clean();
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err = {.text = ""};
    size_t before, after;
    struct rlimit old, tight = {4096, 4096};
    struct rng rng = {7};
    a_small_profile(&p);
    p.n_rows = 0;
    save(&p, scratch_path("a.yaml"));
    char *one = read_whole(scratch_path("a.yaml"), &before);
    profile_free(&p);
    random_profile(&rng, 300, &p);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    oato_status status = profile_save(&p, scratch_path("a.yaml"), &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, OATO_EIO);
    assert_non_null(strstr(err.text, "a.yaml: cannot write"));
    char *two = read_whole(scratch_path("a.yaml"), &after);
    assert_int_equal(before, after);
    assert_memory_equal(one, two, before);
    assert_int_equal(scratch_files(), 1); /* no temporary file stays */
    assert_int_equal(profile_save(&p, scratch_path("no/such/folder"), &err), OATO_EIO);
    free(one);
    free(two);
    profile_free(&p);
    scratch_clean();
}

static void five_thousand_rows_load_at_once(void **state)
{
    (void)state;
    struct profile p, q;
    struct rng rng = {11};
    uint64_t begin = now_ns();
    random_profile(&rng, 5000, &p);
    uint64_t put = now_ns();
    save(&p, scratch_path("a.yaml"));
    uint64_t saved = now_ns();
    load(scratch_path("a.yaml"), &q);
    uint64_t loaded = now_ns();
    assert_int_equal(q.n_rows, 5000);
    assert_true(profile_hash(&p) == profile_hash(&q));
    printf("5000 rows: put %.1f ms, save %.1f ms, load %.1f ms\n", (double)(put - begin) / 1e6,
           (double)(saved - put) / 1e6, (double)(loaded - saved) / 1e6);
    /* far above what it takes, also under sanitizers, and far below anything quadratic */
    assert_true(loaded - saved < 2000000000);
    profile_free(&p);
    profile_free(&q);
    scratch_clean();
}

/* docs/profile-format.md shows a whole file: it must be one that we would write. */
static void the_documents_example_is_written_as_it_stands(void **state)
{
    (void)state;
    size_t bytes, n;
    char *doc = read_whole("docs/profile-format.md", &bytes);
    assert_non_null(doc);
    char *begin = strstr(doc, "```yaml\n");
    assert_non_null(begin);
    begin += strlen("```yaml\n");
    char *end = strstr(begin, "```");
    assert_non_null(end);
    struct profile p;
    struct oato_error err = {.text = ""};
    if (profile_load_memory(begin, (size_t)(end - begin), "example", &p, NULL, NULL, &err))
        fail_msg("%s", err.text);
    save(&p, scratch_path("a.yaml"));
    char *written = read_whole(scratch_path("a.yaml"), &n);
    *end = 0;
    assert_string_equal(written, begin);
    free(written);
    free(doc);
    profile_free(&p);
    scratch_clean();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_profiles_load_back_exactly),
        cmocka_unit_test(extreme_numbers_survive),
        cmocka_unit_test(rows_are_sorted_by_device_and_natural_key),
        cmocka_unit_test(putting_a_key_again_replaces_its_row),
        cmocka_unit_test(the_hash_follows_costs_and_not_dates),
        cmocka_unit_test(the_hash_sees_every_one_of_many_devices),
        cmocka_unit_test(what_could_not_be_loaded_is_not_saved),
        cmocka_unit_test(times_of_a_stand_in_are_neither_saved_nor_loaded),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(five_thousand_rows_load_at_once),
        cmocka_unit_test(the_documents_example_is_written_as_it_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
