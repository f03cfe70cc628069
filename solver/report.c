/*
 * report.c - shows a plan, as text and as JSON, and has the helpers that all reports share. A plan
 * alone has devices, placement and predictions; with its problem the memory is broken down, too.
 */
#include "lowering/lowering.h"
#include "solver/report_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const char *const objective_names[OBJECTIVE_COUNT] = {"latency", "ttft", "time-per-token"};

/* ------------------------------------------------------------------------------ helpers ---- */

double percent_more(double now, double then)
{
    return then > 0 ? (now / then - 1) * 100 : 0;
}

void json_key(struct text *t, const char *key)
{
    char last = t->len ? t->data[t->len - 1] : '{';
    text_printf(t, "%s", last == '{' || last == '[' ? "" : ",");
    if (!key)
        return;
    text_printf(t, "\"");
    text_add_json(t, key, strlen(key));
    text_printf(t, "\":");
}

void json_string(struct text *t, const char *key, const char *value)
{
    json_key(t, key);
    text_printf(t, "\"");
    text_add_json(t, value ? value : "", value ? strlen(value) : 0);
    text_printf(t, "\"");
}

void json_number(struct text *t, const char *key, double value)
{
    json_key(t, key);
    text_printf(t, "%.6g", isfinite(value) ? value : 0.0);
}

void json_integer(struct text *t, const char *key, uint64_t value)
{
    json_key(t, key);
    text_printf(t, "%" PRIu64, value);
}

void json_hash(struct text *t, const char *key, uint64_t value)
{
    json_key(t, key);
    text_printf(t, "\"%016" PRIx64 "\"", value);
}

void json_bool(struct text *t, const char *key, bool value)
{
    json_key(t, key);
    text_printf(t, "%s", value ? "true" : "false");
}

void json_open(struct text *t, const char *key, char bracket)
{
    json_key(t, key);
    text_printf(t, "%c", bracket);
}

void json_close(struct text *t, char bracket)
{
    text_printf(t, "%c", bracket);
}

oato_status text_status(const struct text *t, struct oato_error *err)
{
    return t->failed ? oato_fail_memory(err, t->len, "a report") : OATO_OK;
}

/* ------------------------------------------------------------------------------ figures ---- */

struct device_share device_share(const struct plan *p, const struct problem *problem, int32_t d)
{
    struct device_share s = {0};
    for (int32_t i = 0; i < p->n_costs; i++) {
        if (p->costs[i].device != d)
            continue;
        s.operators += p->costs[i].phase == PHASE_DECODE;
        *(p->costs[i].phase == PHASE_DECODE ? &s.decode_ns : &s.prefill_ns) += p->costs[i].ns;
    }
    for (int32_t i = 0; i < p->n_kv; i++)
        s.kv_layers += p->kv[i].device == d;
    for (int32_t i = 0, at = 0; problem && i < problem->graph.n_ops; i++) {
        const struct graph_op *op = &problem->graph.ops[i];
        const struct op_price *price = &problem->price[i * problem->n_devices + d];
        while (at < p->n_parts && strcmp(p->parts[at].op, op->name) != 0)
            at++;
        for (int32_t k = at; k < p->n_parts && !strcmp(p->parts[k].op, op->name); k++) {
            const struct plan_part *t = &p->parts[k];
            if (t->device != d || !(t->phases >> PHASE_DECODE & 1))
                continue; /* what is only streamed here has its home elsewhere */
            s.weight_bytes += (uint64_t)((double)price->weight_bytes *
                                         part_share(&op->op, t->axis, t->begin, t->end));
            s.kv_bytes += price->kv_bytes;
        }
    }
    if (p->devices[d].planned_bytes > s.weight_bytes + s.kv_bytes)
        s.work_bytes = p->devices[d].planned_bytes - s.weight_bytes - s.kv_bytes;
    return s;
}

static void copies_of(const struct plan *p, uint64_t *prefill_ns, uint64_t *decode_ns)
{
    *prefill_ns = *decode_ns = 0;
    for (int32_t i = 0; i < p->n_costs; i++)
        *(p->costs[i].phase == PHASE_DECODE ? decode_ns : prefill_ns) += p->costs[i].transfer_ns;
}

int32_t estimates_of(const struct plan *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_costs; i++) /* parts of an operator follow each other */
        n += p->costs[i].estimate && p->costs[i].phase == PHASE_DECODE &&
             (!i || strcmp(p->costs[i].op, p->costs[i - 1].op) != 0);
    return n;
}

int32_t operators_of(const struct plan *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_costs; i++)
        n += p->costs[i].phase == PHASE_DECODE &&
             (!i || strcmp(p->costs[i].op, p->costs[i - 1].op) != 0);
    return n;
}

double tokens_per_s(double tokens, uint64_t ns)
{
    return ns ? tokens * 1e9 / (double)ns : 0;
}

double gap_of(const struct plan *p)
{
    if (!p->bound_ns || !p->objective_ns || p->bound_ns > p->objective_ns)
        return -1;
    return (double)(p->objective_ns - p->bound_ns) / (double)p->objective_ns;
}

/* -------------------------------------------------------------------------------- JSON ----- */

static void json_request(const struct plan *p, struct text *out)
{
    const struct plan_request *q = &p->request;
    json_open(out, "request", '{');
    json_integer(out, "prompt", (uint64_t)q->prompt);
    json_integer(out, "generate", (uint64_t)q->generate);
    json_integer(out, "context", (uint64_t)q->context);
    json_integer(out, "batch", (uint64_t)q->batch);
    json_integer(out, "ubatch", (uint64_t)q->ubatch);
    json_string(out, "kv", dtype_name(q->kv));
    json_bool(out, "deterministic", q->deterministic);
    json_string(out, "minimize", objective_names[q->objective]);
    json_close(out, '}');
}

static void json_devices(const struct plan *p, const struct problem *problem, struct text *out)
{
    json_open(out, "devices", '[');
    for (int32_t d = 0; d < p->n_devices; d++) {
        struct device_share s = device_share(p, problem, d);
        json_open(out, NULL, '{');
        json_string(out, "id", p->devices[d].id);
        json_string(out, "model", p->devices[d].model);
        json_string(out, "spec", p->devices[d].spec);
        json_integer(out, "budget_bytes", p->devices[d].budget_bytes);
        json_integer(out, "planned_bytes", p->devices[d].planned_bytes);
        if (problem) {
            json_integer(out, "weight_bytes", s.weight_bytes);
            json_integer(out, "kv_bytes", s.kv_bytes);
            json_integer(out, "work_bytes", s.work_bytes);
        }
        json_integer(out, "operators", (uint64_t)s.operators);
        json_integer(out, "kv_layers", (uint64_t)s.kv_layers);
        json_integer(out, "prefill_ns", s.prefill_ns);
        json_integer(out, "decode_ns", s.decode_ns);
        json_close(out, '}');
    }
    json_close(out, ']');
}

static void json_predicted(const struct plan *p, struct text *out)
{
    uint64_t prefill_ns, decode_ns;
    copies_of(p, &prefill_ns, &decode_ns);
    json_open(out, "predicted", '{');
    json_integer(out, "prefill_ns", p->prefill_ns);
    json_integer(out, "decode_ns", p->decode_ns);
    json_integer(out, "request_ns", p->request_ns);
    json_integer(out, "prefill_copies_ns", prefill_ns);
    json_integer(out, "decode_copies_ns", decode_ns);
    json_number(out, "prefill_tokens_per_s",
                tokens_per_s((double)p->request.prompt * p->request.batch, p->prefill_ns));
    json_number(out, "decode_tokens_per_s", tokens_per_s(p->request.batch, p->decode_ns));
    json_integer(out, "estimates", (uint64_t)estimates_of(p));
    json_close(out, '}');
    json_string(out, "solver", p->solver);
    json_integer(out, "objective_ns", p->objective_ns);
    json_integer(out, "bound_ns", p->bound_ns);
    json_bool(out, "timed_out", p->timed_out);
    json_open(out, "baselines", '[');
    for (int32_t i = 0; i < p->n_baselines; i++) {
        json_open(out, NULL, '{');
        json_string(out, "name", p->baselines[i].name);
        json_integer(out, "objective_ns", p->baselines[i].objective_ns);
        json_number(out, "gain",
                    p->objective_ns ? (double)p->baselines[i].objective_ns / (double)p->objective_ns
                                    : 1);
        json_close(out, '}');
    }
    json_close(out, ']');
}

static void json_placement(const struct plan *p, struct text *out)
{
    json_open(out, "parts", '[');
    for (int32_t i = 0; i < p->n_parts; i++) {
        const struct plan_part *t = &p->parts[i];
        json_open(out, NULL, '{');
        json_string(out, "op", t->op);
        json_string(out, "axis", op_axis_name[t->axis]);
        json_integer(out, "begin", (uint64_t)t->begin);
        json_integer(out, "end", (uint64_t)t->end);
        json_bool(out, "prefill", t->phases >> PHASE_PREFILL & 1);
        json_bool(out, "decode", t->phases >> PHASE_DECODE & 1);
        json_string(out, "device", p->devices[t->device].id);
        json_string(out, "home", p->devices[t->home].id);
        json_close(out, '}');
    }
    json_close(out, ']');
    json_open(out, "kv", '[');
    for (int32_t i = 0; i < p->n_kv; i++) {
        json_open(out, NULL, '{');
        json_integer(out, "layer", (uint64_t)p->kv[i].layer);
        json_integer(out, "head_begin", (uint64_t)p->kv[i].head_begin);
        json_integer(out, "head_end", (uint64_t)p->kv[i].head_end);
        json_string(out, "device", p->devices[p->kv[i].device].id);
        json_close(out, '}');
    }
    json_close(out, ']');
    json_open(out, "fusions", '[');
    for (int32_t i = 0; i < p->n_fusions; i++) {
        json_open(out, NULL, '{');
        json_string(out, "name", p->fusions[i].name);
        json_string(out, "op", p->fusions[i].op);
        json_close(out, '}');
    }
    json_close(out, ']');
}

static void json_rounds(const struct problem *problem, struct text *out)
{
    json_open(out, "affinity_rounds", '[');
    for (int32_t i = 0; i < problem->n_rounds; i++) {
        const struct affinity_round *r = &problem->rounds[i];
        json_open(out, NULL, '{');
        json_integer(out, "objective_ns", (uint64_t)r->objective_ns);
        json_integer(out, "moved", (uint64_t)r->moved);
        json_integer(out, "on_accelerators", (uint64_t)r->on_accelerators);
        json_bool(out, "fits", r->fits);
        json_close(out, '}');
    }
    json_close(out, ']');
}

static void report_json(const struct plan *p, const struct problem *problem, struct text *out)
{
    json_open(out, NULL, '{');
    json_string(out, "tool", p->tool);
    json_string(out, "model", p->model_name);
    json_hash(out, "structure_hash", p->structure_hash);
    json_hash(out, "content_hash", p->content_hash);
    json_hash(out, "profile_hash", p->profile_hash);
    json_hash(out, "neurons_hash", p->neurons_hash);
    json_request(p, out);
    json_predicted(p, out);
    json_open(out, "numerics", '{');
    json_string(out, "prefill", p->numerics[PHASE_PREFILL]);
    json_string(out, "decode", p->numerics[PHASE_DECODE]);
    json_close(out, '}');
    json_devices(p, problem, out);
    json_placement(p, out);
    if (problem && problem->n_rounds)
        json_rounds(problem, out);
    struct price streamed;
    if (problem && baseline_flexgen(problem, &streamed)) {
        json_integer(out, "flexgen_ns", (uint64_t)streamed.objective_ns);
        json_bool(out, "flexgen_available", false);
    }
    json_close(out, '}');
    text_printf(out, "\n");
}

/* -------------------------------------------------------------------------------- text ----- */

static void text_devices(const struct plan *p, const struct problem *problem, struct text *out)
{
    uint64_t prefill_ns, decode_ns;
    text_printf(out, "%-8s %9s %9s", "device", "operators", "KV layers");
    if (problem)
        text_printf(out, " %8s %8s %8s", "weights", "KV", "work");
    text_printf(out, " %8s %9s  %10s %10s\n", "used MiB", "of budget", "prefill ms", "decode ms");
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct plan_device *v = &p->devices[d];
        struct device_share s = device_share(p, problem, d);
        text_printf(out, "%-8s %9d %9d", v->id, s.operators, s.kv_layers);
        if (problem)
            text_printf(out, " %8.1f %8.1f %8.1f", as_mib((double)s.weight_bytes),
                        as_mib((double)s.kv_bytes), as_mib((double)s.work_bytes));
        text_printf(out, " %8.1f %9.1f  %10.3f %10.4f\n", as_mib((double)v->planned_bytes),
                    as_mib((double)v->budget_bytes), as_ms((double)s.prefill_ns),
                    as_ms((double)s.decode_ns));
    }
    copies_of(p, &prefill_ns, &decode_ns);
    text_printf(out, "%-8s %*s  %10.3f %10.4f\n", "copies", problem ? 64 : 37, "",
                as_ms((double)prefill_ns), as_ms((double)decode_ns));
}

static void text_solver(const struct plan *p, struct text *out)
{
    double gap = gap_of(p);
    text_printf(out, "solver: %s", p->solver);
    if (gap >= 0 && gap < 5e-6)
        text_printf(out, ", proven optimal");
    else if (gap >= 0)
        text_printf(out, ", at most %.3f %% from the optimum", gap * 100);
    if (p->timed_out)
        text_printf(out, ", stopped by the time limit");
    text_printf(out, "\nagainst:");
    for (int32_t i = 0; i < p->n_baselines; i++)
        text_printf(out, "%s %s %.3fx", i ? "," : "", p->baselines[i].name,
                    p->objective_ns ? (double)p->baselines[i].objective_ns / (double)p->objective_ns
                                    : 1.0);
    text_printf(out, "%s\n", p->n_baselines ? "" : " no baseline fits");
    if (estimates_of(p))
        text_printf(out,
                    "%d of %d operators were never measured in their shape: their times are "
                    "estimates\n",
                    estimates_of(p), operators_of(p));
}

/* No placement of ours, so no baseline of the plan, and no doubt about its bound: oato-run streams
 * weights for prompts only. */
static void text_flexgen(const struct plan *p, const struct problem *problem, struct text *out)
{
    struct price price;
    if (p->objective_ns && baseline_flexgen(problem, &price))
        text_printf(out,
                    "not available here: streaming weights in every step (FlexGen), ideally "
                    "%.3fx\n",
                    (double)price.objective_ns / (double)p->objective_ns);
}

/* How the affinity got there. */
static void text_rounds(const struct plan *p, const struct problem *problem, struct text *out)
{
    if (strcmp(p->solver, "affinity") != 0)
        return;
    for (int32_t i = 0; i < problem->n_rounds; i++) {
        const struct affinity_round *r = &problem->rounds[i];
        text_printf(out, "round %d: %.3f ms, %d units on accelerators, %d moved%s\n", i + 1,
                    as_ms((double)r->objective_ns), r->on_accelerators, r->moved,
                    r->fits ? "" : ", does not fit");
    }
}

void report_plan(const struct plan *p, const struct problem *problem, bool json, struct text *out)
{
    const struct plan_request *q = &p->request;
    if (json) {
        report_json(p, problem, out);
        return;
    }
    text_printf(out, "%s: %d sequence%s of %d + %d tokens, context %d, steps of %d, KV %s%s%s\n",
                *p->model_name ? p->model_name : "model", q->batch, q->batch == 1 ? "" : "s",
                q->prompt, q->generate, q->context, q->ubatch, dtype_name(q->kv),
                q->objective ? "; minimized: " : "",
                q->objective ? objective_names[q->objective] : "");
    text_devices(p, problem, out);
    text_printf(out,
                "predicted: prefill %.1f ms (%.1f tokens/s), decode %.3f ms (%.1f tokens/s), "
                "request %.1f ms\n",
                as_ms((double)p->prefill_ns),
                tokens_per_s((double)q->prompt * q->batch, p->prefill_ns),
                as_ms((double)p->decode_ns), tokens_per_s(q->batch, p->decode_ns),
                as_ms((double)p->request_ns));
    text_solver(p, out);
    if (problem) {
        text_flexgen(p, problem, out);
        text_rounds(p, problem, out);
    }
}

/* Nobody has priced the plan by the rules of who will run it. */
static const char export_note[] =
    "this translates a plan that was made for oato-run; there it may be slower than the engine's "
    "own placement (llama.cpp: --fit on), so measure both";

oato_status report_export(const struct plan *p, const struct model *m,
                          const struct export_options *o, bool json, struct text *out,
                          struct text *lost, struct oato_error *err)
{
    struct text command, gone;
    text_init(&command);
    text_init(&gone);
    oato_status status = plan_export(p, m, o, &command, &gone, err);
    if (!status && json) {
        json_open(out, NULL, '{');
        json_string(out, "command", command.data);
        json_open(out, "not_expressed", '[');
    } else if (!status) {
        text_printf(out, "%s", command.data);
        text_printf(lost, "note: %s\n", export_note);
    }
    for (char *line = gone.data, *end; !status && line && *line; line = end + 1) {
        end = strchr(line, '\n');
        *end = 0;
        if (json)
            json_string(out, NULL, line);
        else
            text_printf(lost, "not expressed: %s\n", line);
    }
    if (!status && json) {
        json_close(out, ']');
        json_string(out, "note", export_note);
        json_close(out, '}');
    }
    if (!status)
        text_printf(out, "\n");
    text_free_part(&command, out);
    text_free_part(&gone, out);
    return status ? status : text_status(out, err);
}
