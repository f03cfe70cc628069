/*
 * plan_sums.c - what a plan's predictions are made up of, so that the table of a plan adds up: the
 * work of its devices, copies, streams, waits and, taken off, what is done at the same time.
 */
#include "solver/report/report_internal.h"
#include "solver/simulation_internal.h"

#include <math.h>

/* Of all copies in a phase. */
static uint64_t copies_of(const struct plan *p, enum plan_phase phase)
{
    uint64_t ns = 0;
    for (int32_t i = 0; i < p->n_costs; i++)
        ns += p->costs[i].phase == phase ? p->costs[i].transfer_ns : 0;
    return ns;
}

/* Whether weights or KV come from elsewhere at every step. */
static bool streams(const struct plan *p)
{
    for (int32_t i = 0; i < p->n_parts; i++)
        if (p->parts[i].home != p->parts[i].device)
            return true;
    return false;
}

struct plan_sums plan_sums(const struct plan *p, const struct problem *problem,
                           const struct model *m)
{
    const uint64_t all_ns[PHASE_COUNT] = {p->prefill_ns, p->decode_ns};
    struct plan_sums sums = {.streams = false};
    struct simulation *s = NULL;
    struct oato_error why;
    if (problem && m && plan_ranks(p) == 1 && streams(p))
        sums.failed =
            simulation_run(p, m,
                           &(struct rank_options){.profiles = {problem->profile}, .n_profiles = 1},
                           &s, &why) &&
            oato_failed_memory(&why);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        struct phase_sum *sum = &sums.phase[phase];
        for (int32_t i = 0; i < p->n_costs; i++)
            if (p->costs[i].phase == (enum plan_phase)phase)
                sum->work_ns += (double)p->costs[i].ns;
        for (int32_t d = 0; d < p->n_devices && s; d++)
            sum->streams_ns += rint(simulation_load(s, (enum plan_phase)phase, d).stream_ns);
        sum->copies_ns = (double)copies_of(p, (enum plan_phase)phase);
        sum->all_ns = (double)all_ns[phase];
        const double more_ns = sum->all_ns - sum->work_ns - sum->copies_ns - sum->streams_ns;
        *(more_ns < 0 ? &sum->overlap_ns : &sum->waits_ns) = fabs(more_ns);
    }
    sums.streams = s;
    simulation_free(s);
    return sums;
}

static void json_sums_of_phase(const char *name, const struct phase_sum *s, bool with_streams,
                               struct text *out)
{
    json_open(out, name, '{');
    json_add(out, JSON("work_ns", (uint64_t)s->work_ns), JSON("copies_ns", (uint64_t)s->copies_ns));
    if (with_streams)
        json_add(out, JSON("streams_ns", (uint64_t)s->streams_ns));
    json_add(out, JSON("waits_ns", (uint64_t)s->waits_ns),
             JSON("overlap_ns", (uint64_t)s->overlap_ns), JSON("all_ns", (uint64_t)s->all_ns));
    json_close(out, '}');
}

void plan_sums_json(const struct plan_sums *sums, struct text *out)
{
    json_open(out, "made_up_of", '{');
    json_sums_of_phase("prefill", &sums->phase[PHASE_PREFILL], sums->streams, out);
    json_sums_of_phase("decode", &sums->phase[PHASE_DECODE], sums->streams, out);
    json_close(out, '}');
}

/* A line of the table that is no device's; none where it would be of zeros. */
static void text_sum(const char *name, int width, double prefill_ns, double decode_ns,
                     struct text *out)
{
    if (fabs(prefill_ns) >= 500 || fabs(decode_ns) >= 50)
        text_printf(out, "%-*s  %10.3f %10.4f\n", width, name, as_ms(prefill_ns), as_ms(decode_ns));
}

void plan_sums_text(const struct plan_sums *sums, int width, struct text *out)
{
    const struct phase_sum *prefill = &sums->phase[PHASE_PREFILL];
    const struct phase_sum *decode = &sums->phase[PHASE_DECODE];
    text_sum("copies", width, prefill->copies_ns, decode->copies_ns, out);
    text_sum("streams", width, prefill->streams_ns, decode->streams_ns, out);
    text_sum("waits", width, prefill->waits_ns, decode->waits_ns, out);
    text_sum("overlap", width, 0 - prefill->overlap_ns, 0 - decode->overlap_ns, out);
    text_sum("in all", width, prefill->all_ns, decode->all_ns, out);
}
