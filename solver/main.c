/*
 * main.c - oato-plan: turns command lines into calls of solver.h; messages go to stderr, results
 * to stdout, the status to the shell. Every verb is a row of a table with its own options.
 */
#include "solver/verbs.h"

#include <stdlib.h>
#include <string.h>

enum {
    O_HELP,
    O_VERSION,
    O_JSON,
    O_PROFILE,
    O_HARDWARE,
    O_NEURONS,
    O_MODEL,
    O_OUTPUT,
    O_SOLVER,
    O_SINGLE,
    O_WHOLE,
    O_BUDGET,
    O_DEVICES,
    O_PROMPT,
    O_GENERATE,
    O_CONTEXT,
    O_BATCH,
    O_UBATCH,
    O_KV,
    O_DETERMINISTIC,
    O_TIME,
    O_GAP,
    O_SLOWER,
    O_TO,
    O_NAME,
    O_STEPS,
    O_MINIMIZE,
    O_SVG,
    O_MAXIMIZE,
    O_AT_LEAST,
    O_TEXT_ORDER,
    O_TRACE,
    O_NO_FRONTIER,
};

#define ROW_HELP                                                                                   \
    {                                                                                              \
        "help", 'h', OPT_FLAG, NULL, "print this", O_HELP                                          \
    }
#define ROW_JSON                                                                                   \
    {                                                                                              \
        "json", 0, OPT_FLAG, NULL, "print one JSON object instead of a table", O_JSON              \
    }
#define ROW_PROFILE                                                                                \
    {                                                                                              \
        "profile", 'p', OPT_VALUE, "PROFILE", "the machine's profile", O_PROFILE                   \
    }
#define ROW_HARDWARE                                                                               \
    {                                                                                              \
        "hardware", 0, OPT_VALUE, "NAME", "a library machine instead of -p", O_HARDWARE            \
    }
#define ROW_NEURONS                                                                                \
    {                                                                                              \
        "neurons", 0, OPT_VALUE, "FILE", "how often neurons and experts fire (sidecar)", O_NEURONS \
    }
#define ROW_MODEL                                                                                  \
    {                                                                                              \
        "model", 'm', OPT_VALUE, "MODEL", "the model that was planned", O_MODEL                    \
    }

/* What is planned for, and how. */
#define ROWS_PLANNING                                                                                \
    {                                                                                                \
        "minimize", 0, OPT_VALUE, "M", "latency, ttft, time-per-token (default latency)",            \
        O_MINIMIZE},                                                                                 \
        {"solver", 0, OPT_VALUE, "S", "auto, ilp, affinity, powerinfer, fit, layers or cpu",         \
         O_SOLVER},                                                                                  \
        {"single-shot", 0, OPT_FLAG, NULL, "affinity without iteration", O_SINGLE},                  \
        {"whole-only", 0, OPT_FLAG, NULL, "no operator is divided or streamed", O_WHOLE},            \
        {"devices", 0, OPT_VALUE, "LIST", "use only devices: cpu:0,sim:0 (default all)", O_DEVICES}, \
        {"budget", 0, OPT_VALUE, "D=BYTES", "as sim:0=40MiB, repeatable (default 90 % of free)",     \
         O_BUDGET},                                                                                  \
        {"prompt", 0, OPT_VALUE, "N", "tokens per prompt (default 512)", O_PROMPT},                  \
        {"prefill", 0, OPT_VALUE, "N", NULL, O_PROMPT},                                              \
        {"generate", 'n', OPT_VALUE, "N", "tokens generated after it (default 128)", O_GENERATE},    \
        {"predict", 0, OPT_VALUE, "N", NULL, O_GENERATE},                                            \
        {"n-predict", 0, OPT_VALUE, "N", NULL, O_GENERATE},                                          \
        {"ctx-size", 0, OPT_VALUE, "N", NULL, O_CONTEXT},                                            \
        {"context", 'c', OPT_VALUE, "N", "KV positions in total (default 4096)", O_CONTEXT},         \
        {"batch", 'b', OPT_VALUE, "N", "sequences at once (default 1)", O_BATCH},                    \
        {"ubatch", 0, OPT_VALUE, "N", "most tokens per step (default 512)", O_UBATCH},               \
        {"kv", 0, OPT_VALUE, "TYPE", "f16, q8_0 or f32 (default f16)", O_KV},                        \
        {"deterministic", 0, OPT_FLAG, NULL, "one numerics class for all phases", O_DETERMINISTIC},  \
        {"time-limit", 0, OPT_VALUE, "S", "seconds for the search, 0 = none (default 10)", O_TIME},  \
    {                                                                                                \
        "gap", 0, OPT_VALUE, "G", "distance from the optimum to stop at (default 0.001)", O_GAP      \
    }

static const struct option_row make_rows[] = {
    {"profile", 'p', OPT_VALUE, "PROFILE", "the machine's profile", O_PROFILE},
    ROW_HARDWARE,
    ROW_NEURONS,
    {"model", 'm', OPT_VALUE, "MODEL", "the GGUF file, instead of an operand", O_MODEL},
    {"output", 'o', OPT_VALUE, "PLAN", "where to write (default ./MODEL.plan)", O_OUTPUT},
    ROWS_PLANNING,
    {"maximize", 0, OPT_VALUE, "context", "the largest context for which there is a plan",
     O_MAXIMIZE},
    {"at-least", 0, OPT_VALUE, "T", "minimum decode tokens/s for --maximize (default any)",
     O_AT_LEAST},
    ROW_JSON,
    ROW_HELP,
    {"version", 0, OPT_FLAG, NULL, "print the version", O_VERSION},
    {0},
};
static const struct option_row show_rows[] = {ROW_MODEL, ROW_PROFILE, ROW_HARDWARE, ROW_NEURONS,
                                              ROW_JSON,  ROW_HELP,    {0}};
static const struct option_row diff_rows[] = {ROW_JSON, ROW_HELP, {0}};
static const struct option_row check_rows[] = {
    ROW_MODEL,
    ROW_PROFILE,
    ROW_HARDWARE,
    ROW_NEURONS,
    {"max-slower", 0, OPT_VALUE, "5%", "how much slower is accepted (default 5%)", O_SLOWER},
    {"time-limit", 0, OPT_VALUE, "S", "seconds for the search, 0 = none (default 10)", O_TIME},
    ROW_JSON,
    ROW_HELP,
    {0},
};

static const struct option_row simulate_rows[] = {
    ROW_MODEL,
    ROW_PROFILE,
    ROW_HARDWARE,
    ROW_NEURONS,
    {"trace", 0, OPT_VALUE, "FILE", "also write the steps as Chrome/Perfetto trace events",
     O_TRACE},
    ROW_JSON,
    ROW_HELP,
    {0},
};

static const struct option_row report_rows[] = {
    ROW_MODEL,
    ROW_PROFILE,
    ROW_HARDWARE,
    ROW_NEURONS,
    {"output", 'o', OPT_VALUE, "FILE", "the HTML file to write", O_OUTPUT},
    {"no-frontier", 0, OPT_FLAG, NULL, "leave out the speed/memory curve", O_NO_FRONTIER},
    ROW_HELP,
    {0},
};

static const struct option_row export_rows[] = {
    ROW_MODEL,
    {"to", 0, OPT_VALUE, "ENGINE", "llama.cpp (default), ik_llama.cpp or ktransformers", O_TO},
    {"device-name", 0, OPT_VALUE, "D=NAME", "name of device D in ENGINE, repeatable", O_NAME},
    ROW_JSON,
    ROW_HELP,
    {0},
};

static const struct option_row header_rows[] = {
    {"output", 'o', OPT_VALUE, "FILE", "where to write", O_OUTPUT}, ROW_JSON, ROW_HELP, {0}};

static const struct option_row import_rows[] = {
    ROW_MODEL,
    {"output", 'o', OPT_VALUE, "FILE", "the neurons sidecar to write", O_OUTPUT},
    {"text-order", 0, OPT_FLAG, NULL, "the input has layers as 0 1 10 11 2: reorder them",
     O_TEXT_ORDER},
    ROW_JSON,
    ROW_HELP,
    {0},
};

static const struct option_row frontier_rows[] = {
    ROW_PROFILE,
    ROW_HARDWARE,
    ROW_NEURONS,
    {"steps", 0, OPT_VALUE, "N", "plans from 0 to 100 % of the memory (default 20)", O_STEPS},
    {"svg", 0, OPT_VALUE, "FILE", "also write a picture", O_SVG},
    ROWS_PLANNING,
    ROW_JSON,
    ROW_HELP,
    {0},
};

struct verb {
    const char *name, *usage;
    int operands; /* most */
    const struct option_row *rows;
    run_fn *run;
};

/* ----------------------------------------------------------------------------- options ----- */

static oato_status bad_value(const struct options *o, const char *want, struct oato_error *err)
{
    return oato_fail(err, OATO_EUSAGE, "%s: '%.60s' is not %s", o->name, o->value, want);
}

static oato_status take_int(const struct options *o, int64_t lo, int32_t *to,
                            struct oato_error *err)
{
    int64_t v;
    if (!parse_count(o->value, lo, 1 << 30, &v))
        return bad_value(o, lo ? "a number from 1 to 1073741824" : "a number from 0 to 1073741824",
                         err);
    *to = (int32_t)v;
    return OATO_OK;
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

static oato_status take_budget(const struct options *o, struct planner_options *p,
                               struct oato_error *err)
{
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

static oato_status take_name(const struct options *o, struct command *c, struct oato_error *err)
{
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

static oato_status take_objective(const struct options *o, struct plan_request *q,
                                  struct oato_error *err)
{
    for (int i = 0; i < OBJECTIVE_COUNT; i++) {
        if (!strcmp(o->value, objective_names[i])) {
            q->objective = i;
            return OATO_OK;
        }
    }
    return bad_value(o, "latency, ttft or time-per-token", err);
}

static oato_status take_percent(const struct options *o, double *to, struct oato_error *err)
{
    char *end;
    double v = strtod(o->value, &end);
    if (end == o->value || !(v >= 0 && v < 1e6) || (*end && strcmp(end, "%") != 0))
        return bad_value(o, "a share such as 5% or 0.05", err);
    *to = *end ? v / 100 : v;
    return OATO_OK;
}

static oato_status take_option(struct command *c, int id, const struct options *o,
                               struct oato_error *err)
{
    struct plan_request *q = &c->plan.request;
    switch (id) {
    case O_JSON: c->json = true; return OATO_OK;
    case O_PROFILE: c->profile = o->value; return OATO_OK;
    case O_HARDWARE: c->hardware = o->value; return OATO_OK;
    case O_NEURONS: c->neurons = o->value; return OATO_OK;
    case O_MODEL: c->model = o->value; return OATO_OK;
    case O_OUTPUT: c->output = o->value; return OATO_OK;
    case O_SOLVER: c->plan.solver = o->value; return OATO_OK;
    case O_SINGLE: c->plan.single_shot = true; return OATO_OK;
    case O_WHOLE: c->plan.whole_only = true; return OATO_OK;
    case O_DEVICES: c->plan.devices = o->value; return OATO_OK;
    case O_DETERMINISTIC: q->deterministic = true; return OATO_OK;
    case O_BUDGET: return take_budget(o, &c->plan, err);
    case O_PROMPT: return take_int(o, 0, &q->prompt, err);
    case O_GENERATE: return take_int(o, 0, &q->generate, err);
    case O_CONTEXT: return take_int(o, 1, &q->context, err);
    case O_BATCH: return take_int(o, 1, &q->batch, err);
    case O_UBATCH: return take_int(o, 1, &q->ubatch, err);
    case O_SLOWER: return take_percent(o, &c->max_slower, err);
    case O_GAP: return take_percent(o, &c->plan.gap, err);
    case O_MINIMIZE: return take_objective(o, q, err);
    case O_STEPS: return take_int(o, 1, &c->steps, err);
    case O_TRACE: c->trace = o->value; return OATO_OK;
    case O_NO_FRONTIER: c->no_frontier = true; return OATO_OK;
    case O_SVG: c->svg = o->value; return OATO_OK;
    case O_NAME: return take_name(o, c, err);
    case O_TEXT_ORDER: c->text_order = true; return OATO_OK;
    case O_MAXIMIZE:
        c->maximize_context = !strcmp(o->value, "context");
        return c->maximize_context ? OATO_OK : bad_value(o, "context", err);
    case O_AT_LEAST:
        return parse_f64(o->value, 0, 1e9, &c->at_least)
                   ? OATO_OK
                   : bad_value(o, "a number of tokens/s", err);
    case O_TO:
        for (int i = 0; i < EXPORT_TARGETS; i++) {
            if (!strcmp(o->value, export_target_names[i])) {
                c->export.target = i;
                return OATO_OK;
            }
        }
        return bad_value(o, "llama.cpp, ik_llama.cpp or ktransformers", err);
    case O_TIME:
        return parse_f64(o->value, 0, 1e6, &c->plan.time_limit_s)
                   ? OATO_OK
                   : bad_value(o, "a number of seconds", err);
    case O_KV:
        return dtype_parse_kv(o->value, &q->kv) ? OATO_OK : bad_value(o, "f16, q8_0 or f32", err);
    default: return OATO_OK;
    }
}

static const struct verb verbs[] = {
    {"show", "show PLAN [-m MODEL.gguf -p PROFILE] [--json]", 1, show_rows, run_show},
    {"explain", "explain PLAN [OPERATOR|LAYER|TENSOR] [-m MODEL.gguf -p PROFILE] [--json]", 2,
     show_rows, run_explain},
    {"diff", "diff PLAN PLAN [--json]", 2, diff_rows, run_diff},
    {"check", "check PLAN [MODEL.gguf [-p PROFILE]] [--max-slower 5%] [--json]", 2, check_rows,
     run_check},
    {"simulate", "simulate PLAN -m MODEL.gguf -p PROFILE [--trace FILE] [--json]", 1, simulate_rows,
     run_simulate},
    {"report", "report PLAN -m MODEL.gguf -p PROFILE -o FILE.html [--no-frontier]", 1, report_rows,
     run_report},
    {"export", "export PLAN -m MODEL.gguf [--to ENGINE] [--device-name D=NAME] [--json]", 1,
     export_rows, run_export},
    {"frontier", "frontier MODEL.gguf -p PROFILE [--steps N] [--svg FILE] [OPTION...]", 1,
     frontier_rows, run_frontier},
    {"header", "header MODEL.gguf -o FILE.gguf [--json]", 1, header_rows, run_header},
    {"import", "import FILE.gpuidx -m MODEL.gguf -o FILE.neurons.gguf [--text-order] [--json]", 1,
     import_rows, run_import},
    {NULL, "MODEL.gguf -p PROFILE [-o PLAN] [OPTION...]", 1, make_rows, run_make},
};

static void print_help(const struct verb *v)
{
    printf("usage: oato-plan %s\n", v->usage);
    for (const struct verb *w = verbs; !v->name && w->name; w++)
        printf("       oato-plan %s\n", w->usage);
    printf("\n");
    options_help(v->rows, stdout);
    if (!v->name)
        printf("\nexit: 0 done, 1 check or diff says no, 2 usage, 3 bad file, 4 does not fit, "
               "6 input/output\n");
}

/* True when the program is done without running the verb. */
static bool read_command(const struct verb *v, int argc, char **argv, struct command *c,
                         struct oato_error *err)
{
    struct options o;
    options_init(&o, v->rows, argc, argv);
    for (int id; (id = options_next(&o, err)) != OPT_END;) {
        if (id == OPT_ERROR)
            return false;
        if (id == O_HELP) {
            print_help(v);
            return true;
        }
        if (id == O_VERSION) {
            printf("oato-plan %s\n", OATO_VERSION);
            return true;
        }
        if (id == OPT_OPERAND) {
            if (c->n_operands == v->operands) {
                oato_fail(err, OATO_EUSAGE, "'%.80s' is one operand too many; usage: oato-plan %s",
                          o.value, v->usage);
                return false;
            }
            c->operands[c->n_operands++] = o.value;
        } else if (take_option(c, id, &o, err)) {
            return false;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    struct command c = {.max_slower = 0.05, .steps = 20};
    struct oato_error err = {.status = OATO_OK};
    const struct verb *v = verbs;
    struct text out;
    program_begin("oato-plan");
    planner_options_init(&c.plan);
    while (v->name && (argc < 2 || strcmp(argv[1], v->name) != 0))
        v++;
    int skip = v->name ? 2 : 1;
    text_init(&out);
    const bool done = read_command(v, argc - skip, argv + skip, &c, &err);
    oato_status status = err.status;
    const char *inputs[] = {c.operands[0], c.operands[1], c.profile, c.model, c.neurons};
    for (size_t i = 0; i < ARRAY_LEN(inputs); i++)
        outfile_keep(inputs[i]);
    if (!status && !done)
        status = v->run(&c, &out, &err);
    if (out.failed && (!status || status == OATO_NEGATIVE))
        status = oato_fail_memory(&err, out.len, "the output");
    if (out.len && (!status || status == OATO_NEGATIVE)) /* a verdict is an answer, too */
        text_print(stdout, out.data, out.len);
    text_free(&out);
    if (!status)
        status = stdout_check(&err);
    if (status)
        fprintf(stderr, "oato-plan: %s\n", err.text);
    return (int)status;
}
