/*
 * keep.c - prompts that last, on their way out: whose the pieces are (engine_identity), and which
 * of them are copied for the store (prompt_store.h), between steps and a few at a time.
 *
 * What is to be kept is a text, not pages: its pages are looked for when they are copied, as a
 * prompt's are that begins with it, and if they were given away meanwhile they are not kept.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PRIOR_NS_TOKEN 1e6
#define CLOSE_NS       5000000000u

enum { KEEPS_MOST = 64 };

struct kept_text {
    struct kept_text *next;
    int64_t used;
    int32_t n, at; /* pages: all, and those that were looked at */
    int32_t part;  /* of the next one */
    int32_t page;  /* the last one that was, */
    uint64_t text; /* its number */
    uint64_t key;  /* and its key; 0: none yet */
    int32_t ids[];
};

/* ------------------------------------------------------------------------------- identity - */

static void hash_text(struct hash_stream *h, const char *s)
{
    hash_update(h, or_empty(s), strlen(or_empty(s)) + 1);
}

/* The operators whose results the KV and states of a token depend on, in the arithmetic of
 * prefill. */
static void records_hash(struct hash_stream *h, const struct engine_device *d)
{
    const struct lowered_program *p = &d->lowered->phase[PHASE_PREFILL];
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        const uint32_t of[] = {r->kind, r->graph_op, r->value, r->part, r->parts};
        if (r->rows != ROWS_TOKENS)
            continue;
        hash_update(h, of, sizeof of);
        if (r->kind != RECORD_RUN)
            continue;
        hash_update(h, &r->op, sizeof r->op);
        hash_text(h,
                  d->device->ops->numerics(d->device, &r->op, (enum numerics_choice)r->numerics));
    }
}

static void placements_hash(struct hash_stream *h, const struct engine *e)
{
    for (int32_t i = 0; i < e->graph.n_ops; i++) {
        const struct placement *p = &e->placements.phase[PHASE_PREFILL][i];
        const int32_t of[] = {i, p->n, (int32_t)p->axis};
        hash_update(h, of, sizeof of);
        for (int32_t k = 0; k < p->n; k++) {
            const struct placed_part *part = &p->part[k];
            const int32_t range[] = {part->device, part->begin, part->end, part->dense};
            hash_update(h, range, sizeof range);
            if (part->members)
                hash_update(h, part->members,
                            (size_t)(part->end - part->begin) * sizeof *part->members);
        }
    }
}

static void device_hash(struct hash_stream *h, const struct engine_device *d)
{
    hash_text(h, d->info.kind);
    hash_text(h, d->info.isa);
    hash_text(h, d->info.is_host ? "" : d->info.model);
    hash_text(h, d->info.driver);
    for (int32_t i = 0; d->kv && i < d->lowered->n_kv; i++) {
        const struct kv_home *home = &d->lowered->kv[i];
        const struct kv_layer_shape *s = &d->lowered->kv_shapes[i];
        const int64_t of[] = {home->layer, home->head_begin, home->head_end, home->state_of,
                              s->kv_heads, s->head_dim,      s->v_dim,       s->v_in_k,
                              s->window,   s->state,         s->staged};
        hash_update(h, of, sizeof of);
    }
    records_hash(h, d);
}

/* All that decides which bytes a token's KV and state have and where they lie in a piece. What only
 * decides speed (sizes of steps, threads, the context) is left out. 0: memory is short. */
static uint64_t engine_identity(const struct engine *e)
{
    struct hash_stream *h = hash_create();
    if (!h)
        return 0;
    const uint64_t of[] = {(uint64_t)e->kv_dtype, KV_PAGE_POSITIONS,
                           e->options->neurons ? neurons_hash(e->options->neurons) : 0};
    hash_text(h, OATO_VERSION);
    hash_update(h, of, sizeof of);
    for (int32_t i = 0; i < e->n_devices; i++)
        device_hash(h, &e->device[i]);
    placements_hash(h, e);
    const uint64_t identity = hash_digest(h);
    hash_free(h);
    return identity;
}

const char *prompts_unable(const struct engine *e)
{
    return !e->pool.prefix.pages ? "prompts share no memory"
           : e->ranks            ? "several ranks share the model"
           : e->kv_filed         ? "KV stays in a file"
           : e->embeddings       ? "embeddings need all of a prompt"
                                 : NULL;
}

/* Bytes of the files without which no prompt can begin. */
static uint64_t least_bytes(const struct prompt_store_options *o)
{
    uint64_t least = 0;
    for (int part = 0; part < PROMPT_PARTS; part++) {
        const struct prompt_record r = {.n = o->page, .bytes = o->bytes[part]};
        least += o->bytes[part] ? prompt_record_bytes(&r) : 0;
    }
    return least;
}

oato_status prompts_open(struct engine *e, struct oato_error *err)
{
    const char *why = prompts_unable(e);
    if (why && e->options->prompt_cache)
        warn_line(e->warn, e->user, "the prompt cache is not used: %s", why);
    if (why || (!e->options->prompt_cache && !e->options->saves_texts))
        return OATO_OK;
    e->who = (struct prompt_identity){gguf_structure_hash(e->model->gguf),
                                      gguf_content_hash(e->model->gguf), engine_identity(e)};
    if (!e->who.engine)
        return oato_fail_memory(err, 1 << 10, "the identity of prompts");
    if (!e->options->prompt_cache)
        return OATO_OK;
    const struct prompt_store_options o = {.folder = e->options->prompt_cache,
                                           .most_bytes = e->options->prompt_cache_bytes,
                                           .who = e->who,
                                           .bytes = {e->kv_layers[KV_ALL].page_bytes,
                                                     e->kv_layers[KV_WINDOW].page_bytes,
                                                     e->kv_layers[KV_KINDS].page_bytes},
                                           .page = KV_PAGE_POSITIONS,
                                           .warn = e->warn,
                                           .user = NULL};
    const uint64_t least = least_bytes(&o);
    if (least > o.most_bytes) {
        warn_line(e->warn, e->user,
                  "the prompt cache is not used: 64 tokens of this model take more than it may "
                  "hold; --prompt-cache-size wants at least %llu MiB",
                  (unsigned long long)((least + (1 << 20) - 1) >> 20));
        return OATO_OK;
    }
    e->keeps_end = &e->keeps;
    e->install_ns_byte = 0.25;
    return prompt_store_open(&o, &e->prompts, err);
}

/* ------------------------------------------------------------------------------ predictions */

void engine_predict(struct engine *e, engine_predictor *predict, void *user)
{
    e->predicts = predict;
    e->predicts_user = user;
}

/* By the predictor, by what prompts took, by the plan's word; else by a guess. */
double compute_ns(const struct engine *e, int32_t tokens)
{
    const double known = e->predicts ? e->predicts(e->predicts_user, tokens) : 0;
    if (known > 0)
        return known;
    if (e->prefill_ns > 0)
        return e->prefill_ns * tokens;
    if (e->plan && e->plan->prefill_ns && e->plan->request.prompt > 0)
        return (double)e->plan->prefill_ns / e->plan->request.prompt * tokens;
    return PRIOR_NS_TOKEN * tokens;
}

/* ----------------------------------------------------------------------------------- texts - */

oato_status part_copy(struct engine *e, enum prompt_part part, int32_t page, void *data, bool out,
                      struct oato_error *err)
{
    struct kv_seq s = {.state = part == PROMPT_STATE ? page : -1};
    if (part != PROMPT_STATE)
        s.table[part] = (struct kv_table){.n = 1, .pages = &page};
    return kv_copy(e, &s, data, out, err);
}

void engine_keep(struct engine *e, const int32_t *ids, int32_t n)
{
    const int32_t pages = n / KV_PAGE_POSITIONS;
    if (!e->prompts || !pages || e->n_keeps == KEEPS_MOST || !prompt_store_writes(e->prompts) ||
        prompt_store_read_ns(e->prompts, e->kv_layers[KV_ALL].page_bytes, 1) >=
            compute_ns(e, KV_PAGE_POSITIONS))
        return;
    const size_t bytes = (size_t)pages * KV_PAGE_POSITIONS * sizeof *ids;
    struct kept_text *t = malloc(sizeof *t + bytes);
    if (!t)
        return;
    *t = (struct kept_text){.used = prompt_store_now(), .n = pages, .page = -1};
    memcpy(t->ids, ids, bytes);
    *e->keeps_end = t;
    e->keeps_end = &t->next;
    e->n_keeps++;
}

static void text_remove(struct engine *e)
{
    struct kept_text *t = e->keeps;
    e->keeps = t->next;
    if (!e->keeps)
        e->keeps_end = &e->keeps;
    e->n_keeps--;
    free(t);
}

int32_t kv_part(const struct engine *e, enum prompt_part part, int32_t page)
{
    switch (part) {
    case PROMPT_PAGE: return page;
    case PROMPT_WINDOW: return e->pool.window ? prefix_window(&e->pool.prefix, page) : -1;
    case PROMPT_STATE: return state_mark_slot(&e->pool.state, prefix_text(&e->pool.prefix, page));
    case PROMPT_PARTS: break;
    }
    return -1;
}

/* One part of a page. KEEP_MORE: it was copied; KEEP_DONE: there is nothing to copy. */
static enum engine_keeping part_keep(struct engine *e, const struct kept_text *t,
                                     enum prompt_part part, int32_t page, uint64_t key)
{
    const int32_t what = kv_part(e, part, page);
    const int64_t used = t->used - t->at;
    struct oato_error ignored;
    if (what < 0 || prompt_store_use(e->prompts, key, part, used))
        return KEEP_DONE;
    void *data = prompt_store_room(e->prompts, part);
    if (!data)
        return KEEP_FULL;
    if (part_copy(e, part, what, data, true, &ignored))
        prompt_store_drop(e->prompts, part, data);
    else
        prompt_store_put(e->prompts, key, part, t->ids, (t->at + 1) * KV_PAGE_POSITIONS, used,
                         data);
    return KEEP_MORE;
}

enum engine_keeping engine_keep_some(struct engine *e, uint64_t ns)
{
    const uint64_t begin_ns = now_ns();
    while (e->keeps) {
        struct kept_text *t = e->keeps;
        const int32_t *ids = t->ids + (ptrdiff_t)t->at * KV_PAGE_POSITIONS;
        const bool there = t->at < t->n && !e->failed && prompt_store_writes(e->prompts) &&
                           (!t->at || prefix_text(&e->pool.prefix, t->page) == t->text);
        const int32_t page = there ? prefix_find(&e->pool.prefix, t->page, ids) : -1;
        if (page < 0) {
            text_remove(e);
            continue;
        }
        const uint64_t key = prompt_store_key(e->prompts, t->key, ids);
        while (t->part < PROMPT_PARTS) {
            const enum engine_keeping did = part_keep(e, t, (enum prompt_part)t->part, page, key);
            if (did == KEEP_FULL)
                return did;
            t->part++;
            if (did == KEEP_MORE && now_ns() - begin_ns >= ns)
                return did;
        }
        t->part = 0;
        t->at++;
        t->page = page;
        t->text = prefix_text(&e->pool.prefix, page);
        t->key = key;
    }
    return KEEP_DONE;
}

bool engine_prompts(const struct engine *e, struct engine_prompt_stats *out)
{
    struct prompt_store_stats s;
    memset(out, 0, sizeof *out);
    if (!e->prompts)
        return false;
    prompt_store_get_stats(e->prompts, &s);
    *out = (struct engine_prompt_stats){.used = s.used,
                                        .tokens = s.tokens,
                                        .bytes = s.bytes,
                                        .most_bytes = s.most_bytes,
                                        .pieces = s.pieces,
                                        .waiting_bytes = s.waiting_bytes,
                                        .written = s.written,
                                        .written_bytes = s.written_bytes,
                                        .read = s.read,
                                        .read_bytes = s.read_bytes,
                                        .evicted = s.evicted,
                                        .failed = s.failed,
                                        .read_bytes_per_s = s.read_bytes_per_s};
    return true;
}

void prompts_close(struct engine *e)
{
    const uint64_t begin_ns = now_ns();
    const struct timespec moment = {.tv_nsec = 2000000};
    if (!e->prompts)
        return;
    for (enum engine_keeping did;
         now_ns() - begin_ns < CLOSE_NS && (did = engine_keep_some(e, CLOSE_NS)) != KEEP_DONE;)
        if (did == KEEP_FULL)
            nanosleep(&moment, NULL);
    while (e->keeps)
        text_remove(e);
    prompt_store_close(e->prompts);
    e->prompts = NULL;
}
