/*
 * plan_neurons.c - the neurons sidecar that a plan follows: found, read, and checked against plan
 * and model. With another one a plan's ranges would stand for other neurons and experts.
 */
#include "planfmt/planfmt_internal.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

oato_status plan_check_neurons(const struct plan *p, struct oato_error *err)
{
    if (p->neurons_hash && !p->neurons)
        return oato_fail(err, OATO_EUSAGE,
                         "the plan follows a neurons sidecar (%016" PRIx64 "); name it with "
                         "--neurons, or put it beside MODEL.gguf as MODEL.neurons.gguf",
                         p->neurons_hash);
    if (p->neurons && neurons_hash(p->neurons) != p->neurons_hash)
        return oato_fail(err, OATO_EUSAGE,
                         "the neurons sidecar (%016" PRIx64 ") is not the plan's (%016" PRIx64
                         ")%s",
                         neurons_hash(p->neurons), p->neurons_hash,
                         p->neurons_hash ? "" : ", which has none; leave --neurons out");
    return OATO_OK;
}

/* "dir/M.gguf": "dir/M.neurons.gguf". */
static void beside(const char *model, struct text *out)
{
    size_t len = strlen(model);
    if (len > 5 && !strcmp(model + len - 5, ".gguf"))
        len -= 5;
    text_init(out);
    text_printf(out, "%.*s.neurons.gguf", (int)len, model);
}

/* Loads the sidecar beside the model. *found: whether there is one. */
static oato_status load_beside(const struct gguf *model, struct neurons *out, bool *found,
                               struct text *path, struct oato_error *err)
{
    beside(gguf_path(model), path);
    *found = !path->failed && !access(path->data, F_OK);
    if (path->failed)
        return oato_fail_memory(err, path->len, "the path of a sidecar");
    return *found ? neurons_load(path->data, out, err) : OATO_OK;
}

oato_status neurons_open(const struct gguf *model, const char *path, struct neurons *out,
                         struct oato_error *err)
{
    struct text missing = {0};
    bool found = true;
    neurons_init(out);
    oato_status status =
        path ? neurons_load(path, out, err) : load_beside(model, out, &found, &missing, err);
    if (!status && !found)
        status = oato_fail(err, OATO_EUSAGE,
                           "%s: there is no such neurons sidecar; count one with oato-profile "
                           "--calibrate, or name one with --neurons",
                           missing.data);
    if (!status)
        status = neurons_check_model(out, model, err);
    text_free(&missing);
    return status;
}

oato_status plan_open_neurons(struct plan *p, const struct gguf *model, const char *path,
                              struct neurons *out, struct oato_error *err)
{
    struct text name = {0};
    bool found = path != NULL;
    oato_status status = OATO_OK;
    neurons_init(out);
    if (path)
        status = neurons_load(path, out, err);
    else if (p->neurons_hash)
        status = load_beside(model, out, &found, &name, err);
    text_free(&name);
    p->neurons = found && !status ? out : NULL;
    if (!status && p->neurons)
        status = neurons_check_model(p->neurons, model, err);
    if (!status)
        status = plan_check_neurons(p, err);
    if (status) {
        p->neurons = NULL;
        neurons_free(out);
    }
    return status;
}
