/*
 * brief.c - a plan in two lines, for those who asked for an answer and not for a plan: where the
 * model is, and what that promises.
 */
#include "solver/planning_internal.h"
#include "solver/report/report_internal.h"

#include <string.h>

static void add_bytes(struct text *out, uint64_t bytes)
{
    const double mib = as_mib((double)bytes);
    if (mib >= 1024)
        text_printf(out, "%.1f GiB", mib / 1024);
    else
        text_printf(out, mib >= 10 ? "%.0f MiB" : "%.1f MiB", mib);
}

/* Operators some of whose weights are read from the file, and that are copied to another device, at
 * every step of a phase. */
static void count_streams(const struct plan *p, int32_t *stored, int32_t *streamed)
{
    const char *last[2] = {"", ""};
    *stored = *streamed = 0;
    for (int32_t i = 0; i < p->n_parts; i++) {
        const struct plan_part *t = &p->parts[i];
        const bool file = t->home == HOME_FILE;
        if ((!file && t->home == t->device) || !strcmp(last[file], t->op))
            continue;
        last[file] = t->op;
        ++*(file ? stored : streamed);
    }
}

static void add_devices(const struct plan *p, struct text *out)
{
    const int32_t all = operators_of(p, false);
    int32_t stored, streamed, listed = 0;
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct plan_device *v = &p->devices[d];
        const struct device_share s = device_share(p, NULL, d);
        if (!s.operators && !v->planned_bytes)
            continue;
        text_printf(out, "%s%s", listed++ ? "; " : "", device_name(p, d).text);
        if (v->model[0])
            text_printf(out, " (%s)", v->model);
        if (s.operators == all)
            text_printf(out, " runs everything in ");
        else
            text_printf(out, " runs %d of %d operators in ", s.operators, all);
        add_bytes(out, v->planned_bytes);
        text_printf(out, " of ");
        add_bytes(out, v->budget_bytes);
    }
    count_streams(p, &stored, &streamed);
    if (streamed)
        text_printf(out, "; weights of %d operators are streamed for prompts", streamed);
    if (stored)
        text_printf(out, "; weights or KV of %d operators are read from a file at every step",
                    stored);
}

static void add_time(struct text *out, uint64_t ns)
{
    const double seconds = (double)ns * 1e-9;
    text_printf(out, seconds < 0.1 ? "%.1f ms" : "%.2f s", seconds < 0.1 ? 1e3 * seconds : seconds);
}

/* Placements that a person would choose by hand, or another engine by itself. */
static bool is_simple(const struct plan_baseline *b)
{
    return !strcmp(b->name, "cpu") || !strcmp(b->name, "layers") || !strcmp(b->name, "fit");
}

/* For the first kind of request. */
static void add_promise(const struct plan *p, struct text *out)
{
    const struct plan_point first = request_point(&p->request, 0);
    const bool several = p->request.n_points > 0;
    const uint64_t prefill_ns = several ? first.prefill_ns : p->prefill_ns;
    const uint64_t decode_ns = several ? first.decode_ns : p->decode_ns;
    const int32_t batch = p->request.batch > 0 ? p->request.batch : 1;
    const char *behind = "", *separator = "; ";
    if (first.prompt > 0 && prefill_ns) {
        if (batch > 1)
            text_printf(out, "%d prompts of %d tokens each in ", batch, first.prompt);
        else
            text_printf(out, "a prompt of %d tokens in ", first.prompt);
        add_time(out, prefill_ns);
        behind = ", then ";
    }
    if (first.generate > 0 && decode_ns)
        text_printf(out, "%s%.1f tokens/s", behind, tokens_per_s(batch, decode_ns));
    for (int32_t i = 0; i < p->n_baselines; i++)
        if (is_simple(&p->baselines[i])) {
            text_printf(out, "%s%.2f x as fast as %s", separator, times_faster(p, i),
                        baseline_title(&p->baselines[i]));
            separator = ", ";
        }
}

void report_plan_brief(const struct plan *p, struct text *out)
{
    text_printf(out, "plan: ");
    add_devices(p, out);
    text_printf(out, "\npromise: ");
    add_promise(p, out);
    text_printf(out, "\n");
}
