/*
 * export.c - a plan as the command line of another engine. llama.cpp and its fork place in three
 * steps, which are followed backwards here: `-ngl` and `-ts` give each layer, and the output as one
 * layer more, a device, in ascending order; the KV of a layer is always there, too; `-ot` moves
 * single tensors elsewhere by regular expressions. So the layers follow the plan's KV, and every
 * weight that the plan has elsewhere is named. What can't be said that way is listed.
 */
#include "planfmt/planfmt_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NOWHERE = -1 };

struct exporter {
    const struct plan *plan;
    const struct model *model;
    const struct export_options *o;
    struct text *command, *lost;
    struct arena arena;
    struct graph graph; /* fused as planned */
    const char **names; /* of the plan's devices there; NULL: it has none */
    bool *used;         /* has weights or KV */
    int32_t host, n_layers;
    int32_t *wanted; /* planned device of each layer's KV and, behind them, of the output matrix */
    int32_t *layer;  /* device that these get from -ngl and -ts */
    int32_t *tensor; /* planned device of each tensor of the file, or NOWHERE */
};

static const char *name_of(const struct exporter *x, int32_t device)
{
    return x->names[device] ? x->names[device] : x->plan->devices[device].id;
}

/* "cuda:1" is CUDA1 and the host's memory CPU, unless told otherwise. */
static const char *find_name(struct exporter *x, const struct plan_device *d)
{
    for (int32_t i = 0; i < x->o->n_names; i++)
        if (!strcmp(x->o->names[i].id, d->id))
            return x->o->names[i].name;
    if (!strcmp(d->kind, "cpu"))
        return "CPU";
    const char *number = strchr(d->id, ':');
    char name[24];
    if (strcmp(d->kind, "cuda") != 0 || !number)
        return NULL;
    int n = snprintf(name, sizeof name, "CUDA%s", number + 1);
    return arena_strndup(&x->arena, name, (size_t)n);
}

static oato_status check_options(const struct exporter *x, struct oato_error *err)
{
    for (int32_t i = 0; i < x->o->n_names; i++) {
        int32_t d = 0;
        while (d < x->plan->n_devices && strcmp(x->plan->devices[d].id, x->o->names[i].id) != 0)
            d++;
        if (d == x->plan->n_devices)
            return oato_fail(err, OATO_EUSAGE, "--device-name: the plan has no device '%s'",
                             x->o->names[i].id);
    }
    if (x->host == x->plan->n_devices)
        return oato_fail(err, OATO_EUSAGE,
                         "the plan has no CPU, without which llama.cpp does not run");
    return OATO_OK;
}

/* Every device that holds something must have a name there. */
static oato_status check_names(const struct exporter *x, struct oato_error *err)
{
    for (int32_t d = 0; d < x->plan->n_devices; d++)
        if (x->used[d] && !x->names[d])
            return oato_fail(err, OATO_EUSAGE,
                             "llama.cpp has no name for %s; give one with --device-name %s=NAME",
                             x->plan->devices[d].id, x->plan->devices[d].id);
    return OATO_OK;
}

/* ------------------------------------------------------------------------ what is planned -- */

/* Where an operator runs: its largest part in decode. Says so where that is not all. */
static int32_t device_of_op(struct exporter *x, const struct graph_op *op)
{
    const struct plan_part *best = NULL;
    bool divided = false, streamed = false;
    for (int32_t i = 0; i < x->plan->n_parts; i++) {
        const struct plan_part *p = &x->plan->parts[i];
        if (p->begin == p->end || strcmp(p->op, op->name) != 0)
            continue;
        divided = divided || (best && p->device != best->device);
        streamed = streamed || p->home != p->device;
        if (!(p->phases & 1u << PHASE_DECODE))
            continue;
        if (!best || p->end - p->begin > best->end - best->begin)
            best = p;
    }
    const int32_t device = best ? best->device : x->host;
    if (divided)
        text_printf(x->lost, "%s is divided between devices; all of it goes to %s\n", op->name,
                    name_of(x, device));
    if (streamed)
        text_printf(x->lost, "the weights of %s are streamed; they are kept on %s\n", op->name,
                    name_of(x, device));
    return device;
}

static void read_parts(struct exporter *x)
{
    const struct gguf_tensor *first = gguf_tensor_at(x->model->gguf, 0);
    for (int32_t i = 0; i < x->graph.n_ops; i++) {
        const struct graph_op *op = &x->graph.ops[i];
        const int32_t device = device_of_op(x, op);
        if (op->op.kind == OP_EMBED) { /* the lookup of a tied matrix says nothing about it */
            if (device != x->host)
                text_printf(x->lost, "%s is looked up on the CPU\n", op->name);
            continue;
        }
        for (int w = 0; w < op->n_weights; w++) {
            if (!op->weight[w])
                continue;
            x->tensor[op->weight[w] - first] = device;
            x->used[device] = true;
            if (op->layer == x->n_layers && op->op.kind == OP_MUL_MAT)
                x->wanted[x->n_layers] = device;
        }
    }
}

static void read_kv(struct exporter *x)
{
    for (int32_t i = 0; i < x->plan->n_kv; i++) {
        const struct plan_kv *kv = &x->plan->kv[i];
        x->used[kv->device] = true;
        if (kv->head_begin == 0)
            x->wanted[kv->layer] = kv->device;
        else if (kv->device != x->wanted[kv->layer])
            text_printf(x->lost, "KV heads %d to %d of layer %d are planned on %s\n",
                        kv->head_begin, kv->head_end, kv->layer, name_of(x, kv->device));
    }
}

/* ------------------------------------------------------------------------- layers' devices - */

/* The devices in the order in which layers may have them: the host, then the others. */
static int32_t device_at(const struct exporter *x, int32_t rank)
{
    return rank == 0 ? x->host : rank <= x->host ? rank - 1 : rank;
}

/* Ascending ranks for the layers and the output with the fewest layers whose KV is elsewhere, a
 * misplaced output counting least; of equal ones the most on accelerators. */
static oato_status choose_layers(struct exporter *x, struct oato_error *err)
{
    const int32_t n = x->n_layers + 1, ranks = x->plan->n_devices;
    int32_t *cost = arena_alloc(&x->arena, (size_t)ranks, sizeof *cost); /* up to the last layer */
    int32_t *from = arena_alloc(&x->arena, (size_t)(n + 1) * (size_t)ranks, sizeof *from);
    if (!cost || !from)
        return oato_fail_memory(err, (size_t)n * sizeof *cost, "an export");
    for (int32_t i = 0; i <= n; i++) {
        int32_t best = 0; /* of the ranks up to r, after the layers before */
        for (int32_t r = 0; r < ranks; r++) {
            best = cost[r] <= cost[best] ? r : best;
            from[i * ranks + r] = best;
        }
        for (int32_t r = ranks - 1; i < n && r >= 0; r--)
            cost[r] = cost[from[i * ranks + r]] + (x->wanted[i] == device_at(x, r) ? 0
                                                   : i < x->n_layers               ? n + 1
                                                                                   : 1);
    }
    int32_t rank = from[n * ranks + ranks - 1];
    for (int32_t i = n - 1; i >= 0; i--) {
        x->layer[i] = device_at(x, rank);
        rank = from[i * ranks + rank];
    }
    return OATO_OK;
}

static void list_lost_kv(const struct exporter *x)
{
    for (int32_t i = 0, n; i < x->n_layers; i += n) {
        for (n = 1; i + n < x->n_layers && x->wanted[i + n] == x->wanted[i] &&
                    x->layer[i + n] == x->layer[i];)
            n++;
        if (x->wanted[i] != x->layer[i])
            text_printf(x->lost, "KV of layers %d to %d is planned on %s; it lies on %s\n", i,
                        i + n - 1, name_of(x, x->wanted[i]), name_of(x, x->layer[i]));
    }
}

/* ------------------------------------------------------------------------------- tensors --- */

/* Splits "blk.12.ffn_up.weight"; false for a name that is no layer's. */
static bool layer_of_tensor(const char *name, int32_t *layer, const char **rest)
{
    if (strncmp(name, "blk.", 4) != 0 || !isdigit((unsigned char)name[4]))
        return false;
    char *end;
    *layer = (int32_t)strtol(name + 4, &end, 10);
    *rest = end + 1;
    return *end == '.';
}

/* A tensor that -ot must name, so that it is on `device`. */
static bool overridden(const struct exporter *x, size_t t, int32_t device)
{
    const char *rest, *name = gguf_tensor_at(x->model->gguf, t)->name;
    int32_t layer = x->n_layers;
    if (x->tensor[t] != device)
        return false;
    if (layer_of_tensor(name, &layer, &rest) && layer >= x->n_layers)
        return false;
    return x->layer[layer] != device;
}

static void add_escaped(struct text *t, const char *s)
{
    for (; *s; s++)
        text_printf(t, *s == '.' ? "\\." : "%c", *s);
}

/* Tensors of the same name in several layers, named for one device. */
struct override {
    const char *name; /* behind "blk.N." */
    struct text layers;
    bool written;
};

static struct override *override_named(struct override *all, size_t *n, const char *name)
{
    for (size_t i = 0; i < *n; i++)
        if (!strcmp(all[i].name, name))
            return &all[i];
    all[*n].name = name;
    text_init(&all[*n].layers);
    return &all[(*n)++];
}

/* Names that are wanted of the same layers share a pattern. */
static void write_overrides(const struct exporter *x, struct override *all, size_t n,
                            int32_t device, struct text *out)
{
    for (size_t i = 0; i < n; i++) {
        if (all[i].written)
            continue;
        text_printf(out, "%s^blk\\.(%s)\\.(", out->len ? "," : "", all[i].layers.data);
        for (size_t j = i; j < n; j++) {
            if (all[j].written || strcmp(all[j].layers.data, all[i].layers.data) != 0)
                continue;
            if (j > i)
                text_printf(out, "|");
            add_escaped(out, all[j].name);
            all[j].written = true;
        }
        text_printf(out, ")$=%s", name_of(x, device));
    }
}

/* The patterns of -ot that bring tensors to the device. */
static oato_status add_overrides(struct exporter *x, int32_t device, struct text *out,
                                 struct oato_error *err)
{
    const size_t n = gguf_tensor_count(x->model->gguf);
    struct override *all = calloc(n + 1, sizeof *all);
    size_t used = 0;
    bool failed = !all;
    for (size_t t = 0; all && t < n; t++) {
        int32_t layer;
        const char *rest, *name = gguf_tensor_at(x->model->gguf, t)->name;
        if (!overridden(x, t, device))
            continue;
        if (layer_of_tensor(name, &layer, &rest)) {
            struct text *layers = &override_named(all, &used, rest)->layers;
            text_printf(layers, "%s%d", layers->len ? "|" : "", layer);
            failed = failed || layers->failed;
        } else {
            text_printf(out, "%s^", out->len ? "," : "");
            add_escaped(out, name);
            text_printf(out, "$=%s", name_of(x, device));
        }
    }
    if (!failed)
        write_overrides(x, all, used, device, out);
    for (size_t i = 0; i < used; i++)
        text_free(&all[i].layers);
    free(all);
    return failed ? oato_fail_memory(err, n * sizeof *all, "an export") : OATO_OK;
}

/* ------------------------------------------------------------------------------ the line --- */

/* A word of a shell's command line. */
static void add_word(struct text *t, const char *word)
{
    const char *plain = "+-./:=@_,";
    bool quote = !*word;
    for (const char *s = word; *s; s++)
        quote = quote || !(isalnum((unsigned char)*s) || strchr(plain, *s));
    text_printf(t, t->len ? " " : "");
    if (!quote) {
        text_printf(t, "%s", word);
        return;
    }
    text_printf(t, "'");
    for (const char *s = word; *s; s++)
        text_printf(t, *s == '\'' ? "'\\''" : "%c", *s);
    text_printf(t, "'");
}

static void add_number(struct text *t, const char *option, int64_t value)
{
    text_printf(t, " %s %" PRId64, option, value);
}

/* -dev, -ngl and -ts: the accelerators that have layers, in the order of their ranks. */
static void add_layers(struct exporter *x)
{
    struct text devices, split;
    int32_t offloaded = 0;
    text_init(&devices);
    text_init(&split);
    for (int32_t r = 1; r < x->plan->n_devices; r++) {
        const int32_t device = device_at(x, r);
        int32_t n = 0;
        for (int32_t i = 0; i <= x->n_layers; i++)
            n += x->layer[i] == device;
        if (!n && !x->used[device])
            continue;
        /* a device's memory is "RPC0[address]", the device itself "RPC0" */
        text_printf(&devices, "%s%.*s", devices.len ? "," : "",
                    (int)strcspn(name_of(x, device), "["), name_of(x, device));
        text_printf(&split, "%s%d", split.len ? "," : "", n);
        offloaded += n;
    }
    add_number(x->command, "-ngl", offloaded);
    if (devices.len) {
        add_word(x->command, "-dev");
        add_word(x->command, devices.data);
    }
    if (offloaded && split.data && strchr(split.data, ',')) {
        add_word(x->command, "-ts");
        add_word(x->command, split.data);
    }
    text_free(&devices);
    text_free(&split);
}

static oato_status write_command(struct exporter *x, struct oato_error *err)
{
    const bool fork = x->o->target == EXPORT_IK_LLAMA_CPP;
    const struct plan_request *q = &x->plan->request;
    struct text overrides;
    text_init(&overrides);
    oato_status status = OATO_OK;
    for (int32_t d = 0; d < x->plan->n_devices && !status; d++)
        status = add_overrides(x, d, &overrides, err);
    add_word(x->command, "llama-server");
    add_word(x->command, "-m");
    add_word(x->command, gguf_path(x->model->gguf));
    if (!fork)
        text_printf(x->command, " -fit off");
    add_layers(x);
    if (overrides.len) {
        add_word(x->command, "-ot");
        add_word(x->command, overrides.data);
    }
    add_number(x->command, "-c", q->context);
    add_number(x->command, "-np", q->batch);
    add_number(x->command, "-ub", q->ubatch);
    if (q->ubatch > 2048) /* the default of -b, which may not be less */
        add_number(x->command, "-b", q->ubatch);
    if (q->kv != DT_F16) {
        const char *type = q->kv == DT_Q8_0 ? "q8_0" : "f32";
        text_printf(x->command, " -ctk %s -ctv %s", type, type);
    }
    text_printf(x->command, fork ? " -fa on --no-mmap" : " -fa on -lm none --no-op-offload");
    if (!status && (overrides.failed || x->command->failed || x->lost->failed))
        status = oato_fail_memory(err, overrides.len, "an export");
    text_free(&overrides);
    return status;
}

oato_status plan_export(const struct plan *p, const struct model *m, const struct export_options *o,
                        struct text *command, struct text *lost, struct oato_error *err)
{
    struct exporter x = {.plan = p, .model = m, .o = o, .command = command, .lost = lost};
    const size_t tensors = gguf_tensor_count(m->gguf), devices = (size_t)p->n_devices;
    while (x.host < p->n_devices && strcmp(p->devices[x.host].kind, "cpu") != 0)
        x.host++;
    if (check_options(&x, err) || plan_check_model(p, m->gguf, err) ||
        plan_apply(p, m, &x.graph, err))
        return err->status;
    oato_status status = OATO_OK;
    arena_init(&x.arena);
    x.n_layers = x.graph.n_layers;
    x.names = arena_alloc(&x.arena, devices + 1, sizeof *x.names);
    x.used = arena_alloc(&x.arena, devices + 1, sizeof *x.used);
    x.wanted = arena_alloc(&x.arena, (size_t)x.n_layers + 1, sizeof *x.wanted);
    x.layer = arena_alloc(&x.arena, (size_t)x.n_layers + 1, sizeof *x.layer);
    x.tensor = arena_alloc(&x.arena, tensors + 1, sizeof *x.tensor);
    if (!x.names || !x.used || !x.wanted || !x.layer || !x.tensor) {
        status = oato_fail_memory(err, tensors * sizeof *x.tensor, "an export");
        goto out;
    }
    for (size_t t = 0; t < tensors; t++)
        x.tensor[t] = NOWHERE;
    for (int32_t i = 0; i <= x.n_layers; i++)
        x.wanted[i] = x.host;
    for (size_t d = 0; d < devices; d++)
        x.names[d] = find_name(&x, &p->devices[d]);
    read_parts(&x);
    read_kv(&x);
    status = check_names(&x, err);
    if (!status)
        status = choose_layers(&x, err);
    if (!status) {
        list_lost_kv(&x);
        status = write_command(&x, err);
    }
out:
    graph_free(&x.graph);
    arena_free(&x.arena);
    return status;
}
