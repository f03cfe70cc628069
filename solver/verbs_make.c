/*
 * verbs_make.c - the verbs of oato-plan that plan: one plan, or one for each share of the memory.
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
    struct inputs in;
    struct plan plan;
    struct problem *problem;
    struct text bound;
    if (!c->model)
        c->model = c->n_operands ? c->operands[0] : NULL;
    else if (c->n_operands)
        return oato_fail(err, OATO_EUSAGE, "two models: -m %.80s and %.80s", c->model,
                         c->operands[0]);
    if (!c->model || !names_machine(c))
        return oato_fail(err, OATO_EUSAGE,
                         "oato-plan wants MODEL.gguf and -p PROFILE, which oato-profile makes, or "
                         "--hardware NAME; --help says more");
    if (!c->output) {
        if (default_output(c->model, path, sizeof path, err))
            return err->status;
        c->output = path;
    }
    if (c->at_least > 0 && !c->maximize_context)
        return oato_fail(err, OATO_EUSAGE, "--at-least goes with --maximize context");
    oato_status status = outfile_check(c->output, err);
    if (!status)
        status = inputs_open(c, &in, err);
    if (status)
        return status;
    text_init(&bound);
    c->plan.neurons = in.neurons;
    if (c->maximize_context)
        status = context_maximize(in.model, in.profile, &c->plan, c->at_least, &plan, &problem,
                                  &bound, err);
    else
        status = planner_make(in.model, in.profile, &c->plan, &plan, &problem, err);
    if (!status) {
        status = plan_save(&plan, c->output, err);
        if (!status) {
            report_plan(&plan, problem, c->json, out);
            warn_if_disturbed(problem);
            if (bound.len)
                text_print(stderr, bound.data, bound.len);
            fprintf(stderr, "wrote %s\n", c->output);
        }
        plan_free(&plan);
        problem_free(problem);
    }
    text_free(&bound);
    inputs_close(&in);
    return status;
}

oato_status run_frontier(struct command *c, struct text *out, struct oato_error *err)
{
    struct inputs in;
    struct text svg;
    c->model = c->n_operands ? c->operands[0] : NULL;
    if (!c->model || !names_machine(c))
        return oato_fail(err, OATO_EUSAGE,
                         "frontier wants MODEL.gguf and -p PROFILE or --hardware NAME");
    oato_status status = inputs_open(c, &in, err);
    if (status)
        return status;
    text_init(&svg);
    c->plan.neurons = in.neurons;
    status = report_frontier(in.model, in.profile, &c->plan, c->steps, c->json, out,
                             c->svg ? &svg : NULL, err);
    if (!status && c->svg)
        status = save_text(c->svg, &svg, err);
    text_free(&svg);
    inputs_close(&in);
    return status;
}
