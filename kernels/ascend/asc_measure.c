/*
 * asc_measure.c - an NPU under measurement: where a step signals, the stream gets a timed event,
 * and when the step is over, the timeline's clocks are those at which the NPU reached them. Results
 * are the same in any case.
 */
#include "kernels/ascend/asc_internal.h"

static int events_make(struct asc_device *d)
{
    struct asc_measure *m = &d->measure;
    int error = 0;
    while (m->n_events < ASC_MARKS && !error)
        if (!(error = d->api->rtCreateEventWithFlag(&m->event[m->n_events], ASC_EVENT_TIMED)))
            m->n_events++;
    return error;
}

void asc_measure_close(struct asc_device *d)
{
    struct asc_measure *m = &d->measure;
    while (m->n_events && !d->hung)
        d->api->rtDestroyEvent(m->event[--m->n_events]);
    m->clock = CLOCK_USUAL;
    m->n = 0;
}

bool asc_measure(struct oato_device *base, enum device_clock clock, struct oato_error *why)
{
    struct asc_device *d = asc_of(base);
    if (clock == CLOCK_WORKS) {
        if (why)
            oato_fail(why, OATO_EUSAGE, "%s: CANN does not tell how long it works, without gaps",
                      d->far.id);
        clock = CLOCK_PASSES;
        asc_measure(base, clock, NULL);
        return false;
    }
    if (clock == d->measure.clock)
        return true;
    job_queue_drain(&d->far.queue, NULL);
    asc_enter(d);
    asc_measure_close(d);
    const int error = clock == CLOCK_USUAL ? 0 : events_make(d);
    if (error) {
        asc_measure_close(d);
        if (why)
            asc_fail(d->api, error, d->far.id, "measuring", why);
        return false;
    }
    d->measure.clock = clock;
    return true;
}

int asc_measure_mark(struct asc_device *d, uint64_t value)
{
    struct asc_measure *m = &d->measure;
    if (m->clock == CLOCK_USUAL || m->n == ASC_MARKS)
        return 0;
    if (m->n && m->value[m->n - 1] == value) /* a step's end, signalled by its last record before */
        return 0;
    const int error = d->api->rtRecordEvent(m->event[m->n], d->queue.stream);
    m->value[m->n++] = value;
    return error;
}

void asc_measure_take(struct asc_device *d)
{
    struct asc_measure *m = &d->measure;
    struct timeline *t = &d->far.queue.timeline;
    uint64_t ns = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        float ms = 0;
        if (d->api->rtEventElapsedTime(&ms, m->event[0], m->event[i]))
            ms = 0;
        ns = ms > 0 ? (uint64_t)((double)ms * 1e6 + 0.5) : 0;
        __atomic_store_n(&t->clock_ns[m->value[i] % TIMELINE_RING], m->clock_ns + ns,
                         __ATOMIC_RELAXED);
    }
    m->clock_ns += ns;
    m->n = 0;
}
