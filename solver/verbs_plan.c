/*
 * verbs_plan.c - the verbs of oato-plan that read plans: show, explain, diff, check, export,
 * simulate, report.
 */
#include "solver/verbs.h"

oato_status run_show(struct command *c, struct text *out, struct oato_error *err)
{
    struct problem *problem = NULL;
    int32_t *place;
    if (open_plan(c, err))
        return err->status;
    if (c->in.model && c->in.profile &&
        problem_of_plan(c->in.model, c->in.profile, &c->the_plan, &problem, &place, err))
        return err->status;
    report_plan(&c->the_plan, problem, c->json, out);
    warn_if_disturbed(problem);
    problem_free(problem);
    return OATO_OK;
}

oato_status run_explain(struct command *c, struct text *out, struct oato_error *err)
{
    if (!c->model == names_machine(c))
        return oato_fail(err, OATO_EUSAGE, "explain wants both -m MODEL.gguf and -p PROFILE");
    return open_plan(c, err) ? err->status
                             : report_explain(&c->the_plan, c->in.model, c->in.profile,
                                              c->operands[1], c->json, out, err);
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
    if (names_machine(c) && !c->model)
        return oato_fail(err, OATO_EUSAGE, "check with a profile wants the MODEL.gguf, too");
    return open_plan(c, err) ? err->status
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

oato_status run_simulate(struct command *c, struct text *out, struct oato_error *err)
{
    struct simulation *s;
    if (open_plan(c, err) || simulation_run(&c->the_plan, c->in.model, c->in.profile, &s, err))
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
        report_html(&c->the_plan, c->in.model, c->in.profile, !c->no_frontier, &c->file, err) ||
        save_file(c, c->output, err))
        return err->status;
    text_printf(out, "wrote %s\n", c->output);
    return OATO_OK;
}
