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

oato_status neurons_open(const struct gguf *model, const char *path, struct neurons *out,
                         struct oato_error *err)
{
    struct text found;
    beside(gguf_path(model), &found);
    oato_status status = OATO_OK;
    neurons_init(out);
    if (found.failed)
        status = oato_fail_memory(err, found.len, "the path of a sidecar");
    else if (!path && access(found.data, F_OK))
        status = oato_fail(err, OATO_EUSAGE,
                           "%s: there is no such neurons sidecar; count one with oato-profile "
                           "--calibrate, or name one with --neurons",
                           found.data);
    if (!status)
        status = neurons_load(path ? path : found.data, out, err);
    if (!status)
        status = neurons_check_model(out, model, err);
    text_free(&found);
    return status;
}

static oato_status load_beside(const struct gguf *model, struct plan *p, struct neurons *out,
                               struct oato_error *err)
{
    struct text path;
    beside(gguf_path(model), &path);
    oato_status status = OATO_OK;
    if (path.failed)
        status = oato_fail_memory(err, path.len, "the path of a sidecar");
    else if (!access(path.data, F_OK)) {
        status = neurons_load(path.data, out, err);
        p->neurons = status ? NULL : out;
    }
    text_free(&path);
    return status;
}

oato_status plan_open_neurons(struct plan *p, const struct gguf *model, const char *path,
                              struct neurons *out, struct oato_error *err)
{
    oato_status status = OATO_OK;
    neurons_init(out);
    p->neurons = NULL;
    if (path) {
        status = neurons_load(path, out, err);
        p->neurons = status ? NULL : out;
    } else if (p->neurons_hash) {
        status = load_beside(model, p, out, err);
    }
    if (!status && p->neurons)
        status = neurons_check_model(p->neurons, model, err);
    return status ? status : plan_check_neurons(p, err);
}
