/*
 * report.c - shows a plan, as text and as JSON, and has the helpers that all reports share. A plan
 * alone has devices, placement and predictions; with its problem the memory is broken down, too.
 */
#include "lowering/lowering.h"
#include "solver/planning_internal.h"
#include "solver/report/report_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const char *const objective_names[OBJECTIVE_COUNT] = {"latency", "ttft", "time-per-token"};

/* ------------------------------------------------------------------------------ helpers ---- */

double percent_more(double now, double then)
{
    return then > 0 ? (now / then - 1) * 100 : 0;
}

oato_status text_status(const struct text *t, struct oato_error *err)
{
    return t->failed ? oato_fail_memory(err, t->len, "a report") : OATO_OK;
}

const char *model_title(const struct plan *p, const struct model *m)
{
    const char *path = m ? gguf_path(m->gguf) : "", *base = strrchr(path, '/');
    if (!m || !gguf_header_only(m->gguf))
        return *or_empty(p->model_name) ? p->model_name : "model";
    return base ? base + 1 : path;
}

/* ------------------------------------------------------------------------------ figures ---- */

struct device_name device_name(const struct plan *p, int32_t d)
{
    const struct plan_device *v = &p->devices[d];
    struct device_name name;
    if (plan_ranks(p) > 1)
        snprintf(name.text, sizeof name.text, "%s of rank %d on host %d", v->id, v->rank, v->host);
    else
        snprintf(name.text, sizeof name.text, "%s", v->id);
    return name;
}

int device_width(const struct plan *p)
{
    size_t width = 8;
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct device_name name = device_name(p, d);
        width = strlen(name.text) > width ? strlen(name.text) : width;
    }
    return (int)width;
}

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
            const bool stored = t->home == HOME_FILE;
            if (stored && op->op.kind == OP_KV_STORE) {
                const struct request_step step = request_decode_step(&problem->request);
                const uint64_t room = storage_kv_room(&problem->graph, &op->op, &problem->request);
                s.kv_rooms = (uint64_t)max_i64((int64_t)s.kv_rooms, (int64_t)(KV_ROOMS * room));
                s.filed++;
                s.filed_bytes +=
                    storage_kv_bytes(&problem->graph, &op->op, problem->request.kv, &step);
                continue;
            }
            if (!stored)
                continue;
            const double share = part_share(&op->op, t->axis, t->begin, t->end);
            const double read = problem->instance.is_host[d]
                                    ? storage_share(op, price->weight_bytes, problem->request.batch)
                                    : 1;
            s.stored_bytes += (uint64_t)((double)price->weight_bytes * share * read);
            s.stored++;
        }
    }
    if (problem && problem->memory) {
        const struct device_memory *m = &problem->memory[d];
        s.weight_bytes = m->weights;
        s.kv_bytes = m->kv;
        s.staging_bytes = m->room;
        s.locked_bytes = memory_stated(m, p->devices[d].budget_bytes) - device_memory_sum(m);
    }
    if (p->devices[d].planned_bytes > s.weight_bytes + s.kv_bytes)
        s.work_bytes = p->devices[d].planned_bytes - s.weight_bytes - s.kv_bytes;
    return s;
}

static int32_t functions_of(const struct problem *p, int32_t device)
{
    const struct cost_device d = cost_device(p->cost, p->device[device]);
    int32_t sizes = 0;
    while (sizes < DEVICE_ROWS && d.rows[sizes])
        sizes++;
    return p->memory ? p->memory[device].functions * (sizes ? sizes : 1) : 0;
}

double compile_seconds(const struct problem *p, int32_t device)
{
    return functions_of(p, device) * cost_device(p->cost, p->device[device]).compile_s;
}

void compile_text(const struct problem *p, struct text *out)
{
    for (int32_t d = 0; d < p->n_devices; d++)
        if (compile_seconds(p, d) > 0)
            text_printf(out, "start-up: %s compiles %d functions in %.1f s%s\n",
                        problem_device(p, d), functions_of(p, d), compile_seconds(p, d),
                        cost_device(p->cost, p->device[d]).compile_cached
                            ? ", the first time on a machine"
                            : "");
}

int32_t operators_of(const struct plan *p, bool estimates)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_costs; i++) /* parts of an operator follow each other */
        n += p->costs[i].phase == PHASE_DECODE && (!estimates || p->costs[i].estimate) &&
             (!i || strcmp(p->costs[i].op, p->costs[i - 1].op) != 0);
    return n;
}

const char *baseline_title(const struct plan_baseline *b)
{
    static const char *const titles[][2] = {
        {"cpu", "the processor alone"},   {"layers", "whole layers"},
        {"fit", "llama.cpp --fit"},       {"powerinfer", "PowerInfer's rule"},
        {"affinity-once", "greedy rule"}, {"affinity", "greedy rule with copies"},
    };
    for (size_t i = 0; i < ARRAY_LEN(titles); i++)
        if (!strcmp(b->name, titles[i][0]))
            return titles[i][1];
    return b->name;
}

/* How many times as long a baseline takes. */
double times_faster(const struct plan *p, int32_t baseline)
{
    return p->objective_ns ? (double)p->baselines[baseline].objective_ns / (double)p->objective_ns
                           : 1;
}

double tokens_per_s(double tokens, uint64_t ns)
{
    return ns ? tokens * 1e9 / (double)ns : 0;
}

double round_step(double span, int steps)
{
    const double least = span / steps, power = pow(10, floor(log10(least)));
    const double part = least / power;
    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

double gap_of(const struct plan *p)
{
    if (!p->bound_ns || !p->objective_ns || p->bound_ns > p->objective_ns)
        return -1;
    return (double)(p->objective_ns - p->bound_ns) / (double)p->objective_ns;
}

/* The plans that the plan's bound covers: caches are added to a finished one. */
const char *bound_of(const struct plan *p)
{
    return gap_of(p) < 0 ? "nothing" : p->n_caches ? "plans without caches" : "all";
}

/* -------------------------------------------------------------------------------- text ----- */

static void text_sums(const struct plan *p, struct text *out)
{
    if (plan_has_stages(p))
        text_printf(out, "layers of ranks: some for each, one rank behind the other\n");
    if (plan_ranks(p) == 1 || plan_has_stages(p))
        return;
    text_printf(out, "sums of ranks: by ");
    for (int32_t i = 0; i < p->n_sums; i++) {
        text_printf(out, "%s%s", i ? ", " : "", sum_way_name[p->sums[i].way]);
        if (i + 1 < p->n_sums)
            text_printf(out, " up to %llu bytes", (unsigned long long)p->sums[i].bytes);
    }
    text_printf(out, "%s, %s between hosts\n", p->n_sums ? "" : sum_way_name[SUM_TREE],
                dtype_name(plan_wire(p)));
}

static void text_devices(const struct plan *p, const struct problem *problem,
                         const struct plan_sums *sums, struct text *out)
{
    const int wide = device_width(p), width = wide + 1 + (problem ? 64 : 37);
    text_printf(out, "%-*s %9s %9s", wide, "device", "operators", "KV layers");
    if (problem)
        text_printf(out, " %8s %8s %8s", "weights", "KV", "work");
    text_printf(out, " %8s %9s  %10s %10s\n", "used MiB", "of budget", "prefill ms", "decode ms");
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct plan_device *v = &p->devices[d];
        struct device_share s = device_share(p, problem, d);
        text_printf(out, "%-*s %9d %9d", wide, device_name(p, d).text, s.operators, s.kv_layers);
        if (problem)
            text_printf(out, " %8.1f %8.1f %8.1f", as_mib((double)s.weight_bytes),
                        as_mib((double)s.kv_bytes), as_mib((double)s.work_bytes));
        text_printf(out, " %8.1f %9.1f  %10.3f %10.4f\n", as_mib((double)v->planned_bytes),
                    as_mib((double)v->budget_bytes), as_ms((double)s.prefill_ns),
                    as_ms((double)s.decode_ns));
    }
    plan_sums_text(sums, width, out);
}

static void text_solver(const struct plan *p, struct text *out)
{
    double gap = gap_of(p);
    text_printf(out, "solver: %s, objective (%s, a sum) %.3f ms", p->solver,
                objective_names[p->request.objective], as_ms((double)p->objective_ns));
    if (gap >= 0 && gap < 5e-6)
        text_printf(out, ", proven optimal");
    else if (gap >= 0)
        text_printf(out, ", at most %.3f %% from the optimum", gap * 100);
    else
        text_printf(out, ", not proven");
    if (gap >= 0 && p->n_caches)
        text_printf(out, " of plans without a cache of experts, which was added to it");
    if (p->timed_out)
        text_printf(out, ", stopped by the time limit");
    text_printf(out, "\nagainst:");
    for (int32_t i = 0; i < p->n_baselines; i++)
        text_printf(out, i ? ", %s %.3f" : " %s takes %.3f times as long",
                    baseline_title(&p->baselines[i]), times_faster(p, i));
    text_printf(out, "%s\n",
                p->n_baselines       ? ""
                : plan_ranks(p) == 1 ? " no baseline fits"
                                     : " no baseline");
    if (operators_of(p, true))
        text_printf(out,
                    "%d of %d operators were never measured in their shape: their times are "
                    "estimates\n",
                    operators_of(p, true), operators_of(p, false));
    for (int32_t d = 0; d < p->n_devices; d++)
        if (is_stand_in(p->devices[d].model))
            text_printf(out, "%s is a %s: its times are no hardware's\n", device_name(p, d).text,
                        p->devices[d].model);
}

/* The same size in all layers, unless the host decodes fewer experts. */
static void text_caches(const struct plan *p, struct text *out)
{
    double hits = 0;
    int32_t slots = 0;
    for (int32_t i = 0; i < p->n_caches; i++) {
        hits += p->caches[i].hits * 1e-4 / p->n_caches;
        slots += p->caches[i].slots;
    }
    if (p->n_caches)
        text_printf(out,
                    "cache of experts: %d slots in %d layers on %s; %.1f %% of the host's choices "
                    "predicted to find theirs there\n",
                    slots, p->n_caches, device_name(p, p->caches[0].device).text, hits);
}

void cache_text(const struct plan *p, const struct problem *problem, const struct plan_cache *c,
                const char *indent, bool json, struct text *out)
{
    const struct device_name name = device_name(p, c->device);
    const char *id = name.text;
    const uint64_t bytes = problem ? cache_bytes(problem, c) : 0;
    if (json) {
        json_open(out, "cache", '{');
        json_add(out, JSON("device", id), JSON("slots", c->slots), JSON("bytes", bytes),
                 JSON("hits", c->hits * 1e-6));
        json_close(out, '}');
        return;
    }
    text_printf(out, "%s%d slots on %s cache experts of the host", indent, c->slots, id);
    if (bytes)
        text_printf(out, ", %.2f MiB", as_mib((double)bytes));
    text_printf(out, ": %.1f %% of choices predicted to find theirs there\n", c->hits * 1e-4);
}

/* Whether the operator runs on d with its home elsewhere in memory. */
static bool part_attends(const struct plan *p, const char *op, int32_t d)
{
    for (int32_t i = 0; i < p->n_parts; i++)
        if (p->parts[i].device == d && p->parts[i].home >= 0 && p->parts[i].home != d &&
            !strcmp(p->parts[i].op, op))
            return true;
    return false;
}

/* Layers of the host whose KV is streamed to a device in prefill. */
static void text_attends(const struct plan *p, const struct problem *problem, struct text *out)
{
    for (int32_t d = 0; d < p->n_devices && problem; d++) {
        int32_t layers = 0;
        for (int32_t i = 0; i < problem->graph.n_ops; i++)
            layers += problem->graph.ops[i].op.kind == OP_ATTENTION &&
                      part_attends(p, problem->graph.ops[i].name, d);
        if (layers)
            text_printf(out,
                        "KV of %d layers stays with the host; prompts attend to it on %s, through "
                        "rooms of %.1f MiB (part of work)\n",
                        layers, p->devices[d].id, as_mib((double)problem->instance.rooms[d]));
    }
}

static void text_stored(const struct plan *p, const struct problem *problem, struct text *out)
{
    for (int32_t d = 0; d < p->n_devices && problem && problem->stored; d++) {
        const struct device_share s = device_share(p, problem, d);
        if (s.stored)
            text_printf(out,
                        "streamed from the file of prepared weights: %d operators of %s, %.1f MiB "
                        "a step, through a ring of %.1f MiB (part of work)\n",
                        s.stored, device_name(p, d).text, as_mib((double)s.stored_bytes),
                        as_mib((double)(problem->ring_bytes - s.kv_rooms)));
        if (s.filed)
            text_printf(
                out,
                "KV of %d layers of %s stays in a file, which a step of decode reads and "
                "writes %.1f MiB of; it takes turns in %d rooms of %.1f MiB (part of work)\n",
                s.filed, device_name(p, d).text, as_mib(s.filed_bytes), KV_ROOMS,
                as_mib((double)s.kv_rooms / KV_ROOMS));
    }
}

static const char *estimated(const struct plan *p, const struct problem *problem)
{
    return problem && !sparse_measured(problem, p)
               ? "; estimates: the profile has no times of that (oato-profile --sparse)"
               : "";
}

static void text_inputs(const struct plan *p, const struct problem *problem, struct text *out)
{
    double silent = 0;
    for (int32_t i = 0; i < p->n_inputs; i++)
        silent += (double)p->inputs[i].silent / p->n_inputs;
    if (p->n_inputs)
        text_printf(out, "inputs near zero: skipped by %d matrices, %.0f %% on average%s\n",
                    p->n_inputs, 100 * silent, p->n_sparse ? "" : estimated(p, problem));
}

/* Where silent neurons are skipped; on some devices it may be faster to compute all. */
static void text_sparse(const struct plan *p, const struct problem *problem, struct text *out)
{
    if (!p->n_sparse)
        return;
    const struct plan_sparse *first = &p->sparse[0];
    int32_t predicted = 0;
    for (int32_t i = 0; i < p->n_sparse; i++)
        predicted += p->sparse[i].predicts != 0;
    text_printf(out, "silent neurons: skipped in %d layers%s", p->n_sparse,
                first->threshold > 0 ? ", near zero counts as silent" : "");
    if (predicted)
        text_printf(out, ", in %d of them found by predictors before gate", predicted);
    for (int32_t d = 0; d < p->n_devices; d++) {
        int32_t dense = 0;
        for (int32_t i = 0; i < p->n_sparse; i++)
            dense += p->sparse[i].dense >> d & 1;
        if (dense)
            text_printf(out, ", but in %d of them %s computes all of its own", dense,
                        device_name(p, d).text);
    }
    text_printf(out, "%s\n", estimated(p, problem));
}

/* No placement of ours, so no baseline of the plan, and no doubt about its bound: oato-run streams
 * weights for prompts only. */
static void text_flexgen(const struct plan *p, const struct problem *problem, struct text *out)
{
    struct price price;
    if (p->objective_ns && baseline_flexgen(problem, &price))
        text_printf(out,
                    "not available here: streaming weights in every step (FlexGen): %s, %.3f times "
                    "as long as this plan at best\n",
                    price.objective_ns < (int64_t)p->objective_ns ? "it might be faster"
                                                                  : "it would not be faster",
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

void report_plan_regrets(const char *title, const struct plan *p, const struct problem *problem,
                         const struct model *m, const struct regrets *r, bool json,
                         struct text *out)
{
    const struct plan_request *q = &p->request;
    const struct plan_sums sums = plan_sums(p, problem, m);
    out->failed = out->failed || sums.failed;
    if (json) {
        report_json(p, problem, &sums, r, out);
        return;
    }
    text_printf(out, "%s: %d sequence%s of %s, context %d, steps of %d, KV %s%s%s\n",
                title ? title : model_title(p, m), q->batch, q->batch == 1 ? "" : "s",
                request_tokens(q).text, q->context, q->ubatch, dtype_name(q->kv),
                q->objective ? "; minimized: " : "",
                q->objective ? objective_names[q->objective] : "");
    text_devices(p, problem, &sums, out);
    text_printf(out,
                "predicted: prefill %.1f ms (%.1f tokens/s), decode %.3f ms (%.1f tokens/s), "
                "request %.1f ms\n",
                as_ms((double)p->prefill_ns),
                tokens_per_s((double)q->prompt * q->batch, p->prefill_ns),
                as_ms((double)p->decode_ns), tokens_per_s(q->batch, p->decode_ns),
                as_ms((double)p->request_ns));
    points_text(r ? &r->request : q, r, out);
    text_attends(p, problem, out);
    text_stored(p, problem, out);
    text_caches(p, out);
    if (problem)
        compile_text(problem, out);
    text_sums(p, out);
    text_sparse(p, problem, out);
    text_inputs(p, problem, out);
    text_solver(p, out);
    alternatives_text(p, out);
    if (problem) {
        untimed_text(p, problem, out);
        doubts_text(problem, out);
        text_flexgen(p, problem, out);
        text_rounds(p, problem, out);
    }
}

void report_plan_as(const char *title, const struct plan *p, const struct problem *problem,
                    const struct model *m, bool json, struct text *out)
{
    report_plan_regrets(title, p, problem, m, NULL, json, out);
}

void report_plan(const struct plan *p, const struct problem *problem, bool json, struct text *out)
{
    report_plan_as(NULL, p, problem, NULL, json, out);
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
        json_add(out, JSON("command", command.data));
        json_open(out, "not_expressed", '[');
    } else if (!status) {
        text_printf(out, "%s", command.data);
        text_printf(lost, "note: %s\n", export_note);
    }
    for (char *line = gone.data, *end; !status && line && *line; line = end + 1) {
        end = strchr(line, '\n');
        *end = 0;
        if (json)
            json_add(out, JSON(NULL, line));
        else
            text_printf(lost, "not expressed: %s\n", line);
    }
    if (!status && json) {
        json_close(out, ']');
        json_add(out, JSON("note", export_note));
        json_close(out, '}');
    }
    if (!status)
        text_printf(out, "\n");
    text_free_part(&command, out);
    text_free_part(&gone, out);
    return status ? status : text_status(out, err);
}
