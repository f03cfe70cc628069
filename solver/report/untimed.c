/*
 * untimed.c - what is said of operators that were never timed: where their times come from, and the
 * command that would time them on the machine of the profile.
 */
#include "solver/planning_internal.h"
#include "solver/report/report_internal.h"

#include <string.h>

/* Profiles what the plan's devices can do; each device as oato-profile opens it. */
static void command_text(const struct problem *p, struct text *out)
{
    text_printf(out, "oato-profile MODEL.gguf --devices ");
    for (int32_t i = 0; i < p->n_devices; i++) {
        const struct profile_device *d = &p->profile->devices[p->device[i]];
        text_printf(out, "%s%s%s%s", i ? "," : "", d->kind, *or_empty(d->spec) ? ":" : "",
                    or_empty(d->spec));
    }
    text_printf(out, " -o PROFILE");
}

/* "Q4_K", or the name of a kind without types. */
static const char *what_of(const struct oato_op *op)
{
    struct oato_op other;
    const bool typed = op_example((enum op_kind)op->kind, DT_F16, &other);
    return typed ? dtype_name((oato_dtype)op->dtype) : op_kind_name(op->kind);
}

static bool is_untimed(enum cost_known known)
{
    return known == COST_NEVER_TIMED || known == COST_NEVER_ASKED;
}

/* Of what may take more than twice as long, how many times. */
static void off_text(double off, struct text *out)
{
    if (off < 1)
        text_printf(out, "%.0f %%", 100 * off);
    else
        text_printf(out, "a factor of %.1f", 1 + off);
}

void estimates_off(const struct plan *plan, const struct problem *p, double share[PHASE_COUNT])
{
    double all[PHASE_COUNT] = {0}, may[PHASE_COUNT] = {0};
    struct request_step steps[PHASE_COUNT] = {[PHASE_DECODE] = request_decode_step(&p->request)};
    if (request_prefill_kinds(&p->request)) /* none with --prompt 0 */
        steps[PHASE_PREFILL] = request_prefill_kind(&p->request, 0);
    for (int32_t i = 0, op = 0; i < plan->n_costs; i++) {
        const struct plan_cost *c = &plan->costs[i];
        const double ns = (double)c->ns;
        while (strcmp(p->graph.ops[op].name, c->op) != 0)
            op = (op + 1) % p->graph.n_ops;
        all[c->phase] += ns + (double)c->transfer_ns;
        if (c->estimate && steps[c->phase].tokens)
            may[c->phase] += ns * request_step_cost(p, &p->graph, op, &p->graph.ops[op].op,
                                                    c->device, &steps[c->phase])
                                      .off;
    }
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        share[phase] = all[phase] > 0 ? may[phase] / all[phase] : 0;
}

void estimate_text(const struct problem *p, int32_t op, int32_t d, struct text *out)
{
    const struct oato_op *o = &p->graph.ops[op].op;
    const struct request_step s = request_decode_step(&p->request);
    const struct op_size size =
        graph_op_size(&p->graph, op, s.tokens, s.rows, s.seqs, s.kv_positions);
    const struct op_cost c = cost_of_op(p->cost, p->device[d], o, &size);
    const enum cost_known known = cost_known(p->cost, p->device[d], o);
    const char *id = problem_device(p, d);
    if (!is_untimed(known))
        text_printf(out, "this shape was never measured on %s", id);
    else
        text_printf(out, "%s was never timed on %s, %s", what_of(o), id,
                    known == COST_NEVER_TIMED ? "which supports it"
                                              : "and the profile does not say what that supports");
    if (c.from)
        text_printf(out, "; scaled from %s", c.from);
    if (c.off > 0) {
        text_printf(out, ", off by at most ");
        off_text(c.off, out);
    }
    if (is_untimed(known)) {
        text_printf(out, "; there, this would time it: ");
        command_text(p, out);
    }
}

/* The operators of the graph that were never timed on a device in their type: each type once. */
static void list_untimed(const struct problem *p, int32_t d, bool json, struct text *list)
{
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const char *what = what_of(&p->graph.ops[i].op);
        bool told = !is_untimed(cost_known(p->cost, p->device[d], &p->graph.ops[i].op));
        for (int32_t j = 0; j < i && !told; j++)
            told = !strcmp(what_of(&p->graph.ops[j].op), what) &&
                   is_untimed(cost_known(p->cost, p->device[d], &p->graph.ops[j].op));
        if (told)
            continue;
        if (json)
            json_add(list, JSON(NULL, what));
        else
            text_printf(list, "%s%s", list->len ? ", " : "", what);
    }
}

void untimed_text(const struct plan *plan, const struct problem *p, struct text *out)
{
    bool any = false;
    double off[PHASE_COUNT];
    estimates_off(plan, p, off);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        if (!(off[phase] > 0))
            continue;
        text_printf(out, any ? ", decode by " : "by estimates %s may be off by ",
                    phase == PHASE_PREFILL ? "prefill" : "decode");
        off_text(off[phase], out);
        any = true;
    }
    text_printf(out, any ? "; nine in ten are off by less\n" : "");
    any = false;
    for (int32_t d = 0; d < p->n_devices; d++) {
        struct text list;
        text_init(&list);
        list_untimed(p, d, false, &list);
        if (list.len)
            text_printf(out, "never timed on %s, so scaled from what was: %s\n",
                        problem_device(p, d), list.data);
        any = any || list.len;
        text_free_part(&list, out);
    }
    if (!any)
        return;
    text_printf(out, "this times them, on that machine: ");
    command_text(p, out);
    text_printf(out, "\n");
}

void untimed_json(const struct plan *plan, const struct problem *p, struct text *out)
{
    struct text command;
    double off[PHASE_COUNT];
    estimates_off(plan, p, off);
    json_add_object(out, "estimates_off", JSON("prefill", off[PHASE_PREFILL]),
                    JSON("decode", off[PHASE_DECODE]));
    text_init(&command);
    command_text(p, &command);
    json_open(out, "never_timed", '[');
    for (int32_t d = 0; d < p->n_devices; d++) {
        json_open(out, NULL, '{');
        json_add(out, JSON("device", problem_device(p, d)));
        json_open(out, "types", '[');
        list_untimed(p, d, true, out);
        json_close(out, ']');
        json_close(out, '}');
    }
    json_close(out, ']');
    json_add(out, JSON("command", or_empty(command.data)));
    text_free_part(&command, out);
}
