/*
 * main.c - oato-run: the command line. Every option is a row with the verbs that take it; any other
 * verb refuses the option instead of ignoring it.
 */
#include "executor/run.h"

#include <stddef.h>
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

/* ----------------------------------------------------------------------------- options ----- */

static oato_status take_int(const struct options *o, void *to, struct oato_error *err)
{
    const int64_t least = (int64_t)o->of->least, most = (int64_t)o->of->most;
    int64_t v;
    if (!parse_count(o->value, least, most, &v))
        return oato_fail(err, OATO_EUSAGE, "%s wants a whole number from %lld to %lld, not '%s'",
                         o->name, (long long)least, (long long)most, o->value);
    *(int32_t *)to = (int32_t)v;
    return OATO_OK;
}

static oato_status take_float(const struct options *o, void *to, struct oato_error *err)
{
    double v;
    if (!parse_f64(o->value, o->of->least, o->of->most, &v))
        return oato_fail(err, OATO_EUSAGE, "%s wants a number from %g to %g, not '%s'", o->name,
                         o->of->least, o->of->most, o->value);
    *(float *)to = (float)v;
    return OATO_OK;
}

static oato_status take_kv(const struct options *o, void *to, struct oato_error *err)
{
    struct engine_options *e = to;
    e->kv_given = dtype_parse_kv(o->value, &e->kv);
    return e->kv_given
               ? OATO_OK
               : oato_fail(err, OATO_EUSAGE, "--kv wants f16, q8_0 or f32, not '%s'", o->value);
}

/* Attention here never materialises the full score matrix. */
static oato_status take_flash(const struct options *o, void *to, struct oato_error *err)
{
    (void)to;
    const bool off = o->value && (!strcmp(o->value, "off") || !strcmp(o->value, "0"));
    return off ? oato_fail(err, OATO_EUSAGE, "%s: flash attention is always on here", o->name)
               : OATO_OK;
}

static oato_status take_prompt(const struct options *o, void *to, struct oato_error *err)
{
    struct run_args *a = to;
    if (a->n_prompts == PROMPTS_MAX)
        return oato_fail(err, OATO_EUSAGE, "more than %d prompts; give fewer -p", PROMPTS_MAX);
    a->prompts[a->n_prompts++] = o->value;
    return OATO_OK;
}

static oato_status take_file(const struct options *o, void *to, struct oato_error *err)
{
    struct run_args *a = to;
    if (a->file)
        return oato_fail(err, OATO_EUSAGE, "more than one file: '%s' and '%s'; give one -f",
                         a->file, o->value);
    a->file = o->value;
    return OATO_OK;
}

static oato_status take_seed(const struct options *o, void *to, struct oato_error *err)
{
    int64_t v;
    if (!parse_i64(o->value, 0, INT64_MAX, &v))
        return oato_fail(err, OATO_EUSAGE, "--seed wants a whole number from 0 on, not '%s'",
                         o->value);
    *(uint64_t *)to = (uint64_t)v;
    return OATO_OK;
}

static oato_status take_model(const struct options *o, void *to, struct oato_error *err)
{
    struct run_args *a = to;
    if (a->model)
        return oato_fail(err, OATO_EUSAGE,
                         "more than one model: '%s' and '%s'; use -p for a prompt", a->model,
                         o->value);
    a->model = o->value;
    return OATO_OK;
}

#define AS(take, member)           take, offsetof(struct run_args, member), 0, 0
#define TEXT(member)               AS(option_text, member)
#define FLAG(member)               AS(option_flag, member)
#define COUNT(member, least, most) take_int, offsetof(struct run_args, member), least, most
#define REAL(member, least, most)  take_float, offsetof(struct run_args, member), least, most
#define ARGS(take)                 take, 0, 0, 0 /* the whole structure */

static const struct option_of table[] = {
    {"model", 'm', "FILE", "the GGUF file (or the first operand)", ALL, ARGS(take_model)},
    {"plan", 0, "FILE", "placement by oato-plan (default: all on the CPU)", ENGINE, TEXT(plan)},
    {"neurons", 0, "FILE", "sidecar of a plan that follows one (default: MODEL.neurons.gguf)",
     ENGINE, TEXT(neurons)},
    {"prompt", 'p', "TEXT", "text to continue; repeat for several at once", GENERATE,
     ARGS(take_prompt)},
    {"prompt", 'p', "TEXT", "text to tokenize", TOKENIZE, ARGS(take_prompt)},
    {"file", 'f', "FILE", "prompt from a file (- = standard input)", GENERATE, ARGS(take_file)},
    {"file", 'f', "FILE", "text file (- = standard input)", PERPLEXITY | TOKENIZE, ARGS(take_file)},
    {"compare", 0, "WITH",
     "judge it by a run: dense (without --sparse) or plain (nor --plan, --kv)", PERPLEXITY,
     TEXT(compare)},
    {"generate", 'n', "N", "max. tokens to generate (default 256; -1: no limit)", ANSWER,
     COUNT(n_predict, -1, INT32_MAX)},
    {"predict", 0, "N", NULL, ANSWER, COUNT(n_predict, -1, INT32_MAX)},
    {"n-predict", 0, "N", NULL, ANSWER, COUNT(n_predict, -1, INT32_MAX)},
    {"temp", 0, "T", "temperature (default 0: the most likely token)", ANSWER,
     REAL(sampling.temperature, 0, 100)},
    {"temperature", 0, "T", NULL, ANSWER, REAL(sampling.temperature, 0, 100)},
    {"top-k", 0, "K", "sample among the K most likely (default 40; 0: all)", ANSWER,
     COUNT(sampling.top_k, 0, INT32_MAX)},
    {"top-p", 0, "P", "keep top tokens up to total probability P (default 0.95)", ANSWER,
     REAL(sampling.top_p, 0, 1)},
    {"min-p", 0, "P", "drop tokens below P x the top probability (default 0.05)", ANSWER,
     REAL(sampling.min_p, 0, 1)},
    {"repeat-penalty", 0, "R", "divide logits of recent tokens by R (default 1: off)", ANSWER,
     REAL(sampling.repeat_penalty, 0.01, 100)},
    {"repeat-last-n", 0, "N", "tokens that --repeat-penalty covers (default 64)", ANSWER,
     COUNT(sampling.repeat_last, 0, 1 << 20)},
    {"seed", 's', "N", "random seed (default 0)", ANSWER, AS(take_seed, sampling.seed)},
    {"chat", 0, NULL, "prompts are user messages in the model's chat template", GENERATE,
     FLAG(chat)},
    {"chat-template", 0, "NAME", "use this template instead of the model's", ANSWER,
     TEXT(chat_template)},
    {"chat-template-kwargs", 0, "JSON", "variables for the model's chat template", ANSWER,
     TEXT(variables)},
    {"system", 0, "TEXT", "system message", ANSWER, TEXT(system)},
    {"sys", 0, "TEXT", NULL, ANSWER, TEXT(system)},
    {"system-prompt", 0, "TEXT", NULL, ANSWER, TEXT(system)},
    {"no-display-prompt", 0, NULL, "print only what is generated", GENERATE, FLAG(hide_prompt)},
    {"ignore-eos", 0, NULL, "go on after the end of text", GENERATE, FLAG(ignore_end)},
    {"prompt", 'p', "N", "prompt tokens (default the plan's or 512; 0: skip)", BENCH,
     COUNT(prefill, 0, 1 << 24)},
    {"prefill", 0, "N", NULL, BENCH, COUNT(prefill, 0, 1 << 24)},
    {"n-prompt", 0, "N", NULL, BENCH, COUNT(prefill, 0, 1 << 24)},
    {"generate", 'n', "N", "decoded tokens (default the plan's or 64; 0: skip)", BENCH,
     COUNT(generate, 0, 1 << 24)},
    {"n-gen", 0, "N", NULL, BENCH, COUNT(generate, 0, 1 << 24)},
    {"repeat", 'r', "N", "timed runs after a warm-up (default 3)", BENCH, COUNT(repeat, 1, 1000)},
    {"timing-only", 0, NULL, "simulated devices keep time but compute nothing", BENCH,
     FLAG(engine.timing_only)},
    {"batch", 'b', "B", "sequences decoded together (default the plan's or 1)", BENCH,
     COUNT(batch, 1, 4096)},
    {"depth", 'd', "N", "positions in the cache before decoding (default the plan's prompt, or 0)",
     BENCH, COUNT(depth, 0, 1 << 24)},
    {"n-depth", 0, "N", NULL, BENCH, COUNT(depth, 0, 1 << 24)},
    {"ids", 0, "1,2,3", "token ids", LOGITS, TEXT(ids)},
    {"output", 'o', "FILE", "raw float32, tokens x vocabulary", LOGITS, TEXT(output)},
    {"mtp", 0, NULL, "those of the block that predicts one more token", LOGITS, FLAG(choice.mtp)},
    {"ids", 0, NULL, "only the ids, on one line", TOKENIZE, FLAG(only_ids)},
    {"no-special", 0, NULL, "add no BOS/EOS and parse no control tokens", TOKENIZE,
     FLAG(no_special)},
    {"ffn-activation", 0, "NAME", "of the FFN: relu, silu, gelu, relu2 (default: the file's)",
     ENGINE, TEXT(choice.ffn_activation)},
    {"sparse", 0, "MODE",
     "skip neurons: off, exact, predict, sign (ReLU), threshold=S, input=S; dense", ENGINE,
     TEXT(engine.sparse)},
    {"kv", 0, "TYPE", "KV cache f16, q8_0 or f32 (default: the plan's or f16)", ENGINE,
     AS(take_kv, engine)},
    {"context", 'c', "N", "KV cache positions (default: the plan's, or 4096)", ENGINE,
     COUNT(engine.context, 1, 1 << 26)},
    {"ctx-size", 0, "N", NULL, ENGINE, COUNT(engine.context, 1, 1 << 26)},
    {"ubatch", 0, "N", "max. tokens per step (default: the plan's, or 256)", ENGINE,
     COUNT(engine.ubatch, 1, 1 << 16)},
    {"ub", 0, "N", NULL, ENGINE, COUNT(engine.ubatch, 1, 1 << 16)},
    {"ubatch-size", 0, "N", NULL, ENGINE, COUNT(engine.ubatch, 1, 1 << 16)},
    {"fa", 0, "on|auto|off|1|0", NULL, ENGINE, ARGS(take_flash)},
    {"flash-attn", 0, "on|auto|off|1|0", NULL, ENGINE, ARGS(take_flash)},
    {"threads", 't', "N", "CPU threads (default: physical cores, less one per GPU)", ENGINE,
     COUNT(engine.threads, 1, 1024)},
    {"deterministic", 0, NULL, "same arithmetic in prefill and decode", ENGINE,
     FLAG(engine.deterministic)},
    {"devices", 0, "LIST", "devices to open: cpu,sim:vram=64MiB (default: the plan's)", ENGINE,
     TEXT(engine.devices)},
    {"map", 0, "A=B,..", "run the plan's device A on device B", ENGINE, TEXT(engine.map)},
    {"strict", 0, NULL, "refuse a plan that was made for another machine", ENGINE,
     FLAG(engine.strict)},
    {"prepared-cache", 0, "DIR", "keep prepared weights in DIR: later starts are faster", ENGINE,
     TEXT(engine.prepared_cache)},
    {"dump-program", 0, NULL, "print what each device runs, and stop", ENGINE, FLAG(dump_program)},
    {"list-devices", 0, NULL, "list the available devices", ALL, FLAG(list_devices)},
    {"json", 0, NULL, "machine-readable output", GENERATE | BENCH, FLAG(json)},
    {"help", 'h', NULL, "this text; oato-run VERB --help for a verb's options", ALL, FLAG(help)},
    {"version", 0, NULL, "version", ALL, FLAG(version)},
};

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
    struct option_row rows[ARRAY_LEN(table) + LLAMA_OPTIONS];
    size_t verb = 0;
    int first = 1;
    for (size_t i = 0; argc > 1 && i < ARRAY_LEN(verbs); i++) {
        if (!strcmp(argv[1], verbs[i].name)) {
            verb = i;
            first = 2;
        }
    }
    const size_t n = options_rows(table, ARRAY_LEN(table), verbs[verb].verb, rows);
    if (verbs[verb].verb & ENGINE)
        memcpy(rows + n, llama_options, sizeof llama_options);
    struct options o;
    options_init(&o, rows, argc - first, argv + first);
    while (!a.help && !a.version && !a.list_devices) {
        const int id = options_take(&o, table, &a, err);
        if (id == OPT_END)
            break;
        if (id == OPT_ERROR || (id == OPT_OPERAND && take_model(&o, &a, err)))
            return err->status;
    }
    if (a.help)
        help(verb, rows);
    else if (a.version)
        puts("oato-run " OATO_VERSION);
    else if (a.list_devices)
        device_list(stdout);
    if (a.help || a.version || a.list_devices)
        return stdout_check(err);
    if (!a.model)
        return oato_fail(err, OATO_EUSAGE,
                         "no model given: oato-run [VERB] MODEL.gguf; see --help");
    outfile_keep(a.model);
    outfile_keep(a.plan);
    outfile_keep(a.neurons);
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
