/*
 * sampling.h - the options of the sampler, a row each: what the programs' command lines, requests,
 * openapi.json and the settings that answers tell are made from.
 */
#ifndef OATO_SAMPLING_H
#define OATO_SAMPLING_H

#include "text/sampler.h"

#include <math.h>

/* X(KIND, MEMBER, OPTION, ALIAS, ARG, JSON, LEAST, MOST, OTHERWISE, HELP, MORE): KIND is WHOLE
 * (int32_t) or NUMBER (float), MEMBER of struct sampler_options, OPTION and ALIAS on the command
 * line with a value ARG, JSON a member of requests. Between HELP and MORE stands what it is
 * OTHERWISE: llama.cpp's default, for programs and requests alike. */
/* A row is a line or two. */
/* clang-format off */
#define SAMPLING_OPTIONS(X) \
    X(NUMBER, temperature, "temp", "temperature", "T", "temperature", 0, 100, 0.8, \
      "temperature", "; 0: the most likely token") \
    X(WHOLE, top_k, "top-k", "top-k", "K", "top_k", -1, INT32_MAX, 40, \
      "sample among the K most likely", "; 0: all") \
    X(NUMBER, top_p, "top-p", "top-p", "P", "top_p", 0, 1, 0.95, \
      "keep top tokens up to total probability P", "") \
    X(NUMBER, min_p, "min-p", "min-p", "P", "min_p", 0, 1, 0.05, \
      "drop tokens below P x the top probability", "") \
    X(NUMBER, typical_p, "typical", "typical-p", "P", "typical_p", 0, 1, 1, \
      "locally typical sampling up to probability P", ": off") \
    X(NUMBER, top_n_sigma, "top-nsigma", "top-n-sigma", "N", "top_n_sigma", -1, 1000, 0, \
      "drop logits N deviations below the largest", ": off") \
    X(NUMBER, xtc_probability, "xtc-probability", "xtc-probability", "P", "xtc_probability", 0, 1, 0, \
      "how often the most likely are dropped", ": never") \
    X(NUMBER, xtc_threshold, "xtc-threshold", "xtc-threshold", "P", "xtc_threshold", 0, 1, 0.1, \
      "of what probability those are", "") \
    X(NUMBER, temperature_range, "dynatemp-range", "dynatemp-range", "T", "dynatemp_range", 0, 100, 0, \
      "temperature may differ by T with the entropy", "") \
    X(NUMBER, temperature_exponent, "dynatemp-exp", "dynatemp-exp", "X", "dynatemp_exponent", 0, 100, 1, \
      "to the power of X", "") \
    X(NUMBER, repeat_penalty, "repeat-penalty", "repeat-penalty", "R", "repeat_penalty", 0.01, 100, 1, \
      "divide logits of recent tokens by R", ": off") \
    X(NUMBER, presence_penalty, "presence-penalty", "presence-penalty", "X", "presence_penalty", -100, 100, 0, \
      "subtract X from logits of recent tokens", "") \
    X(NUMBER, frequency_penalty, "frequency-penalty", "frequency-penalty", "X", "frequency_penalty", -100, 100, 0, \
      "the same for each occurrence", "") \
    X(WHOLE, repeat_last, "repeat-last-n", "repeat-last-n", "N", "repeat_last_n", -1, INT32_MAX, 64, \
      "recent tokens that penalties cover", "; -1: all") \
    X(NUMBER, dry.multiplier, "dry-multiplier", "dry-multiplier", "X", "dry_multiplier", 0, 100, 0, \
      "DRY: subtract X for what would repeat text", ": off") \
    X(NUMBER, dry.base, "dry-base", "dry-base", "B", "dry_base", 0, 100, 1.75, \
      "times B for each token of it", "") \
    X(WHOLE, dry.allowed, "dry-allowed-length", "dry-allowed-length", "N", "dry_allowed_length", 0, INT32_MAX, 2, \
      "from N tokens on", "") \
    X(WHOLE, dry.last, "dry-penalty-last-n", "dry-penalty-last-n", "N", "dry_penalty_last_n", -1, INT32_MAX, 64, \
      "among the last N tokens", "; -1: all") \
    X(WHOLE, mirostat, "mirostat", "mirostat", "N", "mirostat", 0, 2, 0, \
      "Mirostat 1 or 2 instead of top-k and other cuts", ": off") \
    X(NUMBER, mirostat_tau, "mirostat-ent", "mirostat-ent", "X", "mirostat_tau", 0, 100, 5, \
      "surprise that it keeps, in bits", "") \
    X(NUMBER, mirostat_eta, "mirostat-lr", "mirostat-lr", "X", "mirostat_eta", 0, 10, 0.1, \
      "how fast it learns", "")
/* clang-format on */

/* What they are when nothing is asked for, as an initializer of struct sampler_options. */
#define SAMPLING_DEFAULT_OF(kind, member, option, alias, arg, json, least, most, otherwise, help,  \
                            more)                                                                  \
    .member = (otherwise),
#define SAMPLING_DEFAULTS SAMPLING_OPTIONS(SAMPLING_DEFAULT_OF)

/* What nobody has asked for yet, likewise: sampling_settle decides. */
#define SAMPLING_OPEN_WHOLE  INT32_MIN
#define SAMPLING_OPEN_NUMBER NAN
#define SAMPLING_OPEN_OF(kind, member, option, alias, arg, json, least, most, otherwise, help,     \
                         more)                                                                     \
    .member = SAMPLING_OPEN_##kind,
#define SAMPLING_OPEN SAMPLING_OPTIONS(SAMPLING_OPEN_OF)

enum { SAMPLING_OF_GGUF = 11 };
/* The keys of a GGUF file that recommend options, and whose: llama.cpp's, without "sequence", for
 * the order of the cuts is fixed here. */
extern const struct sampling_key {
    const char *key, *option;
} sampling_keys[SAMPLING_OF_GGUF];

/* What is still open becomes what the model's file recommends, or else the default. A
 * recommendation that is no number within the option's bounds is told and passed over. */
void sampling_settle(struct sampler_options *o, const struct gguf *g, warn_fn warn, void *user);
/* A seed that nobody has chosen, of 32 bits: short enough to be typed again. */
uint64_t sampling_seed(void);

#endif
