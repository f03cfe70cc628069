/*
 * test_interrupted.c - a run that is interrupted keeps what it measured beside its profile, and
 * the next one takes it up: the same command only, on the same machine, and nobody plans by it.
 */
#include "profiler/profiler_internal.h"
#include "tests/profiler/profiler_testing.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

struct scene {
    struct model *model;
    struct profiler_options options;
    char out[128], partial[128];
};

static struct scene scene;
static struct profile kept; /* what the interrupted run left */

static void *interrupt_soon(void *ms)
{
    nanosleep(&(struct timespec){0, *(const long *)ms * 1000000}, NULL);
    oato_interrupted = SIGINT;
    return NULL;
}

/* Status of a run, interrupted after so many ms; 0: never. *p is the profile. */
static oato_status measure(struct profile *p, long ms, struct oato_error *err)
{
    struct profiler_report report;
    pthread_t thread;
    oato_interrupted = 0;
    assert_int_equal(profiler_begin(NULL, false, p, NULL, NULL, err), OATO_OK);
    if (ms)
        assert_int_equal(pthread_create(&thread, NULL, interrupt_soon, &ms), 0);
    const oato_status status =
        profiler_measure(p, scene.model, &scene.options, NULL, NULL, &report, err);
    if (ms)
        pthread_join(thread, NULL);
    oato_interrupted = 0;
    return status;
}

static int setup(void **state)
{
    char path[128];
    struct oato_error err;
    if (folder_create(state) ||
        model_open(make_model(path, "tiny.gguf", 64, DT_F32, false), &scene.model, &err))
        return -1;
    path_in(scene.partial, "p.yaml.partial");
    scene.options = (struct profiler_options){.threads = 1,
                                              .kv = DT_F16,
                                              .contexts = {64},
                                              .n_contexts = 1,
                                              .quick = true,
                                              .storage = test_folder,
                                              .partial = scene.partial};
    return 0;
}

static int teardown(void **state)
{
    profile_free(&kept);
    model_close(scene.model);
    return folder_remove(state);
}

/* By whatever moment it takes. */
static void an_interrupted_run_leaves_its_rows(void **state)
{
    (void)state;
    struct mapped_file f;
    struct oato_error err;
    for (long ms = 100;; ms += 50) {
        struct profile p;
        const oato_status status = measure(&p, ms, &err);
        profile_free(&p);
        assert_int_equal(status, OATO_NEGATIVE);
        if (!access(scene.partial, F_OK))
            break;
        assert_non_null(strstr(err.text, "before anything was measured"));
    }
    assert_non_null(strstr(err.text, "the same command goes on"));
    assert_int_equal(file_map(scene.partial, &f, &err), OATO_OK);
    assert_int_equal(profile_load_memory(f.data, f.bytes, scene.partial, &kept, NULL, NULL, &err),
                     OATO_OK);
    file_unmap(&f);
}

static void the_next_run_goes_on(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    if (measure(&p, 0, &err))
        fail_msg("%s", err.text);
    assert_true(kept.n_rows > 0 && p.n_rows > kept.n_rows);
    for (int32_t i = 0; i < kept.n_rows; i++) {
        const struct profile_row *a = &kept.rows[i],
                                 *b = profile_find(&p, a->device, &a->op, &a->size);
        if (a->supported && (!b || a->median_ns != b->median_ns))
            fail_msg("row %d was measured again", (int)i);
    }
    profile_free(&p);
}

static void nobody_plans_by_it(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    assert_int_equal(profile_load(scene.partial, &p, NULL, NULL, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "interrupted"));
}

static void another_run_leaves_it_out(void **state)
{
    (void)state;
    struct kept k;
    struct oato_error err;
    const char *isa = kept.machine.kernel_isa;
    const uint64_t run = kept_run(scene.model, &scene.options, isa);
    struct profiler_options other = scene.options;
    other.kv = DT_Q8_0;
    assert_true(kept_run(scene.model, &other, isa) != run);
    assert_int_equal(kept_open(&k, scene.partial, run, &kept, NULL, NULL, &err), OATO_OK);
    assert_int_equal(k.resumed, kept.n_rows);
    kept_close(&k);
    assert_int_equal(kept_open(&k, scene.partial, run + 1, &kept, NULL, NULL, &err), OATO_OK);
    assert_int_equal(k.resumed, 0);
    kept_close(&k);
    kept.machine.cores++;
    assert_int_equal(kept_open(&k, scene.partial, run, &kept, NULL, NULL, &err), OATO_OK);
    assert_int_equal(k.resumed, 0);
    kept_close(&k);
    kept.machine.cores--;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_interrupted_run_leaves_its_rows),
        cmocka_unit_test(nobody_plans_by_it),
        cmocka_unit_test(another_run_leaves_it_out),
        cmocka_unit_test(the_next_run_goes_on),
    };
    return cmocka_run_group_tests_name("interrupted profiles", tests, setup, teardown);
}
