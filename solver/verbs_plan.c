/*
 * verbs_plan.c - the verbs of oato-plan that read plans: show, explain, diff, check, export,
 * simulate, report.
 */
#include "solver/verbs.h"

#include <stdlib.h>

oato_status run_show(struct command *c, struct text *out, struct oato_error *err)
{
    struct plan plan;
    struct inputs in;
    struct problem *problem = NULL;
    int32_t *place;
    if (c->n_operands != 1)
        return oato_fail(err, OATO_EUSAGE, "show wants one PLAN");
    oato_status status = plan_inputs_open(c, &plan, &in, err);
    if (status)
        return status;
    if (in.model && in.profile)
        status = problem_of_plan(in.model, in.profile, &plan, &problem, &place, err);
    if (!status) {
        report_plan(&plan, problem, c->json, out);
        warn_if_disturbed(problem);
    }
    problem_free(problem);
    plan_inputs_close(&plan, &in);
    return status;
}

oato_status run_explain(struct command *c, struct text *out, struct oato_error *err)
{
    struct plan plan;
    struct inputs in;
    if (c->n_operands < 1)
        return oato_fail(err, OATO_EUSAGE, "explain wants PLAN [OPERATOR, LAYER or TENSOR]");
    if (!c->model == names_machine(c))
        return oato_fail(err, OATO_EUSAGE, "explain wants both -m MODEL.gguf and -p PROFILE");
    oato_status status = plan_inputs_open(c, &plan, &in, err);
    if (status)
        return status;
    status = report_explain(&plan, in.model, in.profile, c->n_operands > 1 ? c->operands[1] : NULL,
                            c->json, out, err);
    plan_inputs_close(&plan, &in);
    return status;
}

oato_status run_diff(struct command *c, struct text *out, struct oato_error *err)
{
    struct plan a, b;
    bool same = false;
    if (c->n_operands != 2)
        return oato_fail(err, OATO_EUSAGE, "diff wants two plans");
    oato_status status = plan_load(c->operands[0], &a, err);
    if (status)
        return status;
    status = plan_load(c->operands[1], &b, err);
    if (!status) {
        status = report_diff(&a, &b, c->json, &same, out, err);
        plan_free(&b);
    }
    plan_free(&a);
    if (!status && !same)
        status = oato_fail(err, OATO_NEGATIVE, "%s and %s differ", c->operands[0], c->operands[1]);
    return status;
}

oato_status run_check(struct command *c, struct text *out, struct oato_error *err)
{
    struct plan plan;
    struct inputs in;
    if (c->n_operands < 1)
        return oato_fail(err, OATO_EUSAGE, "check wants PLAN [MODEL.gguf]");
    if (!c->model && c->n_operands > 1)
        c->model = c->operands[1];
    if (names_machine(c) && !c->model)
        return oato_fail(err, OATO_EUSAGE, "check with a profile wants the MODEL.gguf, too");
    oato_status status = plan_inputs_open(c, &plan, &in, err);
    if (status)
        return status;
    status = report_check(&plan, in.model, in.profile, c->max_slower, c->plan.time_limit_s, c->json,
                          out, err);
    plan_inputs_close(&plan, &in);
    return status;
}

oato_status run_export(struct command *c, struct text *out, struct oato_error *err)
{
    struct plan plan;
    struct inputs in;
    struct text lost;
    if (c->n_operands != 1 || !c->model)
        return oato_fail(err, OATO_EUSAGE, "export wants one PLAN and -m MODEL.gguf");
    oato_status status = plan_inputs_open(c, &plan, &in, err);
    if (status)
        return status;
    text_init(&lost);
    status = report_export(&plan, in.model, &c->export, c->json, out, &lost, err);
    if (!status && lost.len)
        text_print(stderr, lost.data, lost.len);
    text_free_part(&lost, out);
    plan_inputs_close(&plan, &in);
    return status;
}

oato_status run_simulate(struct command *c, struct text *out, struct oato_error *err)
{
    struct plan plan;
    struct inputs in;
    struct simulation *s;
    struct text trace;
    if (c->n_operands != 1 || !c->model || !names_machine(c))
        return oato_fail(err, OATO_EUSAGE,
                         "simulate wants one PLAN, -m MODEL.gguf and -p PROFILE or --hardware "
                         "NAME");
    oato_status status = plan_inputs_open(c, &plan, &in, err);
    if (status)
        return status;
    text_init(&trace);
    status = simulation_run(&plan, in.model, in.profile, &s, err);
    if (!status) {
        report_simulation(s, c->json, out);
        if (c->trace) {
            report_trace(s, &trace);
            status = save_text(c->trace, &trace, err);
        }
        simulation_free(s);
    }
    text_free(&trace);
    plan_inputs_close(&plan, &in);
    return status;
}

oato_status run_report(struct command *c, struct text *out, struct oato_error *err)
{
    struct plan plan;
    struct inputs in;
    struct text html;
    if (c->n_operands != 1 || !c->model || !names_machine(c) || !c->output)
        return oato_fail(err, OATO_EUSAGE,
                         "report wants one PLAN, -m MODEL.gguf, -p PROFILE or --hardware NAME and "
                         "-o FILE.html");
    oato_status status = plan_inputs_open(c, &plan, &in, err);
    if (status)
        return status;
    text_init(&html);
    status = report_html(&plan, in.model, in.profile, !c->no_frontier, &html, err);
    if (!status)
        status = save_text(c->output, &html, err);
    if (!status)
        text_printf(out, "wrote %s\n", c->output);
    text_free(&html);
    plan_inputs_close(&plan, &in);
    return status;
}
