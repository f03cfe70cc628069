/*
 * restore.c - measures what it takes to bring sequences back (executor/restore.h): tokens computed
 * alone and beside sequences that decode, and KV and state copied to host memory and back (a point
 * is the way out and the way in), in few extents and in many. All through the engine, as the server
 * does both.
 */
#include "profiler/profiler.h"

#include <stdlib.h>
#include <string.h>

enum {
    BESIDE = 3, /* sequences that decode meanwhile */
    SEQS = BESIDE + 2,
    REPEATS = 5,
    LEAST = 48, /* tokens */
    LENGTHS = 12,
    POINTS = LENGTHS * (2 + 2),
    DEPTH = 64, /* of those beside */
};

struct measuring {
    struct engine *engine;
    int32_t ubatch, most;
    int32_t *ids; /* of any text, `most` */
    struct profile_restore point[POINTS];
    int32_t n_points;
    struct progress progress;
};

static int by_ns(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void point_add(struct measuring *m, struct profile_restore p, double *ns)
{
    qsort(ns, REPEATS, sizeof *ns, by_ns);
    p.median_ns = ns[REPEATS / 2];
    m->point[m->n_points++] = p;
    progress_update(&m->progress, (double)m->n_points / POINTS, "restores");
}

/* Lengths that grow by a constant factor, the last one `most`. */
static int32_t length_of(const struct measuring *m, int i)
{
    double n = m->most;
    for (int j = LENGTHS - 1; j > i; j--)
        n /= m->most > LEAST ? 1.35 : 1;
    return (int32_t)max_i64((int64_t)n, LEAST < m->most ? LEAST : m->most);
}

/* Feeds n tokens to seq in steps that also decode one token of each of the others; *ns: its share
 * of the time, by tokens. */
static oato_status feed(struct measuring *m, int32_t seq, int32_t n, const int32_t *others,
                        int32_t beside, double *ns, struct oato_error *err)
{
    struct engine_input in[SEQS];
    oato_status status = OATO_OK;
    *ns = 0;
    for (int32_t at = 0, now; at < n && !status; at += now) {
        now = (int32_t)min_i64(n - at, m->ubatch - beside);
        in[0] = (struct engine_input){seq, m->ids + at, now, LOGITS_NONE, true};
        for (int32_t i = 0; i < beside; i++)
            in[1 + i] = (struct engine_input){others[i], m->ids, 1, LOGITS_LAST, false};
        const uint64_t begin_ns = now_ns();
        if (oato_interrupted)
            return oato_fail(err, OATO_NEGATIVE, "interrupted");
        status = engine_step(m->engine, in, 1 + beside, err);
        *ns += (double)(now_ns() - begin_ns) * now / (now + beside);
    }
    return status;
}

static oato_status computed(struct measuring *m, int32_t n, int32_t beside, struct oato_error *err)
{
    double ns[REPEATS], ignored;
    int32_t others[BESIDE], n_others = 0, seq;
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < beside && !status; i++) {
        status = engine_seq_create(m->engine, &others[i], err);
        n_others += !status;
        if (!status)
            status = feed(m, others[i], DEPTH, NULL, 0, &ignored, err);
    }
    for (int i = 0; i < REPEATS && !status; i++) {
        status = engine_seq_create(m->engine, &seq, err);
        if (status)
            break;
        status = feed(m, seq, n, others, beside, &ns[i], err);
        engine_seq_free(m->engine, seq);
    }
    for (int32_t i = 0; i < n_others; i++)
        engine_seq_free(m->engine, others[i]);
    if (!status)
        point_add(m, (struct profile_restore){.tokens = n, .beside = beside}, ns);
    return status;
}

/* Out and in; scattered: another sequence takes every second page. */
static oato_status copied(struct measuring *m, int32_t n, bool scattered, struct oato_error *err)
{
    double ns[REPEATS], ignored;
    int32_t seq, other;
    struct engine_seq_size size = {0};
    oato_status status = engine_seq_create(m->engine, &seq, err);
    if (status)
        return status;
    status = engine_seq_create(m->engine, &other, err);
    const bool both = !status;
    for (int32_t at = 0; at < n && !status; at += KV_PAGE_POSITIONS) {
        const int32_t now = (int32_t)min_i64(n - at, KV_PAGE_POSITIONS);
        status = feed(m, seq, now, NULL, 0, &ignored, err);
        if (!status && scattered)
            status = feed(m, other, now, NULL, 0, &ignored, err);
    }
    for (int i = 0; i < REPEATS && !status; i++) {
        struct engine_saved *saved;
        const uint64_t begin_ns = now_ns();
        status = engine_seq_save(m->engine, seq, &saved, err);
        if (status)
            break;
        size = engine_saved_size(saved);
        engine_seq_free(m->engine, seq);
        status = engine_seq_restore(m->engine, saved, &seq, err);
        ns[i] = (double)(now_ns() - begin_ns);
        engine_saved_free(saved);
    }
    engine_seq_free(m->engine, seq);
    if (both)
        engine_seq_free(m->engine, other);
    if (!status) {
        const struct profile_restore p = {
            .tokens = n, .bytes = size.bytes, .extents = size.extents};
        point_add(m, p, ns);
    }
    return status;
}

static oato_status measure(struct measuring *m, struct oato_error *err)
{
    oato_status status = OATO_OK;
    progress_begin(&m->progress, "measuring", 1);
    for (int i = 0; i < LENGTHS && !status; i++) {
        const int32_t n = length_of(m, i);
        for (int32_t beside = 0; beside <= BESIDE && !status; beside += BESIDE)
            status = computed(m, n, beside, err);
        for (int scattered = 0; scattered < 2 && !status; scattered++)
            status = copied(m, n, scattered, err);
    }
    progress_end(&m->progress);
    return status;
}

oato_status restores_measure(struct profile *p, const struct model *model, const struct plan *plan,
                             const struct profiler_options *o, warn_fn warn, void *user,
                             struct restore_report *report, struct oato_error *err)
{
    struct engine_stats stats;
    struct engine_options options = {.devices = plan ? NULL : o->devices,
                                     .threads = o->threads,
                                     .kv = o->kv,
                                     .kv_given = !plan,
                                     .seqs = SEQS,
                                     .no_prefixes = true};
    struct measuring *m = calloc(1, sizeof *m);
    struct text devices;
    text_init(&devices);
    if (!m)
        return oato_fail_memory(err, sizeof *m, "the measurement");
    options.context = o->n_contexts ? o->contexts[o->n_contexts - 1] : 0;
    oato_status status = engine_open(model, plan, &options, warn, user, &m->engine, err);
    if (!status) {
        engine_get_stats(m->engine, &stats);
        m->ubatch = stats.ubatch;
        m->most = (stats.pages - SEQS) * KV_PAGE_POSITIONS / 2 - BESIDE * 2 * DEPTH;
        if (m->most < LEAST)
            status = oato_fail(err, OATO_EFIT,
                               "a context of %d tokens is too small to measure restores; use "
                               "--context 1024 or more",
                               stats.context);
    }
    if (!status && !(m->ids = calloc((size_t)m->most, sizeof *m->ids)))
        status = oato_fail_memory(err, (size_t)m->most * sizeof *m->ids, "a text");
    for (int32_t i = 0; m->ids && i < m->most && !status; i++)
        m->ids[i] = (int32_t)((int64_t)i * 7919 % stats.vocab);
    if (!status)
        status = measure(m, err);
    if (!status) {
        engine_kv_devices(m->engine, &devices);
        struct restore_predictor *fitted = NULL;
        const uint64_t hash = gguf_structure_hash(model->gguf);
        if (!devices.failed &&
            profile_put_restores(p, hash, or_empty(devices.data), m->point, m->n_points))
            fitted = restore_create(p, hash, or_empty(devices.data));
        if (fitted)
            for (int way = 0; way < RESTORE_WAYS; way++)
                report->quality[way] = restore_quality(fitted, (enum restore_way)way);
        else
            status = oato_fail_memory(err, sizeof m->point, "the measured points");
        restore_free(fitted);
    }
    text_free(&devices);
    engine_close(m->engine);
    free(m->ids);
    free(m);
    return status;
}
