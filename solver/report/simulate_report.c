/*
 * simulate_report.c - reports of a simulation: its times next to the plan's predictions, the load
 * of each device and what it waits for, and the steps as trace events for chrome://tracing or
 * ui.perfetto.dev.
 */
#include "solver/report/report_internal.h"
#include "solver/simulation_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const phase_names[PHASE_COUNT] = {"prefill", "decode"};

/* ------------------------------------------------------------------------------- figures --- */

struct sim_row {
    const char *name;
    uint64_t predicted_ns, simulated_ns;
};

enum { SIM_ROWS = 5 };

static void list_rows(const struct simulation *s, struct sim_row rows[SIM_ROWS])
{
    const struct plan *p = s->plan;
    const uint64_t ttft_ns = p->request.prompt ? p->prefill_ns : p->decode_ns;
    rows[0] = (struct sim_row){"prefill", p->prefill_ns, (uint64_t)s->prefill_ns};
    rows[1] = (struct sim_row){"decode", p->decode_ns, (uint64_t)s->decode_ns};
    rows[2] = (struct sim_row){"request", p->request_ns, (uint64_t)s->request_ns};
    rows[3] = (struct sim_row){"ttft", ttft_ns, (uint64_t)simulation_ttft_ns(s)};
    const struct price price = request_price(&p->request, s->prefill_ns, s->decode_ns);
    rows[4] = (struct sim_row){"objective", p->objective_ns, (uint64_t)price.objective_ns};
    if (s->middle < 0) /* nothing is generated: no step to compare with */
        rows[1].predicted_ns = 0;
}

static double ratio(const struct sim_row *r)
{
    return r->simulated_ns ? (double)r->predicted_ns / (double)r->simulated_ns : 1;
}

static double idle_ns(const struct simulation *s, const struct sim_load *l)
{
    double ns = l->span_ns - l->run_ns - l->copy_ns;
    for (int32_t q = 0; q < 2 * s->plan->n_devices; q++)
        ns -= l->wait_ns[q];
    return fmax(ns, 0);
}

static void queue_name(const struct simulation *s, int32_t queue, char *name, size_t n)
{
    const bool stream = queue >= s->plan->n_devices;
    snprintf(name, n, "%s%s", device_name(s->plan, queue % s->plan->n_devices).text,
             stream ? " weights" : "");
}

/* "chunks 1 2 of 2; tokens 1 17 32 of 32", for each point. */
static void list_simulated(const struct simulation *s, struct text *out)
{
    static const char *const names[PHASE_COUNT] = {"chunks", "tokens"};
    const struct plan_request *q = &s->plan->request;
    for (int32_t k = 0; k < PHASE_COUNT * request_points(q); k++) {
        const int32_t phase = k % PHASE_COUNT, point = k / PHASE_COUNT;
        const int32_t all = phase == PHASE_PREFILL ? request_prefill_steps(q, point)
                                                   : request_point(q, point).generate;
        if (!all)
            continue;
        text_printf(out, "%s%s", out->len ? "; " : "", names[phase]);
        for (int32_t i = 0; i < s->n_steps; i++)
            if ((int32_t)s->steps[i].phase == phase && s->steps[i].point == point)
                text_printf(out, " %d", s->steps[i].number + 1);
        text_printf(out, " of %d", all);
    }
}

/* ---------------------------------------------------------------------------------- JSON --- */

static void load_json(const struct simulation *s, enum plan_phase phase, int32_t d,
                      struct text *out)
{
    const struct sim_load l = simulation_load(s, phase, d);
    json_open(out, phase_names[phase], '{');
    json_add(out, JSON("run_ns", (uint64_t)l.run_ns), JSON("copy_ns", (uint64_t)l.copy_ns),
             JSON("stream_ns", (uint64_t)l.stream_ns), JSON("span_ns", (uint64_t)l.span_ns),
             JSON("busy", l.span_ns > 0 ? (l.run_ns + l.copy_ns) / l.span_ns : 0));
    json_open(out, "waits_ns", '{');
    for (int32_t q = 0; q < 2 * s->plan->n_devices; q++) {
        char name[80];
        queue_name(s, q, name, sizeof name);
        if (l.wait_ns[q] > 0)
            json_add(out, JSON(name, (uint64_t)l.wait_ns[q]));
    }
    json_close(out, '}');
    json_add(out, JSON("idle_ns", (uint64_t)idle_ns(s, &l)));
    json_close(out, '}');
}

static void simulation_json(const struct simulation *s, struct text *out)
{
    struct sim_row rows[SIM_ROWS];
    list_rows(s, rows);
    json_open(out, NULL, '{');
    for (int i = 0; i < SIM_ROWS; i++)
        json_add_object(out, rows[i].name, JSON("predicted_ns", rows[i].predicted_ns),
                        JSON("simulated_ns", rows[i].simulated_ns),
                        JSON("predicted_over_simulated", ratio(&rows[i])));
    json_open(out, "steps", '[');
    for (int32_t i = 0; i < s->n_steps; i++) {
        const struct simulated_step *step = &s->steps[i];
        json_add_object(out, NULL, JSON("phase", phase_names[step->phase]),
                        JSON("point", step->point), JSON("number", step->number),
                        JSON("tokens", step->size.tokens), JSON("stands_for", step->times),
                        JSON("ns", step->end_ns - step->begin_ns));
    }
    json_close(out, ']');
    json_open(out, "devices", '[');
    for (int32_t d = 0; d < s->plan->n_devices; d++) {
        json_open(out, NULL, '{');
        if (s->n_ranks > 1)
            json_add(out, JSON("rank", s->plan->devices[d].rank),
                     JSON("host", s->plan->devices[d].host));
        json_add(out, JSON("id", s->plan->devices[d].id));
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            load_json(s, (enum plan_phase)phase, d, out);
        json_close(out, '}');
    }
    json_close(out, ']');
    json_close(out, '}');
    text_printf(out, "\n");
}

/* ---------------------------------------------------------------------------------- text --- */

static void load_text(const struct simulation *s, enum plan_phase phase, int32_t d,
                      struct text *out)
{
    const struct sim_load l = simulation_load(s, phase, d);
    const double percent = l.span_ns > 0 ? 100 / l.span_ns : 0;
    text_printf(out, "%-*s %-8s %10.3f %7.1f %7.1f ", device_width(s->plan),
                device_name(s->plan, d).text, phase_names[phase], as_ms(l.run_ns + l.copy_ns),
                (l.run_ns + l.copy_ns) * percent, l.copy_ns * percent);
    if (l.stream_ns > 0)
        text_printf(out, "%8.1f ", l.stream_ns * percent);
    else
        text_printf(out, "%8s ", "-");
    text_printf(out, "%7.1f  ", idle_ns(s, &l) * percent);
    bool any = false;
    for (int32_t q = 0; q < 2 * s->plan->n_devices; q++) {
        char name[80];
        if (l.wait_ns[q] * percent < 0.05)
            continue;
        queue_name(s, q, name, sizeof name);
        text_printf(out, "%s%s %.1f", any ? ", " : "", name, l.wait_ns[q] * percent);
        any = true;
    }
    text_printf(out, "%s\n", any ? "" : "nobody");
}

static void simulation_text(const struct simulation *s, struct text *out)
{
    const struct plan_request *q = &s->plan->request;
    struct sim_row rows[SIM_ROWS];
    struct text steps;
    text_init(&steps);
    list_simulated(s, &steps);
    list_rows(s, rows);
    text_printf(out, "%s: %d sequence%s of %s; simulated: %s\n",
                *s->plan->model_name ? s->plan->model_name : "model", q->batch,
                q->batch == 1 ? "" : "s", request_tokens(q).text, steps.data ? steps.data : "-");
    text_free_part(&steps, out);
    text_printf(out, "%-9s %13s %13s %10s\n", "ms", "predicted", "simulated", "ratio");
    for (int i = 0; i < SIM_ROWS; i++) {
        if (!rows[i].simulated_ns)
            continue;
        text_printf(out, "%-9s %13.3f %13.3f %10.4f\n", rows[i].name,
                    as_ms((double)rows[i].predicted_ns), as_ms((double)rows[i].simulated_ns),
                    ratio(&rows[i]));
    }
    text_printf(out, "%-*s %-8s %10s %7s %7s %8s %7s  %s\n", device_width(s->plan), "device",
                "phase", "busy ms", "busy %", "copy %", "stream %", "idle %", "waits for (%)");
    for (int32_t d = 0; d < s->plan->n_devices; d++)
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            if (phase == PHASE_PREFILL ? s->prefill_ns > 0 : s->middle >= 0)
                load_text(s, (enum plan_phase)phase, d, out);
}

void report_simulation(const struct simulation *s, bool json, struct text *out)
{
    if (json)
        simulation_json(s, out);
    else
        simulation_text(s, out);
}

/* --------------------------------------------------------------------------------- trace --- */

enum { TRACE_REQUEST = 0 }; /* its process; devices follow */

enum { THREAD_QUEUE = 1, THREAD_STREAM = 2 };

static void time_json(struct text *out, const char *key, int64_t ns)
{
    json_key(out, key);
    text_printf(out, "%" PRId64 ".%03" PRId64, ns / 1000, ns % 1000);
}

/* Opens an object with what all trace events have. */
static void trace_open(struct text *out, const char *phase, const char *name, int32_t process,
                       int32_t thread)
{
    const bool first = !out->len || out->data[out->len - 1] == '['; /* no text: out of memory */
    text_printf(out, first ? "\n{" : ",\n{");
    json_add(out, JSON("ph", phase), JSON("name", name), JSON("pid", process), JSON("tid", thread));
}

static void trace_name(struct text *out, const char *what, int32_t process, int32_t thread,
                       const char *name)
{
    trace_open(out, "M", what, process, thread);
    json_add_object(out, "args", JSON("name", name));
    json_close(out, '}');
}

static int32_t thread_of(const struct event *e)
{
    return e->kind == EVENT_STREAM ? THREAD_STREAM : THREAD_QUEUE;
}

static void trace_event(const struct simulation *s, const struct event *e, struct text *out)
{
    static const char *const kinds[EVENT_KINDS] = {"step",     "run",  "merge",  "upload",
                                                   "download", "peer", "stream", "exchange"};
    char name[160];
    const struct graph_op *op = e->op < 0 ? NULL : &s->graph.ops[e->op];
    if (!op)
        snprintf(name, sizeof name, "step");
    else if (e->kind == EVENT_RUN)
        snprintf(name, sizeof name, "%s", op->name);
    else
        snprintf(name, sizeof name, "%s %s", kinds[e->kind], op->name);
    trace_open(out, "X", name, e->device + 1, thread_of(e));
    json_add(out, JSON("cat", kinds[e->kind]));
    time_json(out, "ts", e->begin_ns);
    time_json(out, "dur", e->end_ns - e->begin_ns);
    json_open(out, "args", '{');
    if (op) {
        char part[32];
        snprintf(part, sizeof part, "%d/%d", e->part + 1, e->parts);
        json_add(out, JSON("op", op->name), JSON("kind", op_kind_name(op->op.kind)),
                 JSON("part", part), JSON("bytes", e->bytes), JSON("estimate", e->estimate));
    }
    if (e->wait_ns > 0)
        time_json(out, "waited_us", e->wait_ns);
    json_close(out, '}');
    json_close(out, '}');
}

/* An arrow from the end of what was waited for; in the middle of both slices, where viewers look
 * for them. */
static void trace_arrow(const struct simulation *s, int32_t index, struct text *out)
{
    const struct event *to = &s->events[index], *from = &s->events[to->waited_for];
    for (int end = 0; end < 2; end++) {
        const struct event *e = end ? to : from;
        trace_open(out, end ? "f" : "s", "wait", e->device + 1, thread_of(e));
        json_add(out, JSON("cat", "wait"), JSON("id", index));
        time_json(out, "ts", end ? e->begin_ns : e->begin_ns + (e->end_ns - e->begin_ns) / 2);
        if (end)
            json_add(out, JSON("bp", "e"));
        json_close(out, '}');
    }
}

static void trace_step(const struct simulation *s, const struct simulated_step *step,
                       struct text *out)
{
    char name[48];
    snprintf(name, sizeof name, "%s %d", phase_names[step->phase], step->number + 1);
    trace_open(out, "X", name, TRACE_REQUEST, 1);
    json_add(out, JSON("cat", "request"));
    time_json(out, "ts", step->begin_ns);
    time_json(out, "dur", step->end_ns - step->begin_ns);
    json_add_object(out, "args", JSON("phase", phase_names[step->phase]),
                    JSON("tokens", step->size.tokens), JSON("stands_for", step->times));
    json_close(out, '}');
    for (int32_t i = step->first; i < step->first + step->n; i++) {
        trace_event(s, &s->events[i], out);
        if (s->events[i].waited_for >= 0)
            trace_arrow(s, i, out);
    }
}

void report_trace(const struct simulation *s, struct text *out)
{
    json_open(out, NULL, '{');
    json_add(out, JSON("displayTimeUnit", "ms"));
    json_add_object(out, "otherData", JSON("model", s->plan->model_name), JSON("clock", "virtual"));
    json_open(out, "traceEvents", '[');
    trace_name(out, "process_name", TRACE_REQUEST, 0, "request");
    trace_name(out, "thread_name", TRACE_REQUEST, 1, "steps");
    for (int32_t d = 0; d < s->plan->n_devices; d++) {
        char name[160];
        snprintf(name, sizeof name, "%s %s", device_name(s->plan, d).text,
                 s->plan->devices[d].model);
        trace_name(out, "process_name", d + 1, 0, name);
        trace_name(out, "thread_name", d + 1, THREAD_QUEUE, "queue");
        if (d != sim_rank_of(s, d)->host)
            trace_name(out, "thread_name", d + 1, THREAD_STREAM, "streamed weights");
    }
    for (int32_t i = 0; i < s->n_steps; i++)
        trace_step(s, &s->steps[i], out);
    json_close(out, ']');
    json_close(out, '}');
    text_printf(out, "\n");
}
