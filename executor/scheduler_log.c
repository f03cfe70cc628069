/*
 * scheduler_log.c - decisions as lines of JSON, with all that they depend on, and what decides them
 * once more. A request is an array, to keep lines short: see FIELDS.
 */
#include "executor/scheduler_internal.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const states[] = {
    [BATCH_WAITING] = "waiting", [BATCH_RUNNING] = "running", [BATCH_SWAPPED] = "swapped"};
static const char *const actions[] = {[BATCH_KEEP] = "keep",
                                      [BATCH_RUN] = "run",
                                      [BATCH_SWAP_OUT] = "swap_out",
                                      [BATCH_EVICT] = "evict"};

/* id, state, prompt, generated, most, fed, length, pages, bytes, arrived_ns, preempted, pinned,
 * counter, swap_ns, recompute_ns, action; to json_unpack_ex. Numbers are long long there. */
#define FIELDS "[I,s,i,i,i,i,i,i,I,I,i,b,I,I,I,s!]"

void decision_log(FILE *log, const struct decision *d)
{
    fprintf(log,
            "{\"now_ns\":%" PRIu64 ",\"policy\":\"%s\",\"pages\":%d,\"free\":%d,\"seqs\":%d,"
            "\"ubatch\":%d,\"swap_bytes\":%" PRIu64 ",\"mean_answer\":%d,\"requests\":[",
            d->room.now_ns, scheduler_policy_names[d->policy], d->room.pages, d->room.pages_free,
            d->room.seqs, d->room.ubatch, d->swap_bytes, d->mean_answer);
    for (int32_t i = 0; i < d->n; i++) {
        const struct scheduled *x = &d->all[i];
        const struct batch_view *v = x->v;
        const bool gave_way = v->action == BATCH_SWAP_OUT || v->action == BATCH_EVICT;
        fprintf(log,
                "%s[%" PRIu64 ",\"%s\",%d,%d,%d,%d,%d,%d,%" PRIu64 ",%" PRIu64 ",%d,%s,%" PRId64
                ",%" PRIu64 ",%" PRIu64 ",\"%s\"]",
                i ? "," : "", v->id, states[v->state], v->prompt, v->generated, v->most, v->fed,
                v->length, v->pages, v->bytes, v->arrived_ns, v->memo->preempted - gave_way,
                v->pinned ? "true" : "false", x->counter, x->cost.swap_ns, x->cost.recompute_ns,
                actions[v->action]);
    }
    fputs("]}\n", log);
}

/* ---------------------------------------------------------------------------------- replay */

/* The requests of a line, which is what their number allocates. */
struct replayed {
    struct scheduled *all;
    struct batch_view *views;
    struct batch_memo *memos;
    int *wanted; /* actions */
};

static int name_find(const char *name, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

static bool replayed_create(struct replayed *r, size_t n)
{
    r->all = calloc(n + 1, sizeof *r->all);
    r->views = calloc(n + 1, sizeof *r->views);
    r->memos = calloc(n + 1, sizeof *r->memos);
    r->wanted = calloc(n + 1, sizeof *r->wanted);
    return r->all && r->views && r->memos && r->wanted;
}

static void replayed_free(struct replayed *r)
{
    free(r->all);
    free(r->views);
    free(r->memos);
    free(r->wanted);
}

/* False: it is no request. */
static bool request_read(struct replayed *r, int32_t i, json_t *from)
{
    json_int_t id, bytes, arrived, counter, swap_ns, recompute_ns;
    const char *state, *action;
    struct batch_view *v = &r->views[i];
    int pinned;
    if (json_unpack(from, FIELDS, &id, &state, &v->prompt, &v->generated, &v->most, &v->fed,
                    &v->length, &v->pages, &bytes, &arrived, &r->memos[i].preempted, &pinned,
                    &counter, &swap_ns, &recompute_ns, &action))
        return false;
    const int which = name_find(state, states, ARRAY_LEN(states));
    r->wanted[i] = name_find(action, actions, ARRAY_LEN(actions));
    if (which < 0 || r->wanted[i] < 0 || v->prompt < 0 || v->generated < 0 || v->length < 0)
        return false;
    v->id = (uint64_t)id;
    v->state = (enum batch_state)which;
    v->bytes = (uint64_t)bytes;
    v->arrived_ns = (uint64_t)arrived;
    v->pinned = pinned;
    v->memo = &r->memos[i];
    r->all[i] = (struct scheduled){
        .v = v, .cost = {(uint64_t)swap_ns, (uint64_t)recompute_ns}, .counter = counter};
    return true;
}

/* OATO_NEGATIVE: decided otherwise; OATO_EFILE: no line of a log. */
static oato_status line_replay(json_t *line, struct replayed *r)
{
    struct decision d = {.all = r->all};
    const char *policy;
    json_int_t now, swap_bytes;
    json_t *requests;
    if (json_unpack(line, "{s:I,s:s,s:i,s:i,s:i,s:i,s:I,s:i,s:o}", "now_ns", &now, "policy",
                    &policy, "pages", &d.room.pages, "free", &d.room.pages_free, "seqs",
                    &d.room.seqs, "ubatch", &d.room.ubatch, "swap_bytes", &swap_bytes,
                    "mean_answer", &d.mean_answer, "requests", &requests))
        return OATO_EFILE;
    const int which = name_find(policy, scheduler_policy_names, POLICY_COUNT);
    if (which < 0)
        return OATO_EFILE;
    d.policy = (enum scheduler_policy)which;
    d.room.now_ns = (uint64_t)now;
    d.swap_bytes = (uint64_t)swap_bytes;
    for (d.n = 0; d.n < (int32_t)json_array_size(requests); d.n++) {
        if (!request_read(r, d.n, json_array_get(requests, (size_t)d.n)))
            return OATO_EFILE;
        if (r->views[d.n].state == BATCH_SWAPPED)
            d.swapped_bytes += r->views[d.n].bytes;
    }
    scheduler_decide(&d);
    for (int32_t i = 0; i < d.n; i++)
        if ((int)r->views[i].action != r->wanted[i])
            return OATO_NEGATIVE;
    return OATO_OK;
}

oato_status scheduler_replay(FILE *log, const char *name, int64_t *decisions,
                             struct oato_error *err)
{
    struct text text;
    struct text_lines lines = {.from = log, .name = name};
    oato_status status = OATO_OK, read = OATO_OK;
    text_init(&text);
    *decisions = 0;
    while (!status && !(read = text_read_line(&lines, &text, err))) {
        json_t *line = json_loadb(text.data, text.len, 0, NULL);
        struct replayed r = {0};
        const size_t n = json_array_size(json_object_get(line, "requests"));
        if (!replayed_create(&r, n))
            status = oato_fail_memory(err, n * sizeof *r.all, "a decision");
        else
            status = line_replay(line, &r);
        if (status == OATO_NEGATIVE)
            oato_fail(err, status, "%s:%lld: decided otherwise today", name,
                      (long long)*decisions + 1);
        else if (status == OATO_EFILE)
            oato_fail(err, status, "%s:%lld: not a line of a decision log", name,
                      (long long)*decisions + 1);
        replayed_free(&r);
        json_decref(line);
        *decisions += !status;
    }
    text_free(&text);
    return status || read == OATO_NEGATIVE ? status : read;
}
