/*
 * registry.c - which devices there are, and how their specs are written:
 *
 *   KIND[:INDEX][:OPTION=VALUE,...]       one device
 *   cpu,sim:vram=1GiB,link=25GB/s,sim:1   a list; a piece that is no OPTION=VALUE begins a device
 *   npu[:INDEX]                           another name of devices, from `aliases`
 */
#include "kernels/device.h"

#include <string.h>

#define ROW(kind) &kind##_device_ops,
const struct device_ops *const device_registry[] = {DEVICE_KINDS(ROW) NULL};
#undef ROW

enum { INDEX_MOST = 999 };

/* Kinds whose devices a name counts together, in this order: "npu:0" is the first one that is
 * there, and the last kind's if none is. */
static const struct alias {
    const char *name, *option; /* ahead of the device's own options; "": none */
    const struct device_ops *ops;
} aliases[] = {{"npu", "", &ascend_device_ops}, {"npu", "device=NPU", &openvino_device_ops}};

/* The alias that the first n bytes name, or NULL. *index: of the device of that name; then of its
 * kind. */
static const struct alias *find_alias(const char *name, size_t n, int *index)
{
    const struct alias *last = NULL;
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++) {
        const struct alias *a = &aliases[i];
        if (strlen(a->name) != n || memcmp(a->name, name, n) != 0)
            continue;
        last = a;
        if (i + 1 == ARRAY_LEN(aliases) || strcmp(a[1].name, a->name) != 0)
            break;
        const int here = a->ops->probe();
        if (*index < here)
            break;
        *index -= here;
    }
    return last;
}

/* The kind that the first n bytes name, or NULL. */
static const struct device_ops *find_kind(const char *name, size_t n)
{
    for (int i = 0; device_registry[i]; i++)
        if (strlen(device_registry[i]->kind) == n && !memcmp(device_registry[i]->kind, name, n))
            return device_registry[i];
    return NULL;
}

static oato_status unknown_kind(const char *name, size_t n, struct oato_error *err)
{
    struct text known;
    text_init(&known);
    for (int i = 0; device_registry[i]; i++)
        text_printf(&known, "%s%s", i ? ", " : "", device_registry[i]->kind);
    oato_fail(err, OATO_EUSAGE, "unknown device kind '%.*s'; known: %s",
              (int)min_i64((int64_t)n, 64), name, or_empty(known.data));
    text_free(&known);
    return err->status;
}

/* Length of the kind at the begin of a spec or list piece. */
static size_t kind_length(const char *spec)
{
    return strcspn(spec, ":,");
}

/* The index behind a name of `kind` bytes in a piece of n bytes; returns the bytes of ":INDEX". */
static size_t alias_number(const char *piece, size_t n, size_t kind, int *number)
{
    char text[16];
    int64_t v = -1;
    *number = 0;
    if (kind == n || piece[kind] != ':')
        return 0;
    const size_t digits = strspn(piece + kind + 1, "0123456789");
    snprintf(text, sizeof text, "%.*s", (int)digits, piece + kind + 1);
    if (!digits || digits >= sizeof text || !parse_i64(text, 0, INDEX_MOST, &v))
        return 0;
    *number = (int)v;
    return 1 + digits;
}

oato_status device_open(const char *spec, int index, const struct device_options *options,
                        struct oato_device **out, struct oato_error *err)
{
    size_t n = kind_length(spec);
    char own[1][256];
    int first = 0;
    if (find_alias(spec, n, &first)) {
        if (device_split(spec, own, 1, err) < 0)
            return err->status;
        spec = own[0];
        n = kind_length(spec);
    }
    const struct device_ops *ops = find_kind(spec, n);
    if (!ops)
        return unknown_kind(spec, n, err);
    const char *rest = spec + n;
    if (*rest)
        rest++;
    size_t digits = strspn(rest, "0123456789");
    if (digits && (!rest[digits] || rest[digits] == ':' || rest[digits] == ',')) {
        char number[16];
        int64_t v = -1;
        snprintf(number, sizeof number, "%.*s", (int)digits, rest);
        if (digits >= sizeof number || !parse_i64(number, 0, INDEX_MOST, &v))
            return oato_fail(err, OATO_EUSAGE, "device '%.100s': the index must be 0 to %d", spec,
                             INDEX_MOST);
        index = (int)v;
        rest += digits + (rest[digits] != 0);
    }
    const struct device_options none = {0};
    return ops->open(index, rest, options ? options : &none, out, err);
}

const struct device_ops *device_kind(const char *spec)
{
    const size_t n = kind_length(spec);
    int number;
    alias_number(spec, strlen(spec), n, &number);
    const struct alias *alias = find_alias(spec, n, &number);
    return alias ? alias->ops : find_kind(spec, n);
}

bool device_keeps_core(const char *spec)
{
    const struct device_ops *ops = device_kind(spec);
    return ops && ops->keeps_core && ops->keeps_core(spec);
}

bool device_is_host(const char *spec)
{
    return device_kind(spec) == &cpu_device_ops;
}

/* True when the piece of n bytes is an option of the device before it. */
static bool is_option(const char *piece, size_t n)
{
    const char *equals = memchr(piece, '=', n), *colon = memchr(piece, ':', n);
    return equals && (!colon || equals < colon);
}

int device_split(const char *list, char (*specs)[256], int max, struct oato_error *err)
{
    int count = 0;
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        size_t kind = kind_length(p);
        bool option = is_option(p, n);
        int number = -1;
        const size_t digits = alias_number(p, n, kind, &number);
        const struct alias *alias = option ? NULL : find_alias(p, kind, &number);
        if (!n || (option && !count)) {
            oato_fail(err, OATO_EUSAGE, "device list '%.100s': a device is missing %s'%.*s'", list,
                      n ? "before " : "at ", (int)min_i64((int64_t)strlen(p), 32), p);
            return -1;
        }
        if (!option && !alias && !find_kind(p, kind)) {
            unknown_kind(p, kind, err);
            return -1;
        }
        if (!option && count == max) {
            oato_fail(err, OATO_EUSAGE, "device list '%.100s': more than %d devices", list, max);
            return -1;
        }
        if (!option)
            specs[count++][0] = 0;
        char *spec = specs[count - 1];
        size_t used = strlen(spec);
        /* the first option of a bare kind stands behind a colon, whatever the user wrote */
        const char *separator = !used ? "" : strchr(spec, ':') ? "," : ":";
        char own[32] = ""; /* "openvino:0" for "npu:0", whose option goes last */
        if (alias && digits)
            snprintf(own, sizeof own, "%s:%d", alias->ops->kind, number);
        else if (alias)
            snprintf(own, sizeof own, "%s", alias->ops->kind);
        const size_t name = alias ? kind + digits : 0;
        int written = snprintf(spec + used, sizeof specs[0] - used, "%s%s%.*s%s%s", separator, own,
                               (int)(n - name), p + name, alias && *alias->option ? ":" : "",
                               alias ? alias->option : "");
        if (written < 0 || (size_t)written >= sizeof specs[0] - used) {
            oato_fail(err, OATO_EUSAGE, "device list '%.100s': a spec exceeds %zu characters", list,
                      sizeof specs[0] - 1);
            return -1;
        }
        p += n;
        if (!*p)
            return count;
    }
}

void device_found(struct text *list, warn_fn warn, void *user)
{
    for (int i = 0; device_registry[i]; i++) {
        const struct device_ops *ops = device_registry[i];
        const int n = ops->simulated || ops->if_named ? 0 : ops->probe();
        for (int index = 0; index < n; index++) {
            struct oato_device *d = NULL;
            struct oato_error err;
            const struct device_options options = {.threads = 1};
            if (ops != &cpu_device_ops && ops->open(index, "", &options, &d, &err)) {
                warn_line(warn, user, "%s:%d is not used: %s", ops->kind, index, err.text);
                continue;
            }
            if (d)
                ops->close(d);
            text_printf(list, "%s%s:%d", list->len ? "," : "", ops->kind, index);
        }
    }
}

/* Opens the device for a moment: only then is its model known. */
static void list_device(const struct device_ops *ops, int index, FILE *out)
{
    const struct device_options options = {.threads = 1};
    struct oato_device *d;
    struct oato_error err;
    struct device_info info;
    if (ops->open(index, "", &options, &d, &err)) {
        fprintf(out, "%s:%d  unusable: %s\n", ops->kind, index, err.text);
        return;
    }
    ops->info(d, &info);
    fprintf(out, "%-8s %s, %.1f GiB", info.id, info.model,
            (double)info.memory_bytes / (double)(1 << 30));
    if (info.isa[0])
        fprintf(out, ", kernels %s", info.isa);
    if (info.read_bytes_per_s > 0)
        fprintf(out, ", declared %.0f GB/s, %.1f TFLOP/s, link %.1f GB/s",
                info.read_bytes_per_s / 1e9, info.flops_per_s / 1e12, info.link_bytes_per_s / 1e9);
    if (info.note)
        fprintf(out, "; %s", info.note);
    fputc('\n', out);
    ops->close(d);
}

void device_list(FILE *out)
{
    for (int i = 0; device_registry[i]; i++) {
        const struct device_ops *ops = device_registry[i];
        const int n = ops->probe();
        char line[320];
        for (int index = 0; index < n; index++)
            list_device(ops, index, out);
        if (n || !ops->absence)
            continue;
        ops->absence(line);
        fprintf(out, "%-8s %s\n", ops->kind, line);
    }
}
