/*
 * sim_spec.c - reads what a simulated device declares of itself. A row of `fields` is an option;
 * numbers carry their units as everywhere ("64MiB", "900GB/s", "80T", "10us"). `words` are options
 * that are no quantities.
 */
#include "kernels/sim/sim_internal.h"

#include <stdlib.h>
#include <string.h>

struct spec_field {
    const char *name, *unit;
    size_t offset;
    bool zero_allowed;
    double most;
};

#define FIELD(name, unit, member, zero_allowed, most)                                              \
    {                                                                                              \
        name, unit, offsetof(struct sim_spec, member), zero_allowed, most                          \
    }
static const struct spec_field fields[] = {
    FIELD("vram", "B", vram_bytes, true, 1e15),
    FIELD("read", "B/s", read_bytes_per_s, false, 1e18),
    FIELD("flops", "FLOP/s", flops_per_s, false, 1e24),
    FIELD("link", "B/s", link_bytes_per_s, false, 1e18),
    FIELD("latency", "s", latency_s, true, 60),
    FIELD("launch", "s", launch_s, true, 60),
    FIELD("peer", "B/s", peer_bytes_per_s, true, 1e18),
    FIELD("unit", "s", unit_s, true, 60),
};
#undef FIELD

static bool parse_spans(const char *value, struct sim_spec *s)
{
    s->spans = !strcmp(value, "on");
    return s->spans || !strcmp(value, "off");
}

/* "1+16+256": ascending. */
static bool parse_rows(const char *value, struct sim_spec *s)
{
    long last = 0;
    for (int i = 0; i < DEVICE_ROWS; i++) {
        char *end;
        const long n = strtol(value, &end, 10);
        if (end == value || n <= last || n > INT32_MAX || (*end && *end != '+'))
            return false;
        s->rows[i] = (int32_t)(last = n);
        if (!*end)
            return true;
        value = end + 1;
    }
    return false;
}

static bool parse_values(const char *value, struct sim_spec *s)
{
    return s->halves = !strcmp(value, "f16");
}

static bool parse_kv(const char *value, struct sim_spec *s)
{
    return s->kv_rows = !strcmp(value, "rows");
}

/* Of a library: with a dot. */
static bool parse_class(const char *value, struct sim_spec *s)
{
    snprintf(s->class, sizeof s->class, "%s", value);
    return strchr(value, '.') && !strchr(value, '+') && strlen(value) < sizeof s->class;
}

static const struct spec_word {
    const char *name, *what;
    bool (*parse)(const char *value, struct sim_spec *s);
} words[] = {
    {"spans", "on or off", parse_spans},
    {"class", "a numerics class with a dot, as in f32.sim", parse_class},
    {"rows", "up to 8 numbers of rows, ascending, as in 1+16+256", parse_rows},
    {"values", "f16", parse_values},
    {"kv", "rows", parse_kv},
};

/* A middling accelerator behind PCIe 4.0 x16. */
static const struct sim_spec defaults = {
    .vram_bytes = 8.0 * (1 << 30),
    .read_bytes_per_s = 900e9,
    .flops_per_s = 80e12,
    .link_bytes_per_s = 25e9,
    .latency_s = 10e-6,
    .launch_s = 2e-6,
};

static oato_status unknown_option(const char *option, struct oato_error *err)
{
    struct text known;
    text_init(&known);
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        text_printf(&known, "%s, ", fields[i].name);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        text_printf(&known, "%s%s", i ? ", " : "", words[i].name);
    oato_fail(err, OATO_EUSAGE, "sim: unknown option '%s'; known: %s (as in vram=64MiB)", option,
              or_empty(known.data));
    text_free(&known);
    return err->status;
}

static oato_status parse_option(char *option, struct sim_spec *s, struct oato_error *err)
{
    char *equals = strchr(option, '=');
    const char *value = equals ? equals + 1 : "";
    if (equals)
        *equals = 0;
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (!strcmp(words[i].name, option))
            return words[i].parse(value, s) ? OATO_OK
                                            : oato_fail(err, OATO_EUSAGE, "sim: %s='%s' must be %s",
                                                        option, value, words[i].what);
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const struct spec_field *f = &fields[i];
        double v;
        if (strcmp(f->name, option) != 0)
            continue;
        if (!parse_quantity(value, f->unit, &v) || !(v <= f->most) || (v <= 0 && !f->zero_allowed))
            return oato_fail(err, OATO_EUSAGE,
                             "sim: %s='%s' must be a quantity in %s%s, at most %g", f->name, value,
                             f->unit, f->zero_allowed ? "" : " above 0", f->most);
        memcpy((char *)s + f->offset, &v, sizeof v);
        return OATO_OK;
    }
    return unknown_option(option, err);
}

oato_status sim_spec_parse(const char *spec, struct sim_spec *out, struct oato_error *err)
{
    char option[64];
    *out = defaults;
    for (const char *p = spec; *p;) {
        size_t n = strcspn(p, ",");
        if (n >= sizeof option)
            return oato_fail(err, OATO_EUSAGE, "sim: option '%.32s...' is too long", p);
        memcpy(option, p, n);
        option[n] = 0;
        if (parse_option(option, out, err))
            return err->status;
        p += n + (p[n] == ',');
    }
    if (out->vram_bytes > 0 && out->vram_bytes < 65536) /* holds no model: a unit was forgotten */
        return oato_fail(err, OATO_EUSAGE,
                         "sim: vram=%g is %g bytes; give a unit, as in vram=64MiB", out->vram_bytes,
                         out->vram_bytes);
    return OATO_OK;
}
