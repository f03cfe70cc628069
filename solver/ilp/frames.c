/*
 * frames.c - lists the choices in a block. Its widest unit (most options: the feed-forward
 * neurons of a layer) is left open: the others depend only on where it reads and writes, its class.
 * So the placements of the others are priced once per class, as frames, and the unit's own options
 * form a menu; a pattern is a frame and a menu item of its class. Dominated frames and items are
 * dropped (another has the same ends, no more time, no more bytes and no more devices). Frames grow
 * unit by unit and are pruned after each. A block uses the host and at most three other devices, or
 * two when there are many: the placements on more are too many to list.
 */
#include "solver/ilp/ilp_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PARTIALS = 1 << 18 /* of a block at once: 80 MB */ };

void edge_ends(const struct instance *in, const struct edge *e, int32_t *lo, int32_t *hi)
{
    *lo = *hi = e->producer;
    for (int32_t r = 0; r < e->n_readers; r++) {
        int32_t u = in->readers[e->first_reader + r];
        *lo = u < *lo ? u : *lo;
        *hi = u > *hi ? u : *hi;
    }
}

bool option_lies_as(const struct option *a, const struct option *b)
{
    return !memcmp(a->in, b->in, sizeof a->in) && !memcmp(a->out, b->out, sizeof a->out);
}

int16_t path_end(const struct path *p, const struct option *o)
{
    return p->end[o->out[PHASE_PREFILL]][o->out[PHASE_DECODE]];
}

/* -------------------------------------------------------------------------------- menus ---- */

static bool no_more_bytes(const struct instance *in, const uint64_t *a, const uint64_t *b)
{
    for (int32_t d = 0; d < in->n_devices; d++)
        if (a[d] > b[d])
            return false;
    return true;
}

enum { NO_CLASS = -1, DISALLOWED = -2 };
_Static_assert(SOLVER_DEVICES <= 32, "a device has five bits of a class_key");

static uint64_t class_key(const struct option *o)
{
    uint64_t key = o->uses;
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        key = key << 10 | (uint32_t)(o->in[phase] << 5 | o->out[phase]);
    return key;
}

static int32_t class_of(const struct menu *m, const struct option *o)
{
    const uint64_t key = class_key(o);
    for (int32_t c = 0; c < m->n_classes; c++)
        if (m->classes[c].key == key)
            return c;
    return NO_CLASS;
}

static struct menu_item item_of(const struct path *p, const struct unit *wide, int32_t option)
{
    const struct option *o = &wide->options[option];
    struct menu_item item = {.ns = o->price.objective_ns, .option = option};
    for (int32_t d = 0; d < p->in->n_devices; d++)
        item.bytes[d] = p->constrained[d] ? o->bytes[d] : 0;
    return item;
}

static int by_time(const void *x, const void *y)
{
    const struct menu_item *a = x, *b = y;
    int c = order_i64(a->ns, b->ns);
    c = c ? c : memcmp(a->bytes, b->bytes, sizeof a->bytes);
    return c ? c : order_i64(a->option, b->option);
}

/* The undominated items of a class, from `first` on. */
static void prune_class(const struct path *p, struct menu *m, struct menu_class *c)
{
    struct menu_item *items = m->items + c->first;
    int32_t kept = 0;
    qsort(items, (size_t)c->n, sizeof *items, by_time);
    for (int32_t i = 0; i < c->n; i++) {
        bool dominated = false;
        for (int32_t j = kept - 1; j >= 0 && !dominated; j--)
            dominated = no_more_bytes(p->in, items[j].bytes, items[i].bytes);
        if (!dominated)
            items[kept++] = items[i];
    }
    c->n = kept;
}

bool path_make_menu(struct path *p, const struct block *b, struct menu *m)
{
    const struct instance *in = p->in;
    for (int32_t u = b->first; u <= b->last; u++)
        if (in->units[u].n_options > in->units[b->first + m->unit].n_options)
            m->unit = u - b->first;
    int32_t unit = b->first + m->unit;
    const struct unit *wide = &in->units[unit];
    m->items = arena_alloc(&p->arena, (size_t)wide->n_options + 1, sizeof *m->items);
    m->classes = arena_alloc(&p->arena, (size_t)wide->n_options + 1, sizeof *m->classes);
    int32_t *class = arena_alloc(&p->arena, (size_t)wide->n_options + 1, sizeof *class);
    if (!m->items || !m->classes || !class)
        return false;
    for (int32_t o = 0; o < wide->n_options; o++) {
        const struct option *option = &wide->options[o];
        class[o] = instance_allows(in, unit, o) ? class_of(m, option) : DISALLOWED;
        if (class[o] != NO_CLASS)
            continue;
        class[o] = m->n_classes;
        m->classes[m->n_classes++].key = class_key(option);
    }
    for (int32_t c = 0; c < m->n_classes; c++) {
        m->classes[c].first = m->n_items;
        for (int32_t o = 0; o < wide->n_options; o++)
            if (class[o] == c)
                m->items[m->n_items++] = item_of(p, wide, o);
        m->classes[c].n = m->n_items - m->classes[c].first;
        prune_class(p, m, &m->classes[c]);
        m->n_items = m->classes[c].first + m->classes[c].n;
    }
    return true;
}

/* ------------------------------------------------------------------------------- frames ---- */

/* Adds unit i of the block as an option has it, values apart; of the widest unit only the class.
 * False: it does not fit. */
static bool frame_place(const struct path *p, const struct menu *m, int32_t i, int32_t number,
                        const struct option *o, struct frame *f)
{
    const struct instance *in = p->in;
    f->place[i] = (uint16_t)number;
    f->uses |= o->uses & ~(1u << in->host); /* the host is always there */
    if (__builtin_popcount(f->uses) > p->block_devices)
        return false;
    if (i == m->unit) {
        f->class = class_of(m, o);
        return true;
    }
    f->ns = ns_add(f->ns, o->price.objective_ns);
    for (int32_t d = 0; d < in->n_devices; d++) {
        f->bytes[d] += p->constrained[d] ? o->bytes[d] : 0;
        if (f->bytes[d] > in->capacity[d])
            return false;
    }
    return true;
}

/* The frame that a placement makes of a block. False when a unit may not be as it is placed. */
static bool price_frame(const struct path *p, const struct block *b, const struct menu *m,
                        const int32_t *place, struct frame *out)
{
    const struct instance *in = p->in;
    memset(out, 0, sizeof *out);
    for (int32_t u = b->first; u <= b->last; u++) {
        if (!instance_allows(in, u, place[u]) ||
            !frame_place(p, m, u - b->first, place[u], instance_option(in, place, u), out))
            return false;
    }
    for (int32_t i = 0; i < b->n_edges; i++)
        out->ns = ns_add(
            out->ns, edge_price(in, &in->edges[p->edges[b->first_edge + i]], place).objective_ns);
    out->in = b->first ? path_end(p, instance_option(in, place, b->first - 1)) : -1;
    out->out = path_end(p, instance_option(in, place, b->last));
    return true;
}

static bool frame_dominates(const struct path *p, const struct frame *a, const struct frame *b)
{
    return a->ns <= b->ns && !(a->uses & ~b->uses) && no_more_bytes(p->in, a->bytes, b->bytes);
}

/* The first option of the unit that has this end; -1: none. */
static int32_t option_at(const struct path *p, int32_t unit, int32_t end)
{
    const struct unit *u = &p->in->units[unit];
    for (int32_t o = 0; o < u->n_options; o++)
        if (path_end(p, &u->options[o]) == end && instance_allows(p->in, unit, o))
            return o;
    return -1;
}

/* A frame on its way: the block's units are placed up to some point. Only what the units still to
 * come can tell apart is in the key: the end before, the class of the widest unit, and where units
 * read and write that have values in common with them. */
struct partial {
    struct frame frame;
    int32_t before; /* an option of the unit before the block that has the end */
    uint16_t key[BLOCK_UNITS + 2];
};

enum { KEY_BEFORE = BLOCK_UNITS, KEY_END };

struct partials {
    struct partial *all;
    size_t n, cap;
};

static bool partials_add(struct partials *list, const struct partial *x)
{
    struct partial *more = array_room(list->all, list->n, &list->cap, sizeof *more);
    if (!more)
        return false;
    list->all = more;
    list->all[list->n++] = *x;
    return true;
}

static int by_key_and_time(const void *x, const void *y)
{
    const struct partial *a = x, *b = y;
    int c = memcmp(a->key, b->key, sizeof a->key);
    c = c ? c : order_i64(a->frame.ns, b->frame.ns);
    c = c ? c : memcmp(a->frame.bytes, b->frame.bytes, sizeof a->frame.bytes);
    return c ? c : memcmp(a->frame.place, b->frame.place, sizeof a->frame.place);
}

/* Of those with the same key the undominated. */
static void prune_partials(struct path *p, struct partials *list)
{
    size_t kept = 0, group = 0;
    if (list->n)
        qsort(list->all, list->n, sizeof *list->all, by_key_and_time);
    for (size_t i = 0; i < list->n && !ilp_late(&p->clock); i++) {
        const struct partial *x = &list->all[i];
        if (kept && memcmp(list->all[kept - 1].key, x->key, sizeof x->key) != 0)
            group = kept;
        bool dominated = false;
        for (size_t j = group; j < kept && !dominated; j++)
            dominated = frame_dominates(p, &list->all[j].frame, &x->frame);
        if (!dominated)
            list->all[kept++] = *x;
    }
    list->n = kept;
}

/* A unit of the block that is about to be placed. */
struct placing {
    struct path *path;
    const struct block *block;
    const struct menu *menu;
    int32_t unit;
    int32_t *ending; /* values whose last reader it is */
    int32_t n_ending;
    bool live[BLOCK_UNITS]; /* the unit has values in common with later ones */
    uint16_t *like;         /* per option: the first that reads and writes where it does */
};

static bool touches(const struct instance *in, const struct edge *e, int32_t unit)
{
    bool any = e->producer == unit;
    for (int32_t r = 0; r < e->n_readers && !any; r++)
        any = in->readers[e->first_reader + r] == unit;
    return any;
}

static bool begin_placing(struct placing *x, struct path *p, const struct block *b,
                          const struct menu *m, int32_t unit)
{
    const struct instance *in = p->in;
    const struct unit *u = &in->units[unit];
    *x = (struct placing){.path = p, .block = b, .menu = m, .unit = unit};
    x->ending = arena_alloc(&p->arena, (size_t)b->n_edges + 1, sizeof *x->ending);
    x->like = arena_alloc(&p->arena, (size_t)u->n_options + 1, sizeof *x->like);
    if (!x->ending || !x->like)
        return false;
    for (int32_t i = 0; i < b->n_edges; i++) {
        int32_t lo, hi, e = p->edges[b->first_edge + i];
        edge_ends(in, &in->edges[e], &lo, &hi);
        if (hi == unit)
            x->ending[x->n_ending++] = e;
        for (int32_t v = b->first; hi > unit && v <= unit; v++)
            x->live[v - b->first] = x->live[v - b->first] || touches(in, &in->edges[e], v);
    }
    for (int32_t o = 0; o < u->n_options; o++)
        while (!option_lies_as(&u->options[x->like[o]], &u->options[o]))
            x->like[o]++;
    return true;
}

/* The partial frame with the unit in a certain way; path.place is as it says. False: it does not
 * fit. */
static bool extend(const struct placing *x, int32_t option, struct partial *f)
{
    const struct path *p = x->path;
    const struct instance *in = p->in;
    const struct option *o = &in->units[x->unit].options[option];
    const int32_t i = x->unit - x->block->first;
    const bool wide = i == x->menu->unit;
    if (!frame_place(p, x->menu, i, option, o, &f->frame))
        return false;
    p->place[x->unit] = option;
    for (int32_t e = 0; e < x->n_ending; e++)
        f->frame.ns =
            ns_add(f->frame.ns, edge_price(in, &in->edges[x->ending[e]], p->place).objective_ns);
    if (f->frame.ns >= NEVER_NS)
        return false;
    f->key[i] = (uint16_t)(1 + (wide ? f->frame.class : x->like[option]));
    for (int32_t v = 0; v <= i; v++)
        if (!x->live[v] && v != x->menu->unit)
            f->key[v] = 0;
    if (x->unit == x->block->last) {
        f->frame.out = path_end(p, o);
        f->key[KEY_END] = (uint16_t)f->frame.out;
    }
    return true;
}

/* All ways on from the partial frames by one unit, the open one by its classes. */
static bool place_unit(const struct placing *x, const struct partials *from, struct partials *to)
{
    struct path *p = x->path;
    const struct block *b = x->block;
    const bool wide = x->unit - b->first == x->menu->unit;
    const int32_t n = wide ? x->menu->n_classes : p->in->units[x->unit].n_options;
    for (size_t i = 0; i < from->n; i++) {
        const struct frame *f = &from->all[i].frame;
        if (b->first)
            p->place[b->first - 1] = from->all[i].before;
        for (int32_t u = b->first; u < x->unit; u++)
            p->place[u] = f->place[u - b->first];
        for (int32_t k = 0; k < n; k++) {
            int32_t option = wide ? x->menu->items[x->menu->classes[k].first].option : k;
            struct partial next = from->all[i];
            if (instance_allows(p->in, x->unit, option) && extend(x, option, &next) &&
                !partials_add(to, &next))
                return false;
        }
        if (to->n > MAX_PARTIALS || ilp_late(&p->clock))
            return true;
    }
    return true;
}

oato_status path_make_frames(struct path *p, const struct block *b, struct table *t,
                             struct oato_error *err)
{
    struct partials now = {0}, next = {0};
    struct placing x;
    oato_status status = OATO_OK;
    for (int32_t before = b->first ? 0 : -1; before < (b->first ? p->n_ends : 0); before++) {
        struct partial f = {.frame.in = (int16_t)before,
                            .before = b->first ? option_at(p, b->first - 1, before) : 0};
        f.key[KEY_BEFORE] = (uint16_t)(before + 1);
        if (f.before >= 0 && !partials_add(&now, &f))
            status = oato_fail_memory(err, sizeof f, "the ILP's tables");
    }
    for (int32_t u = b->first; u <= b->last && !status; u++) {
        struct partials swap = now;
        next.n = 0;
        if (!begin_placing(&x, p, b, &t->menu, u) || !place_unit(&x, &now, &next))
            status = oato_fail_memory(err, sizeof *now.all * next.cap, "the ILP's tables");
        else if (ilp_late(&p->clock))
            status = ilp_ended(&p->clock, err);
        else if (next.n > MAX_PARTIALS)
            status = oato_fail(err, OATO_NEGATIVE, "a block of %d units is too large to tabulate",
                               b->last - b->first + 1);
        if (!status)
            prune_partials(p, &next);
        if (!status && ilp_late(&p->clock))
            status = ilp_ended(&p->clock, err);
        now = next;
        next = swap;
    }
    t->frames = calloc(now.n + 1, sizeof *t->frames);
    if (!status && !t->frames)
        status = oato_fail_memory(err, sizeof *t->frames * now.n, "the ILP's tables");
    for (size_t i = 0; t->frames && i < now.n && !status; i++)
        t->frames[t->n_frames++] = now.all[i].frame;
    free(now.all);
    free(next.all);
    return status;
}

/* ------------------------------------------------------------------------------ patterns --- */

static struct pattern combine(const struct frame *f, const struct menu_item *i)
{
    struct pattern x = {.ns = ns_add(f->ns, i->ns), .in = f->in, .out = f->out, .uses = f->uses};
    for (int32_t d = 0; d < SOLVER_DEVICES; d++)
        x.bytes[d] = f->bytes[d] + i->bytes[d];
    return x;
}

struct pattern path_pattern(const struct table *t, int32_t frame, int32_t item)
{
    struct pattern x = combine(&t->frames[frame], &t->menu.items[item]);
    x.frame = frame;
    x.item = item;
    return x;
}

int32_t path_append_pattern(struct table *t, int32_t frame, int32_t item)
{
    struct pattern *more = array_room(t->patterns, (size_t)t->n, &t->cap, sizeof *more);
    if (!more)
        return -1;
    t->patterns = more;
    t->patterns[t->n] = path_pattern(t, frame, item);
    return t->n++;
}

int32_t path_add_pattern(struct table *t, int32_t frame, int32_t item)
{
    for (int32_t i = 0; i < t->n; i++)
        if (t->patterns[i].frame == frame && t->patterns[i].item == item)
            return i;
    return path_append_pattern(t, frame, item);
}

void path_read_pattern(const struct path *p, const struct block *b, const struct pattern *x,
                       int32_t *place)
{
    const struct table *t = &p->tables[b->table];
    for (int32_t u = b->first; u <= b->last; u++)
        place[u] = t->frames[x->frame].place[u - b->first];
    place[b->first + t->menu.unit] = t->menu.items[x->item].option;
}

/* The frame and the item of a placement, whether or not they are in the table. */
static bool price_placed(const struct path *p, const struct block *b, const int32_t *place,
                         struct frame *frame, struct menu_item *item)
{
    const struct menu *m = &p->tables[b->table].menu;
    const int32_t wide = b->first + m->unit;
    *item = item_of(p, &p->in->units[wide], place[wide]);
    return price_frame(p, b, m, place, frame);
}

bool path_price_block(const struct path *p, const struct block *b, const int32_t *place,
                      struct pattern *out)
{
    struct frame frame;
    struct menu_item item;
    if (!price_placed(p, b, place, &frame, &item))
        return false;
    *out = combine(&frame, &item);
    return true;
}

int32_t path_pattern_of(struct path *p, const struct block *b, const int32_t *place)
{
    struct table *t = &p->tables[b->table];
    struct frame own;
    struct menu_item wide;
    if (!price_placed(p, b, place, &own, &wide))
        return -1;
    const struct menu_class *c = &t->menu.classes[own.class];
    int32_t frame = 0, item = c->first;
    while (frame < t->n_frames &&
           (t->frames[frame].in != own.in || t->frames[frame].out != own.out ||
            t->frames[frame].class != own.class || !frame_dominates(p, &t->frames[frame], &own)))
        frame++;
    while (item < c->first + c->n && (t->menu.items[item].ns > wide.ns ||
                                      !no_more_bytes(p->in, t->menu.items[item].bytes, wide.bytes)))
        item++;
    if (frame == t->n_frames || item == c->first + c->n)
        return -1;
    return path_add_pattern(t, frame, item);
}
