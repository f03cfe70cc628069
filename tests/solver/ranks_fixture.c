#include "tests/solver/ranks_fixture.h"

#include "solver/report/report_internal.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"

#include <string.h>

struct model *model;
struct profile fast, slow, crawling, accelerated;

int ranks_setup(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model m = random_model_default();
    struct fixture_options o = {.scale = 1, .fused_factor = 0.9};
    m.layers = 4;
    m.width = 1024;
    m.heads = m.kv_heads = 16;
    m.ffn = 3072; /* shares end on multiples of 64 */
    m.vocab = 4096;
    m.dtype = DT_Q8_0;
    m.header_only = true;
    if (random_model_open(&m, &model, &err)) {
        print_error("%s\n", err.text);
        return 1;
    }
    const bool made = fixture_profile(model, &o, &fast);
    o.scale = 2;
    const bool twice = fixture_profile(model, &o, &slow);
    o.scale = 100;
    if (!made || !twice || !fixture_profile(model, &o, &crawling))
        return 1;
    o = (struct fixture_options){.scale = 1, .fused_factor = 0.9, .sim_speed = 20};
    return !fixture_profile(model, &o, &accelerated);
}

int ranks_teardown(void **state)
{
    (void)state;
    profile_free(&fast);
    profile_free(&slow);
    profile_free(&crawling);
    profile_free(&accelerated);
    model_close(model);
    return 0;
}

struct rank_options ranks_on(int32_t ranks, int32_t hosts, const struct profile *second)
{
    return (struct rank_options){.split = SPLIT_TENSOR,
                                 .ranks = ranks,
                                 .hosts = hosts,
                                 .profiles = {&fast, second},
                                 .n_profiles = second ? 2 : 1,
                                 .bytes_per_s = 117e6,
                                 .latency_ns = 60e3,
                                 .wire = DT_F32};
}

struct planner_options request(void)
{
    struct planner_options o;
    planner_options_init(&o);
    o.request.prompt = 128;
    o.request.generate = 20;
    o.request.context = 512;
    o.request.ubatch = 64;
    return o;
}

void made(const struct rank_options *ranks, struct plan *plan)
{
    struct oato_error err;
    const struct planner_options o = request();
    if (ranks_plan(model, &o, ranks, NULL, plan, &err))
        fail_msg("%s", err.text);
}

oato_status checked(const struct plan *plan, const struct rank_options *ranks, bool json,
                    struct text *out)
{
    struct oato_error err = {.status = OATO_OK};
    text_init(out);
    const oato_status status = report_check_ranks(plan, model, ranks, 0.05, json, out, &err);
    if (status > OATO_NEGATIVE)
        fail_msg("%s", err.text);
    return status;
}

double accelerated_share(const struct plan *plan)
{
    int32_t there = 0;
    for (int32_t i = 0; i < plan->n_parts; i++)
        there += !plan->devices[plan->parts[i].device].is_host;
    return (double)there / plan->n_parts;
}

void budgets_hold(const struct plan *plan)
{
    for (int32_t d = 0; d < plan->n_devices; d++)
        assert_in_range(plan->devices[d].planned_bytes, 0, plan->devices[d].budget_bytes);
}
