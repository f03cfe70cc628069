/*
 * test_together.c - models that share an accelerator: all of its memory is given, no move of an
 * eighth from one to another is predicted to be better, the same is decided again without any
 * measurement, and models that do not fit together each get all of it.
 */
#include "front/auto_internal.h"
#include "tests/folder.h"
#include "tests/models/random_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define DEVICES "cpu,sim:vram=6MiB,read=900GB/s,flops=80T,link=25GB/s,latency=1us"
#define MIB     ((uint64_t)1 << 20)

static struct session_args session_of(void)
{
    struct session_args a = {.engine = {.devices = DEVICES, .threads = 1, .context = 256}};
    return a;
}

static void models_make(struct auto_model models[2], char paths[2][128])
{
    static const char *const names[] = {"big", "small"};
    struct oato_error err;
    for (int i = 0; i < 2; i++) {
        struct random_model m = random_model_default();
        m.width = i ? 128 : 256;
        m.ffn = 4 * m.width;
        m.layers = 3;
        snprintf(paths[i], sizeof paths[i], "%s/%s.gguf", test_folder, names[i]);
        assert_int_equal(random_model_save(&m, paths[i], &err), OATO_OK);
        models[i] = (struct auto_model){.name = names[i], .path = paths[i]};
    }
}

/* What the plan for this share of the accelerator is predicted to take; UINT64_MAX: there is none.
 */
static uint64_t time_of(const struct auto_model *m, const struct device_budget *all, int32_t share)
{
    struct session_args a = session_of();
    struct auto_plan given = m->plan;
    struct model *model;
    struct oato_error err;
    struct plan p;
    bool asked;
    given.share = share;
    given.shares = given.quiet = true;
    for (int32_t d = 0; d < given.n_budgets; d++)
        if (!strcmp(given.budgets[d].id, all->id))
            given.budgets[d].bytes = all->bytes / SHARE_PARTS * (uint64_t)share;
    assert_int_equal(model_open_as(m->path, &a.choice, &model, &err), OATO_OK);
    a.model = m->path;
    const oato_status status = auto_plan_for(&given, &a, model, NULL, &p, &asked, &err);
    const uint64_t ns = status ? UINT64_MAX : p.objective_ns;
    if (!status)
        plan_free(&p);
    model_close(model);
    return ns;
}

static void the_split_is_the_best_of_its_neighbours(void **state)
{
    const struct auto_plan none = {.quiet = true};
    const struct session_args a = session_of();
    struct auto_model models[2], again[2];
    struct device_budget devices[DEVICES_MAX];
    char paths[2][128];
    int32_t n;
    struct oato_error err;
    (void)state;
    models_make(models, paths);
    memcpy(again, models, sizeof again);
    assert_int_equal(auto_plan_together(&none, &a, models, 2, 512 * MIB, devices, &n, &err),
                     OATO_OK);
    assert_int_equal(n, 1);
    assert_string_equal(devices[0].id, "sim:0");
    assert_true(models[0].plan.shares && models[1].plan.shares);
    const int32_t big = models[0].plan.share, small = models[1].plan.share;
    assert_int_equal(big + small, SHARE_PARTS);
    const uint64_t ns =
        time_of(&models[0], &devices[0], big) + time_of(&models[1], &devices[0], small);
    for (int32_t move = -1; move <= 1; move += 2) {
        if (big + move < 0 || small - move < 0)
            continue;
        const uint64_t b = time_of(&models[0], &devices[0], big + move),
                       s = time_of(&models[1], &devices[0], small - move);
        assert_true(b == UINT64_MAX || s == UINT64_MAX || b + s >= ns);
    }
    /* more memory makes neither slower, and one of them faster: there is something to share */
    assert_true(time_of(&models[0], &devices[0], SHARE_PARTS) <
                time_of(&models[0], &devices[0], 0));
    const uint64_t begin_ns = now_ns();
    assert_int_equal(auto_plan_together(&none, &a, again, 2, 512 * MIB, devices, &n, &err),
                     OATO_OK);
    assert_int_equal(again[0].plan.share, big);
    assert_true(now_ns() - begin_ns < 2000000000);
    /* the host has too little for both */
    assert_int_equal(auto_plan_together(&none, &a, again, 2, 64 << 10, devices, &n, &err), OATO_OK);
    assert_false(again[0].plan.shares || again[1].plan.shares);
    assert_int_equal(again[0].plan.share, SHARE_PARTS);
}

/* A model that cannot be opened harms no other one: each is planned for when it is asked for. */
static void what_is_no_model_shares_nothing(void **state)
{
    const struct auto_plan none = {.quiet = true};
    const struct session_args a = session_of();
    struct auto_model models[2];
    struct device_budget devices[DEVICES_MAX];
    char paths[2][128];
    int32_t n;
    struct oato_error err;
    (void)state;
    models_make(models, paths);
    models[1].path = "/dev/null";
    assert_int_equal(auto_plan_together(&none, &a, models, 2, 512 * MIB, devices, &n, &err),
                     OATO_OK);
    assert_false(models[0].plan.shares);
    assert_int_equal(models[0].plan.n_budgets, 2);
}

static int cache_create(void **state)
{
    return folder_create(state) || setenv("XDG_CACHE_HOME", test_folder, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_split_is_the_best_of_its_neighbours, cache_create,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(what_is_no_model_shares_nothing, cache_create,
                                        folder_remove)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
