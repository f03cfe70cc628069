/*
 * verbs_make.c - the verbs of oato-plan that make something new: a plan, or one for each share of
 * the memory; header-only models and sidecars.
 */
#include "solver/verbs.h"

#include <string.h>

/* "dir/MODEL.gguf" -> "MODEL.plan" in the current directory. */
static oato_status default_output(const char *model, char *path, size_t n, struct oato_error *err)
{
    const char *base = strrchr(model, '/');
    base = base ? base + 1 : model;
    size_t len = strlen(base);
    if (len > 5 && !strcmp(base + len - 5, ".gguf"))
        len -= 5;
    if ((size_t)snprintf(path, n, "%.*s.plan", (int)len, base) >= n)
        return oato_fail(err, OATO_EUSAGE, "the model's name is too long; name the plan with -o");
    return OATO_OK;
}

oato_status run_make(struct command *c, struct text *out, struct oato_error *err)
{
    char path[512];
    struct problem *problem;
    if (!c->model)
        c->model = c->operands[0];
    else if (c->n_operands)
        return oato_fail(err, OATO_EUSAGE, "more than one model: '%.80s' and '%.80s'; give one",
                         c->model, c->operands[0]);
    if (!c->model || !names_machine(c))
        return oato_fail(err, OATO_EUSAGE,
                         "oato-plan wants MODEL.gguf and -p PROFILE, which oato-profile makes, or "
                         "--hardware NAME; --help says more");
    if (!c->output && default_output(c->model, path, sizeof path, err))
        return err->status;
    const char *output = c->output ? c->output : path;
    if (c->at_least > 0 && !c->maximize_context)
        return oato_fail(err, OATO_EUSAGE, "--at-least goes with --maximize context");
    if (outfile_check(output, err) || open_inputs(c, err))
        return err->status;
    if (c->maximize_context
            ? context_maximize(c->in.model, c->in.profile, &c->plan, c->at_least, &c->the_plan,
                               &problem, &c->file, err)
            : planner_make(c->in.model, c->in.profile, &c->plan, &c->the_plan, &problem, err))
        return err->status;
    if (!plan_save(&c->the_plan, output, err)) {
        report_plan(&c->the_plan, problem, c->json, out);
        warn_if_disturbed(problem);
        if (c->file.len)
            text_print(stderr, c->file.data, c->file.len);
        text_tell("wrote %s\n", output);
    }
    problem_free(problem);
    return err->status;
}

oato_status run_frontier(struct command *c, struct text *out, struct oato_error *err)
{
    c->model = c->operands[0];
    if (open_inputs(c, err) || report_frontier(c->in.model, c->in.profile, &c->plan, c->steps,
                                               c->json, out, c->svg ? &c->file : NULL, err))
        return err->status;
    return c->svg ? save_file(c, c->svg, err) : OATO_OK;
}

oato_status run_header(struct command *c, struct text *out, struct oato_error *err)
{
    return report_header(c->operands[0], c->output, c->json, out, err);
}

oato_status run_import(struct command *c, struct text *out, struct oato_error *err)
{
    return report_import(c->operands[0], c->model, c->text_order, c->output, c->json, out, err);
}
