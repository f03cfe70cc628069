/*
 * verbs.c - what the verbs of oato-plan do: open the model, profile, plan and sidecar that they
 * want, have the library plan, price or report, and write files. Header-only models, which a team
 * can keep with its plans, and imported sidecars need no plan; they are described here.
 */
#include "solver/verbs.h"

#include "net/net.h"
#include "solver/planning_internal.h"
#include "solver/ranks/ranks_internal.h"
#include "solver/report/report_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ----------------------------------------------------------------------- inputs and outputs - */

/* Warns when prices come from a busy machine; p may be NULL. */
void warn_if_disturbed(const struct problem *p)
{
    const int32_t n = p ? problem_disturbed(p) : 0;
    char text[256];
    if (!n)
        return;
    snprintf(text, sizeof text,
             "%d of %d operators were timed while the machine was busy (disturbed rows of the "
             "profile): predictions may be far off; run oato-profile again when it is quiet",
             n, p->graph.n_ops);
    program_warn(NULL, text);
}

bool names_machine(const struct command *c)
{
    return c->profile || c->hardware;
}

bool names_model(const struct command *c)
{
    return c->model || c->shape;
}

oato_status open_inputs(struct command *c, struct oato_error *err)
{
    oato_status status = OATO_OK;
    if (c->profile && c->hardware)
        return oato_fail(err, OATO_EUSAGE, "two machines: -p %.80s and --hardware %.40s; give one",
                         c->profile, c->hardware);
    if (c->profile)
        status = profile_load(c->profile, &c->in.profile_storage, program_warn, NULL, err);
    else if (c->hardware)
        status = hardware_load(c->hardware, &c->in.profile_storage, program_warn, NULL, err);
    if (!status && names_machine(c))
        c->in.profile = &c->in.profile_storage;
    if (c->model && c->shape)
        return oato_fail(err, OATO_EUSAGE, "two models: %.80s and --shape %.60s; give one",
                         c->model, c->shape);
    if (!status && names_model(c))
        status = c->shape ? open_shape(c, &c->in.model, err)
                          : model_open_as(c->model, &c->choice, &c->in.model, err);
    if (!status && c->neurons) {
        status = neurons_load(c->neurons, &c->in.neurons_storage, err);
        c->in.neurons = status ? NULL : &c->in.neurons_storage;
    }
    if (!status && c->in.neurons && c->in.model)
        status = neurons_check_model(c->in.neurons, c->in.model->gguf, err);
    c->plan.neurons = c->in.neurons;
    if (!status && c->hardware && strchr(c->hardware, '=')) /* what was assumed of it */
        text_tell("%s\n", c->in.profile->notes);
    return status;
}

/* The profiles of the ranks: the machine's, and those that were given after it. */
static oato_status open_ranks(struct command *c, struct oato_error *err)
{
    struct rank_options *o = &c->ranks;
    o->profiles[o->n_profiles++] = c->in.profile;
    for (int i = 0; i < c->n_more; i++) {
        if (profile_load(c->more[i], &c->in.more[i], program_warn, NULL, err))
            return err->status;
        o->profiles[o->n_profiles++] = &c->in.more[i];
    }
    return OATO_OK;
}

/* A plan for several ranks is priced by the profiles of all; one of a single process by one. */
static oato_status check_ranks(struct command *c, struct oato_error *err)
{
    if (plan_ranks(&c->the_plan) == 1 && c->n_more)
        return oato_fail(err, OATO_EUSAGE, "%s is for one process; give one profile",
                         c->operands[0]);
    return c->in.profile && c->in.model ? open_ranks(c, err) : OATO_OK;
}

/* Whether the ranks of the plan are to be priced again. */
bool prices_ranks(const struct command *c)
{
    return c->ranks.n_profiles && plan_ranks(&c->the_plan) > 1;
}

/* Opens the plan given by the first operand, and the inputs. */
oato_status open_plan(struct command *c, struct oato_error *err)
{
    if (plan_load(c->operands[0], &c->the_plan, err))
        return err->status;
    if (request_check_plan(&c->the_plan, err))
        return oato_fail_at(err, "%s", c->operands[0]);
    oato_status status = open_inputs(c, err);
    if (!status)
        status = check_ranks(c, err);
    c->the_plan.neurons = c->in.neurons;
    if (status || c->in.neurons || !c->in.model || !c->the_plan.neurons_hash)
        return status;
    if (plan_open_neurons(&c->the_plan, c->in.model->gguf, NULL, &c->in.neurons_storage, err))
        return err->status;
    c->in.neurons = &c->in.neurons_storage;
    return OATO_OK;
}

void command_close(struct command *c)
{
    for (int i = 0; i < c->n_more; i++)
        profile_free(&c->in.more[i]);
    if (c->in.model)
        model_close(c->in.model);
    if (c->in.profile)
        profile_free(c->in.profile);
    if (c->in.neurons)
        neurons_free(c->in.neurons);
    plan_free(&c->the_plan);
    text_free(&c->file);
}

/* Writes c->file whole or not at all. */
oato_status save_file(const struct command *c, const char *path, struct oato_error *err)
{
    struct outfile f;
    if (c->file.failed)
        return oato_fail_memory(err, c->file.len, path);
    oato_status status = outfile_open(&f, path, err);
    if (!status && !(status = outfile_write(&f, c->file.data, c->file.len, err)))
        status = outfile_commit(&f, err);
    return status;
}

/* ---------------------------------------------------------------------- making something --- */

/* "dir/MODEL.gguf" -> "MODEL.plan" in the current directory. */
static oato_status default_output(const char *model, char *path, size_t n, struct oato_error *err)
{
    const char *base = strrchr(model, '/');
    base = base ? base + 1 : model;
    size_t len = strlen(base);
    if (len > 5 && !strcmp(base + len - 5, ".gguf"))
        len -= 5;
    if ((size_t)snprintf(path, n, "%.*s.plan", (int)len, base) >= n)
        return oato_fail(err, OATO_EUSAGE, "the model's name is too long; name the plan with -o");
    return OATO_OK;
}

/* Notes for oato-run --strict with which kernels the plan's devices were measured. used: the hosts
 * of several profiles that the plan uses; NULL: the ranks' profiles, or the only one. */
static oato_status note_kernels(struct command *c, const bool *used, struct oato_error *err)
{
    struct plan *p = &c->the_plan;
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct profile *from = c->in.profile;
        int32_t host = -1;
        for (int32_t i = 0; used && i < c->ranks.n_profiles; i++)
            if (used[i] && ++host == p->devices[d].host)
                from = c->ranks.profiles[i];
        if (!used && c->ranks.n_profiles)
            from = c->ranks.profiles[rank_profile(&c->ranks, p->devices[d].rank)];
        if (!plan_put_kernels(p, d, from))
            return oato_fail_memory(err, sizeof *p->kernels, "a plan");
    }
    return OATO_OK;
}

/* path NULL: nowhere. */
static oato_status save_plan(const struct command *c, const char *path, struct oato_error *err)
{
    return path ? plan_save(&c->the_plan, path, err) : OATO_OK;
}

static void tell_saved(const char *path)
{
    if (path)
        text_tell("wrote %s\n", path);
    else
        text_tell("a shape's plan is not kept; -o PLAN writes it\n");
}

static const char *profile_name(const struct command *c, int32_t i)
{
    return i ? c->more[i - 1] : c->profile ? c->profile : c->hardware;
}

static void tell_hosts(const struct command *c, const struct host_choice *choice)
{
    const struct plan *p = &c->the_plan;
    for (int32_t i = 0; i < choice->n; i++) {
        const struct host_with *with = &choice->with[i];
        const char *name = profile_name(c, i);
        if (choice->used[i])
            continue;
        if (with->fits)
            text_tell("%s is left out: predicted first token after %.1f ms and %.1f tokens/s with "
                      "it, %.1f ms and %.1f tokens/s without\n",
                      name, as_ms((double)with->prefill_ns),
                      tokens_per_s(p->request.batch, with->decode_ns), as_ms((double)p->prefill_ns),
                      tokens_per_s(p->request.batch, p->decode_ns));
        else
            text_tell("%s is left out: no plan with it fits\n", name);
    }
}

static const char *const split_names[] = {
    [SPLIT_AUTO] = "auto", [SPLIT_TENSOR] = "tensor", [SPLIT_LAYERS] = "layers"};

static enum rank_split other_split(const struct rank_prices *prices)
{
    return prices->split == SPLIT_TENSOR ? SPLIT_LAYERS : SPLIT_TENSOR;
}

static void tell_split(const struct plan *p, const struct rank_prices *prices)
{
    if (prices->priced)
        text_tell("%s; --split %s would take %.1f ms to the first token and make %.1f tokens/s, "
                  "this plan %.1f ms and %.1f\n",
                  prices->split == SPLIT_TENSOR ? "each rank has a part of every layer"
                                                : "each rank has some of the layers",
                  split_names[other_split(prices)], as_ms((double)prices->prefill_ns),
                  tokens_per_s(p->request.batch, prices->decode_ns), as_ms((double)p->prefill_ns),
                  tokens_per_s(p->request.batch, p->decode_ns));
}

/* Adds what is known of hosts to the plan's JSON object. */
static void json_hosts(const struct command *c, const struct host_choice *choice, struct text *out)
{
    const struct rank_prices *prices = &choice->prices;
    if (out->failed)
        return;
    out->len -= strlen("}\n");
    json_open(out, "hosts_left_out", '[');
    for (int32_t i = 0; i < choice->n; i++)
        if (!choice->used[i])
            json_add_object(out, NULL, JSON("profile", profile_name(c, i)),
                            json_bool("fits", choice->with[i].fits),
                            JSON("prefill_ns", choice->with[i].prefill_ns),
                            JSON("decode_ns", choice->with[i].decode_ns));
    json_close(out, ']');
    if (choice->alone > 0)
        json_add(out, JSON("idle_ranks", c->ranks.ranks - plan_ranks(&c->the_plan)),
                 JSON("alone_faster", fmin(choice->alone, 1e9)));
    if (plan_ranks(&c->the_plan) > 1)
        json_add(out, JSON("split", split_names[prices->split]));
    if (prices->priced)
        json_add_object(out, "other_split", JSON("split", split_names[other_split(prices)]),
                        JSON("prefill_ns", prices->prefill_ns),
                        JSON("decode_ns", prices->decode_ns));
    json_close(out, '}');
    text_printf(out, "\n");
}

/* Ranks that were asked for may be slower than one host. */
static void tell_alone(const struct command *c, const struct host_choice *choice)
{
    const int32_t ranks = c->ranks.ranks;
    char faster[64] = "has room for the model, which the ranks have not";
    int32_t i = 0;
    while (i + 1 < c->ranks.n_profiles && !choice->used[i])
        i++;
    const char *name = profile_name(c, i);
    if (isfinite(choice->alone))
        snprintf(faster, sizeof faster, "is %.2f x as fast as %d ranks", choice->alone, ranks);
    if (choice->alone > 1 && plan_ranks(&c->the_plan) == 1)
        text_tell("one host of %s alone %s: the plan is for one process there, and all ranks but "
                  "rank 0 are idle if mpirun starts them; --split tensor or layers divides the "
                  "model\n",
                  name, faster);
    else if (choice->alone > 1)
        text_tell("one host of %s alone %s: leave out --ranks, --hosts and --split\n", name,
                  faster);
}

/* As many ranks as said, or those of the profiles' hosts that are worth using. */
static oato_status make_for_ranks(struct command *c, const char *output, struct text *out,
                                  struct oato_error *err)
{
    struct rank_options *o = &c->ranks;
    struct host_choice choice = {.n = 0};
    if (c->maximize_context || c->neurons || c->plan.any_kv)
        return oato_fail(err, OATO_EUSAGE,
                         "--ranks plans no --maximize, no --neurons and no --kv auto");
    if (open_ranks(c, err))
        return err->status;
    const bool chooses = !o->ranks && !o->hosts;
    c->plan.deadline_ns = ilp_deadline(c->plan.time_limit_s);
    o->ranks = o->ranks ? o->ranks : o->n_profiles;
    o->hosts = o->hosts ? o->hosts : o->ranks;
    const oato_status status =
        (chooses ? ranks_choose : ranks_make)(c->in.model, &c->plan, o, &choice, &c->the_plan, err);
    const bool all = !chooses && plan_ranks(&c->the_plan) > 1;
    if (status || note_kernels(c, all ? NULL : choice.used, err) || save_plan(c, output, err))
        return err->status;
    report_plan_as(NULL, &c->the_plan, NULL, c->in.model, c->json, out);
    if (c->json)
        json_hosts(c, &choice, out);
    tell_alone(c, &choice);
    tell_hosts(c, &choice);
    tell_split(&c->the_plan, &choice.prices);
    if (!all)
        o->ranks = o->hosts = plan_ranks(&c->the_plan);
    if (o->ranks > 1)
        text_tell("the time of sums %s\n", rank_sums_measured(o, SUM_TREE)
                                               ? "was measured for these ranks"
                                               : "is estimated: oato-profile --links measures it");
    tell_saved(output);
    return OATO_OK;
}

oato_status run_make(struct command *c, struct text *out, struct oato_error *err)
{
    char path[512];
    struct problem *problem;
    if (asks_for_shapes(c))
        return list_shapes(c->json, out, err);
    if (!c->model)
        c->model = c->operands[0];
    else if (c->n_operands)
        return oato_fail(err, OATO_EUSAGE, "more than one model: '%.80s' and '%.80s'; give one",
                         c->model, c->operands[0]);
    if (!names_model(c) || !names_machine(c))
        return oato_fail(err, OATO_EUSAGE,
                         "oato-plan wants MODEL.gguf or --shape NAME, and -p PROFILE, which "
                         "oato-profile makes, or --hardware NAME; --help says more");
    if (!c->output && c->model && default_output(c->model, path, sizeof path, err))
        return err->status;
    /* what is asked of a shape is a question: its plan is kept where that is said */
    const char *output = c->output ? c->output : c->shape ? NULL : path;
    if (c->at_least > 0 && !c->maximize_context)
        return oato_fail(err, OATO_EUSAGE, "--at-least goes with --maximize context");
    if ((output && outfile_check(output, err)) || open_inputs(c, err))
        return err->status;
    if (!c->maximize_context) /* for each context anew */
        c->plan.deadline_ns = ilp_deadline(c->plan.time_limit_s);
    if (!c->maximize_context && workload_set(c->in.model, c->in.profile, &c->plan, err))
        return err->status;
    if (c->ranks.ranks > 1 || c->n_more)
        return make_for_ranks(c, output, out, err);
    if (c->maximize_context ? context_maximize(c->in.model, c->in.profile, &c->plan, c->at_least,
                                               &c->the_plan, &problem, &c->file, err)
                            : planner_plan(c->in.model, c->in.profile, &c->plan, c->open,
                                           &c->the_plan, &problem, err)) {
        c->plan.deadline_ns = 0; /* which has one of its own */
        return err->status == OATO_EFIT && !c->maximize_context
                   ? report_shortage(c->in.model, c->in.profile, &c->plan, err)
                   : err->status;
    }
    if ((!c->maximize_context || !note_kernels(c, NULL, err)) && !save_plan(c, output, err)) {
        report_plan_as(NULL, &c->the_plan, problem, c->in.model, c->json, out);
        warn_if_disturbed(problem);
        if (c->file.len)
            text_print(stderr, c->file.data, c->file.len);
        tell_saved(output);
    }
    problem_free(problem);
    return err->status;
}

oato_status run_frontier(struct command *c, struct text *out, struct oato_error *err)
{
    c->model = c->operands[0];
    if (!names_model(c))
        return oato_fail(err, OATO_EUSAGE, "frontier wants MODEL.gguf or --shape NAME");
    if (open_inputs(c, err) || workload_set(c->in.model, c->in.profile, &c->plan, err) ||
        report_frontier(c->in.model, c->in.profile, &c->plan, c->steps, c->json, out,
                        c->svg ? &c->file : NULL, err))
        return err->status;
    return c->svg ? save_file(c, c->svg, err) : OATO_OK;
}

enum { REPORT_BYTES = 512 }; /* of what is said of a header, its name apart */

static uint64_t bytes_of_file(const char *path)
{
    struct stat s;
    return stat(path, &s) ? 0 : (uint64_t)s.st_size;
}

/* Reads stdin until it has a whole header, and no further: what sends it may stop then. */
static oato_status read_head(struct text *head, struct oato_error *err)
{
    enum { CHUNK = 1 << 18 };
    uint64_t needs = CHUNK;
    ssize_t n = 1;
    while (n > 0 && needs > head->len) {
        if (!text_reserve(head, CHUNK + 1))
            return oato_fail_memory(err, head->len + CHUNK, "the header");
        n = read(STDIN_FILENO, head->data + head->len, CHUNK);
        if (n < 0)
            return oato_fail(err, OATO_EIO, "stdin: %s", strerror(errno));
        head->len += (size_t)n;
        if (head->len < needs)
            continue;
        if (gguf_head_needs(head->data, head->len, "stdin", &needs, err))
            return err->status;
        /* half as much again: parsing costs no more than a few times the last one */
        needs = needs && needs < head->len + head->len / 2 ? head->len + head->len / 2 : needs;
    }
    return OATO_OK;
}

/* The model of a file, or of the beginning of one. */
static oato_status open_head(const char *path, struct text *head, struct model **out,
                             struct oato_error *err)
{
    struct gguf *g = NULL;
    if (is_url(path))
        return header_of_url(path, out, err);
    oato_status status = strcmp(path, "-") != 0 ? gguf_open_head(path, &g, err)
                         : read_head(head, err)
                             ? err->status
                             : gguf_open_head_memory(head->data, head->len, "stdin", &g, err);
    return status ? status : model_from_gguf(g, out, err);
}

oato_status run_header(struct command *c, struct text *out, struct oato_error *err)
{
    const char *path = c->output, *from = c->n_operands ? c->operands[0] : "-";
    struct model *m = NULL;
    struct text head;
    if (!c->n_operands && isatty(STDIN_FILENO))
        return oato_fail(err, OATO_EUSAGE,
                         "header wants a MODEL.gguf, or the first megabytes of one on stdin");
    text_init(&head);
    oato_status status = open_head(from, &head, &m, err); /* others are of no use */
    if (status) {
        text_free(&head);
        return status;
    }
    /* before the file is there: a command that fails must not leave one */
    text_reserve(out, REPORT_BYTES + 6 * strlen(path));
    status = text_status(out, err);
    if (!status)
        status = gguf_save_header(m->gguf, path, err);
    if (!status && c->json) {
        json_add_object(out, NULL, JSON("header", path),
                        json_hash("structure_hash", gguf_structure_hash(m->gguf)),
                        JSON("model_bytes", gguf_data_bytes(m->gguf)),
                        JSON("header_bytes", bytes_of_file(path)));
        text_printf(out, "\n");
    } else if (!status) {
        text_printf(out, "%s: %.1f KiB for %.1f MiB of weights, structure %016" PRIx64 "\n", path,
                    (double)bytes_of_file(path) / 1024, as_mib((double)gguf_data_bytes(m->gguf)),
                    gguf_structure_hash(m->gguf));
    }
    model_close(m);
    text_free(&head);
    return status ? status : text_status(out, err);
}

static void describe_import(const struct neurons *n, const char *path, uint64_t capacity_bytes,
                            bool json, struct text *out)
{
    int64_t all = 0, hot = 0;
    double least = 1, most = 0;
    if (json) {
        json_open(out, NULL, '{');
        json_add(out, JSON("neurons", path), JSON("capacity_bytes", capacity_bytes));
        json_open(out, "layers", '[');
    }
    for (int32_t i = 0; i < n->n_layers; i++) {
        const struct neurons_layer *l = &n->layers[i];
        const double share = (double)l->ffn_hot / l->n_ff;
        all += l->n_ff;
        hot += l->ffn_hot;
        least = share < least ? share : least;
        most = share > most ? share : most;
        if (json)
            json_add_object(out, NULL, JSON("neurons", l->n_ff), JSON("on_gpu", l->ffn_hot));
    }
    if (json)
        text_printf(out, "]}\n");
    else
        text_printf(out,
                    "%s: %d layers, %" PRId64 " of %" PRId64
                    " neurons on the GPU (%.1f %%; a layer "
                    "%.1f to %.1f %%), chosen for %.1f MiB\n",
                    path, n->n_layers, hot, all, 100.0 * (double)hot / (double)all, 100 * least,
                    100 * most, as_mib((double)capacity_bytes));
}

oato_status run_import(struct command *c, struct text *out, struct oato_error *err)
{
    struct gguf *g;
    struct neurons n;
    uint64_t capacity_bytes = 0;
    oato_status status = gguf_open(c->model, &g, err);
    if (status)
        return status;
    status = neurons_import_powerinfer(c->operands[0], g, c->text_order, &n, &capacity_bytes, err);
    if (!status) {
        describe_import(&n, c->output, capacity_bytes, c->json, out);
        status = text_status(out, err);
        if (!status)
            status = neurons_save(&n, c->output, err);
        if (status)
            out->len = 0; /* nothing was imported */
        neurons_free(&n);
    }
    gguf_close(g);
    return status;
}
