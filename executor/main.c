/*
 * main.c - oato-run: the command line. Every option is a row with the verbs that take it; any other
 * verb refuses the option instead of ignoring it.
 */
#include "executor/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum verb {
    GENERATE = 1,
    CHAT = 2,
    BENCH = 4,
    PERPLEXITY = 8,
    LOGITS = 16,
    TOKENIZE = 32,
    ENGINE = GENERATE | CHAT | BENCH | PERPLEXITY | LOGITS,
    ANSWER = GENERATE | CHAT,
    ALL = ENGINE | TOKENIZE
};

static const struct {
    const char *name;
    enum verb verb;
    oato_status (*run)(const struct run_args *, struct oato_error *);
    const char *help;
} verbs[] = {
    {"generate", GENERATE, run_generate, "continue the prompts (the default verb)"},
    {"chat", CHAT, run_chat, "talk with the model, a line at a time"},
    {"bench", BENCH, run_bench, "measure prefill and decode speed (medians)"},
    {"perplexity", PERPLEXITY, run_perplexity, "perplexity of a text, second half of each window"},
    {"logits", LOGITS, run_logits, "write the logits of token ids, raw float32"},
    {"tokenize", TOKENIZE, run_tokenize, "show the tokens of a text"},
};

enum option_id {
    O_MODEL = 1,
    O_PLAN,
    O_PROMPT,
    O_FILE,
    O_PREDICT,
    O_TEMP,
    O_TOP_K,
    O_TOP_P,
    O_MIN_P,
    O_PENALTY,
    O_LAST,
    O_SEED,
    O_CHAT,
    O_TEMPLATE,
    O_SYSTEM,
    O_HIDE,
    O_IGNORE_END,
    O_KV,
    O_DETERMINISTIC,
    O_THREADS,
    O_CONTEXT,
    O_UBATCH,
    O_FLASH,
    O_DEVICES,
    O_MAP,
    O_STRICT,
    O_PREPARED,
    O_DUMP,
    O_PREFILL,
    O_GENERATE,
    O_REPEAT,
    O_TIMING_ONLY,
    O_BATCH,
    O_DEPTH,
    O_JSON,
    O_IDS,
    O_ONLY_IDS,
    O_OUTPUT,
    O_NO_SPECIAL,
    O_LIST,
    O_HELP,
    O_VERSION
};

static const struct {
    int verbs;
    struct option_row row;
} table[] = {
    {ALL, {"model", 'm', OPT_VALUE, "FILE", "the GGUF file (or the first operand)", O_MODEL}},
    {ENGINE,
     {"plan", 0, OPT_VALUE, "FILE", "placement by oato-plan (default: all on the CPU)", O_PLAN}},
    {GENERATE,
     {"prompt", 'p', OPT_VALUE, "TEXT", "text to continue; repeat for several at once", O_PROMPT}},
    {TOKENIZE, {"prompt", 'p', OPT_VALUE, "TEXT", "text to tokenize", O_PROMPT}},
    {GENERATE, {"file", 'f', OPT_VALUE, "FILE", "prompt from a file (- = standard input)", O_FILE}},
    {PERPLEXITY | TOKENIZE,
     {"file", 'f', OPT_VALUE, "FILE", "text file (- = standard input)", O_FILE}},
    {ANSWER,
     {"generate", 'n', OPT_VALUE, "N", "max. tokens to generate (default 256; -1: no limit)",
      O_PREDICT}},
    {ANSWER, {"predict", 0, OPT_VALUE, "N", NULL, O_PREDICT}},
    {ANSWER, {"n-predict", 0, OPT_VALUE, "N", NULL, O_PREDICT}},
    {ANSWER, {"temp", 0, OPT_VALUE, "T", "temperature (default 0: the most likely token)", O_TEMP}},
    {ANSWER, {"temperature", 0, OPT_VALUE, "T", NULL, O_TEMP}},
    {ANSWER,
     {"top-k", 0, OPT_VALUE, "K", "sample among the K most likely (default 40; 0: all)", O_TOP_K}},
    {ANSWER,
     {"top-p", 0, OPT_VALUE, "P", "keep top tokens up to total probability P (default 0.95)",
      O_TOP_P}},
    {ANSWER,
     {"min-p", 0, OPT_VALUE, "P", "drop tokens below P x the top probability (default 0.05)",
      O_MIN_P}},
    {ANSWER,
     {"repeat-penalty", 0, OPT_VALUE, "R", "divide logits of recent tokens by R (default 1: off)",
      O_PENALTY}},
    {ANSWER,
     {"repeat-last-n", 0, OPT_VALUE, "N", "tokens that --repeat-penalty covers (default 64)",
      O_LAST}},
    {ANSWER, {"seed", 's', OPT_VALUE, "N", "random seed (default 0)", O_SEED}},
    {GENERATE,
     {"chat", 0, OPT_FLAG, NULL, "prompts are user messages in the model's chat template", O_CHAT}},
    {ANSWER,
     {"chat-template", 0, OPT_VALUE, "NAME", "use this template instead of the model's",
      O_TEMPLATE}},
    {ANSWER, {"system", 0, OPT_VALUE, "TEXT", "system message", O_SYSTEM}},
    {ANSWER, {"sys", 0, OPT_VALUE, "TEXT", NULL, O_SYSTEM}},
    {ANSWER, {"system-prompt", 0, OPT_VALUE, "TEXT", NULL, O_SYSTEM}},
    {GENERATE, {"no-display-prompt", 0, OPT_FLAG, NULL, "print only what is generated", O_HIDE}},
    {GENERATE, {"ignore-eos", 0, OPT_FLAG, NULL, "go on after the end of text", O_IGNORE_END}},
    {BENCH,
     {"prompt", 'p', OPT_VALUE, "N", "prompt tokens (default the plan's or 512; 0: skip)",
      O_PREFILL}},
    {BENCH, {"prefill", 0, OPT_VALUE, "N", NULL, O_PREFILL}},
    {BENCH, {"n-prompt", 0, OPT_VALUE, "N", NULL, O_PREFILL}},
    {BENCH,
     {"generate", 'n', OPT_VALUE, "N", "decoded tokens (default the plan's or 64; 0: skip)",
      O_GENERATE}},
    {BENCH, {"n-gen", 0, OPT_VALUE, "N", NULL, O_GENERATE}},
    {BENCH, {"repeat", 'r', OPT_VALUE, "N", "timed runs after a warm-up (default 3)", O_REPEAT}},
    {BENCH,
     {"timing-only", 0, OPT_FLAG, NULL, "simulated devices keep time but compute nothing",
      O_TIMING_ONLY}},
    {BENCH,
     {"batch", 'b', OPT_VALUE, "B", "sequences decoded together (default the plan's or 1)",
      O_BATCH}},
    {BENCH,
     {"depth", 'd', OPT_VALUE, "N",
      "positions in the cache before decoding (default the plan's prompt, or 0)", O_DEPTH}},
    {BENCH, {"n-depth", 0, OPT_VALUE, "N", NULL, O_DEPTH}},
    {LOGITS, {"ids", 0, OPT_VALUE, "1,2,3", "token ids", O_IDS}},
    {LOGITS, {"output", 'o', OPT_VALUE, "FILE", "raw float32, tokens x vocabulary", O_OUTPUT}},
    {TOKENIZE, {"ids", 0, OPT_FLAG, NULL, "only the ids, on one line", O_ONLY_IDS}},
    {TOKENIZE,
     {"no-special", 0, OPT_FLAG, NULL, "add no BOS/EOS and parse no control tokens", O_NO_SPECIAL}},
    {ENGINE,
     {"kv", 0, OPT_VALUE, "TYPE", "KV cache f16, q8_0 or f32 (default: the plan's or f16)", O_KV}},
    {ENGINE,
     {"context", 'c', OPT_VALUE, "N", "KV cache positions (default: the plan's, or 4096)",
      O_CONTEXT}},
    {ENGINE, {"ctx-size", 0, OPT_VALUE, "N", NULL, O_CONTEXT}},
    {ENGINE,
     {"ubatch", 0, OPT_VALUE, "N", "max. tokens per step (default: the plan's, or 256)", O_UBATCH}},
    {ENGINE, {"ub", 0, OPT_VALUE, "N", NULL, O_UBATCH}},
    {ENGINE, {"ubatch-size", 0, OPT_VALUE, "N", NULL, O_UBATCH}},
    {ENGINE, {"fa", 0, OPT_CHOICE, "on|auto|off|1|0", NULL, O_FLASH}},
    {ENGINE, {"flash-attn", 0, OPT_CHOICE, "on|auto|off|1|0", NULL, O_FLASH}},
    {ENGINE,
     {"threads", 't', OPT_VALUE, "N", "CPU threads (default: physical cores, less one per GPU)",
      O_THREADS}},
    {ENGINE,
     {"deterministic", 0, OPT_FLAG, NULL, "same arithmetic in prefill and decode",
      O_DETERMINISTIC}},
    {ENGINE,
     {"devices", 0, OPT_VALUE, "LIST", "devices to open: cpu,sim:vram=64MiB (default: the plan's)",
      O_DEVICES}},
    {ENGINE, {"map", 0, OPT_VALUE, "A=B,..", "run the plan's device A on device B", O_MAP}},
    {ENGINE,
     {"strict", 0, OPT_FLAG, NULL, "refuse a plan that was made for another machine", O_STRICT}},
    {ENGINE,
     {"prepared-cache", 0, OPT_VALUE, "DIR",
      "keep prepared weights in DIR: later starts are faster", O_PREPARED}},
    {ENGINE, {"dump-program", 0, OPT_FLAG, NULL, "print what each device runs, and stop", O_DUMP}},
    {ALL, {"list-devices", 0, OPT_FLAG, NULL, "list the available devices", O_LIST}},
    {BENCH, {"json", 0, OPT_FLAG, NULL, "machine-readable output", O_JSON}},
    {ALL,
     {"help", 'h', OPT_FLAG, NULL, "this text; oato-run VERB --help for a verb's options", O_HELP}},
    {ALL, {"version", 0, OPT_FLAG, NULL, "version", O_VERSION}},
};

static void rows_of_verb(int verb, struct option_row *rows)
{
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].verbs & verb)
            rows[n++] = table[i].row;
    for (size_t i = 0; llama_options[i].name && verb & ENGINE; i++)
        rows[n++] = llama_options[i];
    rows[n].name = NULL;
}

static void help(size_t verb, const struct option_row *rows)
{
    printf("Usage: oato-run [VERB] MODEL.gguf [OPTIONS]\n");
    printf("Runs a GGUF model, placed on devices by a plan. Verbs:\n");
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        printf("  %-11s %s\n", verbs[i].name, verbs[i].help);
    printf("Options of %s:\n", verbs[verb].name);
    options_help(rows, stdout);
    printf(
        "Exit status: 0 done, 2 usage, 3 bad file, 4 does not fit, 5 device failed, 6 input/output "
        "failed.\nSee man oato-run.\n");
}

static bool int_option(const struct options *o, int64_t lo, int64_t hi, int32_t *out,
                       struct oato_error *err)
{
    int64_t v;
    if (!parse_count(o->value, lo, hi, &v)) {
        oato_fail(err, OATO_EUSAGE, "%s wants a whole number from %lld to %lld, not '%s'", o->name,
                  (long long)lo, (long long)hi, o->value);
        return false;
    }
    *out = (int32_t)v;
    return true;
}

static bool float_option(const struct options *o, double lo, double hi, float *out,
                         struct oato_error *err)
{
    double v;
    if (!parse_f64(o->value, lo, hi, &v)) {
        oato_fail(err, OATO_EUSAGE, "%s wants a number from %g to %g, not '%s'", o->name, lo, hi,
                  o->value);
        return false;
    }
    *out = (float)v;
    return true;
}

static bool kv_option(const struct options *o, struct run_args *a, struct oato_error *err)
{
    a->engine.kv_given = dtype_parse_kv(o->value, &a->engine.kv);
    if (!a->engine.kv_given)
        oato_fail(err, OATO_EUSAGE, "--kv wants f16, q8_0 or f32, not '%s'", o->value);
    return a->engine.kv_given;
}

/* Attention here never materialises the full score matrix. */
static bool flash_option(const struct options *o, struct oato_error *err)
{
    const bool off = o->value && (!strcmp(o->value, "off") || !strcmp(o->value, "0"));
    if (off)
        oato_fail(err, OATO_EUSAGE, "%s: flash attention is always on here", o->name);
    return !off;
}

static bool prompt_option(const struct options *o, struct run_args *a, struct oato_error *err)
{
    if (a->n_prompts == PROMPTS_MAX) {
        oato_fail(err, OATO_EUSAGE, "more than %d prompts; give fewer -p", PROMPTS_MAX);
        return false;
    }
    a->prompts[a->n_prompts++] = o->value;
    return true;
}

static bool file_option(const struct options *o, struct run_args *a, struct oato_error *err)
{
    if (a->file) {
        oato_fail(err, OATO_EUSAGE, "more than one file: '%s' and '%s'; give one -f", a->file,
                  o->value);
        return false;
    }
    a->file = o->value;
    return true;
}

static bool seed_option(const struct options *o, struct run_args *a, struct oato_error *err)
{
    int64_t v;
    if (!parse_i64(o->value, 0, INT64_MAX, &v)) {
        oato_fail(err, OATO_EUSAGE, "--seed wants a whole number from 0 on, not '%s'", o->value);
        return false;
    }
    a->sampling.seed = (uint64_t)v;
    return true;
}

static bool operand(const struct options *o, struct run_args *a, struct oato_error *err)
{
    if (a->model) {
        oato_fail(err, OATO_EUSAGE, "more than one model: '%s' and '%s'; use -p for a prompt",
                  a->model, o->value);
        return false;
    }
    a->model = o->value;
    return true;
}

static bool option_take(int id, const struct options *o, struct run_args *a, struct oato_error *err)
{
    struct sampler_options *s = &a->sampling;
    struct engine_options *e = &a->engine;
    switch (id) {
    case O_MODEL:
    case OPT_OPERAND: return operand(o, a, err);
    case O_PLAN: a->plan = o->value; return true;
    case O_PROMPT: return prompt_option(o, a, err);
    case O_FILE: return file_option(o, a, err);
    case O_PREDICT: return int_option(o, -1, INT32_MAX, &a->n_predict, err);
    case O_TEMP: return float_option(o, 0, 100, &s->temperature, err);
    case O_TOP_K: return int_option(o, 0, INT32_MAX, &s->top_k, err);
    case O_TOP_P: return float_option(o, 0, 1, &s->top_p, err);
    case O_MIN_P: return float_option(o, 0, 1, &s->min_p, err);
    case O_PENALTY: return float_option(o, 0.01, 100, &s->repeat_penalty, err);
    case O_LAST: return int_option(o, 0, 1 << 20, &s->repeat_last, err);
    case O_SEED: return seed_option(o, a, err);
    case O_CHAT: return a->chat = true;
    case O_TEMPLATE: a->chat_template = o->value; return true;
    case O_SYSTEM: a->system = o->value; return true;
    case O_HIDE: return a->hide_prompt = true;
    case O_IGNORE_END: return a->ignore_end = true;
    case O_PREFILL: return int_option(o, 0, 1 << 24, &a->prefill, err);
    case O_GENERATE: return int_option(o, 0, 1 << 24, &a->generate, err);
    case O_REPEAT: return int_option(o, 1, 1000, &a->repeat, err);
    case O_BATCH: return int_option(o, 1, 4096, &a->batch, err);
    case O_DEPTH: return int_option(o, 0, 1 << 24, &a->depth, err);
    case O_IDS: a->ids = o->value; return true;
    case O_OUTPUT: a->output = o->value; return true;
    case O_ONLY_IDS: return a->only_ids = true;
    case O_NO_SPECIAL: return a->no_special = true;
    case O_KV: return kv_option(o, a, err);
    case O_FLASH: return flash_option(o, err);
    case O_CONTEXT: return int_option(o, 1, 1 << 26, &e->context, err);
    case O_UBATCH: return int_option(o, 1, 1 << 16, &e->ubatch, err);
    case O_THREADS: return int_option(o, 1, 1024, &e->threads, err);
    case O_DETERMINISTIC: return e->deterministic = true;
    case O_DEVICES: e->devices = o->value; return true;
    case O_MAP: e->map = o->value; return true;
    case O_TIMING_ONLY: return e->timing_only = true;
    case O_STRICT: return e->strict = true;
    case O_PREPARED: e->prepared_cache = o->value; return true;
    case O_DUMP: return a->dump_program = true;
    case O_JSON: return a->json = true;
    default: return false;
    }
}

static oato_status run(int argc, char **argv, struct oato_error *err)
{
    struct run_args a = {
        .n_predict = 256,
        .prefill = -1,
        .generate = -1,
        .repeat = 3,
        .batch = -1,
        .depth = -1,
        .sampling =
            {.top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .repeat_last = 64},
    };
    struct option_row rows[ARRAY_LEN(table) + LLAMA_OPTIONS + 1];
    size_t verb = 0;
    int first = 1;
    for (size_t i = 0; argc > 1 && i < ARRAY_LEN(verbs); i++) {
        if (!strcmp(argv[1], verbs[i].name)) {
            verb = i;
            first = 2;
        }
    }
    rows_of_verb(verbs[verb].verb, rows);
    struct options o;
    options_init(&o, rows, argc - first, argv + first);
    for (int id; (id = options_next(&o, err)) != OPT_END;) {
        if (id == OPT_ERROR)
            return err->status;
        if (id == O_HELP) {
            help(verb, rows);
            return stdout_check(err);
        }
        if (id == O_VERSION) {
            puts("oato-run " OATO_VERSION);
            return stdout_check(err);
        }
        if (id == O_LIST) {
            device_list(stdout);
            return stdout_check(err);
        }
        if (!option_take(id, &o, &a, err))
            return err->status;
    }
    if (!a.model)
        return oato_fail(err, OATO_EUSAGE,
                         "no model given: oato-run [VERB] MODEL.gguf; see --help");
    outfile_keep(a.model);
    outfile_keep(a.plan);
    if (a.output && outfile_check(a.output, err))
        return err->status;
    interrupt_catch();
    if (verbs[verb].verb != CHAT) /* chat handles Ctrl-C itself */
        interrupt_deadline(1);
    return verbs[verb].run(&a, err);
}

int main(int argc, char **argv)
{
    struct oato_error err = {0};
    program_begin("oato-run");
    oato_status status = run(argc, argv, &err);
    if (status > OATO_NEGATIVE)
        fprintf(stderr, "oato-run: %s\n", err.text);
    return oato_interrupted ? 130 : (int)status;
}
