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

bool names_machine(const struct command *c)
{
    return c->profile || c->hardware;
}

oato_status open_inputs(struct command *c, struct oato_error *err)
{
    oato_status status = OATO_OK;
    if (c->profile && c->hardware)
        return oato_fail(err, OATO_EUSAGE, "two machines: -p %.80s and --hardware %.40s; give one",
                         c->profile, c->hardware);
    if (c->profile)
        status = profile_load(c->profile, &c->in.profile_storage, warn, NULL, err);
    else if (c->hardware)
        status = hardware_load(c->hardware, &c->in.profile_storage, warn, NULL, err);
    if (!status && names_machine(c))
        c->in.profile = &c->in.profile_storage;
    if (!status && c->model)
        status = model_open(c->model, &c->in.model, err);
    if (!status && c->neurons) {
        status = neurons_load(c->neurons, &c->in.neurons_storage, err);
        c->in.neurons = status ? NULL : &c->in.neurons_storage;
    }
    if (!status && c->in.neurons && c->in.model)
        status = neurons_check_model(c->in.neurons, c->in.model->gguf, err);
    c->plan.neurons = c->in.neurons;
    return status;
}

oato_status open_plan(struct command *c, struct oato_error *err)
{
    if (plan_load(c->operands[0], &c->the_plan, err))
        return err->status;
    if (request_check_plan(&c->the_plan, err))
        return oato_fail_at(err, "%s", c->operands[0]);
    const oato_status status = open_inputs(c, err);
    c->the_plan.neurons = c->in.neurons;
    return status;
}

void command_close(struct command *c)
{
    if (c->in.model)
        model_close(c->in.model);
    if (c->in.profile)
        profile_free(c->in.profile);
    if (c->in.neurons)
        neurons_free(c->in.neurons);
    plan_free(&c->the_plan);
    text_free(&c->file);
}

oato_status save_file(const struct command *c, const char *path, struct oato_error *err)
{
    struct outfile f;
    if (c->file.failed)
        return oato_fail_memory(err, c->file.len, path);
    oato_status status = outfile_open(&f, path, err);
    if (!status && !(status = outfile_write(&f, c->file.data, c->file.len, err)))
        status = outfile_commit(&f, err);
    return status;
}
