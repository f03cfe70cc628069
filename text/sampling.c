/*
 * sampling.c - the sampler's options where nobody asks for them: what the model's file recommends
 * (general.sampling.*), or else the defaults of the table.
 */
#include "text/sampling.h"

#include <string.h>
#include <sys/random.h>

const struct sampling_key sampling_keys[SAMPLING_OF_GGUF] = {
    {"general.sampling.temp", "temp"},
    {"general.sampling.top_k", "top-k"},
    {"general.sampling.top_p", "top-p"},
    {"general.sampling.min_p", "min-p"},
    {"general.sampling.xtc_probability", "xtc-probability"},
    {"general.sampling.xtc_threshold", "xtc-threshold"},
    {"general.sampling.penalty_last_n", "repeat-last-n"},
    {"general.sampling.penalty_repeat", "repeat-penalty"},
    {"general.sampling.mirostat", "mirostat"},
    {"general.sampling.mirostat_tau", "mirostat-ent"},
    {"general.sampling.mirostat_eta", "mirostat-lr"},
};

/* What the file recommends for an option, or else `otherwise`. */
static double recommended(const struct gguf *g, const char *option, double least, double most,
                          double otherwise, warn_fn warn, void *user)
{
    for (size_t i = 0; i < ARRAY_LEN(sampling_keys); i++) {
        const char *key = sampling_keys[i].key;
        const struct gguf_value *value = g ? gguf_find(g, key) : NULL;
        double v;
        if (strcmp(sampling_keys[i].option, option) != 0 || !value)
            continue;
        if (gguf_value_f64(value, 0, &v) && v >= least && v <= most)
            return v;
        warn_line(warn, user,
                  "%s: %s is not a number from %.10g to %.10g; --%s is %.7g instead, as without it",
                  gguf_path(g), key, least, most, option, otherwise);
    }
    return otherwise;
}

static bool open_WHOLE(int32_t value)
{
    return value == SAMPLING_OPEN_WHOLE;
}

static bool open_NUMBER(float value)
{
    return isnan(value);
}

typedef int32_t as_WHOLE;
typedef float as_NUMBER;

void sampling_settle(struct sampler_options *o, const struct gguf *g, warn_fn warn, void *user)
{
#define SETTLE(kind, member, option, alias, arg, json, least, most, otherwise, help, more)         \
    if (open_##kind(o->member))                                                                    \
        o->member = (as_##kind)recommended(g, option, least, most, otherwise, warn, user);
    SAMPLING_OPTIONS(SETTLE)
#undef SETTLE
}

uint64_t sampling_seed(void)
{
    uint32_t seed;
    return getrandom(&seed, sizeof seed, 0) == (ssize_t)sizeof seed ? seed : now_ns() & UINT32_MAX;
}
