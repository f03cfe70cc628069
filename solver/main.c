/*
 * main.c - oato-plan: turns command lines into calls of solver.h; messages go to stderr, results
 * to stdout, the status to the shell. Verbs and options are rows of tables: an option says which
 * verbs have it, how its value is read and where that goes.
 */
#include "lowering/lowering.h"
#include "solver/verbs.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ----------------------------------------------------------------------------- options ----- */

static oato_status bad_value(const struct options *o, const char *want, struct oato_error *err)
{
    return oato_fail(err, OATO_EUSAGE, "%s: '%.60s' is not %s", o->name, o->value, want);
}

static oato_status take_count(const struct options *o, void *to, struct oato_error *err)
{
    int64_t v;
    if (!parse_count(o->value, (int64_t)o->of->least, 1 << 30, &v))
        return bad_value(
            o, o->of->least > 0 ? "a number from 1 to 1073741824" : "a number from 0 to 1073741824",
            err);
    *(int32_t *)to = (int32_t)v;
    return OATO_OK;
}

static oato_status take_speed(const struct options *o, void *to, struct oato_error *err)
{
    return parse_f64(o->value, 0, 1e9, to) ? OATO_OK : bad_value(o, "a number of tokens/s", err);
}

static oato_status take_seconds(const struct options *o, void *to, struct oato_error *err)
{
    return parse_f64(o->value, 0, 1e6, to) ? OATO_OK : bad_value(o, "a number of seconds", err);
}

static oato_status take_kv(const struct options *o, void *to, struct oato_error *err)
{
    struct planner_options *p = to;
    p->any_kv = !strcmp(o->value, "auto");
    return p->any_kv || dtype_parse_kv(o->value, &p->request.kv)
               ? OATO_OK
               : bad_value(o, "f16, q8_0, f32 or auto", err);
}

static oato_status take_ubatch(const struct options *o, void *to, struct oato_error *err)
{
    struct planner_options *p = to;
    int64_t v = p->request.ubatch;
    p->any_ubatch = !strcmp(o->value, "auto");
    if (!p->any_ubatch && !parse_count(o->value, 1, 1 << 30, &v))
        return bad_value(o, "auto or a number from 1 to 1073741824", err);
    p->request.ubatch = (int32_t)v;
    return OATO_OK;
}

static oato_status take_share(const struct options *o, void *to, struct oato_error *err)
{
    char *end;
    double v = strtod(o->value, &end);
    if (end == o->value || !(v >= 0 && v < 1e6) || (*end && strcmp(end, "%") != 0))
        return bad_value(o, "a share such as 5% or 0.05", err);
    *(double *)to = *end ? v / 100 : v;
    return OATO_OK;
}

static oato_status take_context(const struct options *o, void *to, struct oato_error *err)
{
    *(bool *)to = !strcmp(o->value, "context");
    return *(bool *)to ? OATO_OK : bad_value(o, "context", err);
}

/* The number of the word among n; n: it is none of them. */
static int find_word(const char *word, const char *const *words, int n)
{
    int i = 0;
    while (i < n && strcmp(word, words[i]) != 0)
        i++;
    return i;
}

/* The first is the machine's; further ones are of other ranks. */
static oato_status take_profile(const struct options *o, void *to, struct oato_error *err)
{
    struct command *c = to;
    if (c->n_more == SOLVER_DEVICES - 1)
        return oato_fail(err, OATO_EUSAGE, "more than %d profiles", SOLVER_DEVICES);
    if (c->profile)
        c->more[c->n_more++] = o->value;
    else
        c->profile = o->value;
    return OATO_OK;
}

/* Networks are sold by bits, measured by bytes. */
static bool parse_rate(const char *text, double *bytes_per_s)
{
    static const char *const bits[] = {"b/s", "bit/s", "bits/s", "bps"};
    if (parse_quantity(text, "B/s", bytes_per_s))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(bits); i++)
        if (parse_quantity(text, bits[i], bytes_per_s)) {
            *bytes_per_s /= 8;
            return true;
        }
    return false;
}

/* RATE[,LATENCY]: bytes/s and seconds. */
static oato_status take_network(const struct options *o, void *to, struct oato_error *err)
{
    struct rank_options *r = to;
    char rate[32];
    double seconds = r->latency_ns * 1e-9;
    const size_t n = strcspn(o->value, ",");
    snprintf(rate, sizeof rate, "%.*s", (int)n, o->value);
    if (!parse_rate(rate, &r->bytes_per_s) || r->bytes_per_s < 1 ||
        (o->value[n] && !parse_quantity(o->value + n + 1, "s", &seconds)))
        return bad_value(
            o, "a rate in bytes or bits and perhaps a latency, such as 117MB/s,60us or 10Gb/s",
            err);
    r->latency_ns = seconds * 1e9;
    r->network_given = true;
    return OATO_OK;
}

static oato_status take_wire(const struct options *o, void *to, struct oato_error *err)
{
    return dtype_parse_kv(o->value, to) ? OATO_OK : bad_value(o, "f32, f16 or q8_0", err);
}

static oato_status take_split(const struct options *o, void *to, struct oato_error *err)
{
    static const char *const names[] = {"auto", "tensor", "layers"};
    enum rank_split *split = to;
    *split = find_word(o->value, names, ARRAY_LEN(names));
    return *split < ARRAY_LEN(names) ? OATO_OK : bad_value(o, "auto, tensor or layers", err);
}

static oato_status take_workload(const struct options *o, void *to, struct oato_error *err)
{
    struct workload *w = to;
    w->name = workload_find(o->value);
    outfile_keep(w->name ? NULL : o->value);
    if (!w->name && !strchr(o->value, '.') && !strchr(o->value, '/'))
        return bad_value(o, "mixed, chat, code, rag or a FILE.yaml", err);
    return w->name ? OATO_OK : workload_load(o->value, w, err);
}

static oato_status take_objective(const struct options *o, void *to, struct oato_error *err)
{
    struct plan_request *q = to;
    q->objective = find_word(o->value, objective_names, OBJECTIVE_COUNT);
    return q->objective < OBJECTIVE_COUNT ? OATO_OK
                                          : bad_value(o, "latency, ttft or time-per-token", err);
}

static oato_status take_cache(const struct options *o, void *to, struct oato_error *err)
{
    int32_t *slots = to;
    int64_t n = 0;
    if (!strcmp(o->value, "auto"))
        n = CACHE_AUTO;
    else if (strcmp(o->value, "off") != 0 && !parse_i64(o->value, 1, EXPERTS_MAX, &n))
        return bad_value(o, "auto, off or a number of experts in each layer", err);
    *slots = (int32_t)n;
    return OATO_OK;
}

static oato_status take_engine(const struct options *o, void *to, struct oato_error *err)
{
    struct export_options *x = to;
    x->target = find_word(o->value, export_target_names, EXPORT_TARGETS);
    return x->target < EXPORT_TARGETS
               ? OATO_OK
               : bad_value(o, "llama.cpp, ik_llama.cpp or ktransformers", err);
}

/* The device of "DEVICE=VALUE" to id; returns the value, NULL when it is no such pair. A kind alone
 * is its first device. */
static const char *split_device(const char *text, char *id, size_t n)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || (size_t)(equals - text) + 2 >= n)
        return NULL;
    const int length = (int)(equals - text);
    snprintf(id, n, "%.*s%s", length, text, memchr(text, ':', (size_t)length) ? "" : ":0");
    return equals + 1;
}

static oato_status take_budget(const struct options *o, void *to, struct oato_error *err)
{
    struct planner_options *p = to;
    struct device_budget b;
    double bytes;
    const char *value = split_device(o->value, b.id, sizeof b.id);
    if (!value || !parse_quantity(value, "B", &bytes) || bytes > 1e18)
        return bad_value(o, "a device and a size, such as sim:0=40MiB", err);
    if (p->n_budgets == SOLVER_DEVICES)
        return oato_fail(err, OATO_EUSAGE, "more than %d budgets", SOLVER_DEVICES);
    b.bytes = (uint64_t)bytes;
    p->strict_budgets = true;
    p->budgets[p->n_budgets++] = b;
    return OATO_OK;
}

static oato_status take_name(const struct options *o, void *to, struct oato_error *err)
{
    struct command *c = to;
    struct export_name name;
    name.name = split_device(o->value, name.id, sizeof name.id);
    if (!name.name || !*name.name)
        return bad_value(o, "a device and its name there, such as cuda:0=CUDA1", err);
    if (c->export.n_names == SOLVER_DEVICES)
        return oato_fail(err, OATO_EUSAGE, "more than %d names of devices", SOLVER_DEVICES);
    c->names[c->export.n_names++] = name;
    c->export.names = c->names;
    return OATO_OK;
}

static oato_status take_sparse(const struct options *o, void *to, struct oato_error *err)
{
    struct sparse_choice *choice = to;
    const oato_status status = option_sparse(o, choice, err);
    return status || choice->mode != SPARSE_DENSE
               ? status
               : oato_fail(err, OATO_EUSAGE,
                           "--sparse dense computes all neurons: plan with --sparse off; dense is "
                           "for measurements by oato-run");
}

/* Verbs with the same options have one bit. */
enum {
    MAKE = 1,
    SHOW = 2,
    DIFF = 4,
    CHECK = 8,
    SIMULATE = 16,
    REPORT = 32,
    EXPORT = 64,
    FRONTIER = 128,
    HEADER = 256,
    IMPORT = 512,
    CLUSTER = 1024, /* simulate without a plan; ALL has SIMULATE */
    OTHERS = 2048,  /* show, of requests that it was not planned for */
    PLANNING = MAKE | FRONTIER,
    REQUEST = PLANNING | CLUSTER,
    PLANNED = SHOW | CHECK | SIMULATE | REPORT, /* with a model and a machine */
    ALL = 1023,
};

#define INTO(member, take)   take, offsetof(struct command, member), 0, 0
#define TEXT(member)         INTO(member, option_text)
#define FLAG(member)         INTO(member, option_flag)
#define COUNT(member, least) take_count, offsetof(struct command, member), least, 0

/* In the order of the help. */
static const struct option_of all_options[] = {
    {"model", 'm', "MODEL", "the model that was planned", PLANNED | EXPORT | IMPORT, TEXT(model)},
    {"profile", 'p', "PROFILE", "the machine's profile", FRONTIER, TEXT(profile)},
    {"profile", 'p', "PROFILE", "the machine's profile; repeat for several hosts", MAKE | PLANNED,
     take_profile, 0, 0, 0},
    {"ranks", 0, "N",
     "divide the model between N processes of mpirun; --hosts, --split, --network, --wire", MAKE,
     COUNT(ranks.ranks, 1)},
    {"hosts", 0, "N", NULL, MAKE, COUNT(ranks.hosts, 1)},
    {"split", 0, "HOW", NULL, MAKE, INTO(ranks.split, take_split)},
    {"network", 0, "RATE", NULL, MAKE | PLANNED, INTO(ranks, take_network)},
    {"wire", 0, "TYPE", NULL, MAKE, INTO(ranks.wire, take_wire)},
    {"hosts", 0, "N", "no plan: clusters of up to N hosts like this one", CLUSTER,
     COUNT(ranks.hosts, 1)},
    {"per-host", 0, "M", "so many devices in each (default 1)", CLUSTER, COUNT(per_host, 1)},
    {"network", 0, "RATE", "between hosts, as 1GB/s,20us (default 117MB/s,60us)", CLUSTER,
     INTO(ranks, take_network)},
    {"wire", 0, "TYPE", "of sums between hosts: f32 (default), f16 or q8_0", CLUSTER,
     INTO(ranks.wire, take_wire)},
    {"devices", 0, "ID", "the device (default: the first accelerator, else the host)", CLUSTER,
     TEXT(plan.devices)},
    {"hardware", 0, "NAME",
     "a library machine instead of -p, or as 'cuda=12GiB,360GB/s,51T;cpu=8,51GB/s'",
     PLANNED | PLANNING, TEXT(hardware)},
    {"shape", 0, "NAME", "no file, but a known model, NAME[:TYPE] as llama-3.1-8b:Q4_K_M; or list",
     PLANNED | PLANNING, TEXT(shape)},
    {"neurons", 0, "FILE", "how often neurons and experts fire (sidecar)", PLANNED | PLANNING,
     TEXT(neurons)},
    {"ffn-activation", 0, "NAME", "of the FFN: relu, silu, gelu, relu2 (default: the file's)",
     PLANNED | PLANNING, TEXT(choice.ffn_activation)},
    {"model", 'm', "MODEL", "the GGUF file, instead of an operand", MAKE, TEXT(model)},
    {"output", 'o', "PLAN", "where to write (default ./MODEL.plan)", MAKE, TEXT(output)},
    {"output", 'o', "FILE", "the HTML file to write", REPORT, TEXT(output)},
    {"output", 'o', "FILE", "where to write", HEADER, TEXT(output)},
    {"output", 'o', "FILE", "the neurons sidecar to write", IMPORT, TEXT(output)},
    {"max-slower", 0, "5%", "how much slower is accepted (default 5%)", CHECK,
     INTO(max_slower, take_share)},
    {"steps", 0, "N", "plans from 0 to 100 % of the memory (default 20)", FRONTIER,
     COUNT(steps, 1)},
    {"svg", 0, "FILE", "also write a picture", FRONTIER, TEXT(svg)},
    {"minimize", 0, "M", "latency, ttft, time-per-token (default latency)", PLANNING,
     INTO(plan.request, take_objective)},
    {"solver", 0, "S", "auto, ilp, affinity, powerinfer, fit, layers or cpu", PLANNING,
     TEXT(plan.solver)},
    {"single-shot", 0, NULL, NULL, PLANNING, FLAG(plan.single_shot)},
    {"whole-only", 0, NULL, "no operator is divided or streamed", PLANNING, FLAG(plan.whole_only)},
    {"expert-cache", 0, "N", "slots for experts of the host, in each layer; auto, off (default)",
     PLANNING, INTO(plan.expert_cache, take_cache)},
    {"sparse", 0, "S", "skip neurons: auto (default; exact, or predict), off, or as oato-run does",
     PLANNING, INTO(plan.sparse, take_sparse)},
    {"devices", 0, "LIST", "use only devices: cpu:0,sim:0 (default all)", PLANNING,
     TEXT(plan.devices)},
    {"budget", 0, "D=BYTES", "as sim:0=40MiB, repeatable (default 90 % of free)", PLANNING,
     INTO(plan, take_budget)},
    {"workload", 0, "W", "mixed (default), chat, code, rag or FILE.yaml: several requests",
     PLANNING, INTO(workload, take_workload)},
    {"workload", 0, "W", "what it takes for other requests: mixed, chat, code, rag, FILE.yaml",
     OTHERS, INTO(workload, take_workload)},
    {"batch", 'b', "N", "and for so many sequences at once", OTHERS, COUNT(batch, 1)},
    {"prompt", 0, "N", "one request instead: prompt (512), -n generated (128), --depth before (0)",
     REQUEST, COUNT(plan.request.prompt, 0)},
    {"prefill", 0, "N", NULL, REQUEST, COUNT(plan.request.prompt, 0)},
    {"generate", 'n', "N", NULL, REQUEST, COUNT(plan.request.generate, 0)},
    {"predict", 0, "N", NULL, REQUEST, COUNT(plan.request.generate, 0)},
    {"n-predict", 0, "N", NULL, REQUEST, COUNT(plan.request.generate, 0)},
    {"depth", 0, "N", NULL, REQUEST, COUNT(depth, 0)},
    {"ctx-size", 0, "N", NULL, REQUEST, COUNT(plan.request.context, 1)},
    {"context", 'c', "N", "KV positions in total (default 4096)", REQUEST,
     COUNT(plan.request.context, 1)},
    {"batch", 'b', "N", "sequences at once (default 1)", REQUEST, COUNT(plan.request.batch, 1)},
    {"ubatch", 0, "N",
     "most tokens per step; auto (default): the width from 64 to 8192 that is best", REQUEST,
     INTO(plan, take_ubatch)},
    {"kv", 0, "TYPE", "f16 (default), q8_0, f32, or auto: q8_0 where it is worth 5 %", REQUEST,
     INTO(plan, take_kv)},
    {"deterministic", 0, NULL, "one numerics class for all phases", PLANNING,
     FLAG(plan.request.deterministic)},
    {"time-limit", 0, "S", "seconds for the search, 0 = none (default 10)",
     PLANNING | CHECK | OTHERS, INTO(plan.time_limit_s, take_seconds)},
    {"gap", 0, "G", NULL, PLANNING, INTO(plan.gap, take_share)},
    {"maximize", 0, "context",
     "the largest for which there is a plan, perhaps --at-least T tokens/s", MAKE,
     INTO(maximize_context, take_context)},
    {"at-least", 0, "T", NULL, MAKE, INTO(at_least, take_speed)},
    {"trace", 0, "FILE", "also write the steps as Chrome/Perfetto trace events", SIMULATE,
     TEXT(trace)},
    {"no-frontier", 0, NULL, "leave out the speed/memory curve", REPORT, FLAG(no_frontier)},
    {"to", 0, "ENGINE", "llama.cpp (default), ik_llama.cpp or ktransformers", EXPORT,
     INTO(export, take_engine)},
    {"device-name", 0, "D=NAME", "name of device D in ENGINE, repeatable", EXPORT, take_name, 0, 0,
     0},
    {"text-order", 0, NULL, "the input has layers as 0 1 10 11 2: reorder them", IMPORT,
     FLAG(text_order)},
    {"json", 0, NULL, "print one JSON object instead of a table", ALL & ~REPORT, FLAG(json)},
    {"help", 'h', NULL, "print this; --version the version", MAKE, FLAG(help)},
    {"help", 'h', NULL, "print this", ALL & ~MAKE, FLAG(help)},
    {"version", 0, NULL, NULL, MAKE, FLAG(version)},
};

/* ------------------------------------------------------------------------------- verbs ----- */

/* Of messages over Ethernet of 1 Gb/s, without headers. */
#define GIGABIT    117e6
#define LATENCY_NS 60e3

enum { NEEDS_MODEL = 1, NEEDS_MACHINE = 2, NEEDS_OUTPUT = 4 };

struct verb {
    const char *name, *usage;
    unsigned options;
    int least, most; /* operands */
    unsigned needs;
    const char *wants; /* said when operands or needs are missing */
    run_fn *run;
};

static const struct verb verbs[] = {
    {"show", "show PLAN [-m MODEL.gguf -p PROFILE [--workload W] [--batch N]] [--json]",
     SHOW | OTHERS, 1, 1, 0, "one PLAN", run_show},
    {"explain", "explain PLAN [OPERATOR|LAYER|TENSOR] [-m MODEL.gguf -p PROFILE] [--json]", SHOW, 1,
     2, 0, "PLAN [OPERATOR, LAYER or TENSOR]", run_explain},
    {"diff", "diff PLAN PLAN [--json]", DIFF, 2, 2, 0, "two plans", run_diff},
    {"check", "check PLAN [MODEL.gguf [-p PROFILE]] [--max-slower 5%] [--json]", CHECK, 1, 2, 0,
     "PLAN [MODEL.gguf]", run_check},
    {"simulate", "simulate PLAN -m MODEL.gguf | MODEL.gguf --hosts N, -p PROFILE [--json]",
     SIMULATE | CLUSTER, 0, 1, NEEDS_MACHINE,
     "one PLAN and -m MODEL.gguf, or MODEL.gguf and --hosts N, and -p PROFILE or --hardware NAME",
     run_simulate},
    {"report", "report PLAN -m MODEL.gguf -p PROFILE -o FILE.html [--no-frontier]", REPORT, 1, 1,
     NEEDS_MODEL | NEEDS_MACHINE | NEEDS_OUTPUT,
     "one PLAN, -m MODEL.gguf, -p PROFILE or --hardware NAME and -o FILE.html", run_report},
    {"export", "export PLAN -m MODEL.gguf [--to ENGINE] [--device-name D=NAME] [--json]", EXPORT, 1,
     1, NEEDS_MODEL, "one PLAN and -m MODEL.gguf", run_export},
    {"frontier", "frontier MODEL.gguf -p PROFILE [--steps N] [--svg FILE] [OPTION...]", FRONTIER, 0,
     1, NEEDS_MACHINE, "MODEL.gguf and -p PROFILE or --hardware NAME", run_frontier},
    {"header", "header [MODEL.gguf | URL | -] -o FILE.gguf [--json]", HEADER, 0, 1, NEEDS_OUTPUT,
     "one MODEL.gguf, its URL, or its first megabytes on stdin, and -o FILE.gguf", run_header},
    {"import", "import FILE.gpuidx -m MODEL.gguf -o FILE.neurons.gguf [--text-order] [--json]",
     IMPORT, 1, 1, NEEDS_MODEL | NEEDS_OUTPUT,
     "one FILE.gpuidx, -m MODEL.gguf and -o FILE.neurons.gguf", run_import},
    {NULL, "MODEL.gguf | --shape NAME, -p PROFILE [-o PLAN] [OPTION...]", MAKE, 0, 1, 0, NULL,
     run_make},
};

static void print_help(const struct verb *v, const struct option_row *rows)
{
    printf("usage: oato-plan %s\n", v->usage);
    for (const struct verb *w = verbs; !v->name && w->name; w++)
        printf("       oato-plan %s\n", w->usage);
    printf("\n");
    options_help(rows, stdout);
    if (!v->name)
        printf("\nexit: 0 done, 1 check or diff says no, 2 usage, 3 bad file, 4 does not fit, "
               "6 input/output, 7 too noisy to tell\n");
}

/* The default request is made for the default context; one that was chosen smaller gets a request
 * of the same shape that just fits. */
static void fit_default_request(struct plan_request *q)
{
    const int32_t each = q->context / q->batch, all = q->prompt + q->generate;
    if (each < 1 || all <= each)
        return;
    q->prompt = (int32_t)((int64_t)q->prompt * each / all);
    q->generate = each - q->prompt;
}

/* Which of the options of a request were given. */
struct given {
    bool context, point, workload, limit;
};

/* A question about a model that is not here wants its answer in a second; plans that will be run
 * are worth more. */
#define SHAPE_LIMIT_S 0.5

/* One point, if any of its figures was given, else a workload; clusters have points only. */
static oato_status finish_request(const struct verb *v, const struct given *given,
                                  struct command *c, struct oato_error *err)
{
    struct plan_request *q = &c->plan.request;
    if (given->point && given->workload)
        return oato_fail(err, OATO_EUSAGE,
                         "--workload says what is asked for, and so do --prompt, --generate and "
                         "--depth; give one or the other");
    if (given->context && !given->point)
        fit_default_request(q);
    if (c->depth)
        request_set_points(q, &(struct plan_point){q->prompt, q->generate, c->depth, 0, 0, 0},
                           &(double){1}, 1);
    c->asks = given->workload;
    if (c->shape && !given->limit && v->options & PLANNING)
        c->plan.time_limit_s = SHAPE_LIMIT_S;
    if (!given->workload)
        c->workload.name = workload_find("mixed");
    if (!given->point && v->options & PLANNING)
        c->plan.workload = &c->workload;
    return OATO_OK;
}

/* Up to --help or --version, which are answered here. */
static oato_status read_command(const struct verb *v, int argc, char **argv, struct command *c,
                                struct oato_error *err)
{
    struct option_row rows[ARRAY_LEN(all_options) + PLAN_ANSWERS];
    struct options o;
    const size_t n = options_rows(all_options, ARRAY_LEN(all_options), v->options, rows);
    if (v->options & (REQUEST | PLANNED))
        memcpy(rows + n, plan_answers, sizeof plan_answers);
    options_init(&o, rows, argc, argv);
    struct given given = {false};
    for (int id;
         !c->help && !c->version && (id = options_take(&o, all_options, c, err)) != OPT_END;) {
        if (id == OPT_ERROR)
            return err->status;
        if (id == OPT_OPERAND && c->n_operands == v->most)
            return oato_fail(err, OATO_EUSAGE,
                             "'%.80s' is one operand too many; usage: oato-plan %s", o.value,
                             v->usage);
        if (id >= 0 && o.of->at == offsetof(struct command, plan.request.context))
            given.context = true;
        if (id >= 0 && o.of->at == offsetof(struct command, workload))
            given.workload = true;
        if (id >= 0 && o.of->take == take_count && /* the objective is at plan.request, too */
            (o.of->at == offsetof(struct command, plan.request.prompt) ||
             o.of->at == offsetof(struct command, plan.request.generate) ||
             o.of->at == offsetof(struct command, depth)))
            given.point = true;
        if (id >= 0 && o.of->take == take_seconds)
            given.limit = true;
        if (id >= 0 && o.of->take == take_kv)
            c->open &= ~OPEN_KV;
        if (id >= 0 && o.of->take == take_cache)
            c->open &= ~OPEN_CACHE;
        if (id >= 0 && o.of->verbs & CLUSTER)
            c->of_cluster = o.of->name;
        if (id == OPT_OPERAND)
            c->operands[c->n_operands++] = o.value;
    }
    if (given.context)
        c->open &= ~OPEN_CONTEXT;
    if (c->help)
        print_help(v, rows);
    else if (c->version)
        printf("oato-plan %s\n", OATO_VERSION);
    return c->help || c->version ? OATO_OK : finish_request(v, &given, c, err);
}

static oato_status run_verb(const struct verb *v, struct command *c, struct text *out,
                            struct oato_error *err)
{
    if (c->n_operands < v->least || (v->needs & NEEDS_MODEL && !names_model(c)) ||
        (v->needs & NEEDS_MACHINE && !names_machine(c)) || (v->needs & NEEDS_OUTPUT && !c->output))
        return oato_fail(err, OATO_EUSAGE, "%s wants %s", v->name, v->wants);
    return v->run(c, out, err);
}

int main(int argc, char **argv)
{
    struct command c = {
        .max_slower = 0.05,
        .steps = 20,
        .ranks = {.bytes_per_s = GIGABIT, .latency_ns = LATENCY_NS, .wire = DT_F32}};
    struct oato_error err = {.status = OATO_OK};
    const struct verb *v = verbs;
    const char *names[ARRAY_LEN(verbs)];
    size_t n = 0;
    struct text out;
    program_begin("oato-plan");
    planner_options_init(&c.plan);
    c.plan.any_ubatch = true;
    c.open = OPEN_KV | OPEN_CONTEXT | OPEN_CACHE;
    while (v->name && (argc < 2 || strcmp(argv[1], v->name) != 0))
        names[n++] = v++->name;
    int skip = v->name ? 2 : 1;
    /* without a name: which are there? */
    static char shape_option[] = "--shape", shape_list[] = "list";
    char *shapes[] = {shape_option, shape_list};
    const bool lists = argc == 2 && !strcmp(argv[1], shape_option);
    text_init(&out);
    oato_status status =
        v->name || argc < 2 || lists ? OATO_OK : verb_check(argv[1], names, n, &err);
    if (!status)
        status = lists ? read_command(v, 2, shapes, &c, &err)
                       : read_command(v, argc - skip, argv + skip, &c, &err);
    const char *inputs[] = {c.operands[0], c.operands[1], c.profile, c.model, c.neurons};
    for (size_t i = 0; i < ARRAY_LEN(inputs); i++)
        outfile_keep(inputs[i]);
    for (int i = 0; i < c.n_more; i++)
        outfile_keep(c.more[i]);
    if (!status && !c.help && !c.version)
        status = run_verb(v, &c, &out, &err);
    command_close(&c);
    /* a verdict is an answer, too, and so is that there can be none */
    const bool answers = !status || status == OATO_NEGATIVE || status == OATO_UNSURE;
    if (out.failed && answers)
        status = oato_fail_memory(&err, out.len, "the output");
    if (out.len && answers)
        text_print(stdout, out.data, out.len);
    text_free(&out);
    if (!status)
        status = stdout_check(&err);
    if (status)
        fprintf(stderr, "oato-plan: %s\n", err.text);
    return (int)status;
}
