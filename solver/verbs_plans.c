/*
 * verbs_plans.c - the verbs of oato-plan that read plans: show, explain, diff, check, export,
 * simulate, report.
 */
#include "solver/verbs.h"

#include "solver/planning_internal.h"
#include "solver/ranks/ranks_internal.h"
#include "solver/report/report_internal.h"

#include <math.h>
#include <string.h>

enum { HOSTS_MAX = 65536, PER_HOST_MAX = 1024 };

/* What the plan loses at its points, or at those that were asked for. */
static oato_status find_regrets(struct command *c, const struct problem *problem,
                                struct regrets *out, struct oato_error *err)
{
    struct planner_options o;
    char devices[DEVICES_SIZE];
    problem_options(problem, &o, devices);
    const struct plan_point first = request_point(&o.request, 0);
    if (!o.request.n_points)
        request_set_points(&o.request, &first, &(double){1}, 1);
    o.workload = c->asks ? &c->workload : NULL;
    o.request.batch = c->batch ? c->batch : o.request.batch;
    return workload_set(c->in.model, c->in.profile, &o, err) || request_check(&o.request, err)
               ? err->status
               : regrets_find(&c->the_plan, c->in.model, problem, &o.request, c->plan.time_limit_s,
                              out, err);
}

oato_status run_show(struct command *c, struct text *out, struct oato_error *err)
{
    struct problem *problem = NULL;
    int32_t *place;
    struct plan priced;
    struct text title;
    if (open_plan(c, err))
        return err->status;
    const bool ranks = prices_ranks(c), asks = c->asks || c->batch;
    if (asks && (ranks || !c->in.model || !c->in.profile))
        return oato_fail(err, OATO_EUSAGE,
                         "other requests are predicted with -m MODEL.gguf and -p PROFILE or "
                         "--hardware NAME, for plans of one process");
    if (ranks
            ? ranks_price(&c->the_plan, c->in.model, &c->ranks, &priced, err)
            : c->in.model && c->in.profile &&
                  problem_of_plan(c->in.model, c->in.profile, &c->the_plan, &problem, &place, err))
        return err->status;
    const char *base = strrchr(c->operands[0], '/');
    text_init(&title);
    text_printf(&title, "%s", base ? base + 1 : c->operands[0]);
    if (c->the_plan
            .content_hash) /* else the model was made of a shape, and its name says nothing */
        text_printf(&title, " (%s)", model_title(&c->the_plan, c->in.model));
    struct regrets regrets;
    oato_status status = OATO_OK;
    const bool finds = problem && (asks || c->the_plan.request.n_points);
    if (finds)
        status = find_regrets(c, problem, &regrets, err);
    if (!status)
        report_plan_regrets(title.data, ranks ? &priced : &c->the_plan, problem, c->in.model,
                            finds ? &regrets : NULL, c->json, out);
    text_free_part(&title, out);
    warn_if_disturbed(problem);
    problem_free(problem);
    if (ranks)
        plan_free(&priced);
    return status;
}

oato_status run_explain(struct command *c, struct text *out, struct oato_error *err)
{
    if (names_model(c) != names_machine(c))
        return oato_fail(err, OATO_EUSAGE, "explain wants both -m MODEL.gguf and -p PROFILE");
    if (open_plan(c, err))
        return err->status;
    if (!prices_ranks(c))
        return report_explain(&c->the_plan, c->in.model, c->in.profile, c->operands[1], c->json,
                              out, err);
    struct plan now;
    if (ranks_price(&c->the_plan, c->in.model, &c->ranks, &now, err))
        return err->status;
    const oato_status status = report_explain(&now, NULL, NULL, c->operands[1], c->json, out, err);
    plan_free(&now);
    return status;
}

oato_status run_diff(struct command *c, struct text *out, struct oato_error *err)
{
    struct plan b;
    bool same = false;
    if (plan_load(c->operands[0], &c->the_plan, err) || plan_load(c->operands[1], &b, err))
        return err->status;
    oato_status status = report_diff(&c->the_plan, &b, c->json, &same, out, err);
    plan_free(&b);
    if (!status && !same)
        status = oato_fail(err, OATO_NEGATIVE, "%s and %s differ", c->operands[0], c->operands[1]);
    return status;
}

oato_status run_check(struct command *c, struct text *out, struct oato_error *err)
{
    if (!c->model)
        c->model = c->operands[1];
    if (names_machine(c) && !names_model(c))
        return oato_fail(err, OATO_EUSAGE, "check with a profile wants the MODEL.gguf, too");
    if (open_plan(c, err))
        return err->status;
    return prices_ranks(c) ? report_check_ranks(&c->the_plan, c->in.model, &c->ranks, c->max_slower,
                                                c->json, out, err)
                           : report_check(&c->the_plan, c->in.model, c->in.profile, c->max_slower,
                                          c->plan.time_limit_s, c->json, out, err);
}

oato_status run_export(struct command *c, struct text *out, struct oato_error *err)
{
    if (open_plan(c, err) ||
        report_export(&c->the_plan, c->in.model, &c->export, c->json, out, &c->file, err))
        return err->status;
    if (c->file.len)
        text_print(stderr, c->file.data, c->file.len);
    out->failed = out->failed || c->file.failed;
    return OATO_OK;
}

/* A cluster that is not here, of hosts like the profile's. */
static oato_status simulate_cluster(struct command *c, struct text *out, struct oato_error *err)
{
    const struct cluster_options o = {c->ranks.hosts, c->per_host ? c->per_host : 1, c->ranks};
    if (c->model && c->n_operands)
        return oato_fail(err, OATO_EUSAGE,
                         "simulate --hosts wants one MODEL.gguf and no plan: '%.80s' and '%.80s'",
                         c->model, c->operands[0]);
    c->model = c->model ? c->model : c->operands[0];
    if (!names_model(c) || c->trace || c->neurons)
        return oato_fail(err, OATO_EUSAGE,
                         "simulate --hosts wants a MODEL.gguf, and neither --trace nor --neurons");
    if (o.hosts > HOSTS_MAX || o.per_host > PER_HOST_MAX)
        return oato_fail(err, OATO_EUSAGE, "%d hosts of %d devices; at most %d of %d are simulated",
                         o.hosts, o.per_host, HOSTS_MAX, PER_HOST_MAX);
    return open_inputs(c, err)
               ? err->status
               : report_cluster(c->in.model, c->in.profile, &c->plan, &o, c->json, out, err);
}

oato_status run_simulate(struct command *c, struct text *out, struct oato_error *err)
{
    struct simulation *s;
    if (c->ranks.hosts)
        return simulate_cluster(c, out, err);
    if (!c->n_operands || !names_model(c))
        return oato_fail(err, OATO_EUSAGE,
                         "simulate wants one PLAN and -m MODEL.gguf, or "
                         "MODEL.gguf and --hosts N");
    if (c->of_cluster)
        return oato_fail(err, OATO_EUSAGE,
                         "--%s is for clusters: simulate MODEL.gguf --hosts N; a plan has its own",
                         c->of_cluster);
    if (open_plan(c, err) || simulation_run(&c->the_plan, c->in.model, &c->ranks, &s, err))
        return err->status;
    report_simulation(s, c->json, out);
    if (c->trace)
        report_trace(s, &c->file);
    simulation_free(s);
    return c->trace ? save_file(c, c->trace, err) : OATO_OK;
}

oato_status run_report(struct command *c, struct text *out, struct oato_error *err)
{
    if (open_plan(c, err) ||
        report_html(&c->the_plan, c->in.model, &c->ranks, !c->no_frontier, &c->file, err) ||
        save_file(c, c->output, err))
        return err->status;
    text_printf(out, "wrote %s\n", c->output);
    return OATO_OK;
}
