/*
 * main.c - oato-profile: the command line of the profiler. Reads a model, measures the machine,
 * writes or extends the machine's profile, and prints a short summary; or, with --calibrate, counts
 * over text which of the model's neurons fire. verb_neurons.c shows what was counted.
 */
#include "profiler/verbs.h"

#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct command {
    const char *model, *out, *plan;
    struct profiler_options options;
    struct calibrate_options calibrate;
    struct model_choice choice;
    struct collective *ranks; /* with --links: those that mpirun has started */
    bool replace, restores, links, json, list_devices, help, version;
};

/* ----------------------------------------------------------------------------- options ----- */

static oato_status take_contexts(const struct options *given, void *to, struct oato_error *err)
{
    struct profiler_options *o = to;
    const char *list = given->value;
    o->n_contexts = 0;
    for (const char *p = list;; p++) {
        char number[16];
        int64_t v;
        size_t n = strcspn(p, ",");
        snprintf(number, sizeof number, "%.*s", (int)(n < 15 ? n : 15), p);
        if (n > 15 || !parse_count(number, 1, 1 << 24, &v) || o->n_contexts == PROFILER_CONTEXTS ||
            (o->n_contexts && v <= o->contexts[o->n_contexts - 1]))
            return oato_fail(err, OATO_EUSAGE,
                             "--context '%s': allowed are up to %d rising numbers of tokens, each "
                             "at most %d, such "
                             "as 512,4096",
                             list, PROFILER_CONTEXTS, 1 << 24);
        o->contexts[o->n_contexts++] = (int32_t)v;
        p += n;
        if (!*p)
            return OATO_OK;
    }
}

static oato_status take_text(const struct options *o, void *to, struct oato_error *err)
{
    struct calibrate_options *c = to;
    if (c->n_texts == CALIBRATE_TEXTS)
        return oato_fail(err, OATO_EUSAGE, "more than %d texts; put them into one file",
                         CALIBRATE_TEXTS);
    c->texts[c->n_texts++] = o->value;
    return OATO_OK;
}

static oato_status take_window(const struct options *o, void *to, struct oato_error *err)
{
    int64_t v;
    if (!parse_count(o->value, 2, 1 << 20, &v))
        return oato_fail(err, OATO_EUSAGE, "--window '%s': a number of tokens from 2 to %d",
                         o->value, 1 << 20);
    *(int32_t *)to = (int32_t)v;
    return OATO_OK;
}

static oato_status take_level(const struct options *o, void *to, struct oato_error *err)
{
    double v;
    if (!parse_f64(o->value, 0.01, 0.99, &v))
        return oato_fail(err, OATO_EUSAGE, "--level '%s': a share from 0.01 to 0.99", o->value);
    *(double *)to = v;
    return OATO_OK;
}

static oato_status take_threads(const struct options *o, void *to, struct oato_error *err)
{
    int64_t v;
    if (!parse_i64(o->value, 1, 4096, &v))
        return oato_fail(err, OATO_EUSAGE, "--threads '%s': a number from 1 to 4096", o->value);
    *(int32_t *)to = (int32_t)v;
    return OATO_OK;
}

static oato_status take_kv(const struct options *o, void *to, struct oato_error *err)
{
    return dtype_parse_kv(o->value, to)
               ? OATO_OK
               : oato_fail(err, OATO_EUSAGE, "--kv '%s': f16, q8_0 or f32", o->value);
}

static oato_status take_model(const struct options *o, void *to, struct oato_error *err)
{
    const char **model = to;
    if (*model)
        return oato_fail(err, OATO_EUSAGE, "one model at a time: '%s' and '%s'", *model, o->value);
    *model = o->value;
    return OATO_OK;
}

enum { MEASURE = 1, COUNT = 2, BOTH = MEASURE | COUNT };

#define AS(verbs, take, member) verbs, take, offsetof(struct command, member), 0, 0
#define TEXT(verbs, member)     AS(verbs, option_text, member)
#define FLAG(verbs, member)     AS(verbs, option_flag, member)

static const struct option_of table[] = {
    {"calibrate", 0, "TEXT", "count over this file; further operands are texts, too",
     AS(COUNT, take_text, calibrate)},
    {"output", 'o', "FILE", "profile to write or extend; default CPU-NAME.profile.yaml",
     TEXT(MEASURE, out)},
    {"output", 'o', "FILE", "sidecar to write or go on with; default MODEL.neurons.gguf",
     TEXT(COUNT, out)},
    {"devices", 'd', "LIST", "such as cpu,sim:vram=64MiB,read=900GB/s; default cpu",
     TEXT(MEASURE, options.devices)},
    {"level", 0, "S", "where silence is not 0: neurons fire above this quantile; default 0.7",
     AS(COUNT, take_level, calibrate.level)},
    {"predictors", 0, NULL, "also train predictors of active neurons (ReLU)",
     FLAG(COUNT, calibrate.predictors)},
    {"window", 'c', "N", "tokens that are read together; default 512",
     AS(COUNT, take_window, calibrate.window)},
    {"ffn-activation", 0, "NAME", "of the FFN: relu, silu, gelu, relu2; default: the file's",
     TEXT(BOTH, choice.ffn_activation)},
    {"threads", 't', "N", "threads of the cpu device; default: physical cores, less one per GPU",
     AS(BOTH, take_threads, options.threads)},
    {"kv", 0, "TYPE", "KV cache type to time attention with: f16 (default), q8_0, f32",
     AS(MEASURE, take_kv, options.kv)},
    {"context", 'c', "LIST", "context lengths in tokens; default 64,512,2048,4096",
     AS(MEASURE, take_contexts, options)},
    {"storage", 0, "DIR", "folder to measure reading files in; default: ~/.cache/oato",
     TEXT(MEASURE, options.storage)},
    {"quick", 'q', NULL, "fewer sizes and repeats", FLAG(MEASURE, options.quick)},
    {"sparse", 0, NULL, "time skipping neurons, too, whatever the activation (ReLU: always)",
     FLAG(MEASURE, options.sparse)},
    {"restores", 0, NULL,
     "time what brings a sequence back (for oato-serve); operators only where none are known",
     FLAG(MEASURE, restores)},
    {"links", 0, NULL, "by mpirun: time sums of its ranks; operators only where none are known",
     FLAG(MEASURE, links)},
    {"plan", 0, "FILE", "for --restores: run the model by this plan", TEXT(MEASURE, plan)},
    {"replace", 0, NULL, "start a new file instead of extending it", FLAG(BOTH, replace)},
    {"model", 'm', "FILE", "the model, instead of the operand", AS(BOTH, take_model, model)},
    {"list-devices", 0, NULL, "list the devices available here and exit",
     FLAG(MEASURE, list_devices)},
    {"json", 0, NULL, "print the summary as JSON", FLAG(BOTH, json)},
    {"help", 'h', NULL, "this text", FLAG(BOTH, help)},
    {"version", 0, NULL, "print the version", FLAG(BOTH, version)},
};

static void print_help(void)
{
    struct option_row rows[ARRAY_LEN(table) + 1];
    puts("Usage: oato-profile MODEL.gguf [OPTIONS]\n"
         "Measures this machine and what the model's operators cost on its devices. Profiling\n"
         "another model adds rows to the same file.");
    options_rows(table, ARRAY_LEN(table), MEASURE, rows);
    options_help(rows, stdout);
    puts("\nUsage: oato-profile MODEL.gguf --calibrate TEXT... [OPTIONS]\n"
         "Counts over text how often the model's neurons and experts fire; a run that was stopped\n"
         "goes on.");
    options_rows(table, ARRAY_LEN(table), COUNT, rows);
    options_help(rows, stdout);
    puts("\nVerbs:\n"
         "  neurons     show or draw what was counted: oato-profile neurons --help\n"
         "\nExit status: 0 done, 2 usage, 3 bad file, 4 does not fit, 5 device failed, 6 reading "
         "or\n"
         "writing failed, 130 interrupted. See oato-profile(1).");
}

/* The two have options of their own. */
static unsigned verb_of(int argc, char **argv)
{
    unsigned verb = MEASURE;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--calibrate") || !strncmp(argv[i], "--calibrate=", 12))
            verb = COUNT;
    return verb;
}

/* Up to an option that is answered here; *done then says that there is nothing more to do. */
static oato_status parse(int argc, char **argv, struct command *c, bool *done,
                         struct oato_error *err)
{
    struct option_row rows[ARRAY_LEN(table) + 1];
    struct options o;
    options_rows(table, ARRAY_LEN(table), verb_of(argc, argv), rows);
    options_init(&o, rows, argc - 1, argv + 1);
    *c = (struct command){.options = {.kv = DT_F16}, .calibrate = {.level = CALIBRATE_LEVEL}};
    while (!c->help && !c->version && !c->list_devices) {
        const int id = options_take(&o, table, c, err);
        if (id == OPT_END)
            break;
        if (id == OPT_ERROR)
            return err->status;
        if (id != OPT_OPERAND)
            continue;
        if (c->model && c->calibrate.n_texts ? take_text(&o, &c->calibrate, err)
                                             : take_model(&o, &c->model, err))
            return err->status;
    }
    *done = c->help || c->version || c->list_devices;
    if (c->help)
        print_help();
    else if (c->version)
        puts("oato-profile " OATO_VERSION);
    else if (c->list_devices)
        device_list(stdout);
    else if (!c->model)
        return oato_fail(err, OATO_EUSAGE, "no model given: oato-profile MODEL.gguf; see --help");
    return OATO_OK;
}

static int32_t rows_of(const struct profile *p, int32_t device)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_rows; i++)
        n += p->rows[i].device == device;
    return n;
}

static void print_device(const struct profile *p, int32_t i)
{
    const struct profile_device *d = &p->devices[i];
    printf("%-8s reads %.1f GB/s, computes %.1f GFLOP/s, %d rows", d->id, d->read_bytes_per_s / 1e9,
           d->flops_per_s / 1e9, rows_of(p, i));
    if (is_stand_in(d->model))
        printf(", by a %s", d->model);
    if (d->launch_ns > 0)
        printf(", launches in %.1f us", d->launch_ns / 1e3);
    putchar('\n');
}

static void print_link(const struct profile *p, const struct profile_link *l)
{
    printf("%s -> %s  %.1f us + %.1f GB/s", p->devices[l->from].id, p->devices[l->to].id,
           l->latency_ns / 1e3, l->bytes_per_s / 1e9);
    if (l->both_bytes_per_s > 0)
        printf(", both ways %.1f GB/s", l->both_bytes_per_s / 1e9);
    if (l->pageable_bytes_per_s > 0)
        printf(", pageable %.1f us + %.1f GB/s", l->pageable_latency_ns / 1e3,
               l->pageable_bytes_per_s / 1e9);
    if (l->stream_bytes_per_s > 0)
        printf(", weights converted %.1f GB/s", l->stream_bytes_per_s / 1e9);
    putchar('\n');
}

static void print_summary(const struct profile *p, const struct profiler_report *r,
                          const char *path)
{
    const struct profile_machine *m = &p->machine;
    printf("%s, %d cores, %.1f GiB, kernels %s\n", m->cpu, m->cores,
           (double)m->memory_bytes / (double)(1 << 30), m->kernel_isa ? m->kernel_isa : "-");
    for (int32_t i = 0; i < p->n_devices; i++)
        print_device(p, i);
    for (int32_t i = 0; i < p->n_links; i++)
        print_link(p, &p->links[i]);
    const struct profile_storage *s = profile_storage_ahead(p);
    if (s)
        printf("storage  reads %.2f GB/s (%.2f to %.2f) with %d reads on their way%s\n",
               s->bytes_per_s / 1e9, s->p10_bytes_per_s / 1e9, s->p90_bytes_per_s / 1e9, s->depth,
               s->direct ? "" : ", through the page cache");
    for (int32_t i = 0; i < p->n_sums; i++)
        if (!i || p->sums[i].ranks != p->sums[i - 1].ranks ||
            p->sums[i].hosts != p->sums[i - 1].hosts)
            printf("sums     of %d ranks on %d hosts\n", p->sums[i].ranks, p->sums[i].hosts);
    printf("%s: %d rows new, %d measured again, %d kept", path, r->rows_new, r->rows_replaced,
           r->rows_kept);
    if (r->rows_skipped)
        printf(", %d skipped", r->rows_skipped);
    printf("; %.0f s\n", r->seconds);
}

/* What was not measured is left out, as in the profile. */
static void json_measured(struct text *t, const char *key, double v)
{
    if (v > 0)
        json_add(t, JSON(key, llrint(v)));
}

static void device_json(struct text *t, const struct profile *p, int32_t i)
{
    const struct profile_device *d = &p->devices[i];
    json_open(t, NULL, '{');
    json_add(t, JSON("id", d->id), JSON("model", or_empty(d->model)),
             JSON("read_bytes_per_s", llrint(d->read_bytes_per_s)),
             JSON("flops_per_s", llrint(d->flops_per_s)), JSON("rows", rows_of(p, i)));
    json_measured(t, "launch_ns", d->launch_ns);
    json_close(t, '}');
}

static void link_json(struct text *t, const struct profile *p, const struct profile_link *l)
{
    json_open(t, NULL, '{');
    json_add(t, JSON("from", p->devices[l->from].id), JSON("to", p->devices[l->to].id),
             JSON("latency_ns", llrint(l->latency_ns)), JSON("bytes_per_s", llrint(l->bytes_per_s)),
             JSON("sync_ns", llrint(l->sync_ns)));
    json_measured(t, "pageable_latency_ns", l->pageable_latency_ns);
    json_measured(t, "pageable_bytes_per_s", l->pageable_bytes_per_s);
    json_measured(t, "both_bytes_per_s", l->both_bytes_per_s);
    json_measured(t, "stream_bytes_per_s", l->stream_bytes_per_s);
    json_close(t, '}');
}

static oato_status print_json(const struct profile *p, const struct profiler_report *r,
                              const char *path, struct oato_error *err)
{
    struct text t;
    text_init(&t);
    json_open(&t, NULL, '{');
    json_add(&t, JSON("file", path), JSON("cpu", p->machine.cpu));
    json_add_object(&t, "rows", JSON("new", r->rows_new), JSON("replaced", r->rows_replaced),
                    JSON("kept", r->rows_kept), JSON("skipped", r->rows_skipped));
    json_add(&t, JSON("took_ns", llrint(r->seconds * 1e9)));
    json_open(&t, "devices", '[');
    for (int32_t i = 0; i < p->n_devices; i++)
        device_json(&t, p, i);
    json_close(&t, ']');
    json_open(&t, "links", '[');
    for (int32_t i = 0; i < p->n_links; i++)
        link_json(&t, p, &p->links[i]);
    json_close(&t, ']');
    json_open(&t, "storage", '[');
    for (int32_t i = 0; i < p->n_storage; i++)
        json_add_object(&t, NULL, JSON("depth", p->storage[i].depth),
                        JSON("bytes", p->storage[i].bytes),
                        json_bool("direct", p->storage[i].direct),
                        JSON("bytes_per_s", llrint(p->storage[i].bytes_per_s)),
                        JSON("p10_bytes_per_s", llrint(p->storage[i].p10_bytes_per_s)),
                        JSON("p90_bytes_per_s", llrint(p->storage[i].p90_bytes_per_s)),
                        JSON("passes", p->storage[i].passes),
                        JSON("latency_ns", llrint(p->storage[i].latency_ns)));
    json_close(&t, ']');
    json_close(&t, '}');
    oato_status status =
        t.failed ? oato_fail_memory(err, t.len, "the summary; the profile is written") : OATO_OK;
    if (!status)
        puts(t.data);
    text_free(&t);
    return status;
}

static oato_status measure_restores(const struct command *c, struct profile *p,
                                    const struct model *model, const struct plan *plan,
                                    struct oato_error *err)
{
    static const char *const ways[RESTORE_WAYS] = {"computed again", "copied out and in"};
    struct restore_report report;
    const oato_status status =
        restores_measure(p, model, plan, &c->options, program_warn, NULL, &report, err);
    for (int way = 0; way < RESTORE_WAYS && !status && !c->json; way++) {
        const struct restore_quality *q = &report.quality[way];
        printf("%s: %d points, error on those held out %.1f %% by regression, %.1f %% by forest\n",
               ways[way], q->points, 100 * q->error[RESTORE_REGRESSION],
               100 * q->error[RESTORE_FOREST]);
    }
    return status;
}

/* With the predictors that a sidecar beside the model has. */
static oato_status measure_model(const struct command *c, struct profile *p,
                                 const struct model *model, struct profiler_report *report,
                                 struct oato_error *err)
{
    struct profiler_options options = c->options;
    struct neurons n;
    struct oato_error none = {0};
    if (!neurons_open(model->gguf, NULL, &n, &none))
        options.neurons = &n;
    const oato_status status =
        profiler_measure(p, model, &options, program_warn, NULL, report, err);
    neurons_free(&n);
    return status;
}

/* On rank 0; status, err: how it went here so far. */
static oato_status measure_sums(const struct command *c, struct profile *p,
                                const struct model *model, oato_status status,
                                struct oato_error *err)
{
    status = collective_agree(c->ranks, status, err);
    return status ? status : sums_measure(p, model, c->ranks, &c->options, program_warn, NULL, err);
}

/* Where an interrupted run keeps its rows; empty: the profile goes to a device or a pipe. */
static void partial_name(const char *path, struct text *out)
{
    struct stat st;
    if (stat(path, &st) || S_ISREG(st.st_mode))
        text_printf(out, "%s.partial", path);
}

static oato_status profile_model(const struct command *given, struct oato_error *err)
{
    struct command copy = *given, *c = &copy;
    struct text partial;
    char name[96];
    struct model *model = NULL;
    struct profile p;
    struct profiler_report report = {0};
    const char *path = c->out;
    profile_init(&p);
    if (c->plan && !c->restores)
        return oato_fail(err, OATO_EUSAGE, "--plan is for --restores; give that, too");
    struct plan plan;
    oato_status status = c->plan ? plan_load(c->plan, &plan, err) : OATO_OK;
    const bool planned = c->plan && !status;
    if (!status)
        status = model_open_as(c->model, &c->choice, &model, err);
    if (!status && planned)
        status = plan_check_model(&plan, model->gguf, err);
    if (!status && !path) /* the name needs the machine, which the file may then hold already */
        status = profiler_begin(NULL, true, &p, NULL, NULL, err);
    if (!status && !path) {
        machine_file_name(&p.machine, name, sizeof name);
        path = name;
        profile_free(&p);
    }
    if (!status)
        status = outfile_check(path, err);
    if (!status)
        status = profiler_begin(path, c->replace, &p, program_warn, NULL, err);
    text_init(&partial);
    if (!status)
        partial_name(path, &partial);
    c->options.partial = partial.data;
    const bool measures = !status && ((!c->restores && !c->links) || !p.n_devices);
    if (c->links)
        status = beside_announce(c->ranks, measures, status, err);
    if (!status && measures)
        status = measure_model(c, &p, model, &report, err);
    const bool measured = measures && !status;
    if (c->links)
        status = measure_sums(c, &p, model, status, err);
    if (!status && c->restores)
        status = measure_restores(c, &p, model, planned ? &plan : NULL, err);
    struct oato_error none;
    const bool cut = measured && status == OATO_NEGATIVE; /* behind the operators */
    bool saved = false;
    if (!status)
        saved = !(status = profile_save(&p, path, err));
    else if (cut && (saved = !profile_save(&p, path, &none)))
        oato_fail(err, status,
                  "interrupted: the operators are in %s; the same command measures the rest", path);
    if (measured && saved && partial.data)
        unlink(partial.data);
    text_free(&partial);
    if (!status && c->json)
        status = print_json(&p, &report, path, err);
    else if (!status)
        print_summary(&p, &report, path);
    if (planned)
        plan_free(&plan);
    profile_free(&p);
    model_close(model);
    return status;
}

static oato_status follow_sums(const struct command *c, struct oato_error *err)
{
    struct model *model = NULL;
    oato_status status = model_open_as(c->model, &c->choice, &model, err);
    status = beside_first(c->ranks, model, &c->options, status, err);
    if (!status)
        status = sums_measure(NULL, model, c->ranks, &c->options, program_warn, NULL, err);
    model_close(model);
    return status;
}

/* Rank 0 writes the profile, the others only sum with it. */
static oato_status profile_ranks(struct command *c, struct oato_error *err)
{
    if (getenv("OATO_COLLECTIVE"))
        return oato_fail(err, OATO_EUSAGE,
                         "OATO_COLLECTIVE is set, but --links measures every way to sum; unset it");
    oato_status status = collective_open(&c->ranks, program_abort, err);
    if (status)
        return status;
    if (collective_ranks(c->ranks) == 1)
        status = oato_fail(err, OATO_EUSAGE,
                           "--links measures sums of several ranks; start it with mpirun -n N");
    else if (!collective_rank(c->ranks))
        status = profile_model(c, err);
    else
        status = follow_sums(c, err);
    program_ends(oato_interrupted ? 128 + SIGINT : (int)status, status ? err : NULL);
    collective_close(c->ranks);
    program_closes(NULL);
    return status;
}

/* MODEL.gguf: MODEL.neurons.gguf */
static const char *sidecar_name(const char *model, struct text *t)
{
    static const char end[] = ".gguf";
    const size_t n = strlen(model), e = sizeof end - 1;
    text_add(t, model, n > e && !strcmp(model + n - e, end) ? n - e : n);
    text_printf(t, ".neurons.gguf");
    return t->failed ? NULL : t->data;
}

static oato_status print_counted(const struct command *c, const char *path,
                                 const struct calibrate_report *r, struct oato_error *err)
{
    struct text t;
    text_init(&t);
    if (c->json) {
        json_open(&t, NULL, '{');
        json_add(&t, JSON("file", path), JSON("tokens", r->tokens),
                 JSON("tokens_before", r->tokens_before),
                 JSON("took_ns", llrint(r->seconds * 1e9)));
        if (r->predictors.layers)
            json_add(&t, JSON("predictors_share", r->predictors.share));
        json_close(&t, '}');
    } else if (r->tokens == r->tokens_before) {
        text_printf(&t, "%s: all %lld tokens were counted already", path, (long long)r->tokens);
    } else {
        text_printf(&t, "%s: %lld tokens counted", path, (long long)r->tokens);
        if (r->tokens_before)
            text_printf(&t, ", %lld of them earlier", (long long)r->tokens_before);
        text_printf(&t, "; %.0f s. See oato-profile neurons show", r->seconds);
    }
    if (!c->json && c->calibrate.predictors)
        text_printf(&t, "\npredictors of %d layers", r->predictors.layers);
    if (!c->json && r->predictors.share > 0)
        text_printf(&t, ": %.1f %% of a decode step with oato-run --sparse predict",
                    100 * r->predictors.share);
    if (!c->json && r->predictors.without)
        text_printf(&t, ", %d layers have none: %s", r->predictors.without, r->predictors.why);
    const oato_status status =
        t.failed ? oato_fail_memory(err, t.len, "the summary; the file is written") : OATO_OK;
    if (!status)
        puts(t.data);
    text_free(&t);
    return status;
}

static oato_status count_neurons(struct command *c, struct oato_error *err)
{
    struct model *model = NULL;
    struct calibrate_report report;
    struct text name;
    text_init(&name);
    c->calibrate.threads = c->options.threads;
    c->calibrate.replace = c->replace;
    const char *path = c->out ? c->out : sidecar_name(c->model, &name);
    oato_status status = path ? model_open_as(c->model, &c->choice, &model, err)
                              : oato_fail_memory(err, strlen(c->model), "a name");
    if (!status)
        status = calibrate(model, &c->calibrate, path, &report, err);
    if (!status)
        status = print_counted(c, path, &report, err);
    model_close(model);
    text_free(&name);
    return status;
}

static oato_status run(int argc, char **argv, struct oato_error *err)
{
    struct command c;
    bool done = false;
    char why[160];
    if (argc > 1 && !strcmp(argv[1], "neurons"))
        return run_neurons(argc - 1, argv + 1, err);
    oato_status status = parse(argc, argv, &c, &done, err);
    outfile_keep(c.model);
    for (int32_t i = 0; i < c.calibrate.n_texts; i++)
        outfile_keep(c.calibrate.texts[i]);
    if (status || done)
        return status;
    interrupt_catch();
    c.options.threads = host_threads(c.options.threads, why, sizeof why);
    if (why[0])
        program_warn(NULL, why);
    if (c.links)
        return profile_ranks(&c, err);
    return c.calibrate.n_texts ? count_neurons(&c, err) : profile_model(&c, err);
}

int main(int argc, char **argv)
{
    struct oato_error err = {OATO_OK, ""};
    program_begin("oato-profile");
    oato_status status = run(argc, argv, &err);
    if (!status)
        status = stdout_check(&err); /* a pipe that broke, a disk that is full */
    if (!status)
        return program_exit(0);
    if (err.text[0]) /* empty: rank 0 says it */
        fprintf(stderr, "oato-profile: %s\n", err.text);
    return program_exit(oato_interrupted ? 128 + SIGINT : (int)status);
}
