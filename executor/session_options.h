/*
 * session_options.h - the command-line options of whoever opens a session, as rows for a program's
 * table (struct option_of): SESSION_PLAN(verbs, at), where `at` is the offset of its struct
 * session_args. With them go llama.cpp's options that are answered with a hint.
 */
#ifndef OATO_SESSION_OPTIONS_H
#define OATO_SESSION_OPTIONS_H

#include "executor/session.h"
#include "text/sampling.h"

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
    {"plan", 0, "FILE", "placement by oato-plan (default: one is made)", verbs, \
     SESSION_AT(option_text, at, plan, 0, 0)}, \
    {"neurons", 0, "FILE", "sidecar of a plan that follows one (default: MODEL.neurons.gguf)", verbs, \
     SESSION_AT(option_text, at, neurons, 0, 0)}

#define SESSION_TAKE_WHOLE  session_take_int
#define SESSION_TAKE_NUMBER session_take_float
/* An alias is not listed; where it is the name again it is never found. */
#define SESSION_SAMPLING_OF(kind, member, option, alias, arg, json, least, most, otherwise, help, more) \
    {option, 0, arg, help " (default " #otherwise more ")", SAMPLING_VERBS, \
     SESSION_AT(SESSION_TAKE_##kind, SAMPLING_AT, sampling.member, least, most)}, \
    {alias, 0, arg, NULL, SAMPLING_VERBS, \
     SESSION_AT(SESSION_TAKE_##kind, SAMPLING_AT, sampling.member, least, most)},
/* The program defines SAMPLING_VERBS and SAMPLING_AT, the verbs and the offset; a comma ends it. */
#define SESSION_SAMPLING \
    SAMPLING_OPTIONS(SESSION_SAMPLING_OF) \
    {"dry-sequence-breaker", 0, "TEXT", "DRY counts nothing across TEXT; repeat for more (none: across all)", \
     SAMPLING_VERBS, SESSION_AT(session_take_breaker, SAMPLING_AT, sampling.dry, 0, 0)}, \
    {"seed", 's', "N", "random seed (default -1: one that is random, and told)", SAMPLING_VERBS, \
     SESSION_AT(session_take_seed, SAMPLING_AT, sampling.seed, 0, 0)}

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
