/*
 * run_compare.c - perplexity of two runs of the same model over the same windows, and how far the
 * second one's answers are from the first one's: the KL divergence of its probabilities, and how
 * often both have the same likeliest token.
 *
 * The scored half of each window is decoded token by token, since decoding is what sparse execution
 * changes, so that quality and speed are those of the same steps. The runs take turns window by
 * window: what else the machine does slows both, and the speed is compared pair by pair.
 */
#include "front/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct side {
    struct session *session;
    int32_t seq;
    double nll;
    double *s_per_token; /* of each window */
};

struct comparison {
    struct side side[2]; /* the reference, and what is judged */
    int32_t vocab, window;
    float *logits; /* the reference's, of the scored half of a window */
    double divergence;
    uint64_t same, scored; /* tokens */
    size_t windows;        /* done */
};

/* One position of both runs; next: the token that follows there. */
static void position_judge(struct comparison *c, const float *exact, const float *row, int32_t next)
{
    const double sum = logits_log_sum(exact, c->vocab), ours = logits_log_sum(row, c->vocab);
    c->divergence += logits_divergence(exact, sum, row, ours, c->vocab);
    c->side[0].nll -= (double)exact[next] - sum;
    c->side[1].nll -= (double)row[next] - ours;
    c->same += logits_likeliest(exact, c->vocab) == logits_likeliest(row, c->vocab);
    c->scored++;
}

static oato_status window_run(struct comparison *c, int which, const int32_t *ids,
                              struct oato_error *err)
{
    struct side *s = &c->side[which];
    struct engine *e = s->session->engine;
    const int32_t half = c->window / 2, scored = c->window - half - 1;
    uint64_t ns = 0;
    oato_status status = engine_seq_truncate(e, s->seq, 0, err);
    if (!status)
        status = engine_feed(e, s->seq, ids, half, LOGITS_NONE, NULL, NULL, err);
    for (int32_t i = 0; i < scored && !status; i++) {
        const struct engine_input in = {s->seq, ids + half + i, 1, LOGITS_LAST, false};
        if (oato_interrupted)
            return oato_fail(err, OATO_NEGATIVE, "interrupted");
        const uint64_t begin = now_ns();
        status = engine_step(e, &in, 1, err);
        ns += now_ns() - begin;
        if (status)
            break;
        float *exact = c->logits + (size_t)i * (size_t)c->vocab;
        if (which)
            position_judge(c, exact, engine_logits(e, 0), ids[half + i + 1]);
        else
            memcpy(exact, engine_logits(e, 0), (size_t)c->vocab * sizeof *exact);
    }
    s->s_per_token[c->windows] = (double)ns * 1e-9 / scored;
    return status;
}

static oato_status report(struct comparison *c, const char *reference, struct oato_error *err)
{
    const int32_t n = (int32_t)c->windows;
    double *ratio = calloc(c->windows + 1, sizeof *ratio);
    if (!ratio)
        return oato_fail_memory(err, c->windows * sizeof *ratio, "ratios");
    for (int32_t i = 0; i < n; i++)
        ratio[i] = c->side[0].s_per_token[i] / c->side[1].s_per_token[i];
    printf("%-8s %11s %14s %11s %10s %9s\n", "", "perplexity", "KL divergence", "same top-1",
           "tokens/s", "ratio");
    for (int i = 0; i < 2; i++) {
        const double tokens = (double)c->scored,
                     speed = 1 / quantile(c->side[i].s_per_token, n, 0.5);
        printf("%-8s %11.4f", i ? "this" : reference, exp(c->side[i].nll / tokens));
        if (i)
            printf(" %14.6f %9.2f %% %10.1f %7.3f x\n", c->divergence / tokens,
                   100.0 * (double)c->same / tokens, speed, quantile(ratio, n, 0.5));
        else
            printf(" %14s %11s %10.1f\n", "", "", speed);
    }
    free(ratio);
    return stdout_check(err);
}

/* What the run is compared with. */
static oato_status reference_args(const struct session *s, const struct run_args *a,
                                  struct run_args *out, struct oato_error *err)
{
    *out = *a;
    const bool dense = !strcmp(a->compare, "dense");
    out->open.engine.sparse =
        (struct sparse_choice){.given = true, .mode = dense ? SPARSE_DENSE : SPARSE_OFF};
    if (!s->plan.neurons_hash) /* then --neurons is for --sparse alone */
        out->open.neurons = NULL;
    if (dense || !strcmp(a->compare, "off"))
        return OATO_OK;
    if (strcmp(a->compare, "plain") != 0)
        return oato_fail(err, OATO_EUSAGE, "--compare wants off, dense or plain, not '%s'",
                         a->compare);
    out->open.plan = out->open.neurons = NULL;
    out->open.make_plan = NULL;
    out->open.engine = (struct engine_options){.threads = a->open.engine.threads,
                                               .context = a->open.engine.context,
                                               .rows = a->open.engine.rows,
                                               .isa = a->open.engine.isa};
    return OATO_OK;
}

static oato_status windows_run(struct comparison *c, int32_t *ids, size_t windows, bool add_bos,
                               int32_t bos, struct oato_error *err)
{
    struct progress progress;
    oato_status status = OATO_OK;
    progress_begin(&progress, "comparing", (double)windows);
    for (; c->windows < windows && !status; c->windows += !status) {
        int32_t *w = ids + c->windows * (size_t)c->window;
        if (add_bos)
            w[0] = bos;
        for (int which = 0; which < 2 && !status; which++)
            status = window_run(c, which, w, err);
        progress_update(&progress, (double)c->windows + 1, NULL);
    }
    progress_end(&progress);
    return status;
}

oato_status compare_text(struct session *s, const struct run_args *a, int32_t *ids, size_t n_ids,
                         struct oato_error *err)
{
    struct run_args reference;
    struct session other = {0};
    struct comparison c = {.vocab = s->model->shape.vocab, .window = a->open.engine.context};
    const size_t windows = n_ids / (size_t)c.window;
    const int32_t bos = tokenizer_bos(s->tokenizer);
    if (collective_ranks(s->ranks) > 1)
        return oato_fail(
            err, OATO_EUSAGE,
            "--compare opens two engines, which ranks cannot; start it without mpirun");
    oato_status status = reference_args(s, a, &reference, err);
    if (!status)
        status = session_open(&other, &reference.open, 0, err);
    c.side[0] = (struct side){.session = &other};
    c.side[1] = (struct side){.session = s};
    c.logits = calloc((size_t)c.window, (size_t)c.vocab * sizeof *c.logits);
    for (int i = 0; i < 2 && !status; i++) {
        struct side *side = &c.side[i];
        side->s_per_token = calloc(windows, sizeof *side->s_per_token);
        if (!side->s_per_token || !c.logits)
            status = oato_fail_memory(err, (size_t)c.window * (size_t)c.vocab * sizeof *c.logits,
                                      "logits");
        else
            status = engine_seq_create(side->session->engine, &side->seq, err);
    }
    if (!status)
        status = windows_run(&c, ids, windows, n_ids && ids[0] == bos, bos, err);
    if (!status)
        status = report(&c, a->compare, err);
    free(c.side[0].s_per_token);
    free(c.side[1].s_per_token);
    free(c.logits);
    front_ends(status, err);
    session_close(&other);
    return status;
}
