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
            const double share = part_share(&op->op, t->axis, t->begin, t->end);
            const bool host = problem->instance.is_host[d];
            const double read =
                stored && host ? storage_share(op, price->weight_bytes, problem->request.batch) : 1;
            *(stored ? &s.stored_bytes : &s.weight_bytes) +=
                (uint64_t)((double)price->weight_bytes * share * read);
            s.stored += stored;
            s.kv_bytes += price->kv_bytes;
        }
    }
    for (int32_t i = 0; problem && i < p->n_caches; i++)
        if (p->caches[i].device == d)
            s.weight_bytes += cache_bytes(problem, &p->caches[i]);
    if (p->devices[d].planned_bytes > s.weight_bytes + s.kv_bytes)
        s.work_bytes = p->devices[d].planned_bytes - s.weight_bytes - s.kv_bytes;
    return s;
}

int32_t operators_of(const struct plan *p, bool estimates)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_costs; i++) /* parts of an operator follow each other */
        n += p->costs[i].phase == PHASE_DECODE && (!estimates || p->costs[i].estimate) &&
             (!i || strcmp(p->costs[i].op, p->costs[i - 1].op) != 0);
    return n;
}

/* How many times as long a baseline takes. */
static double times_faster(const struct plan *p, int32_t baseline)
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
static const char *bound_of(const struct plan *p)
{
    return gap_of(p) < 0 ? "nothing" : p->n_caches ? "plans without caches" : "all";
}

/* -------------------------------------------------------------------------------- JSON ----- */

static void json_request(const struct plan *p, struct text *out)
{
    const struct plan_request *q = &p->request;
    json_add_object(out, "request", JSON("prompt", q->prompt), JSON("generate", q->generate),
                    JSON("context", q->context), JSON("batch", q->batch), JSON("ubatch", q->ubatch),
                    JSON("kv", dtype_name(q->kv)), JSON("deterministic", q->deterministic),
                    JSON("minimize", objective_names[q->objective]));
}

static void json_devices(const struct plan *p, const struct problem *problem, struct text *out)
{
    json_open(out, "devices", '[');
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct plan_device *v = &p->devices[d];
        const struct device_share s = device_share(p, problem, d);
        json_open(out, NULL, '{');
        json_add(out, JSON("id", v->id), JSON("model", v->model), JSON("spec", v->spec),
                 JSON("rank", v->rank), JSON("host", v->host),
                 JSON("budget_bytes", v->budget_bytes), JSON("planned_bytes", v->planned_bytes));
        if (plan_kernels(p, d))
            json_add(out, JSON("isa", plan_kernels(p, d)->isa),
                     JSON("layout", plan_kernels(p, d)->layout));
        if (problem)
            json_add(out, JSON("weight_bytes", s.weight_bytes), JSON("kv_bytes", s.kv_bytes),
                     JSON("work_bytes", s.work_bytes), JSON("stored_bytes", s.stored_bytes),
                     JSON("kv_file_layers", s.filed),
                     JSON("kv_file_bytes", (uint64_t)s.filed_bytes));
        json_add(out, JSON("operators", s.operators), JSON("kv_layers", s.kv_layers),
                 JSON("prefill_ns", s.prefill_ns), JSON("decode_ns", s.decode_ns));
        json_close(out, '}');
    }
    json_close(out, ']');
}

static void json_predicted(const struct plan *p, const struct plan_sums *sums, struct text *out)
{
    const double prompts = (double)p->request.prompt * p->request.batch;
    json_add_object(out, "predicted", JSON("prefill_ns", p->prefill_ns),
                    JSON("decode_ns", p->decode_ns), JSON("request_ns", p->request_ns),
                    JSON("prefill_copies_ns", (uint64_t)sums->phase[PHASE_PREFILL].copies_ns),
                    JSON("decode_copies_ns", (uint64_t)sums->phase[PHASE_DECODE].copies_ns),
                    JSON("prefill_tokens_per_s", tokens_per_s(prompts, p->prefill_ns)),
                    JSON("decode_tokens_per_s", tokens_per_s(p->request.batch, p->decode_ns)),
                    JSON("estimates", operators_of(p, true)));
    plan_sums_json(sums, out);
    json_add(out, JSON("solver", p->solver), JSON("objective_ns", p->objective_ns),
             JSON("bound_ns", p->bound_ns), JSON("bound_of", bound_of(p)),
             JSON("timed_out", p->timed_out));
    json_open(out, "baselines", '[');
    for (int32_t i = 0; i < p->n_baselines; i++)
        json_add_object(out, NULL, JSON("name", p->baselines[i].name),
                        JSON("objective_ns", p->baselines[i].objective_ns),
                        JSON("gain", times_faster(p, i)));
    json_close(out, ']');
}

static void json_placement(const struct plan *p, struct text *out)
{
    json_open(out, "parts", '[');
    for (int32_t i = 0; i < p->n_parts; i++) {
        const struct plan_part *t = &p->parts[i];
        json_add_object(out, NULL, JSON("op", t->op), JSON("axis", op_axis_name[t->axis]),
                        JSON("begin", t->begin), JSON("end", t->end),
                        json_bool("prefill", t->phases >> PHASE_PREFILL & 1),
                        json_bool("decode", t->phases >> PHASE_DECODE & 1),
                        JSON("device", device_name(p, t->device).text),
                        JSON("home", t->home == HOME_FILE ? "file" : device_name(p, t->home).text));
    }
    json_close(out, ']');
    json_open(out, "kv", '[');
    for (int32_t i = 0; i < p->n_kv; i++)
        json_add_object(out, NULL, JSON("layer", p->kv[i].layer),
                        JSON("head_begin", p->kv[i].head_begin),
                        JSON("head_end", p->kv[i].head_end),
                        JSON("device", device_name(p, p->kv[i].device).text));
    json_close(out, ']');
    json_open(out, "fusions", '[');
    for (int32_t i = 0; i < p->n_fusions; i++)
        json_add_object(out, NULL, JSON("name", p->fusions[i].name), JSON("op", p->fusions[i].op));
    json_close(out, ']');
}

static void json_caches(const struct plan *p, struct text *out)
{
    json_open(out, "caches", '[');
    for (int32_t i = 0; i < p->n_caches; i++) {
        const struct plan_cache *c = &p->caches[i];
        json_add_object(out, NULL, JSON("op", c->op),
                        JSON("device", device_name(p, c->device).text), JSON("slots", c->slots),
                        JSON("margin", c->margin * 1e-3), JSON("hits", c->hits * 1e-6));
    }
    json_close(out, ']');
}

static void json_rounds(const struct problem *problem, struct text *out)
{
    json_open(out, "affinity_rounds", '[');
    for (int32_t i = 0; i < problem->n_rounds; i++) {
        const struct affinity_round *r = &problem->rounds[i];
        json_add_object(out, NULL, JSON("objective_ns", r->objective_ns), JSON("moved", r->moved),
                        JSON("on_accelerators", r->on_accelerators), JSON("fits", r->fits));
    }
    json_close(out, ']');
}

/* bytes: of F32, up to which the way is taken. */
static void json_sums(const struct plan *p, struct text *out)
{
    json_open(out, "sums", '[');
    for (int32_t i = 0; i < p->n_sums; i++)
        json_add_object(
            out, NULL, JSON("way", sum_way_name[p->sums[i].way]),
            JSON("wire", dtype_name(p->sums[i].wire)),
            JSON("bytes", (int64_t)(p->sums[i].bytes > INT64_MAX ? INT64_MAX : p->sums[i].bytes)));
    json_close(out, ']');
}

static void report_json(const struct plan *p, const struct problem *problem,
                        const struct plan_sums *sums, struct text *out)
{
    json_open(out, NULL, '{');
    json_add(out, JSON("tool", p->tool), JSON("model", p->model_name),
             json_hash("structure_hash", p->structure_hash),
             json_hash("content_hash", p->content_hash), json_hash("profile_hash", p->profile_hash),
             json_hash("neurons_hash", p->neurons_hash), JSON("sparse_layers", p->n_sparse));
    json_request(p, out);
    json_predicted(p, sums, out);
    json_add_object(out, "numerics", JSON("prefill", p->numerics[PHASE_PREFILL]),
                    JSON("decode", p->numerics[PHASE_DECODE]));
    json_devices(p, problem, out);
    json_placement(p, out);
    if (p->n_caches)
        json_caches(p, out);
    if (p->n_sums)
        json_sums(p, out);
    if (problem)
        untimed_json(problem, out);
    if (problem)
        doubts_json(problem, out);
    if (problem && problem->n_rounds)
        json_rounds(problem, out);
    struct price streamed;
    if (problem && baseline_flexgen(problem, &streamed))
        json_add(out, JSON("flexgen_ns", streamed.objective_ns),
                 json_bool("flexgen_available", false));
    json_close(out, '}');
    text_printf(out, "\n");
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
        text_printf(out, i ? ", %s %.3f" : " %s takes %.3f times as long", p->baselines[i].name,
                    times_faster(p, i));
    text_printf(out, "%s\n",
                p->n_baselines       ? ""
                : plan_ranks(p) == 1 ? " no baseline fits"
                                     : " no baseline");
    if (operators_of(p, true))
        text_printf(out,
                    "%d of %d operators were never measured in their shape: their times are "
                    "estimates\n",
                    operators_of(p, true), operators_of(p, false));
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
                    "not available here: streaming weights in every step (FlexGen), which would "
                    "take %.3f times as long at best: %s\n",
                    (double)price.objective_ns / (double)p->objective_ns,
                    price.objective_ns < (int64_t)p->objective_ns ? "faster" : "not faster");
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

void report_plan_as(const char *title, const struct plan *p, const struct problem *problem,
                    const struct model *m, bool json, struct text *out)
{
    const struct plan_request *q = &p->request;
    const struct plan_sums sums = plan_sums(p, problem, m);
    out->failed = out->failed || sums.failed;
    if (json) {
        report_json(p, problem, &sums, out);
        return;
    }
    text_printf(out, "%s: %d sequence%s of %d + %d tokens, context %d, steps of %d, KV %s%s%s\n",
                title ? title : model_title(p, m), q->batch, q->batch == 1 ? "" : "s", q->prompt,
                q->generate, q->context, q->ubatch, dtype_name(q->kv),
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
    text_attends(p, problem, out);
    text_stored(p, problem, out);
    text_caches(p, out);
    text_sums(p, out);
    text_sparse(p, problem, out);
    text_inputs(p, problem, out);
    text_solver(p, out);
    if (problem) {
        untimed_text(problem, out);
        doubts_text(problem, out);
        text_flexgen(p, problem, out);
        text_rounds(p, problem, out);
    }
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
