/*
 * report_json.c - a plan as one JSON object.
 */
#include "lowering/lowering.h"
#include "solver/planning_internal.h"
#include "solver/report/report_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

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
                     JSON("work_bytes", s.work_bytes),
                     JSON("set_aside_bytes", problem->tight ? 0 : problem->work[d]),
                     JSON("staging_bytes", s.staging_bytes),
                     JSON("page_locked_bytes", s.locked_bytes),
                     JSON("stored_bytes", s.stored_bytes), JSON("kv_file_layers", s.filed),
                     JSON("kv_file_bytes", (uint64_t)s.filed_bytes));
        if (problem && compile_seconds(problem, d) > 0)
            json_add(out, JSON("compile_s", compile_seconds(problem, d)));
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
                        JSON("title", baseline_title(&p->baselines[i])),
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

void report_json(const struct plan *p, const struct problem *problem, const struct plan_sums *sums,
                 const struct regrets *r, struct text *out)
{
    json_open(out, NULL, '{');
    json_add(out, JSON("tool", p->tool), JSON("model", p->model_name),
             json_hash("structure_hash", p->structure_hash),
             json_hash("content_hash", p->content_hash), json_hash("profile_hash", p->profile_hash),
             json_hash("neurons_hash", p->neurons_hash), JSON("sparse_layers", p->n_sparse));
    json_request(p, out);
    json_predicted(p, sums, out);
    points_json(r ? &r->request : &p->request, r, out);
    alternatives_json(p, out);
    json_add_object(out, "numerics", JSON("prefill", p->numerics[PHASE_PREFILL]),
                    JSON("decode", p->numerics[PHASE_DECODE]));
    json_devices(p, problem, out);
    json_placement(p, out);
    if (p->n_caches)
        json_caches(p, out);
    if (p->n_sums)
        json_sums(p, out);
    if (problem)
        untimed_json(p, problem, out);
    if (problem)
        doubts_json(problem, out);
    if (problem && problem->n_rounds)
        json_rounds(problem, out);
    struct price streamed;
    if (problem && baseline_flexgen(problem, &streamed))
        json_add(out, JSON("flexgen_ns", streamed.objective_ns),
                 json_bool("flexgen_available", false),
                 json_bool("flexgen_faster", streamed.objective_ns < (int64_t)p->objective_ns));
    json_close(out, '}');
    text_printf(out, "\n");
}
