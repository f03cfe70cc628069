/*
 * main.c - oato-serve: the command line.
 */
#include "executor/scheduler.h"
#include "executor/session_options.h"
#include "front/auto.h"
#include "net/net.h"
#include "server/server.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

struct serve_args {
    struct server_options server;
    struct auto_plan plans;           /* where there is no --plan */
    const char *replay, *hf, *models; /* models: a folder or files */
    int32_t memory_mib;               /* -1: not given */
    bool help, version;
};

enum { SWAP_MIB = 4096 };

static oato_status take_model(const struct options *o, void *to, struct oato_error *err)
{
    struct serve_args *a = to;
    if (a->server.session.model)
        return oato_fail(err, OATO_EUSAGE,
                         "more than one model: '%s' and '%s'; --models serves several",
                         a->server.session.model, o->value);
    a->server.session.model = o->value;
    return OATO_OK;
}

/* llama.cpp's; always the case here. */
static oato_status take_nothing(const struct options *o, void *to, struct oato_error *err)
{
    (void)o;
    (void)to;
    (void)err;
    return OATO_OK;
}

enum { SESSION_AT_SERVE = offsetof(struct serve_args, server.session), ALL = 1 };
#define SAMPLING_VERBS ALL
#define SAMPLING_AT    SESSION_AT_SERVE

#define AS(take, member) take, offsetof(struct serve_args, member), 0, 0
#define TEXT(member)     AS(option_text, server.member)
#define COUNT(member, least, most)                                                                 \
    session_take_int, offsetof(struct serve_args, server.member), least, most
#define NOTHING take_nothing, 0, 0, 0

static const struct option_of table[] = {
    {"model", 'm', "FILE", "the GGUF file (or the operand)", ALL, take_model, 0, 0, 0},
    {"hf", 0, "NAME", "a hub's model, OWNER/REPO[:QUANT]; fetched if it is not here", ALL,
     AS(option_text, hf)},
    {"hf-repo", 0, "NAME", NULL, ALL, AS(option_text, hf)},
    {"hfr", 0, "NAME", NULL, ALL, AS(option_text, hf)},
    SESSION_PLAN(ALL, SESSION_AT_SERVE),
    AUTO_OPTIONS(ALL, offsetof(struct serve_args, plans), SESSION_AT_SERVE),
    {"models", 0, "DIR",
     "several models: a folder, or files with commas; each is loaded when asked for", ALL,
     AS(option_text, models)},
    {"models-dir", 0, "DIR", NULL, ALL, AS(option_text, models)},
    {"memory", 0, "MIB", "host memory for all of them (default: 90 % of what is free)", ALL,
     session_take_int, offsetof(struct serve_args, memory_mib), 1, INT32_MAX},
    {"models-max", 0, "N", "loaded at the same time (default 0: as memory allows)", ALL,
     COUNT(models_max, 0, MODELS_MOST)},
    {"models-wait", 0, "S", "a request waits S seconds for busy ones to go; then 503 (default 60)",
     ALL, COUNT(models_wait_s, 0, 86400)},
    {"no-models-autoload", 0, NULL, "only POST /models/load loads one", ALL,
     AS(option_flag, server.no_autoload)},
    {"host", 0, "LIST", "addresses to listen at (default 127.0.0.1)", ALL, TEXT(host)},
    {"port", 0, "N", "at which port (default 8080; 0: any free one)", ALL, COUNT(port, 0, 65535)},
    {"api-key", 0, "KEYS", "refuse clients that send none of these (commas between)", ALL,
     TEXT(api_key)},
    {"api-key-file", 0, "FILE", "more of them, a line each", ALL, TEXT(api_key_file)},
    {"cors-origins", 0, "LIST", "sites whose pages may ask, or localhost (default *: any)", ALL,
     TEXT(cors_origins)},
    {"alias", 'a', "LIST", "names of the model (default: of its file)", ALL, TEXT(alias)},
    {"tags", 0, "LIST", "words about the model, for /v1/models", ALL, TEXT(tags)},
    {"parallel", 0, "N", "answers computed at the same time (default 4)", ALL,
     COUNT(session.engine.seqs, 1, 4096)},
    {"np", 0, "N", NULL, ALL, COUNT(session.engine.seqs, 1, 4096)},
    {"queue", 0, "N", "answers that may wait; beyond that 503 (default 256)", ALL,
     COUNT(queue, 0, 1 << 20)},
    {"policy", 0, "NAME",
     "who runs when memory is short: adaptive (default), recompute, swap, fcfs, vtc", ALL,
     TEXT(policy)},
    {"embeddings", 0, NULL, "make embeddings only, and no answers", ALL,
     AS(option_flag, server.session.engine.embeddings)},
    {"embedding", 0, NULL, NULL, ALL, AS(option_flag, server.session.engine.embeddings)},
    {"pooling", 0, "HOW", "of a text's tokens: last (default), mean, none", ALL, TEXT(pooling)},
    {"profile", 0, "FILE", "its costs of swapping and recomputing (oato-profile --restores)", ALL,
     TEXT(profile)},
    {"swap-space", 0, "MIB", "host memory for swapped answers (default 4096; 0: none)", ALL,
     COUNT(swap_mib, 0, INT32_MAX)},
    {"prompt-cache", 0, "DIR", "keep prompts there, also for later runs: not computed again", ALL,
     TEXT(session.engine.prompt_cache)},
    {"prompt-cache-size", 0, "MIB", "that DIR may hold (default 8192); the oldest go", ALL,
     COUNT(prompt_cache_mib, 1, INT32_MAX)},
    {"slot-save-path", 0, "DIR", "where POST /slots/{id} saves prompts and finds them", ALL,
     TEXT(slot_save_path)},
    {"decision-log", 0, "FILE", "write the scheduler's decisions there", ALL, TEXT(decision_log)},
    {"replay", 0, "FILE", "decide again what such a file tells and compare; no model is needed",
     ALL, AS(option_text, replay)},
    {"connections", 0, "N", "open at the same time (default 1024)", ALL,
     COUNT(connections, 8, 1 << 20)},
    {"idle", 0, "S", "close connections silent for S seconds (default 60)", ALL,
     COUNT(idle_s, 1, 86400)},
    {"drain", 0, "S", "on a signal give running answers S seconds (default 30)", ALL,
     COUNT(drain_s, 0, 86400)},
    {"body-limit", 0, "KIB", "largest request (default 4096)", ALL, COUNT(body_kib, 1, 65536)},
    {"generate", 'n', "N",
     "max. tokens of an answer that asks for no number (default -1: no limit)", ALL,
     COUNT(n_predict, -1, INT32_MAX)},
    {"max-tokens", 0, "N", "that any answer may have (default -1: no limit but the context)", ALL,
     COUNT(max_tokens, -1, INT32_MAX)},
    {"predict", 0, "N", NULL, ALL, COUNT(n_predict, -1, INT32_MAX)},
    {"n-predict", 0, "N", NULL, ALL, COUNT(n_predict, -1, INT32_MAX)},
    SESSION_SAMPLING,
    {"chat-template", 0, "NAME", "use this template, or Jinja text, instead of the model's", ALL,
     TEXT(session.chat_template)},
    {"chat-template-file", 0, "FILE", "the same from a file", ALL,
     TEXT(session.chat_template_file)},
    {"chat-template-kwargs", 0, "JSON", "variables for the model's chat template", ALL,
     TEXT(session.variables)},
    {"reasoning", 0, "HOW", "on, off; auto: on where the template knows of it (default: its way)",
     ALL, TEXT(reasoning)},
    {"rea", 0, "HOW", NULL, ALL, TEXT(reasoning)},
    {"reasoning-budget", 0, "N", "tokens of reasoning, which is ended then (default -1: no limit)",
     ALL, COUNT(reasoning_most, -1, INT32_MAX)},
    {"reasoning-budget-message", 0, "TEXT", "what it is ended with, before the mark of its end",
     ALL, TEXT(reasoning_end)},
    SESSION_ENGINE(ALL, SESSION_AT_SERVE),
    {"no-kv-unified", 0, NULL, "divide -c N by --parallel: no answer has more positions", ALL,
     AS(option_flag, server.split)},
    {"no-slots", 0, NULL, "nothing at /slots", ALL, AS(option_flag, server.no_slots)},
    {"no-metrics", 0, NULL, "nothing at /metrics", ALL, AS(option_flag, server.no_metrics)},
    {"no-ui", 0, NULL, "no page at /", ALL, AS(option_flag, server.no_page)},
    {"no-webui", 0, NULL, NULL, ALL, AS(option_flag, server.no_page)},
    {"verbose", 'v', NULL, "answers tell the prompt's text (__verbose), as requests may ask", ALL,
     AS(option_flag, server.verbose)},
    {"cb", 0, NULL, NULL, ALL, NOTHING},
    {"slots", 0, NULL, NULL, ALL, NOTHING},
    {"metrics", 0, NULL, NULL, ALL, NOTHING},
    {"cont-batching", 0, NULL, NULL, ALL, NOTHING},
    {"jinja", 0, NULL, NULL, ALL, NOTHING},
    {"models-autoload", 0, NULL, NULL, ALL, NOTHING},
    {"kv-unified", 0, NULL, NULL, ALL, NOTHING},
    {"backend-sampling", 0, NULL, NULL, ALL, NOTHING},
    {"no-context-shift", 0, NULL, NULL, ALL, NOTHING},
    {"reranking", 0, NULL, NULL, ALL, NOTHING},
    {"rerank", 0, NULL, NULL, ALL, NOTHING},
    {"help", 'h', NULL, "this text", ALL, AS(option_flag, help)},
    {"version", 0, NULL, "version", ALL, AS(option_flag, version)},
};

/* llama.cpp's, without a counterpart here; a hint at what there is. */
static const struct option_row answers[] = {
    OPTION_ANSWER("context-shift",
                  "an answer ends where the context is full; -c N allows a longer one"),
    OPTION_ANSWER("models-preset",
                  "the options are the same for all models; --models names the files"),
    OPTION_ANSWER("no-jinja",
                  "templates are always run; --chat-template NAME chooses a named format"),
    OPTION_ANSWER("reasoning-format", "reasoning is always told apart, as reasoning_content"),
    OPTION_ANSWER("cache-reuse", "prompts that begin alike share memory by themselves"),
    OPTION_ANSWER("ssl-key-file", "put a proxy that speaks TLS in front"),
    OPTION_ANSWER("ssl-cert-file", "put a proxy that speaks TLS in front"),
    OPTION_ANSWER("timeout", "--idle S closes silent connections"),
    OPTION_ANSWER("threads-http", "four threads serve all connections"),
};

static void help(const struct option_row *rows)
{
    printf("Usage: oato-serve MODEL.gguf [OPTIONS], or oato-serve --models DIR [OPTIONS]\n"
           "Answers clients of OpenAI's, Anthropic's, Ollama's and llama.cpp's HTTP interfaces. "
           "Options:\n");
    options_help(rows, stdout);
    printf("Exit status: 0 ended by a signal, 1 --replay found a difference, 2 usage, 3 bad file, "
           "4 does "
           "not fit,\n5 device failed, 6 input/output failed. See man oato-serve.\n");
}

/* OATO_NEGATIVE: a decision differs. */
static oato_status replay(const char *path, struct oato_error *err)
{
    FILE *log = stream_open(path, "r");
    int64_t decisions;
    if (!log)
        return oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
    const oato_status status = scheduler_replay(log, path, &decisions, err);
    fclose(log);
    if (status)
        return status;
    printf("%" PRId64 " decisions, all as in %s\n", decisions, path);
    return stdout_check(err);
}

static oato_status plan_only(const struct session_args *a, struct oato_error *err)
{
    struct session s;
    const oato_status status = session_open(&s, a, 0, err);
    if (!status)
        session_close(&s);
    return status;
}

/* What makes sense of one model only. */
static oato_status several_check(const struct serve_args *a, struct oato_error *err)
{
    const struct server_options *o = &a->server;
    const struct {
        const char *name;
        bool given;
    } one[] = {{"a model beside it", o->session.model || a->hf},
               {"--plan", o->session.plan},
               {"--neurons", o->session.neurons},
               {"--alias", o->alias},
               {"--map", o->session.engine.map},
               {"--decision-log", o->decision_log}};
    for (size_t i = 0; i < ARRAY_LEN(one); i++)
        if (one[i].given)
            return oato_fail(err, OATO_EUSAGE, "--models: %s is for one model; leave it out",
                             one[i].name);
    return OATO_OK;
}

/* Of the host's memory an eighth is for what plans do not count: tokenizers, templates, samplers.
 */
static oato_status several_plan(struct serve_args *a, struct model_files *f, struct oato_error *err)
{
    struct server_options *o = &a->server;
    struct device_budget devices[DEVICES_MAX];
    const uint64_t host = o->memory_bytes > SERVER_BYTES ? o->memory_bytes - SERVER_BYTES : 0;
    const oato_status status = auto_plan_together(&a->plans, &o->session, f->of, f->n, host / 8 * 7,
                                                  devices, &o->n_devices, err);
    for (int32_t i = 0; i < o->n_devices && !status; i++) {
        snprintf(o->devices[i].id, sizeof o->devices[i].id, "%.15s", devices[i].id);
        o->devices[i].bytes = devices[i].bytes;
    }
    return status;
}

static oato_status plans_only(const struct server_options *o, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < o->n_models && !status; i++) {
        struct session_args args = o->session;
        args.model = o->models[i].path;
        args.make_user = o->models[i].make_user;
        status = plan_only(&args, err);
    }
    return status;
}

/* Several models: their files, the memory that they share, and a plan for each. */
static oato_status several_run(struct serve_args *a, struct oato_error *err)
{
    static struct model_files files; /* of which there is one, and it is large */
    static struct server_model models[MODEL_FILES_MOST];
    struct server_options *o = &a->server;
    struct host_share share;
    if (several_check(a, err) || model_files_read(&files, a->models, err))
        return err->status;
    host_share_read("", &share);
    o->memory_bytes =
        a->memory_mib > 0 ? (uint64_t)a->memory_mib << 20 : share.available_bytes / 10 * 9;
    o->swap_mib = max_i64(o->swap_mib, 0);
    o->models = models;
    o->n_models = files.n;
    for (int32_t i = 0; i < files.n; i++)
        models[i] = (struct server_model){files.of[i].name, files.of[i].path, &files.of[i].plan};
    oato_status status = auto_plan_use(&a->plans, &o->session, err);
    if (!status && o->session.make_plan)
        status = several_plan(a, &files, err);
    if (!status)
        status = o->session.dry_run ? plans_only(o, err) : server_run(o, err);
    model_files_free(&files);
    return status;
}

static oato_status run(int argc, char **argv, struct oato_error *err)
{
    struct serve_args a = {.memory_mib = -1,
                           .server = {.host = "127.0.0.1",
                                      .cors_origins = "*",
                                      .port = 8080,
                                      .policy = "adaptive",
                                      .pooling = "last",
                                      .swap_mib = -1,
                                      .models_wait_s = 60,
                                      .prompt_cache_mib = 8192,
                                      .n_predict = -1,
                                      .max_tokens = -1,
                                      .reasoning_most = -1,
                                      .queue = 256,
                                      .connections = 1024,
                                      .idle_s = 60,
                                      .drain_s = 30,
                                      .body_kib = 4096,
                                      .session = {.sampling = {SAMPLING_OPEN.seed = UINT64_MAX},
                                                  .engine = {.seqs = 4}}}};
    struct option_row rows[ARRAY_LEN(table) + ARRAY_LEN(answers) + LLAMA_OPTIONS];
    const size_t n = options_rows(table, ARRAY_LEN(table), ALL, rows);
    memcpy(rows + n, answers, sizeof answers);
    memcpy(rows + n + ARRAY_LEN(answers), llama_options, sizeof llama_options);
    struct options o;
    options_init(&o, rows, argc - 1, argv + 1);
    while (!a.help && !a.version) {
        const int id = options_take(&o, table, &a, err);
        if (id == OPT_END)
            break;
        if (id == OPT_ERROR || (id == OPT_OPERAND && take_model(&o, &a, err)))
            return err->status;
    }
    if (a.help)
        help(rows);
    else if (a.version)
        puts("oato-serve " OATO_VERSION);
    if (a.help || a.version)
        return stdout_check(err);
    if (a.replay)
        return replay(a.replay, err);
    if (!a.server.session.model && !a.hf && !a.models)
        return oato_fail(err, OATO_EUSAGE, "no model given: oato-serve MODEL.gguf; see --help");
    const char *how = a.server.reasoning;
    if (how && strcmp(how, "on") != 0 && strcmp(how, "off") != 0 && strcmp(how, "auto") != 0)
        return oato_fail(err, OATO_EUSAGE, "--reasoning %.40s: it is on, off or auto", how);
    if (a.server.split && !a.server.session.engine.context)
        return oato_fail(err, OATO_EUSAGE,
                         "--no-kv-unified divides the positions of -c N; give that, too");
    const struct server_options *so = &a.server;
    const char *inputs[] = {so->session.model,
                            so->session.plan,
                            so->session.neurons,
                            so->profile,
                            so->session.chat_template_file,
                            so->api_key_file};
    for (size_t i = 0; i < ARRAY_LEN(inputs); i++)
        outfile_keep(inputs[i]);
    interrupt_catch();
    if (a.models)
        return several_run(&a, err);
    a.server.swap_mib = a.server.swap_mib < 0 ? SWAP_MIB : a.server.swap_mib;
    if (model_locate(&a.server.session.model, a.hf, program_warn, err) ||
        auto_plan_use(&a.plans, &a.server.session, err))
        return err->status;
    if (a.server.session.dry_run)
        return plan_only(&a.server.session, err);
    return server_run(&a.server, err);
}

int main(int argc, char **argv)
{
    struct oato_error err = {0};
    program_begin("oato-serve");
    const oato_status status = run(argc, argv, &err);
    if (status && err.text[0]) /* empty: rank 0 says it */
        fprintf(stderr, "oato-serve: %s\n", err.text);
    return program_exit((int)status);
}
