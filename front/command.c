/*
 * command.c - the command line of oato-run. Every option is a row with the verbs that take it; any
 * other verb refuses the option instead of ignoring it.
 */
#include "executor/session_options.h"
#include "front/front.h"
#include "front/run.h"
#include "net/net.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

enum verb {
    GENERATE = 1,
    CHAT = 2,
    BENCH = 4,
    PERPLEXITY = 8,
    LOGITS = 16,
    TOKENIZE = 32,
    ENGINE = GENERATE | CHAT | BENCH | PERPLEXITY | LOGITS,
    PLANNED = ENGINE & ~LOGITS, /* by themselves */
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
    {"selftest", 0, NULL, "check a device; see selftest --help"}, /* has options of its own */
};

/* ----------------------------------------------------------------------------- options ----- */

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

/* ID+BIAS or ID-BIAS; -inf: never. */
static oato_status take_bias(const struct options *o, void *to, struct oato_error *err)
{
    struct run_args *a = to;
    const size_t digits = strspn(o->value, "0123456789");
    char id[16] = "";
    int64_t token;
    double bias = 0;
    const char *sign = o->value + digits;
    if (digits < sizeof id)
        memcpy(id, o->value, digits);
    const bool never = !strcmp(sign, "-inf");
    if (!parse_i64(id, 0, INT32_MAX, &token) || (*sign != '+' && *sign != '-') ||
        (!never && !parse_f64(sign + 1, 0, 1e9, &bias)))
        return oato_fail(err, OATO_EUSAGE,
                         "%s wants a token's id and a bias, such as 15043+1 or 15043-inf, not '%s'",
                         o->name, o->value);
    if (a->open.sampling.n_bias == BIASES_MAX)
        return oato_fail(err, OATO_EUSAGE, "more than %d %s; give fewer", BIASES_MAX, o->name);
    a->bias[a->open.sampling.n_bias++] =
        (struct logit_bias){(int32_t)token, never          ? -INFINITY
                                            : *sign == '-' ? (float)-bias
                                                           : (float)bias};
    return OATO_OK;
}

static oato_status take_model(const struct options *o, void *to, struct oato_error *err)
{
    struct run_args *a = to;
    if (a->open.model)
        return oato_fail(err, OATO_EUSAGE,
                         "more than one model: '%s' and '%s'; use -p for a prompt", a->open.model,
                         o->value);
    a->open.model = o->value;
    return OATO_OK;
}

#define AS(take, member)           take, offsetof(struct run_args, member), 0, 0
#define TEXT(member)               AS(option_text, member)
#define FLAG(member)               AS(option_flag, member)
#define COUNT(member, least, most) session_take_int, offsetof(struct run_args, member), least, most
#define ARGS(take)                 take, 0, 0, 0 /* the whole structure */
#define SAMPLING_VERBS             ANSWER
#define SAMPLING_AT                offsetof(struct run_args, open)

static const struct option_of table[] = {
    {"model", 'm', "FILE", "the GGUF file (or the first operand)", ALL, ARGS(take_model)},
    {"hf", 0, "NAME", "a hub's model, OWNER/REPO[:QUANT]; fetched if it is not here", ALL,
     TEXT(hf)},
    {"hf-repo", 0, "NAME", NULL, ALL, TEXT(hf)},
    {"hfr", 0, "NAME", NULL, ALL, TEXT(hf)},
    SESSION_PLAN(ENGINE, offsetof(struct run_args, open)),
    AUTO_OPTIONS(PLANNED, offsetof(struct run_args, plans), offsetof(struct run_args, open)),
    {"prompt", 'p', "TEXT", "text to continue; repeat for several at once", GENERATE,
     ARGS(take_prompt)},
    {"prompt", 'p', "TEXT", "text to tokenize", TOKENIZE, ARGS(take_prompt)},
    {"file", 'f', "FILE", "prompt from a file (- = standard input)", GENERATE, ARGS(take_file)},
    {"file", 'f', "FILE", "text file (- = standard input)", PERPLEXITY | TOKENIZE, ARGS(take_file)},
    {"compare", 0, "WITH",
     "judge it by a run: of --sparse off or dense, or plain (off, nor --plan, --kv)", PERPLEXITY,
     TEXT(compare)},
    {"generate", 'n', "N", "max. tokens of an answer (default -1: no limit but the context)",
     ANSWER, COUNT(n_predict, -1, INT32_MAX)},
    {"predict", 0, "N", NULL, ANSWER, COUNT(n_predict, -1, INT32_MAX)},
    {"n-predict", 0, "N", NULL, ANSWER, COUNT(n_predict, -1, INT32_MAX)},
    SESSION_SAMPLING,
    {"logit-bias", 0, "ID+B", "add B to the logit of a token (ID-inf: never); repeat for more",
     ANSWER, ARGS(take_bias)},
    {"grammar", 0, "TEXT", "answers follow this grammar (GBNF)", ANSWER, TEXT(grammar)},
    {"grammar-file", 0, "FILE", "the same from a file", ANSWER, TEXT(grammar_file)},
    {"json-schema", 'j', "JSON", "answers are JSON that this schema accepts", ANSWER, TEXT(schema)},
    {"json-schema-file", 0, "FILE", "the same from a file", ANSWER, TEXT(schema_file)},
    {"chat", 0, NULL, "prompts are user messages in the model's chat template", GENERATE,
     FLAG(chat)},
    {"chat-template", 0, "NAME", "use this template, or Jinja text, instead of the model's", ANSWER,
     TEXT(open.chat_template)},
    {"chat-template-file", 0, "FILE", "the same from a file", ANSWER,
     TEXT(open.chat_template_file)},
    {"chat-template-kwargs", 0, "JSON", "variables for the model's chat template", ANSWER,
     TEXT(open.variables)},
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
     FLAG(open.engine.timing_only)},
    {"batch", 'b', "B", "sequences decoded together (default the plan's or 1)", BENCH,
     COUNT(batch, 1, 4096)},
    {"depth", 'd', "N", "positions in the cache before decoding (default the plan's prompt, or 0)",
     BENCH, COUNT(depth, 0, 1 << 24)},
    {"n-depth", 0, "N", NULL, BENCH, COUNT(depth, 0, 1 << 24)},
    {"ids", 0, "1,2,3", "token ids", LOGITS, TEXT(ids)},
    {"output", 'o', "FILE", "raw float32, tokens x vocabulary", LOGITS, TEXT(output)},
    {"mtp", 0, NULL, "those of the block that predicts one more token", LOGITS,
     FLAG(open.choice.mtp)},
    {"ids", 0, NULL, "only the ids, on one line", TOKENIZE, FLAG(only_ids)},
    {"no-special", 0, NULL, "add no BOS/EOS and parse no control tokens", TOKENIZE,
     FLAG(no_special)},
    SESSION_ENGINE(ENGINE, offsetof(struct run_args, open)),
    {"dump-program", 0, NULL, "print what each device runs, and stop", ENGINE,
     FLAG(open.dump_program)},
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

/* Nothing to continue, somebody at a terminal, and a model that has learned to answer. */
static bool wants_talk(const struct run_args *a)
{
    struct gguf *g;
    struct oato_error ignored; /* is found again */
    if (a->n_prompts || a->file || a->json || a->open.dump_program || a->open.dry_run ||
        isatty(STDIN_FILENO) != 1 || gguf_open(a->open.model, &g, &ignored))
        return false;
    const bool talks = a->open.chat_template || a->open.chat_template_file ||
                       gguf_find(g, "tokenizer.chat_template");
    gguf_close(g);
    return talks;
}

/* chats: without a verb it may be a conversation. */
static oato_status command_run(int argc, char **argv, bool chats, struct oato_error *err)
{
    struct run_args a = {
        .n_predict = -1,
        .prefill = -1,
        .generate = -1,
        .repeat = 3,
        .batch = -1,
        .depth = -1,
        .open.sampling = {SAMPLING_OPEN.seed = UINT64_MAX},
    };
    struct option_row rows[ARRAY_LEN(table) + LLAMA_OPTIONS];
    size_t verb = 0;
    int first = 1;
    const char *names[ARRAY_LEN(verbs)];
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        names[i] = verbs[i].name;
        if (argc > 1 && !strcmp(argv[1], names[i])) {
            verb = i;
            first = 2;
        }
    }
    if (first == 2 && !verbs[verb].run)
        return selftest_command(argc - 1, argv + 1, err);
    if (first == 1 && argc > 1 && verb_check(argv[1], names, ARRAY_LEN(names), err))
        return err->status;
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
        puts(chats ? "oato " OATO_VERSION : "oato-run " OATO_VERSION);
    else if (a.list_devices)
        device_list(stdout);
    if (a.help || a.version || a.list_devices)
        return stdout_check(err);
    a.open.sampling.bias = a.bias;
    if (a.open.sampling.seed == UINT64_MAX)
        a.open.sampling.seed = sampling_seed();
    if (!a.open.model && !a.hf)
        return oato_fail(err, OATO_EUSAGE, "no model given: %s MODEL.gguf; see --help",
                         chats ? "oato" : "oato-run [VERB]");
    interrupt_catch();
    if (model_locate(&a.open.model, a.hf, program_warn, err))
        return err->status;
    if (access(a.open.model, F_OK)) /* before a prompt is asked for */
        return oato_fail(err, OATO_EIO, "%s: %s", a.open.model, strerror(errno));
    const char *inputs[] = {a.open.model, a.open.plan,    a.open.neurons,
                            a.file,       a.grammar_file, a.schema_file};
    for (size_t i = 0; i < ARRAY_LEN(inputs); i++)
        outfile_keep(inputs[i]);
    if (chats && first == 1 && wants_talk(&a))
        while (verbs[verb].verb != CHAT)
            verb++;
    if (verbs[verb].verb & PLANNED && auto_plan_use(&a.plans, &a.open, err))
        return err->status;
    if (a.output && !a.open.dump_program && outfile_check(a.output, err))
        return err->status;
    if (verbs[verb].verb != CHAT) /* chat handles Ctrl-C itself */
        interrupt_deadline(1);
    return verbs[verb].run(&a, err);
}

oato_status run_command(int argc, char **argv, struct oato_error *err)
{
    return command_run(argc, argv, false, err);
}

oato_status model_command(int argc, char **argv, struct oato_error *err)
{
    return command_run(argc, argv, true, err);
}
