/*
 * problem_devices.c - the devices of a problem and the memory it may use on each.
 */
#include "solver/planning_internal.h"

#include <inttypes.h>
#include <string.h>

const char *problem_device(const struct problem *p, int32_t device)
{
    return p->profile->devices[p->device[device]].id;
}

void planner_options_init(struct planner_options *o)
{
    memset(o, 0, sizeof *o);
    o->solver = "auto";
    o->request = (struct plan_request){
        .prompt = 512, .generate = 128, .context = 4096, .batch = 1, .ubatch = 512, .kv = DT_F16};
    o->time_limit_s = 10;
    o->gap = -1;
}

static oato_status unknown_device(const struct profile *profile, const char *id, int n,
                                  struct oato_error *err)
{
    char list[256] = "";
    size_t len = 0;
    for (int32_t i = 0; i < profile->n_devices && len < sizeof list; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "",
                                profile->devices[i].id);
    return oato_fail(err, OATO_EUSAGE, "the profile has no device '%.*s'; it has: %s", n, id, list);
}

oato_status problem_add_device(struct problem *p, int32_t index, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_devices; i++)
        if (p->device[i] == index)
            return oato_fail(err, OATO_EUSAGE, "device %s is named twice",
                             p->profile->devices[index].id);
    if (p->n_devices == SOLVER_DEVICES)
        return oato_fail(err, OATO_EUSAGE, "more than %d devices; choose some with --devices",
                         SOLVER_DEVICES);
    p->device[p->n_devices] = index;
    p->budget[p->n_devices++] = p->profile->devices[index].free_bytes / 10 * 9;
    return OATO_OK;
}

/* Whether the n characters name the device: its id, or its kind alone for the first one. */
static bool is_named(const char *id, const char *s, size_t n)
{
    return !strncmp(id, s, n) && (!id[n] || !strcmp(id + n, ":0"));
}

bool device_is_listed(const char *list, const char *id)
{
    bool listed = !list;
    for (const char *s = list; s && *s && !listed;) {
        const size_t n = strcspn(s, ",");
        listed = is_named(id, s, n);
        s += n + (s[n] == ',');
    }
    return listed;
}

static oato_status choose_devices(struct problem *p, const char *list, struct oato_error *err)
{
    for (int32_t i = 0; !list && i < p->profile->n_devices; i++)
        if (problem_add_device(p, i, err))
            return err->status;
    for (const char *s = list; s && *s;) {
        size_t n = strcspn(s, ",");
        int32_t found = -1;
        for (int32_t i = 0; i < p->profile->n_devices; i++)
            if (is_named(p->profile->devices[i].id, s, n))
                found = i;
        if (found < 0)
            return unknown_device(p->profile, s, (int)n, err);
        if (problem_add_device(p, found, err))
            return err->status;
        s += n + (s[n] == ',');
    }
    return OATO_OK;
}

static oato_status set_budgets(struct problem *p, const struct planner_options *o,
                               struct oato_error *err)
{
    for (int32_t i = 0; i < o->n_budgets; i++) {
        int32_t d = 0;
        while (d < p->n_devices && strcmp(problem_device(p, d), o->budgets[i].id) != 0)
            d++;
        if (d == p->n_devices)
            return unknown_device(p->profile, o->budgets[i].id, 16, err);
        const struct profile_device *device = &p->profile->devices[p->device[d]];
        if (o->strict_budgets && !(device->data_sheet && device->is_host) && device->memory_bytes &&
            o->budgets[i].bytes > device->memory_bytes)
            return oato_fail(
                err, OATO_EUSAGE,
                "--budget %s=%.1f MiB: the device has %.1f MiB, of which %.1f were free "
                "when it was profiled",
                device->id, (double)o->budgets[i].bytes / 0x1p20,
                (double)device->memory_bytes / 0x1p20, (double)device->free_bytes / 0x1p20);
        p->budget[d] = o->budgets[i].bytes;
    }
    return OATO_OK;
}

oato_status problem_check_devices(struct problem *p, struct oato_error *err)
{
    struct instance *in = &p->instance;
    in->n_devices = p->n_devices;
    in->host = -1;
    for (int32_t d = p->n_devices - 1; d >= 0; d--) {
        in->is_host[d] = p->profile->devices[p->device[d]].is_host;
        in->host = in->is_host[d] ? d : in->host;
    }
    if (in->host < 0)
        return oato_fail(err, OATO_EUSAGE,
                         "no host device, which runs what no other device can; add "
                         "cpu:0 to --devices");
    for (int32_t d = 0; d < p->n_devices; d++)
        for (int32_t f = 0; f < p->n_devices; f++)
            in->direct[d][f] = d != f && !in->is_host[d] && !in->is_host[f] &&
                               cost_of_copy(p->cost, p->device[d], p->device[f], 0) >= 0;
    for (int32_t d = 0; d < p->n_devices; d++) {
        int32_t host = p->device[in->host], other = p->device[d];
        if (cost_of_copy(p->cost, host, other, 0) < 0 || cost_of_copy(p->cost, other, host, 0) < 0)
            return oato_fail(err, OATO_EFILE,
                             "the profile has no links between %s and %s; profile both together, "
                             "or leave one out with --devices",
                             problem_device(p, in->host), problem_device(p, d));
    }
    return OATO_OK;
}

/* True when a disturbed row on a device of the problem is of this operator, at any size. */
static bool is_disturbed(const struct problem *p, const struct oato_op *op)
{
    char key[OP_KEY_SIZE], other[OP_KEY_SIZE];
    oato_op_key(op, NULL, key);
    for (int32_t i = 0; i < p->profile->n_rows; i++) {
        const struct profile_row *row = &p->profile->rows[i];
        if (!row->disturbed || row->op.kind != op->kind || row->op.n != op->n)
            continue;
        for (int32_t d = 0; d < p->n_devices; d++)
            if (p->device[d] == row->device && !strcmp(oato_op_key(&row->op, NULL, other), key))
                return true;
    }
    return false;
}

int32_t problem_disturbed(const struct problem *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        n += is_disturbed(p, &p->graph.ops[i].op);
    return n;
}

oato_status problem_devices(struct problem *p, const struct planner_options *o,
                            struct oato_error *err)
{
    if (choose_devices(p, o->devices, err) || set_budgets(p, o, err))
        return err->status;
    return problem_check_devices(p, err);
}

void problem_budgets(const struct problem *p, struct planner_options *o)
{
    o->n_budgets = p->n_devices;
    for (int32_t d = 0; d < p->n_devices; d++) {
        snprintf(o->budgets[d].id, sizeof o->budgets[d].id, "%s", problem_device(p, d));
        o->budgets[d].bytes = p->budget[d];
    }
}

void problem_options(const struct problem *p, struct planner_options *o, char devices[DEVICES_SIZE])
{
    size_t n = 0;
    planner_options_init(o);
    problem_budgets(p, o);
    for (int32_t d = 0; d < p->n_devices; d++)
        n +=
            (size_t)snprintf(devices + n, DEVICES_SIZE - n, "%s%s", d ? "," : "", o->budgets[d].id);
    o->devices = devices;
    o->request = p->request;
    o->neurons = p->neurons;
    o->sparse = p->choice;
}

oato_status problem_check_budgets(const struct problem *p, const struct planner_options *o,
                                  struct oato_error *err)
{
    for (int32_t i = 0; i < o->n_budgets && o->strict_budgets; i++)
        for (int32_t d = 0; d < p->n_devices; d++)
            if (!strcmp(problem_device(p, d), o->budgets[i].id) && o->budgets[i].bytes &&
                p->budget[d] < p->work[d])
                return oato_fail(err, OATO_EFIT,
                                 "--budget %s=%.1f MiB is %.1f MiB less than activations and "
                                 "workspace need there; raise it, --budget %s=%" PRIu64
                                 "KiB, lower --ubatch, or leave the device out with --devices",
                                 o->budgets[i].id, (double)o->budgets[i].bytes / 0x1p20,
                                 (double)(p->work[d] - o->budgets[i].bytes) / 0x1p20,
                                 o->budgets[i].id, (p->work[d] + 1023) >> 10);
    return OATO_OK;
}
