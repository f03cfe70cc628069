/*
 * run_session.c - opens what a verb of oato-run needs, in the order in which mistakes are cheapest
 * to tell: plan, model, tokenizer, engine.
 */
#include "executor/run.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static void warn(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "oato-run: warning: %s\n", text);
}

/* Of a model whose tokenizer knows fewer tokens than there are logits, a sampler passes over some.
 */
static int32_t candidates_wanted(const struct session *s, const struct run_args *a)
{
    const int32_t vocab = s->model->shape.vocab;
    if (s->tokenizer && tokenizer_size(s->tokenizer) != vocab)
        return 0;
    return sampler_candidates(&a->sampling, vocab);
}

oato_status session_open(struct session *s, const struct run_args *a, unsigned needs,
                         struct oato_error *err)
{
    struct engine_options options = a->engine;
    memset(s, 0, sizeof *s);
    oato_status status = OATO_OK;
    if (a->plan) {
        status = plan_load(a->plan, &s->plan, err);
        s->has_plan = status == OATO_OK;
    }
    if (!status)
        status = model_open(a->model, &s->model, err);
    if (!status && needs & SESSION_TOKENIZER)
        status = tokenizer_create(s->model->gguf, &s->tokenizer, err);
    if (!status && needs & SESSION_SAMPLES)
        options.top_logits = candidates_wanted(s, a);
    /* what is not asked for ends where the model was trained to */
    const struct batch_options batch = {
        .context = a->engine.context || !s->model
                       ? 0
                       : (int32_t)min_i64(s->model->shape.context_length, INT32_MAX)};
    if (!status)
        status = engine_open(s->model, s->has_plan ? &s->plan : NULL, &options, warn, NULL,
                             &s->engine, err);
    if (!status && needs & SESSION_SAMPLES)
        status = batch_create(s->engine, &batch, &s->batch, err);
    if (status)
        session_close(s);
    return status;
}

void session_close(struct session *s)
{
    batch_free(s->batch);
    engine_close(s->engine);
    tokenizer_free(s->tokenizer);
    model_close(s->model);
    if (s->has_plan)
        plan_free(&s->plan);
    memset(s, 0, sizeof *s);
}

oato_status text_read_file(const char *path, struct text *out, struct oato_error *err)
{
    text_init(out);
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!f)
        return oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
    char block[16384];
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
        text_add(out, block, n);
    oato_status status = OATO_OK;
    if (ferror(f))
        status = oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
    else if (out->failed)
        status = oato_fail_memory(err, out->len, path);
    if (f != stdin)
        fclose(f);
    if (status)
        text_free(out);
    return status;
}

oato_status stdout_check(struct oato_error *err)
{
    if (fflush(stdout) || ferror(stdout))
        return oato_fail(err, OATO_EIO, "standard output: %s", strerror(errno));
    return OATO_OK;
}
