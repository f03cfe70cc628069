/*
 * calibrate.c - counts neurons and experts over text: cuts it into windows, runs the model over
 * them through the engine, and keeps the neurons sidecar on the way, so that a run that was stopped
 * goes on where it was.
 *
 * Where silent neurons are not exactly 0, a neuron fires above its layer's threshold. That comes
 * from a first look at the text's beginning, so that the counting itself reads the text once.
 */
#include "profiler/counting_internal.h"
#include "text/text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CHUNK = 128,        /* tokens of a step: how long Ctrl-C waits */
    LOOK_TOKENS = 2048, /* of the first look: millions of activations in a layer */
    SAVE_SECONDS = 60,
    TOKENS_MOST = 1 << 22 /* counts come back from float32 frequencies exactly */
};

struct calibration {
    const struct model *model;
    const struct calibrate_options *options;
    const char *path;
    struct counts counts;
    struct engine *engine;
    int32_t seq, window;
    int32_t *ids;    /* of all windows */
    int64_t *begins; /* of each window, and the end of the last one */
    int64_t n_ids, n_windows;
    int64_t done; /* tokens that are counted */
    uint64_t text_hash, saved_ns;
    struct progress progress;
};

/* ----------------------------------------------------------------------------------- text */

/* Cuts a text's tokens into windows, each behind a BOS if the text begins with one. */
static oato_status add_windows(struct calibration *c, const int32_t *ids, int64_t n, int32_t bos,
                               struct oato_error *err)
{
    const int64_t lead = n && ids[0] == bos, step = c->window - lead;
    ids += lead;
    n -= lead;
    if (n < 1)
        return OATO_OK;
    const int64_t windows = (n + step - 1) / step;
    if (c->n_ids + n + windows > TOKENS_MOST)
        return oato_fail(err, OATO_EUSAGE,
                         "the text has more than %d tokens, the most that can be counted; use less "
                         "of it",
                         TOKENS_MOST);
    int32_t *all = realloc(c->ids, (size_t)(c->n_ids + n + windows) * sizeof *all);
    c->ids = all ? all : c->ids;
    int64_t *begins = realloc(c->begins, (size_t)(c->n_windows + windows + 1) * sizeof *begins);
    c->begins = begins ? begins : c->begins;
    if (!all || !begins)
        return oato_fail_memory(err, (size_t)n * sizeof *all, "the text");
    for (int64_t at = 0; at < n; at += step) {
        const int64_t now = min_i64(step, n - at);
        c->begins[c->n_windows++] = c->n_ids;
        if (lead)
            c->ids[c->n_ids++] = bos;
        memcpy(c->ids + c->n_ids, ids + at, (size_t)now * sizeof *ids);
        c->n_ids += now;
    }
    c->begins[c->n_windows] = c->n_ids;
    return OATO_OK;
}

static oato_status read_text(struct calibration *c, const struct tokenizer *t, const char *path,
                             struct oato_error *err)
{
    struct mapped_file f;
    int32_t *ids = NULL;
    size_t n = 0;
    oato_status status = file_map(path, &f, err);
    if (status)
        return status;
    const char *text = or_empty((const char *)f.data);
    size_t bytes = f.bytes;
    if (text_mark_skip(path, &text, &bytes, err)) {
        file_unmap(&f);
        return err->status;
    }
    status = tokenizer_encode(t, text, bytes, TOKENIZE_ADD_BOS, &ids, &n, err);
    if (!status)
        status = add_windows(c, ids, (int64_t)n, tokenizer_bos(t), err);
    free(ids);
    file_unmap(&f);
    return status ? oato_fail_at(err, "%s", path) : OATO_OK;
}

static oato_status read_texts(struct calibration *c, struct oato_error *err)
{
    struct tokenizer *t;
    oato_status status = tokenizer_create(c->model->gguf, &t, err);
    for (int32_t i = 0; i < c->options->n_texts && !status; i++)
        status = read_text(c, t, c->options->texts[i], err);
    tokenizer_free(t);
    if (!status && !c->n_ids)
        return oato_fail(err, OATO_EFILE, "%s: is empty: there is nothing to count",
                         c->options->texts[0]);
    if (status)
        return status;
    const uint64_t parts[] = {
        hash_bytes(c->ids, (size_t)c->n_ids * sizeof *c->ids),
        hash_bytes(c->begins, (size_t)(c->n_windows + 1) * sizeof *c->begins)};
    c->text_hash = hash_bytes(parts, sizeof parts);
    return OATO_OK;
}

/* ----------------------------------------------------------------------------------- file */

static oato_status save(struct calibration *c, struct oato_error *err)
{
    struct neurons n;
    const bool unfinished = c->done < c->n_ids;
    neurons_init(&n);
    n.structure_hash = gguf_structure_hash(c->model->gguf);
    n.content_hash = gguf_content_hash(c->model->gguf);
    n.tokens = (uint64_t)c->done;
    n.text_hash = c->text_hash;
    n.text_tokens = (uint64_t)c->n_ids;
    n.level = c->counts.has_zeros || !c->counts.n_ffns ? 0 : c->options->level;
    oato_status status = counts_export(&c->counts, unfinished, &n, err);
    if (!status)
        status = neurons_save(&n, c->path, err);
    neurons_free(&n);
    c->saved_ns = now_ns();
    return status;
}

/* What differs between the file's text and ours; NULL: nothing. */
static const char *difference(const struct calibration *c, const struct neurons *n)
{
    const struct counts *k = &c->counts;
    if (!n->text_tokens)
        return "was not counted from text";
    if (n->text_hash != c->text_hash || n->text_tokens != (uint64_t)c->n_ids)
        return "was counted from another text or in other windows";
    if (k->n_ffns && strcmp(or_empty(n->activation), k->activation) != 0)
        return "was counted with another activation";
    if (k->n_ffns && !k->has_zeros && n->level != c->options->level)
        return "was counted at another level";
    return NULL;
}

/* Goes on with a file that is there already. */
static oato_status resume(struct calibration *c, struct oato_error *err)
{
    struct neurons n;
    if (access(c->path, F_OK))
        return OATO_OK;
    oato_status status = neurons_load(c->path, &n, err);
    if (c->options->replace) { /* only a sidecar is replaced */
        neurons_free(&n);
        return status ? outfile_check(c->path, err) : OATO_OK;
    }
    if (status)
        return status;
    const char *differs = difference(c, &n);
    status = neurons_check_model(&n, c->model->gguf, err);
    if (!status && differs)
        status = oato_fail(err, OATO_EUSAGE,
                           "%s; use --replace to start again, or another -o for a file beside it",
                           differs);
    if (!status && n.tokens < n.text_tokens)
        status = counts_import(&c->counts, &n, err);
    if (!status)
        c->done = (int64_t)n.tokens;
    neurons_free(&n);
    return status ? oato_fail_at(err, "%s", c->path) : OATO_OK;
}

/* -------------------------------------------------------------------------------- running */

static oato_status engine_for(struct calibration *c, struct oato_error *err)
{
    const int32_t window = c->window;
    const struct engine_options options = {.devices = "cpu",
                                           .threads = c->options->threads,
                                           .context = window,
                                           .ubatch = window < CHUNK ? window : CHUNK,
                                           .seqs = 1,
                                           .kv = DT_F32, /* as exact as can be */
                                           .kv_given = true,
                                           .observe = counts_observe,
                                           .observe_user = &c->counts};
    oato_status status = engine_open(c->model, NULL, &options, NULL, NULL, &c->engine, err);
    return status ? status : engine_seq_create(c->engine, &c->seq, err);
}

static oato_status check_finite(const struct calibration *c, struct oato_error *err)
{
    if (c->counts.bad_op < 0)
        return OATO_OK;
    return oato_fail(
        err, OATO_EFILE,
        "%s: values at operator %s are not finite for this text: nothing can be counted",
        gguf_path(c->model->gguf), c->model->graph.ops[c->counts.bad_op].name);
}

/* Feeds a window; tokens that *done includes are not counted again. */
static oato_status feed_window(struct calibration *c, int64_t window, int64_t *done,
                               struct oato_error *err)
{
    const int64_t end = c->begins[window + 1];
    oato_status status = engine_seq_truncate(c->engine, c->seq, 0, err);
    for (int64_t at = c->begins[window]; at < end && !status && !oato_interrupted;) {
        const int64_t now = min_i64(CHUNK, end - at);
        const struct engine_input in = {c->seq, c->ids + at, (int32_t)now, LOGITS_NONE, true};
        c->counts.paused = at < *done;
        status = engine_step(c->engine, &in, 1, err);
        if (!status)
            status = check_finite(c, err);
        at += now;
        if (!status && at > *done)
            *done = at;
        progress_update(&c->progress, (double)*done, NULL);
        if (!status && c->done && now_ns() - c->saved_ns > SAVE_SECONDS * UINT64_C(1000000000))
            status = save(c, err);
    }
    return status;
}

/* The layers' thresholds, where silence is not 0. */
static oato_status look(struct calibration *c, struct oato_error *err)
{
    int64_t seen = 0;
    oato_status status = OATO_OK;
    if (c->counts.has_zeros || !c->counts.n_ffns || c->done)
        return OATO_OK;
    progress_begin(&c->progress, "thresholds", (double)min_i64(LOOK_TOKENS, c->n_ids));
    c->counts.only_activations = true;
    for (int64_t w = 0; w < c->n_windows && seen < LOOK_TOKENS && !status && !oato_interrupted; w++)
        status = feed_window(c, w, &seen, err);
    c->counts.only_activations = false;
    counts_set_thresholds(&c->counts, c->options->level);
    progress_end(&c->progress);
    return status;
}

static oato_status count(struct calibration *c, struct oato_error *err)
{
    oato_status status = OATO_OK;
    const int64_t before = c->done;
    progress_begin(&c->progress, "counting", (double)c->n_ids);
    for (int64_t w = 0; w < c->n_windows && !status && !oato_interrupted; w++)
        if (c->begins[w + 1] > c->done)
            status = feed_window(c, w, &c->done, err);
    progress_end(&c->progress);
    if (!status && c->done > before)
        status = save(c, err);
    return status;
}

static oato_status run(struct calibration *c, struct oato_error *err)
{
    oato_status status = engine_for(c, err);
    c->saved_ns = now_ns();
    if (!status)
        status = look(c, err);
    if (!status && !oato_interrupted)
        status = count(c, err);
    if (status || c->done == c->n_ids)
        return status;
    return c->done
               ? oato_fail(err, OATO_NEGATIVE,
                           "interrupted: %lld of %lld tokens are counted in %s; the same command "
                           "goes on with it",
                           (long long)c->done, (long long)c->n_ids, c->path)
               : oato_fail(err, OATO_NEGATIVE, "interrupted before anything was counted");
}

oato_status calibrate(const struct model *m, const struct calibrate_options *o, const char *path,
                      struct calibrate_report *report, struct oato_error *err)
{
    const uint64_t begin_ns = now_ns();
    const int32_t most = m->shape.positions_most ? m->shape.positions_most : INT32_MAX,
                  usual = most < CALIBRATE_WINDOW ? most : CALIBRATE_WINDOW;
    struct calibration c = {
        .model = m, .options = o, .path = path, .window = o->window ? o->window : usual};
    oato_status status = counts_init(&c.counts, m, err);
    if (!status && c.window > most)
        status = oato_fail(err, OATO_EUSAGE,
                           "%s: this model runs up to %d positions only; use --window %d or less",
                           gguf_path(m->gguf), most, most);
    if (!status)
        status = read_texts(&c, err);
    if (!status)
        status = resume(&c, err);
    const int64_t before = c.done;
    *report = (struct calibrate_report){.tokens_before = before};
    if (!status && c.done < c.n_ids)
        status = run(&c, err);
    engine_close(c.engine);
    const struct sample_text text = {c.ids, c.begins, c.n_windows, c.window};
    if (!status && o->predictors)
        status = predictors_make(&c.counts, &text, o, path, &report->predictors, err);
    report->tokens = c.done;
    report->seconds = (double)(now_ns() - begin_ns) * 1e-9;
    counts_free(&c.counts);
    free(c.begins);
    free(c.ids);
    return status;
}
