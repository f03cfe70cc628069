/*
 * ov_queue.c - programs of an OpenVINO device: what its records become when they are compiled, and
 * the thread that runs them. OpenVINO has no thread of its own here: a function runs on this one.
 *
 * Functions are compiled for fixed numbers of rows, ov_rows: a step's rows are so many times the
 * largest one, and the rest is run by the function for the next number up.
 */
#include "kernels/openvino/ov_device.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

const int32_t ov_rows[OV_BUCKETS] = {1, 16, 256};

int ov_bucket(int32_t rows)
{
    int b = 0;
    while (b < OV_BUCKETS - 1 && ov_rows[b] < rows)
        b++;
    return b;
}

static uint64_t value_bytes(const struct span_value *v, int64_t rows)
{
    return (uint64_t)rows * (uint64_t)v->width * sizeof(float);
}

/* ---------------------------------------------------------------------------- compiling --- */

/* Whether any output shares memory with an input, or another output, of the largest step. */
static bool overlaps(const struct ov_span *span, int32_t most)
{
    const int n = span->n_in + span->n_out;
    for (int i = span->n_in; i < n; i++)
        for (int j = 0; j < i; j++) {
            const struct span_value *a = &span->values[i], *b = &span->values[j];
            if (a->offset < b->offset + value_bytes(b, most) &&
                b->offset < a->offset + value_bytes(a, most))
                return true;
        }
    return false;
}

/* The program's records as steps: spans where it has them, every other record by itself. */
static void cut(struct compiled *c)
{
    const struct program *p = c->program;
    struct span_value *v = c->values;
    uint32_t next = 0; /* span */
    for (uint32_t i = 0; i < p->n_records;) {
        struct ov_step *s = &c->steps[c->n_steps++];
        const struct program_span *span =
            p->spans && next < p->n_spans && p->spans[next].begin == i ? &p->spans[next++] : NULL;
        s->first = i;
        s->copies = p->records[i].kind != RECORD_RUN;
        if (!span || s->copies) {
            s->span = ov_span_of_record(&p->records[i++], v);
            v += s->span.n_in + s->span.n_out;
            continue;
        }
        s->span = (struct ov_span){.records = &p->records[i],
                                   .n = span->end - span->begin,
                                   .values = &p->span_values[span->value],
                                   .n_in = span->n_in,
                                   .n_out = span->n_out};
        i = span->end;
    }
}

static oato_status check_step(const struct ov_device *d, const struct ov_step *s,
                              struct oato_error *err)
{
    if (s->span.n_in + s->span.n_out > OV_SPAN_VALUES || s->n_weights < 0)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: records %" PRIu32 " to %" PRIu32
                         " are too many for one function, which has at most %d values and %d "
                         "weights",
                         d->far.id, s->first, s->first + s->span.n - 1, OV_SPAN_VALUES,
                         OV_SPAN_WEIGHTS);
    return OATO_OK;
}

static void weights_of(const struct compiled *c, const struct ov_step *s,
                       const void *out[OV_SPAN_WEIGHTS])
{
    for (int i = 0; i < s->n_weights; i++)
        out[i] = weight_real(c->program->weights[s->weight[i]])->data;
}

/* The functions that a step may need, with its weights, for steps allocate nothing; and bytes of
 * the room. */
static oato_status compile_step(struct ov_device *d, const struct compiled *c, struct ov_step *s,
                                uint64_t *room, struct oato_error *err)
{
    const int32_t most = program_rows(c->program, s->span.records[0].rows);
    const void *weights[OV_SPAN_WEIGHTS];
    if (!s->copies)
        s->n_weights = ov_span_weights(&s->span, s->weight);
    if (check_step(d, s, err))
        return err->status;
    if (s->copies || most < 1)
        return OATO_OK;
    s->overwrites = most > ov_rows[OV_BUCKETS - 1] && overlaps(&s->span, most);
    uint64_t bytes = 0;
    for (int i = 0; i < s->span.n_out && s->overwrites; i++)
        bytes += value_bytes(&s->span.values[s->span.n_in + i], most);
    *room = bytes > *room ? bytes : *room;
    weights_of(c, s, weights);
    for (int b = 0; b <= ov_bucket(most); b++)
        if (ov_function_open(d->runtime, &s->span, ov_rows[b], weights, &s->function[b], err) ||
            ov_function_bind(s->function[b], weights, err))
            return oato_fail_at(err, "%s: record %" PRIu32, d->far.id, s->first);
    return OATO_OK;
}

static void compiled_free(struct compiled *c)
{
    for (uint32_t i = 0; i < c->n_steps; i++)
        for (int b = 0; b < OV_BUCKETS; b++)
            ov_function_close(c->steps[i].function[b]);
    free(c->steps);
    free(c->values);
    free(c);
}

oato_status ov_compile(struct oato_device *base, const struct program *p, int self,
                       struct compiled **out, struct oato_error *err)
{
    struct ov_device *d = ov_of(base);
    uint8_t *arena = NULL;
    uint64_t room = 0;
    if (far_check(&d->far, p, self, &arena, err))
        return err->status;
    const size_t records = (size_t)p->n_records + 1;
    struct compiled *c = calloc(1, sizeof *c);
    if (c) {
        *c = (struct compiled){.program = p, .arena = arena, .self = self};
        c->steps = calloc(records, sizeof *c->steps);
        c->values = calloc(records * (RECORD_INPUTS + RECORD_OUTPUTS), sizeof *c->values);
    }
    if (!c || !c->steps || !c->values) {
        oato_fail_memory(err, records * sizeof *c->steps, "a program");
        goto fail;
    }
    if (job_queue_drain(&d->far.queue, err)) /* functions of other programs may be these */
        goto fail;
    cut(c);
    for (uint32_t i = 0; i < c->n_steps; i++)
        if (compile_step(d, c, &c->steps[i], &room, err))
            goto fail;
    if (far_memory_grow(&d->far.memory, &d->room, room, "workspace", err))
        goto fail;
#if defined(__GLIBC__)
    malloc_trim(0); /* what compilers and checks have freed */
#endif
    c->next = d->programs;
    *out = d->programs = c;
    return OATO_OK;

fail:
    if (c)
        compiled_free(c);
    return err->status;
}

void ov_release(struct oato_device *base, struct compiled *c)
{
    struct ov_device *d = ov_of(base);
    struct compiled **at = &d->programs;
    if (!c)
        return;
    job_queue_cancel(&d->far.queue);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    compiled_free(c);
}

/* ------------------------------------------------------------------------------- running -- */

static void copy_record(const struct compiled *c, const struct program_record *r,
                        const struct step *step)
{
    const uint64_t bytes =
        (uint64_t)record_rows(r, step) * (uint64_t)r->in_width[0] * sizeof(float);
    uint8_t *host = c->program->host_arena;
    if (bytes && r->kind == RECORD_UPLOAD)
        memcpy(c->arena + r->out[0], host + r->in[0], bytes);
    else if (bytes)
        memcpy(host + r->out[0], c->arena + r->in[0], bytes);
}

/* All rows of a step's values, by the functions of its span. */
static bool run_span(struct ov_device *d, const struct compiled *c, const struct ov_step *s,
                     const struct step *step)
{
    const struct ov_span *span = &s->span;
    const int32_t T = record_rows(&span->records[0], step), largest = ov_rows[OV_BUCKETS - 1];
    const bool aside = s->overwrites && T > largest;
    const void *weights[OV_SPAN_WEIGHTS];
    uint8_t *base[OV_SPAN_VALUES] = {NULL}, *room = aside ? d->room->real : NULL;
    weights_of(c, s, weights);
    for (int i = 0; i < span->n_in + span->n_out; i++) {
        base[i] = c->arena + span->values[i].offset;
        if (!aside || i < span->n_in)
            continue;
        base[i] = room;
        room += value_bytes(&span->values[i], T);
    }
    for (int32_t row = 0, rows; row < T; row += rows) {
        const float *in[OV_SPAN_VALUES];
        float *out[OV_SPAN_VALUES];
        struct oato_error err;
        rows = T - row < largest ? T - row : largest;
        for (int i = 0; i < span->n_in; i++)
            in[i] = const_floats(base[i] + value_bytes(&span->values[i], row));
        for (int i = 0; i < span->n_out; i++)
            out[i] = floats(base[span->n_in + i] + value_bytes(&span->values[span->n_in + i], row));
        if (ov_function_run(s->function[ov_bucket(rows)], rows, in, weights, out, &err))
            return job_queue_fail_text(&d->far.queue, TIMELINE_DIED, "record %" PRIu32 ": %s",
                                       s->first, err.text);
    }
    for (int i = span->n_in; i < span->n_in + span->n_out && aside; i++)
        memcpy(c->arena + span->values[i].offset, base[i], value_bytes(&span->values[i], T));
    return true;
}

static bool run_step(struct ov_device *d, const struct compiled *c, const struct ov_step *s,
                     const struct step *step)
{
    const struct program_record *last = &s->span.records[s->span.n - 1];
    struct job_queue *q = &d->far.queue;
    if (!job_queue_await(q, c->program, s->first, step, NULL))
        return false;
    for (uint32_t i = 0; i < s->span.n; i++)
        if (job_queue_injects(q, c->program, s->first + i))
            return false;
    if (s->copies)
        copy_record(c, last, step);
    else if (!run_span(d, c, s, step))
        return false;
    if (last->signal)
        timeline_signal(&q->timeline, step->timeline_base[c->self] + last->signal, now_ns());
    return true;
}

void ov_run_job(struct job_queue *q, const struct job *job)
{
    struct ov_device *d = ov_of(&far_of_queue(q)->base);
    const struct compiled *c = job->compiled;
    if (!c) {
        job_queue_do_copy(q, job);
        return;
    }
    for (uint32_t i = 0; i < c->n_steps; i++)
        if (!run_step(d, c, &c->steps[i], job->step))
            return;
    /* also when the last records have no signal of their own */
    timeline_signal(&q->timeline, job->step->timeline_base[c->self] + c->program->n_signals,
                    now_ns());
}
