/*
 * diff.c - how two plans differ: first in a few lines what was predicted, asked for and used, then
 * the operators that moved, of which people see the first ones and programs all.
 */
#include "solver/report/report_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { WHERE_SIZE = 160, MOVES_SHOWN = 20 };

/* A plan's parts by operator: plans of large models have tens of thousands. */
struct parts_by_op {
    const struct plan *plan;
    const struct plan_part **sorted; /* by operator, then as in the plan */
};

static int by_op(const void *a, const void *b)
{
    const struct plan_part *x = *(const struct plan_part *const *)a;
    const struct plan_part *y = *(const struct plan_part *const *)b;
    const int order = strcmp(x->op, y->op);
    return order ? order : (x > y) - (x < y);
}

static bool sort_parts(const struct plan *p, struct parts_by_op *out)
{
    out->plan = p;
    out->sorted = calloc((size_t)p->n_parts + 1, sizeof(void *));
    for (int32_t i = 0; out->sorted && i < p->n_parts; i++)
        out->sorted[i] = &p->parts[i];
    if (out->sorted)
        qsort(out->sorted, (size_t)p->n_parts, sizeof(void *), by_op);
    return out->sorted;
}

/* The operator's parts are those from here on that have its name; NULL: it has none. */
static const struct plan_part *const *find_parts(const struct parts_by_op *x, const char *op)
{
    int32_t lo = 0, hi = x->plan->n_parts;
    while (lo < hi) {
        const int32_t middle = lo + (hi - lo) / 2;
        if (strcmp(x->sorted[middle]->op, op) < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < x->plan->n_parts && !strcmp(x->sorted[lo]->op, op) ? x->sorted + lo : NULL;
}

/* "cuda:0", "cuda:0 0-8192 + cpu:0 8192-14336", "cpu:0, prefill on cuda:0"; "-": nowhere. */
static void where(const struct parts_by_op *x, const char *op, char out[WHERE_SIZE])
{
    const struct plan *p = x->plan;
    const struct plan_part *const *part = find_parts(x, op), *const *end = part;
    const struct plan_part *const *all = x->sorted + p->n_parts;
    size_t n = 0;
    int32_t parts = 0, streams = -1;
    for (; end && end < all && !strcmp((*end)->op, op); end++)
        parts += (*end)->phases >> PHASE_DECODE & 1;
    snprintf(out, WHERE_SIZE, "-");
    for (; part < end && n < WHERE_SIZE; part++) {
        const struct plan_part *t = *part;
        if (!(t->phases >> PHASE_DECODE & 1)) {
            streams = t->device;
            continue;
        }
        n += (size_t)snprintf(out + n, WHERE_SIZE - n, "%s%s", n ? " + " : "",
                              device_name(p, t->device).text);
        if (parts > 1 && n < WHERE_SIZE)
            n += (size_t)snprintf(out + n, WHERE_SIZE - n, " %" PRId64 "-%" PRId64, t->begin,
                                  t->end);
    }
    if (streams >= 0 && n < WHERE_SIZE)
        snprintf(out + n, WHERE_SIZE - n, ", prefill on %s", device_name(p, streams).text);
}

/* The operators that moved, as counted and told so far. */
struct moves {
    bool json;
    int32_t n;
    struct text *out; /* a line each */
};

/* Operators of `a` that are elsewhere (or nowhere) in `b`; once more, from the other side, for
 * those that only b has. */
static void diff_moves(const struct parts_by_op *a, const struct parts_by_op *b, bool only_b,
                       struct moves *m)
{
    const struct parts_by_op *walk = only_b ? b : a;
    for (int32_t i = 0; i < walk->plan->n_parts; i++) {
        const char *op = walk->plan->parts[i].op;
        char from[WHERE_SIZE], to[WHERE_SIZE];
        if (*find_parts(walk, op) != &walk->plan->parts[i] || (only_b && find_parts(a, op)))
            continue;
        where(a, op, from);
        where(b, op, to);
        if (!strcmp(from, to))
            continue;
        if (m->json)
            json_add_object(m->out, NULL, JSON("op", op), JSON("from", from), JSON("to", to));
        else if (m->n < MOVES_SHOWN)
            text_printf(m->out, "%-28s %s -> %s\n", op, from, to);
        m->n++;
    }
}

static void diff_predictions(const struct plan *a, const struct plan *b, bool json,
                             struct text *out)
{
    const struct {
        const char *name;
        uint64_t a, b;
    } rows[] = {{"prefill_ns", a->prefill_ns, b->prefill_ns},
                {"decode_ns", a->decode_ns, b->decode_ns},
                {"request_ns", a->request_ns, b->request_ns}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (json)
            json_add_object(out, rows[i].name, JSON("a", rows[i].a), JSON("b", rows[i].b));
        else if (rows[i].a != rows[i].b)
            text_printf(out, "predicted %.*s %.4f ms -> %.4f ms (%+.2f %%)\n",
                        (int)(strlen(rows[i].name) - 3), rows[i].name, as_ms((double)rows[i].a),
                        as_ms((double)rows[i].b),
                        percent_more((double)rows[i].b, (double)rows[i].a));
    }
}

/* "request 2: 2048 + 128 tokens, 26.72 % -> 4096 + 128 tokens, 21.69 %" */
static void points_diff(const struct plan_request *a, const struct plan_request *b,
                        struct text *out)
{
    for (int32_t i = 0; i < a->n_points || i < b->n_points; i++) {
        char of[2][96] = {"none", "none"};
        for (int k = 0; k < 2; k++) {
            const struct plan_request *q = k ? b : a, alone = request_alone(q, i);
            if (i < request_points(q))
                snprintf(of[k], sizeof of[k], "%s, %.2f %%", request_tokens(&alone).text,
                         100.0 * request_point(q, i).weight / POINTS_WEIGHT);
        }
        if (strcmp(of[0], of[1]) != 0)
            text_printf(out, "%srequest %d: %s -> %s", out->len ? ", " : "", i + 1, of[0], of[1]);
    }
}

/* What differs in the requests: "prompt 512 -> 64, KV F16 -> Q8_0". */
static void request_text(const struct plan_request *a, const struct plan_request *b,
                         struct text *out)
{
    const struct {
        const char *name;
        int32_t a, b;
    } rows[] = {
        {"prompt", a->prompt, b->prompt},    {"generate", a->generate, b->generate},
        {"context", a->context, b->context}, {"batch", a->batch, b->batch},
        {"ubatch", a->ubatch, b->ubatch},    {"deterministic", a->deterministic, b->deterministic}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].a != rows[i].b)
            text_printf(out, "%s%s %d -> %d", out->len ? ", " : "", rows[i].name, rows[i].a,
                        rows[i].b);
    if (a->kv != b->kv)
        text_printf(out, "%sKV %s -> %s", out->len ? ", " : "", dtype_name(a->kv),
                    dtype_name(b->kv));
    points_diff(a, b, out);
}

static void ids_text(const struct plan *p, struct text *out)
{
    for (int32_t d = 0; d < p->n_devices; d++)
        text_printf(out, "%s%s", d ? ", " : "", device_name(p, d).text);
}

static bool same_devices(const struct plan *a, const struct plan *b)
{
    for (int32_t d = 0; d < a->n_devices && d < b->n_devices; d++)
        if (strcmp(a->devices[d].id, b->devices[d].id) != 0 ||
            a->devices[d].rank != b->devices[d].rank)
            return false;
    return a->n_devices == b->n_devices;
}

static void devices_text(const struct plan *a, const struct plan *b, struct text *out)
{
    if (same_devices(a, b))
        return;
    ids_text(a, out);
    text_printf(out, " -> ");
    ids_text(b, out);
}

/* Of devices that both plans have. */
static void budgets_text(const struct plan *a, const struct plan *b, struct text *out)
{
    for (int32_t i = 0; i < a->n_devices; i++)
        for (int32_t j = 0; j < b->n_devices; j++) {
            const struct plan_device *x = &a->devices[i], *y = &b->devices[j];
            if (strcmp(x->id, y->id) != 0 || x->rank != y->rank ||
                x->budget_bytes == y->budget_bytes)
                continue;
            text_printf(out, "%s%s %.3f -> %.3f MiB", out->len ? ", " : "", device_name(a, i).text,
                        as_mib((double)x->budget_bytes), as_mib((double)y->budget_bytes));
        }
}

/* "ilp -> cpu"; nothing if they are equal. */
static void words_text(const char *a, const char *b, struct text *out)
{
    if (strcmp(a, b) != 0)
        text_printf(out, "%s -> %s", a, b);
}

static bool same_fusions(const struct plan *a, const struct plan *b)
{
    for (int32_t i = 0; i < a->n_fusions && i < b->n_fusions; i++)
        if (strcmp(a->fusions[i].name, b->fusions[i].name) != 0 ||
            strcmp(a->fusions[i].op, b->fusions[i].op) != 0)
            return false;
    return a->n_fusions == b->n_fusions;
}

static bool same_caches(const struct plan *a, const struct plan *b)
{
    for (int32_t i = 0; i < a->n_caches && i < b->n_caches; i++)
        if (strcmp(a->caches[i].op, b->caches[i].op) != 0 ||
            a->caches[i].device != b->caches[i].device || a->caches[i].slots != b->caches[i].slots)
            return false;
    return a->n_caches == b->n_caches;
}

static bool same_sparse(const struct plan *a, const struct plan *b)
{
    for (int32_t i = 0; i < a->n_sparse && i < b->n_sparse; i++)
        if (a->sparse[i].layer != b->sparse[i].layer ||
            a->sparse[i].threshold != b->sparse[i].threshold ||
            a->sparse[i].dense != b->sparse[i].dense ||
            a->sparse[i].predicts != b->sparse[i].predicts)
            return false;
    return a->n_sparse == b->n_sparse;
}

static bool same_inputs(const struct plan *a, const struct plan *b)
{
    for (int32_t i = 0; i < a->n_inputs && i < b->n_inputs; i++)
        if (strcmp(a->inputs[i].tensor, b->inputs[i].tensor) != 0 ||
            a->inputs[i].threshold != b->inputs[i].threshold)
            return false;
    return a->n_inputs == b->n_inputs;
}

/* What else differs: a word each, and in which way, where a line can say it. */
static void diff_others(const struct plan *a, const struct plan *b, bool json, struct text *out,
                        struct text *details)
{
    struct text request, devices, budgets, solver, objective;
    text_init(&request);
    text_init(&devices);
    text_init(&budgets);
    text_init(&solver);
    text_init(&objective);
    request_text(&a->request, &b->request, &request);
    devices_text(a, b, &devices);
    budgets_text(a, b, &budgets);
    words_text(a->solver, b->solver, &solver);
    words_text(objective_names[a->request.objective], objective_names[b->request.objective],
               &objective);
    const struct {
        const char *name;
        bool differ;
        struct text *how; /* NULL: no line could say it */
    } rows[] = {{"model", a->structure_hash != b->structure_hash, NULL},
                {"profile", a->profile_hash != b->profile_hash, NULL},
                {"neurons", a->neurons_hash != b->neurons_hash, NULL},
                {"sparse layers", !same_sparse(a, b), NULL},
                {"inputs to skip", !same_inputs(a, b), NULL},
                {"request", request.len, &request},
                {"objective", objective.len, &objective},
                {"devices", devices.len, &devices},
                {"budgets", budgets.len, &budgets},
                {"fusions", !same_fusions(a, b), NULL},
                {"caches", !same_caches(a, b), NULL},
                {"solver", solver.len, &solver}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].differ && json) {
            json_add(out, JSON(NULL, rows[i].name));
            if (rows[i].how)
                json_add(details, JSON(rows[i].name, or_empty(rows[i].how->data)));
        } else if (rows[i].differ) {
            text_printf(out, "different %s%s%s\n", rows[i].name, rows[i].how ? ": " : "",
                        rows[i].how ? or_empty(rows[i].how->data) : "");
        }
        if (rows[i].how)
            text_free_part(rows[i].how, out);
    }
}

static oato_status same_bytes(const struct plan *a, const struct plan *b, bool *same,
                              struct oato_error *err)
{
    uint8_t *x = NULL, *y = NULL;
    size_t nx, ny;
    oato_status status = plan_encode(a, &x, &nx, err);
    if (!status)
        status = plan_encode(b, &y, &ny, err);
    if (!status)
        *same = nx == ny && !memcmp(x, y, nx);
    free(x);
    free(y);
    return status;
}

oato_status report_diff(const struct plan *a, const struct plan *b, bool json, bool *same,
                        struct text *out, struct oato_error *err)
{
    struct parts_by_op of_a = {0}, of_b = {0};
    oato_status status = same_bytes(a, b, same, err);
    if (status)
        return status;
    if (!sort_parts(a, &of_a) || !sort_parts(b, &of_b)) {
        status = oato_fail_memory(err, (size_t)a->n_parts * sizeof(void *), "a comparison");
        goto out;
    }
    struct text list, details;
    text_init(&list);
    text_init(&details);
    json_open(&details, NULL, '{');
    struct moves moves = {json, 0, json ? out : &list};
    if (json) {
        json_open(out, NULL, '{');
        json_add(out, JSON("same", *same));
        json_open(out, "different", '[');
        diff_others(a, b, true, out, &details);
        json_close(out, ']');
        json_close(&details, '}');
        json_key(out, "details");
        text_printf(out, "%s", or_empty(details.data));
        json_open(out, "moves", '[');
        diff_moves(&of_a, &of_b, false, &moves);
        diff_moves(&of_a, &of_b, true, &moves);
        json_close(out, ']');
        diff_predictions(a, b, true, out);
        json_close(out, '}');
        text_printf(out, "\n");
    } else if (!*same) {
        diff_predictions(a, b, false, out);
        diff_others(a, b, false, out, NULL);
        diff_moves(&of_a, &of_b, false, &moves);
        diff_moves(&of_a, &of_b, true, &moves);
        text_printf(out, "%d operators move%s%s", moves.n, moves.n ? ":\n" : "\n",
                    or_empty(list.data));
        if (moves.n > MOVES_SHOWN)
            text_printf(out, "and %d more; --json lists all\n", moves.n - MOVES_SHOWN);
    }
    text_free_part(&list, out);
    text_free_part(&details, out);
    status = text_status(out, err);
out:
    free(of_a.sorted);
    free(of_b.sorted);
    return status;
}
