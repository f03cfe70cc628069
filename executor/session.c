/*
 * session.c - see session.h.
 */
#include "executor/session.h"
#include "lowering/lowering.h"
#include "text/sampling.h"

#include <string.h>

enum { REPLANS = 2 }; /* of plans that do not load */

static void on_load(void *user, const char *device, uint64_t bytes, uint64_t of)
{
    progress_update(user, of ? (double)bytes / (double)of : 0, device);
}

/* Warns about positions that the model was not trained for. */
static void warn_of_context(const struct model *m, int32_t context, int32_t seqs)
{
    const int64_t trained = m->shape.context_length;
    if (trained < 1 || context <= trained * (seqs > 1 ? seqs : 1))
        return;
    warn_line(program_warn, NULL,
              "the context of %d tokens exceeds the %lld that the model was trained for; text "
              "beyond that may make no sense",
              context, (long long)trained);
}

/* All logits are needed when the tokenizer knows fewer tokens than there are logits, because the
 * sampler then skips some. */
static int32_t candidates_wanted(const struct session *s, const struct session_args *a)
{
    const int32_t vocab = s->model->shape.vocab;
    struct sampler_options sampling = s->sampling;
    if (s->tokenizer && tokenizer_size(s->tokenizer) != vocab)
        return 0;
    sampler_bound(&sampling, INT32_MAX); /* the context is not known yet */
    return (int32_t)max_i64(a->candidates, sampler_candidates(&sampling, vocab));
}

/* Without -c a request ends at the context length that the model was trained for. */
static oato_status batch_open(struct session *s, const struct session_args *a,
                              struct oato_error *err)
{
    const int64_t trained = min_i64(s->model->shape.context_length, INT32_MAX);
    struct batch_options options = a->batch;
    if (!options.context && !a->engine.context)
        options.context = (int32_t)trained;
    return batch_create(s->engine, &options, &s->batch, err);
}

static bool brings_predictors(const struct gguf *g)
{
    return gguf_powerinfer(g) && gguf_tensor(g, "blk.0.fc1.weight");
}

static void warn_of_predictors(const struct gguf *g, enum sparse_mode mode)
{
    if (brings_predictors(g) && mode != SPARSE_PREDICT)
        program_warn(NULL,
                     "PowerInfer's predictors (fc1, fc2) are not used: gates are computed whole, "
                     "so that no active neuron is missed; --sparse predict uses them");
}

/* The sidecar that the plan follows, or that --sparse takes thresholds or predictors from. */
static oato_status session_neurons(struct session *s, const struct session_args *a,
                                   struct engine_options *options, struct oato_error *err)
{
    const enum sparse_mode mode = options->sparse.mode;
    const bool needed = mode == SPARSE_THRESHOLD || mode == SPARSE_PREDICT ||
                        (options->sparse.skips_inputs && mode != SPARSE_DENSE);
    if (s->has_plan && (s->plan.neurons_hash || !needed)) {
        const oato_status status =
            plan_open_neurons(&s->plan, s->model->gguf, a->neurons, &s->neurons, err);
        options->neurons = s->plan.neurons;
        return status;
    }
    if (needed) {
        options->neurons = &s->neurons;
        if (mode == SPARSE_PREDICT && !a->neurons && brings_predictors(s->model->gguf))
            return neurons_of_powerinfer(s->model->gguf, &s->neurons, err);
        return neurons_open(s->model->gguf, a->neurons, &s->neurons, err);
    }
    return a->neurons
               ? oato_fail(err, OATO_EUSAGE,
                           "--neurons names the sidecar that a plan follows or that "
                           "--sparse threshold=S, input=S and predict read; give one of them, too")
               : OATO_OK;
}

/* The plan that nobody gave: a first one, or another one in place of one that failed. */
static oato_status session_plan(struct session *s, const struct session_args *a,
                                const struct oato_error *failed, struct oato_error *err)
{
    struct oato_error why = {0};
    if (s->has_plan)
        plan_free(&s->plan);
    neurons_free(&s->neurons);
    s->has_plan = a->make_plan(a->make_user, a, s->model, failed, &s->plan, &why);
    if (why.status)
        *err = why;
    return why.status;
}

/* By the plan, which another one may replace, and that one, too. */
static oato_status session_engine(struct session *s, const struct session_args *a,
                                  struct engine_options *options, struct oato_error *err)
{
    struct progress progress = {0};
    options->on_load = on_load;
    for (int failures = 0;; failures++) {
        progress_begin(&progress, "loading", 1);
        oato_status status = engine_open(s->model, s->has_plan ? &s->plan : NULL, options,
                                         program_warn, &progress, &s->engine, err);
        progress_end(&progress);
        if (status == OATO_EFIT && options->states && !options->ranks) {
            options->states = false; /* which may take more than the plan knows */
            failures--;
            continue;
        }
        if ((status != OATO_EFIT && status != OATO_EDEVICE) || failures == REPLANS ||
            !s->has_plan || a->plan || !a->make_plan)
            return status;
        const struct oato_error failed = *err;
        options->neurons = a->engine.neurons;
        status = session_plan(s, a, &failed, err);
        if (!status)
            status = session_neurons(s, a, options, err);
        if (status)
            return status;
    }
}

/* measured: what the engine would take, instead of an engine; NULL: it is opened. */
static oato_status session_load(struct session *s, const struct session_args *a, unsigned needs,
                                struct engine_stats *measured, struct oato_error *err)
{
    struct engine_options options = a->engine;
    char why[160];
    options.threads = host_threads(options.threads, why, sizeof why);
    if (why[0])
        program_warn(NULL, why);
    oato_status status = OATO_OK;
    if (a->plan) {
        status = plan_load(a->plan, &s->plan, err);
        s->has_plan = status == OATO_OK;
    }
    s->alone = s->has_plan && plan_ranks(&s->plan) == 1 && collective_ranks(s->ranks) > 1;
    options.ranks = s->alone ? NULL : s->ranks;
    if (s->alone && collective_rank(s->ranks))
        return status;
    if (s->alone)
        warn_line(program_warn, NULL,
                  "the plan is for one process: of the %d ranks that were started all but rank 0 "
                  "stay idle; oato-plan --ranks %d --split tensor divides the model between them",
                  collective_ranks(s->ranks), collective_ranks(s->ranks));
    if (!status)
        status = model_open_as(a->model, &a->choice, &s->model, err);
    if (!status && !a->plan && a->make_plan && collective_ranks(s->ranks) == 1)
        status = session_plan(s, a, NULL, err);
    if (!status && needs & (SESSION_SAMPLES | SESSION_CANDIDATES))
        sampling_settle(&s->sampling, s->model->gguf, program_warn, NULL);
    if (!status)
        status = session_neurons(s, a, &options, err);
    if (!status)
        warn_of_predictors(s->model->gguf, options.sparse.mode);
    if (!status && needs & SESSION_TOKENIZER && !a->dump_program) {
        status = tokenizer_create(s->model->gguf, &s->tokenizer, err);
        warn_of_context(s->model, a->engine.context, a->engine.seqs);
    }
    if (!status && needs & (SESSION_SAMPLES | SESSION_CANDIDATES))
        options.top_logits = candidates_wanted(s, a);
    if (!status && a->dry_run)
        s->done = true;
    if (!status && measured)
        return engine_measure(s->model, s->has_plan ? &s->plan : NULL, &options, program_warn, NULL,
                              measured, err);
    return status || s->done ? status : session_engine(s, a, &options, err);
}

/* With the engines of all ranks open. */
static oato_status session_begin(struct session *s, const struct session_args *a, unsigned needs,
                                 struct oato_error *err)
{
    if (s->done)
        return OATO_OK;
    if (s->alone && collective_rank(s->ranks)) { /* until rank 0 ends */
        char end = 0;
        s->done = true;
        return collective_broadcast(s->ranks, &end, sizeof end, WAITS_EVER, err);
    }
    s->runs = true;
    if (a->dump_program) {
        engine_dump_programs(s->engine, stdout);
        s->done = true;
        return stdout_check(err);
    }
    oato_status status = engine_join(s->engine, err);
    if (!status && collective_rank(s->ranks)) {
        s->done = true;
        return engine_follow(s->engine, err);
    }
    return !status && needs & SESSION_SAMPLES ? batch_open(s, a, err) : status;
}

oato_status session_join(struct session_args *a, struct oato_error *err)
{
    return collective_open(&a->ranks, program_abort, err);
}

oato_status session_open(struct session *s, const struct session_args *a, unsigned needs,
                         struct oato_error *err)
{
    memset(s, 0, sizeof *s);
    s->ranks = a->ranks;
    s->sampling = a->sampling;
    oato_status status = s->ranks ? OATO_OK : collective_open(&s->ranks, program_abort, err);
    if (!status)
        status = collective_agree(s->ranks, session_load(s, a, needs, NULL, err), err);
    if (!status)
        status = session_begin(s, a, needs, err);
    if (status && s->ranks &&
        collective_ranks(s->ranks) > 1) /* all end; one that stops holds up nobody */
        program_ends((int)status, err);
    if (status)
        session_close(s);
    return status;
}

oato_status session_measure(const struct session_args *a, unsigned needs, struct engine_stats *out,
                            struct oato_error *err)
{
    struct session s = {.ranks = a->ranks, .sampling = a->sampling};
    oato_status status = s.ranks ? OATO_OK : collective_open(&s.ranks, program_abort, err);
    if (!status)
        status = session_load(&s, a, needs & ~(unsigned)SESSION_TOKENIZER, out, err);
    session_close(&s);
    return status;
}

void session_close(struct session *s)
{
    if (s->alone && s->runs) {
        struct oato_error ignored;
        char end = 0;
        collective_broadcast(s->ranks, &end, sizeof end, WAITS_AWAKE, &ignored);
    }
    if (s->engine)
        engine_warnings(s->engine, program_warn, NULL);
    batch_free(s->batch);
    engine_close(s->engine);
    collective_close(s->ranks);
    program_closes(NULL);
    tokenizer_free(s->tokenizer);
    model_close(s->model);
    if (s->has_plan)
        plan_free(&s->plan);
    neurons_free(&s->neurons);
    memset(s, 0, sizeof *s);
}

/* The chat template that the arguments ask for. */
static oato_status template_find(const struct gguf *g, const struct session_args *a,
                                 struct chat_template **out, struct oato_error *err)
{
    struct text program;
    oato_status status = OATO_OK;
    text_init(&program);
    *out = NULL;
    if (a->chat_template && a->chat_template_file)
        status = oato_fail(err, OATO_EUSAGE,
                           "give either --chat-template or --chat-template-file, not both");
    else if (a->chat_template_file)
        status = text_read_file(a->chat_template_file, TEXT_LINES, &program, err);
    const char *name = a->chat_template_file ? or_empty(program.data) : a->chat_template;
    const size_t n = a->chat_template_file ? program.len : strlen(or_empty(name));
    if (!status)
        status = chat_template_find(g, name, n, a->chat_template_file, out, err);
    text_free(&program);
    if (!status && a->variables)
        status = chat_template_variables(*out, a->variables, err);
    if (status) {
        chat_template_free(*out);
        *out = NULL;
    }
    return status;
}

oato_status session_template(const struct session *s, const struct session_args *a,
                             struct chat_template **out, struct oato_error *err)
{
    if (template_find(s->model->gguf, a, out, err))
        return err->status;
    if (chat_template_warning(*out)[0])
        program_warn(NULL, chat_template_warning(*out));
    return OATO_OK;
}

static oato_status plan_fits(const struct session_args *a, const struct gguf *g,
                             struct oato_error *err)
{
    struct plan plan;
    if (!a->plan)
        return OATO_OK;
    if (plan_load(a->plan, &plan, err))
        return err->status;
    const oato_status status = plan_check_model(&plan, g, err);
    plan_free(&plan);
    return status;
}

oato_status session_check(const struct session_args *a, struct oato_error *err)
{
    const struct engine_options *o = &a->engine;
    char specs[DEVICES_MAX][256];
    struct model *m = NULL;
    struct tokenizer *tokenizer = NULL;
    struct chat_template *template = NULL;
    oato_status status = OATO_OK;
    if (o->devices && device_split(o->devices, specs, DEVICES_MAX, err) < 0)
        return err->status;
    status = model_open_as(a->model, &a->choice, &m, err);
    if (!status)
        status = plan_fits(a, m->gguf, err);
    if (!status)
        status = tokenizer_create(m->gguf, &tokenizer, err);
    if (!status && (a->chat_template || a->chat_template_file || a->variables))
        status = template_find(m->gguf, a, &template, err);
    chat_template_free(template);
    tokenizer_free(tokenizer);
    model_close(m);
    return status;
}

struct sampler *session_sampler(const struct session *s)
{
    struct engine_stats stats;
    struct sampler_options sampling = s->sampling;
    engine_get_stats(s->engine, &stats);
    sampler_bound(&sampling, stats.context);
    sampling.dry.tokenizer = s->tokenizer;
    return sampler_create(&sampling, tokenizer_size(s->tokenizer));
}

/* ---------------------------------------------------------------------- text of answers --- */

oato_status answer_text_read(struct answer_text *t, const struct chat_template *c,
                             enum chat_form form, const struct text *prompt, struct oato_error *err)
{
    chat_reader_free(t->reader);
    return chat_reader_open(c, form, or_empty(prompt->data), prompt->len, &t->sink, &t->reader,
                            err);
}

static bool characters_take(struct answer_text *t, const char *bytes, size_t n, bool last)
{
    struct text whole, passed;
    text_init(&whole);
    text_init(&passed);
    utf8_stream_push(&t->utf8, bytes, n, &whole);
    if (last)
        utf8_stream_flush(&t->utf8, &whole);
    if (t->filter)
        t->filter(t->sink.user, or_empty(whole.data), whole.len, last, &passed);
    const struct text *out = t->filter ? &passed : &whole;
    if (out->len && t->reader)
        chat_reader_push(t->reader, out->data, out->len);
    else if (out->len)
        t->sink.text(t->sink.user, CHAT_SAYS, out->data, out->len);
    const bool good = !whole.failed && !passed.failed;
    text_free(&whole);
    text_free(&passed);
    return good;
}

bool answer_text_push(struct answer_text *t, int32_t id)
{
    const char *bytes;
    size_t n;
    return !tokenizer_piece(t->tokenizer, id, t->reader != NULL, &bytes, &n) ||
           characters_take(t, bytes, n, false);
}

bool answer_text_end(struct answer_text *t, bool cut)
{
    struct oato_error err;
    if (cut)
        t->utf8.n_held = 0;
    const bool good = characters_take(t, "", 0, true);
    return (!t->reader || !chat_reader_end(t->reader, cut, &err)) && good;
}

void answer_text_free(struct answer_text *t)
{
    chat_reader_free(t->reader);
    t->reader = NULL;
}
