/*
 * verbs.c - what the verbs of oato-plan share: opening the model, profile and plan of a command,
 * and writing a text to a file.
 */
#include "solver/verbs.h"

#include <string.h>

static void warn(void *user, const char *text)
{
    (void)user;
    fputs("oato-plan: warning: ", stderr);
    text_print(stderr, text, strlen(text));
    fputc('\n', stderr);
}

void warn_if_disturbed(const struct problem *p)
{
    const int32_t n = p ? problem_disturbed(p) : 0;
    char text[256];
    if (!n)
        return;
    snprintf(text, sizeof text,
             "%d of %d operators were timed while the machine was busy (disturbed rows of the "
             "profile): predictions may be far off; run oato-profile again when it is quiet",
             n, p->graph.n_ops);
    warn(NULL, text);
}

void inputs_close(struct inputs *in)
{
    if (in->model)
        model_close(in->model);
    if (in->profile)
        profile_free(in->profile);
    if (in->neurons)
        neurons_free(in->neurons);
}

bool names_machine(const struct command *c)
{
    return c->profile || c->hardware;
}

oato_status inputs_open(const struct command *c, struct inputs *in, struct oato_error *err)
{
    memset(in, 0, sizeof *in);
    oato_status status = OATO_OK;
    if (c->profile && c->hardware)
        return oato_fail(err, OATO_EUSAGE, "two machines: -p %.80s and --hardware %.40s; give one",
                         c->profile, c->hardware);
    if (c->profile)
        status = profile_load(c->profile, &in->storage, warn, NULL, err);
    else if (c->hardware)
        status = hardware_load(c->hardware, &in->storage, warn, NULL, err);
    if (!status && names_machine(c))
        in->profile = &in->storage;
    if (!status && c->model)
        status = model_open(c->model, &in->model, err);
    if (!status && c->neurons) {
        status = neurons_load(c->neurons, &in->neurons_storage, err);
        in->neurons = status ? NULL : &in->neurons_storage;
    }
    if (!status && in->neurons && in->model)
        status = neurons_check_model(in->neurons, in->model->gguf, err);
    if (status)
        inputs_close(in);
    return status;
}

oato_status plan_inputs_open(const struct command *c, struct plan *plan, struct inputs *in,
                             struct oato_error *err)
{
    oato_status status = plan_load(c->operands[0], plan, err);
    if (status)
        return status;
    status = request_check_plan(plan, err);
    if (status)
        oato_fail_at(err, "%s", c->operands[0]);
    else if (!(status = inputs_open(c, in, err)))
        plan->neurons = in->neurons;
    if (status)
        plan_free(plan);
    return status;
}

void plan_inputs_close(struct plan *plan, struct inputs *in)
{
    inputs_close(in);
    plan_free(plan);
}

oato_status save_text(const char *path, const struct text *t, struct oato_error *err)
{
    struct outfile f;
    if (t->failed)
        return oato_fail_memory(err, t->len, path);
    oato_status status = outfile_open(&f, path, err);
    if (!status && !(status = outfile_write(&f, t->data, t->len, err)))
        status = outfile_commit(&f, err);
    return status;
}
