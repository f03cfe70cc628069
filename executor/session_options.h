/*
 * session_options.h - the command-line options of whoever opens a session, as rows for a program's
 * table (struct option_of): SESSION_PLAN(verbs, at), where `at` is the offset of its struct
 * session_args. With them go llama.cpp's options that are answered with a hint.
 */
#ifndef OATO_SESSION_OPTIONS_H
#define OATO_SESSION_OPTIONS_H

#include "executor/session.h"

enum { LLAMA_OPTIONS = 64 };
extern const struct option_row llama_options[LLAMA_OPTIONS]; /* the last one is empty */

/* Takers of option_of: a whole number (int32_t) and a number (float) within the row's bounds, a
 * seed (uint64_t), the type of the KV cache (struct engine_options), one more breaker (struct
 * dry_options), and llama.cpp's -fa. */
oato_status session_take_int(const struct options *o, void *to, struct oato_error *err);
oato_status session_take_float(const struct options *o, void *to, struct oato_error *err);
oato_status session_take_seed(const struct options *o, void *to, struct oato_error *err);
oato_status session_take_kv(const struct options *o, void *to, struct oato_error *err);
oato_status session_take_breaker(const struct options *o, void *to, struct oato_error *err);
oato_status session_take_flash(const struct options *o, void *to, struct oato_error *err);

#define SESSION_AT(take, at, member, least, most)                                                  \
    take, (at) + offsetof(struct session_args, member), least, most

/* A row is a line or two. */
/* clang-format off */
#define SESSION_PLAN(verbs, at) \
    {"plan", 0, "FILE", "placement by oato-plan (default: all on the CPU)", verbs, \
     SESSION_AT(option_text, at, plan, 0, 0)}, \
    {"neurons", 0, "FILE", "sidecar of a plan that follows one (default: MODEL.neurons.gguf)", verbs, \
     SESSION_AT(option_text, at, neurons, 0, 0)}

#define SESSION_SAMPLING(verbs, at) \
    {"temp", 0, "T", "temperature (default 0: the most likely token)", verbs, \
     SESSION_AT(session_take_float, at, sampling.temperature, 0, 100)}, \
    {"temperature", 0, "T", NULL, verbs, \
     SESSION_AT(session_take_float, at, sampling.temperature, 0, 100)}, \
    {"top-k", 0, "K", "sample among the K most likely (default 40; 0: all)", verbs, \
     SESSION_AT(session_take_int, at, sampling.top_k, 0, INT32_MAX)}, \
    {"top-p", 0, "P", "keep top tokens up to total probability P (default 0.95)", verbs, \
     SESSION_AT(session_take_float, at, sampling.top_p, 0, 1)}, \
    {"min-p", 0, "P", "drop tokens below P x the top probability (default 0.05)", verbs, \
     SESSION_AT(session_take_float, at, sampling.min_p, 0, 1)}, \
    {"typical", 0, "P", "locally typical sampling up to probability P (default 1: off)", verbs, \
     SESSION_AT(session_take_float, at, sampling.typical_p, 0, 1)}, \
    {"typical-p", 0, "P", NULL, verbs, \
     SESSION_AT(session_take_float, at, sampling.typical_p, 0, 1)}, \
    {"top-nsigma", 0, "N", "drop logits N deviations below the largest (default 0: off)", verbs, \
     SESSION_AT(session_take_float, at, sampling.top_n_sigma, 0, 1000)}, \
    {"top-n-sigma", 0, "N", NULL, verbs, \
     SESSION_AT(session_take_float, at, sampling.top_n_sigma, 0, 1000)}, \
    {"xtc-probability", 0, "P", "how often the most likely are dropped (default 0: never)", verbs, \
     SESSION_AT(session_take_float, at, sampling.xtc_probability, 0, 1)}, \
    {"xtc-threshold", 0, "P", "of what probability those are (default 0.1)", verbs, \
     SESSION_AT(session_take_float, at, sampling.xtc_threshold, 0, 1)}, \
    {"dynatemp-range", 0, "T", "temperature may differ by T with the entropy (default 0)", verbs, \
     SESSION_AT(session_take_float, at, sampling.temperature_range, 0, 100)}, \
    {"dynatemp-exp", 0, "X", "to the power of X (default 1)", verbs, \
     SESSION_AT(session_take_float, at, sampling.temperature_exponent, 0, 100)}, \
    {"repeat-penalty", 0, "R", "divide logits of recent tokens by R (default 1: off)", verbs, \
     SESSION_AT(session_take_float, at, sampling.repeat_penalty, 0.01, 100)}, \
    {"presence-penalty", 0, "X", "subtract X from logits of recent tokens (default 0)", verbs, \
     SESSION_AT(session_take_float, at, sampling.presence_penalty, -100, 100)}, \
    {"frequency-penalty", 0, "X", "the same for each occurrence (default 0)", verbs, \
     SESSION_AT(session_take_float, at, sampling.frequency_penalty, -100, 100)}, \
    {"repeat-last-n", 0, "N", "recent tokens that penalties cover (default 64)", verbs, \
     SESSION_AT(session_take_int, at, sampling.repeat_last, 0, 1 << 20)}, \
    {"dry-multiplier", 0, "X", "DRY: subtract X for what would repeat text (default 0: off)", verbs, \
     SESSION_AT(session_take_float, at, sampling.dry.multiplier, 0, 100)}, \
    {"dry-base", 0, "B", "times B for each token of it (default 1.75)", verbs, \
     SESSION_AT(session_take_float, at, sampling.dry.base, 0, 100)}, \
    {"dry-allowed-length", 0, "N", "from N tokens on (default 2)", verbs, \
     SESSION_AT(session_take_int, at, sampling.dry.allowed, 0, 1 << 20)}, \
    {"dry-penalty-last-n", 0, "N", "among the last N tokens (default 64)", verbs, \
     SESSION_AT(session_take_int, at, sampling.dry.last, 0, 1 << 20)}, \
    {"dry-sequence-breaker", 0, "TEXT", "but not across TEXT; repeat for more (none: across all)", verbs, \
     SESSION_AT(session_take_breaker, at, sampling.dry, 0, 0)}, \
    {"mirostat", 0, "N", "Mirostat 1 or 2 instead of top-k and other cuts (default 0: off)", verbs, \
     SESSION_AT(session_take_int, at, sampling.mirostat, 0, 2)}, \
    {"mirostat-ent", 0, "X", "surprise that it keeps, in bits (default 5)", verbs, \
     SESSION_AT(session_take_float, at, sampling.mirostat_tau, 0, 100)}, \
    {"mirostat-lr", 0, "X", "how fast it learns (default 0.1)", verbs, \
     SESSION_AT(session_take_float, at, sampling.mirostat_eta, 0, 10)}, \
    {"seed", 's', "N", "random seed (default 0)", verbs, \
     SESSION_AT(session_take_seed, at, sampling.seed, 0, 0)}

#define SESSION_ENGINE(verbs, at) \
    {"ffn-activation", 0, "NAME", "of the FFN: relu, silu, gelu, relu2 (default: the file's)", verbs, \
     SESSION_AT(option_text, at, choice.ffn_activation, 0, 0)}, \
    {"sparse", 0, "MODE", "skip neurons: auto, off, exact, predict (ReLU), threshold=S, input=S; dense", verbs, \
     SESSION_AT(option_sparse, at, engine.sparse, 0, 0)}, \
    {"kv", 0, "TYPE", "KV cache f16, q8_0 or f32 (default: the plan's or f16)", verbs, \
     SESSION_AT(session_take_kv, at, engine, 0, 0)}, \
    {"context", 'c', "N", "KV cache positions (default: the plan's, or 4096)", verbs, \
     SESSION_AT(session_take_int, at, engine.context, 1, 1 << 26)}, \
    {"ctx-size", 0, "N", NULL, verbs, \
     SESSION_AT(session_take_int, at, engine.context, 1, 1 << 26)}, \
    {"ubatch", 0, "N", "max. tokens per step (default: the plan's, or 256)", verbs, \
     SESSION_AT(session_take_int, at, engine.ubatch, 1, 1 << 16)}, \
    {"ub", 0, "N", NULL, verbs, SESSION_AT(session_take_int, at, engine.ubatch, 1, 1 << 16)}, \
    {"ubatch-size", 0, "N", NULL, verbs, \
     SESSION_AT(session_take_int, at, engine.ubatch, 1, 1 << 16)}, \
    {"fa", 0, "on|auto|off|1|0", NULL, verbs, session_take_flash, 0, 0, 0}, \
    {"flash-attn", 0, "on|auto|off|1|0", NULL, verbs, session_take_flash, 0, 0, 0}, \
    {"threads", 't', "N", "CPU threads (default: physical cores, less one per GPU)", verbs, \
     SESSION_AT(session_take_int, at, engine.threads, 1, 1024)}, \
    {"deterministic", 0, NULL, "same arithmetic in prefill and decode", verbs, \
     SESSION_AT(option_flag, at, engine.deterministic, 0, 0)}, \
    {"devices", 0, "LIST", "devices to open: cpu,sim:vram=64MiB (default: the plan's)", verbs, \
     SESSION_AT(option_text, at, engine.devices, 0, 0)}, \
    {"map", 0, "A=B,..", "run the plan's device A on device B", verbs, \
     SESSION_AT(option_text, at, engine.map, 0, 0)}, \
    {"strict", 0, NULL, "refuse a plan that was made for another machine", verbs, \
     SESSION_AT(option_flag, at, engine.strict, 0, 0)}, \
    {"prepared-cache", 0, "DIR", "keep prepared weights in DIR: later starts are faster", verbs, \
     SESSION_AT(option_text, at, engine.prepared_cache, 0, 0)}

/* clang-format on */

#endif
