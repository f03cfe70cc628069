/*
 * alternatives.c - what of a plan's request nobody gave, and what other options would bring.
 */
#include "solver/report/report_internal.h"

void alternatives_json(const struct plan *p, struct text *out)
{
    for (int chosen = 1; chosen >= 0; chosen--) {
        json_open(out, chosen ? "chosen" : "open", '[');
        for (int32_t i = 0; i < p->n_choices; i++)
            if (p->choices[i].chosen == chosen)
                json_add(out, JSON(NULL, p->choices[i].option));
        json_close(out, ']');
    }
    json_open(out, "alternatives", '[');
    for (int32_t i = 0; i < p->n_alternatives; i++) {
        const struct plan_alternative *a = &p->alternatives[i];
        json_add_object(out, NULL, JSON("option", a->option), JSON("gain", alternative_gain(p, a)),
                        JSON("why", a->why), JSON("prefill_ns", a->prefill_ns),
                        JSON("decode_ns", a->decode_ns), JSON("request_ns", a->request_ns));
    }
    json_close(out, ']');
}

void alternatives_text(const struct plan *p, struct text *out)
{
    for (int32_t i = 0; i < p->n_alternatives; i++) {
        const struct plan_alternative *a = &p->alternatives[i];
        const double gain = alternative_gain(p, a);
        text_printf(out, "with %s: %.*f x faster%s%s%s\n", a->option, gain < 2 ? 2 : 1, gain,
                    *a->why ? " (" : "", a->why, *a->why ? ")" : "");
    }
}
