/*
 * batch_schedule.c - who takes part in the next steps (see batch.h): first come, first served with
 * a reservation of pages, or what a schedule decides, which is carried out here: what frees memory
 * first, then what takes it.
 */
#include "executor/batch_internal.h"

static enum batch_state state_of(const struct batched *r)
{
    return r->seq >= 0 ? BATCH_RUNNING : r->saved ? BATCH_SWAPPED : BATCH_WAITING;
}

/* The final length of its sequence; the last generated token is never fed. */
static int32_t longest(const struct batch *b, const struct batched *r)
{
    const int64_t tokens = r->ask.n_ids + max_i64(r->ask.most - 1, 0);
    return r->ask.most < 0
               ? b->context
               : (int32_t)min_i64(b->context, engine_seq_length(b->engine, r->ask.seq) + tokens);
}

void batch_begin(const struct batch *b, struct batched *r)
{
    if (r->fetch)
        r->fed = engine_fetch_end(r->fetch, r->seq);
    else if (r->ask.seq < 0 && r->ask.sampler) /* what is shared has no rows */
        r->fed =
            engine_seq_begin(b->engine, r->seq, r->text, wants_rows(r) ? r->rows + 1 : r->n_text);
    r->fetch = NULL;
    if (r->ask.on_begin && !r->begun)
        r->ask.on_begin(r->ask.user, r->fed);
    r->begun = true;
}

/* Gives a waiting request a sequence, with what is there already of its text, or will be soon.
 * False: none is free. */
static bool start(const struct batch *b, struct batched *r, struct oato_error *err)
{
    r->seq = r->ask.seq;
    if (r->seq < 0 && engine_seq_create(b->engine, &r->seq, err)) {
        r->seq = -1;
        return false;
    }
    if (r->ask.seq < 0 && r->ask.sampler && !wants_rows(r))
        r->fetch = engine_fetch_begin(b->engine, r->text, r->n_text);
    if (!r->fetch)
        batch_begin(b, r);
    return true;
}

/* ------------------------------------------------------------------------ first come, .. -- */

static oato_status admit_in_order(struct batch *b, struct oato_error *err)
{
    int32_t pages = engine_free_pages(b->engine), running = 0;
    for (const struct batched *r = b->first; r; r = r->next) {
        if (r->seq >= 0) {
            pages -= kv_pages_of(r->longest) - kv_pages_of(engine_seq_length(b->engine, r->seq));
            running++;
        }
    }
    for (struct batched *r = b->first; r; r = r->next) {
        if (r->seq >= 0)
            continue;
        r->longest = longest(b, r);
        const int32_t wanted =
            kv_pages_of(r->longest) - kv_pages_of(engine_seq_length(b->engine, r->ask.seq));
        if (running && (wanted > pages || running == b->seqs))
            return OATO_OK;
        if (!start(b, r, err)) /* the caller's own sequences occupy all for now */
            return running ? OATO_OK : err->status;
        pages -= wanted;
        running++;
    }
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ schedules - */

static void view_fill(const struct batch *b, struct batched *r, struct batch_view *v)
{
    const struct engine_seq_size size =
        r->saved ? engine_saved_size(r->saved)
                 : (struct engine_seq_size){.length = engine_seq_length(b->engine, r->seq)};
    *v = (struct batch_view){.id = r->id,
                             .user = r->ask.user,
                             .state = state_of(r),
                             .prompt = r->ask.n_ids,
                             .generated = r->generated,
                             .most = r->ask.most,
                             .fed = r->fed,
                             .length = size.length,
                             .pages = size.pages,
                             .bytes = size.bytes,
                             .extents = size.extents,
                             .pinned = r->ask.seq >= 0,
                             .arrived_ns = r->arrived_ns,
                             .service_ns = r->service_ns,
                             .memo = &r->memo,
                             .batch = b,
                             .request = r};
}

void batch_view_measure(struct batch_view *v)
{
    if (v->state != BATCH_RUNNING)
        return;
    const struct engine_seq_size size = engine_seq_size(v->batch->engine, v->request->seq);
    v->pages = size.pages;
    v->bytes = size.bytes;
    v->extents = size.extents;
}

void batch_restore_tell(const struct batch *b, const struct batch_restored *what)
{
    if (b->options.restored)
        b->options.restored(b->options.user, what);
}

void batch_evict(struct batch *b, struct batched *r)
{
    if (r->fetch)
        engine_fetch_end(r->fetch, -1);
    r->fetch = NULL;
    if (r->seq >= 0)
        engine_seq_free(b->engine, r->seq);
    engine_saved_free(r->saved);
    r->saved = NULL;
    r->seq = -1;
    r->again = r->fed > 0;
    r->again_ns = 0;
    r->fed = 0;
    r->prompting = true;
    b->times.evictions++;
}

/* A copy that cannot be made (memory is short) leaves the request running. */
static void swap_out(struct batch *b, struct batched *r)
{
    struct oato_error ignored;
    const uint64_t begin_ns = now_ns();
    if (engine_seq_save(b->engine, r->seq, &r->saved, &ignored))
        return;
    engine_seq_free(b->engine, r->seq);
    r->seq = -1;
    const struct engine_seq_size size = engine_saved_size(r->saved);
    b->times.swaps_out++;
    b->times.swapped_bytes += size.bytes;
    batch_restore_tell(b, &(struct batch_restored){r->ask.user, RESTORE_SWAP_OUT, size.length,
                                                   size.bytes, size.extents, now_ns() - begin_ns});
}

static void swap_in(struct batch *b, struct batched *r)
{
    struct oato_error ignored;
    const struct engine_seq_size size = engine_saved_size(r->saved);
    const uint64_t begin_ns = now_ns();
    if (engine_seq_restore(b->engine, r->saved, &r->seq, &ignored)) {
        r->seq = -1;
        return;
    }
    engine_saved_free(r->saved);
    r->saved = NULL;
    b->times.swaps_in++;
    b->times.swapped_bytes += size.bytes;
    batch_restore_tell(b, &(struct batch_restored){r->ask.user, RESTORE_SWAP_IN, size.length,
                                                   size.bytes, size.extents, now_ns() - begin_ns});
}

static void run(struct batch *b, struct batched *r)
{
    struct oato_error ignored;
    if (r->saved)
        swap_in(b, r);
    else
        start(b, r, &ignored);
}

static int32_t running(const struct batch *b)
{
    int32_t n = 0;
    for (const struct batched *r = b->first; r; r = r->next)
        n += r->seq >= 0;
    return n;
}

static void schedule(struct batch *b)
{
    int32_t n = 0, most = b->ubatch;
    for (struct batched *r = b->first; r; r = r->next) {
        view_fill(b, r, &b->views[n++]);
        if (r->seq >= 0 && !r->prompting && !r->picking)
            most = b->beside;
    }
    const struct batch_room room = {b->pages, engine_free_pages(b->engine), b->seqs, most,
                                    now_ns()};
    b->options.schedule(b->options.user, b->views, n, &room);
    struct batched **end = &b->first;
    for (int32_t i = 0; i < n; i++) {
        *end = b->views[i].request;
        end = &(*end)->next;
    }
    *end = NULL;
    for (int32_t i = 0; i < n; i++) {
        const struct batch_view *v = &b->views[i];
        if (v->pinned || v->state == BATCH_WAITING)
            continue;
        const bool nothing = v->request->fetch && v->action == BATCH_SWAP_OUT;
        if (v->action == BATCH_EVICT || nothing)
            batch_evict(b, v->request);
        else if (v->action == BATCH_SWAP_OUT && v->state == BATCH_RUNNING)
            swap_out(b, v->request);
    }
    int32_t room_left = b->seqs - running(b);
    for (int32_t i = 0; i < n; i++) {
        struct batched *r = b->views[i].request;
        if (r->seq >= 0 || room_left < 1 || (b->views[i].action != BATCH_RUN && r->ask.seq < 0))
            continue;
        run(b, r);
        room_left -= r->seq >= 0;
    }
}

oato_status batch_admit(struct batch *b, struct oato_error *err)
{
    if (!b->options.schedule)
        return admit_in_order(b, err);
    schedule(b);
    return OATO_OK;
}
