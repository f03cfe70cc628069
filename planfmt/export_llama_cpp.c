/*
 * export_llama_cpp.c - a plan as the command line of llama.cpp and its fork, which place in three
 * steps: `-ngl` and `-ts` assign each layer, and the output as an extra layer, to devices in
 * ascending order; the KV of a layer is on the layer's device; `-ot` moves single tensors elsewhere
 * by regular expression. So layers are assigned by the plan's KV, and `-ot` names every weight that
 * the plan has elsewhere.
 */
#include "planfmt/exporter_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The devices in the order in which layers may have them: the host, then the others. */
static int32_t device_at(const struct exporter *x, int32_t rank)
{
    return rank == 0 ? x->host : rank <= x->host ? rank - 1 : rank;
}

/* The fewest layers whose KV is elsewhere, a misplaced output counting least. */
oato_status export_llama_cpp_layers(struct exporter *x, struct oato_error *err)
{
    const int32_t n = x->n_layers + 1, ranks = x->plan->n_devices;
    int32_t *devices = arena_alloc(&x->arena, (size_t)ranks, sizeof *devices);
    int32_t *cost = arena_alloc(&x->arena, (size_t)n * (size_t)ranks, sizeof *cost);
    if (!devices || !cost)
        return oato_fail_memory(err, (size_t)n * sizeof *cost, "an export");
    for (int32_t r = 0; r < ranks; r++)
        devices[r] = device_at(x, r);
    for (int32_t i = 0; i < n; i++)
        for (int32_t r = 0; r < ranks; r++)
            cost[i * ranks + r] = x->wanted[i] == devices[r] ? 0 : i < x->n_layers ? n + 1 : 1;
    return export_choose(x, devices, ranks, n, cost, err);
}

/* ------------------------------------------------------------------------------- tensors --- */

/* A tensor that -ot must name, so that it is where the plan has it. */
static bool overridden(const struct exporter *x, size_t t, struct tensor_group *key)
{
    const char *rest;
    int32_t layer;
    if (!export_planned(x, t, &layer, &rest))
        return false;
    key->device = x->tensor[t];
    return x->layer[layer] != key->device;
}

/* Names that are wanted of the same layers on the same device share a pattern; devices come in
 * their order. */
static void write_overrides(const struct exporter *x, struct tensor_group *all, size_t n,
                            struct text *out)
{
    for (int32_t d = 0; d < x->plan->n_devices; d++)
        for (size_t i = 0; i < n; i++) {
            if (all[i].device != d || all[i].written)
                continue;
            text_printf(out, "%s^", out->len ? "," : "");
            if (all[i].layers.len)
                text_printf(out, "blk\\.(%s)\\.(", all[i].layers.data);
            for (size_t j = i; j < n; j++) {
                if (!export_same_layers(&all[i], &all[j]) || (j > i && !all[i].layers.len))
                    continue;
                if (j > i)
                    text_printf(out, "|");
                export_escape(out, all[j].name);
                all[j].written = true;
            }
            text_printf(out, "%s$=%s", all[i].layers.len ? ")" : "", export_name(x, d));
        }
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
                    (int)strcspn(export_name(x, device), "["), export_name(x, device));
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
    text_free_part(&devices, x->command);
    text_free_part(&split, x->command);
}

static oato_status write_command(struct exporter *x, struct oato_error *err)
{
    const bool fork = x->o->target == EXPORT_IK_LLAMA_CPP;
    const struct plan_request *q = &x->plan->request;
    struct text overrides;
    text_init(&overrides);
    struct tensor_group *groups;
    size_t n_groups;
    oato_status status = export_group(x, overridden, &groups, &n_groups, err);
    if (!status)
        write_overrides(x, groups, n_groups, &overrides);
    export_groups_free(groups, n_groups);
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
    text_printf(x->command, fork ? " -fa on --no-mmap" : " -fa on -lm none");
    if (!fork && !x->streams) /* else the host's matrices are streamed for 32 tokens or more */
        text_printf(x->command, " --no-op-offload");
    if (!status && (overrides.failed || x->command->failed || x->lost->failed))
        status = oato_fail_memory(err, overrides.len, "an export");
    text_free(&overrides);
    return status;
}

oato_status export_llama_cpp(struct exporter *x, struct oato_error *err)
{
    export_list_lost_kv(x);
    return write_command(x, err);
}
