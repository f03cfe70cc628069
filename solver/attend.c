/*
 * attend.c - a layer's KV with the host, and attention of prompts over it on an accelerator
 * (lowering/history.c): the third way to run the unit of a layer's KV, beside all of it here or
 * there. Decode attends where KV is.
 *
 * The price of a prompt's step is that of the unit on the accelerator, with the copies of the new
 * rows to the host and of all before them from there. These copies run beside attention, but
 * the link is not idle then where weights are streamed, which is where KV is short of memory, too:
 * so they count in full. The host stores the new rows while the accelerator attends.
 */
#include "solver/planning_internal.h"

/* The unit's operators that store KV and attend to it. */
struct attending {
    int32_t store, attention; /* -1: none, or several */
};

static struct attending find(const struct problem *p, int32_t unit)
{
    struct attending x = {-1, -1};
    int32_t stores = 0, attentions = 0;
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops; i++) {
        const int kind = p->graph.ops[i].op.kind;
        if (p->unit_of[i] != unit)
            continue;
        if (kind == OP_KV_STORE && !stores++)
            x.store = i;
        else if (kind == OP_ATTENTION && !attentions++)
            x.attention = i;
    }
    return stores == 1 && attentions == 1 ? x : (struct attending){-1, -1};
}

double attend_bytes(const struct oato_op *store, oato_dtype kv, const struct request_step *s)
{
    const double tokens = (double)s->tokens / s->seqs, all = (double)s->kv_positions / s->seqs;
    double before = fmax((all - tokens * (tokens + 1) / 2) / fmax(tokens, 1), 0);
    if (store->window)
        before = fmin(before, store->window);
    const double pages = ceil(before / KV_PAGE_POSITIONS) * s->seqs;
    return pages * KV_PAGE_POSITIONS * (double)op_kv_bytes(store, kv);
}

/* Copies of what layers had before each step, of all prompts. */
static double history_ns(const struct problem *p, int32_t store, int32_t d)
{
    const struct oato_op *op = &p->graph.ops[store].op;
    double ns = 0;
    for (int32_t i = 0; i < request_prefill_kinds(&p->request); i++) {
        const struct request_step s = request_prefill_kind(&p->request, i);
        const double bytes = attend_bytes(op, p->request.kv, &s);
        if (bytes > 0)
            ns += cost_of_copy(p->cost, p->device[p->instance.host], p->device[d], bytes) * s.times;
    }
    return ns;
}

/* Copies of the rows that all prompts store to the host. */
static double rows_ns(const struct problem *p, int32_t store, int32_t d)
{
    const struct graph_op *o = &p->graph.ops[store];
    double ns = 0;
    for (int32_t j = 0; j < o->n_in; j++)
        ns +=
            (double)request_copy(p, &p->graph.values[o->in[j]], d, p->instance.host, PHASE_PREFILL)
                .prefill_ns;
    return ns;
}

double attend_copies_ns(const struct problem *p, int32_t store, int32_t d)
{
    return history_ns(p, store, d) + rows_ns(p, store, d);
}

/* False: the unit cannot be run so. */
static bool option_make(const struct problem *p, int32_t unit, const struct attending *x,
                        const struct option *whole, int32_t d, struct option *out)
{
    const int32_t host = p->instance.host, n = p->n_devices;
    if (p->instance.is_host[d] || !whole[d].allowed || !whole[host].allowed)
        return false;
    double prefill = attend_copies_ns(p, x->store, d);
    *out = (struct option){.stream = (int16_t)d,
                           .allowed = true,
                           .uses = 1u << d | 1u << host,
                           .rooms = KV_ROOMS * p->price[x->store * n + d].kv_bytes};
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops; i++) {
        const struct op_price *there = &p->price[i * n + d], *here = &p->price[i * n + host];
        if (p->unit_of[i] != unit)
            continue;
        prefill += i != x->attention ? (double)there->prefill_ns
                                     : fmax((double)there->prefill_ns,
                                            (double)p->price[x->store * n + host].prefill_ns);
        out->bytes[d] += there->weight_bytes;
        out->bytes[host] += here->weight_bytes + here->kv_bytes;
    }
    option_lie(out, host, host);
    out->in[PHASE_PREFILL] = out->out[PHASE_PREFILL] = (int16_t)d;
    out->price = request_price(&p->request, whole_ns(prefill), whole[host].price.decode_ns);
    return true;
}

int32_t attend_options(struct problem *p, int32_t unit, const struct option *whole,
                       struct option *out)
{
    const struct attending x = find(p, unit);
    int32_t n = 0;
    if (x.attention < 0 || p->whole_only || p->by_ranks || !p->request.prompt ||
        p->graph.ops[x.store].op.window || !problem_counts(p, x.store))
        return 0;
    for (int32_t d = 0; d < p->n_devices; d++) {
        struct option o;
        if (!option_make(p, unit, &x, whole, d, &o))
            continue;
        if (out)
            out[n] = o;
        if (o.rooms > p->instance.rooms[d])
            p->instance.rooms[d] = o.rooms;
        n++;
    }
    return n;
}

int32_t attend_of_plan(const struct problem *p, const struct plan *plan, int32_t unit)
{
    const struct attending x = find(p, unit);
    const struct unit *u = &p->instance.units[unit];
    for (int32_t k = 0; x.attention >= 0 && k < plan->n_parts; k++) {
        const struct plan_part *t = &plan->parts[k];
        if (t->home < 0 || t->home == t->device ||
            strcmp(t->op, p->graph.ops[x.attention].name) != 0)
            continue;
        for (int32_t i = p->n_devices; i < u->n_options; i++)
            if (u->options[i].rooms && u->options[i].stream == t->device)
                return i;
    }
    return -1;
}

bool attend_op_cost(const struct problem *p, int32_t op, const struct option *o,
                    struct plan_cost *row)
{
    const struct op_price *price = &p->price[op * p->n_devices + row->device];
    const int kind = p->graph.ops[op].op.kind;
    const int32_t host = p->instance.host;
    const bool prefill = row->phase == PHASE_PREFILL;
    row->ns = (uint64_t)(prefill ? price->prefill_ns : price->decode_ns);
    row->estimate = price->estimate;
    if (!prefill || row->device != o->stream)
        return row->device == host && (!prefill || kind == OP_KV_STORE);
    if (kind == OP_KV_STORE)
        row->transfer_ns = (uint64_t)whole_ns(attend_copies_ns(p, op, row->device));
    return true;
}
