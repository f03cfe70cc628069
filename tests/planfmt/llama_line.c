/*
 * llama_line.c - see llama_line.h.
 */
#include "llama_line.h"

#include "placed_plan.h"

#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void line_split(struct line *l, const char *command)
{
    char *to = l->text;
    l->n = 0;
    for (const char *s = command; *s && *s != '\n';) {
        assert_true(l->n < LINE_WORDS);
        l->word[l->n++] = to;
        for (bool quoted = false; *s && *s != '\n' && (quoted || *s != ' '); s++) {
            if (*s == '\'')
                quoted = !quoted;
            else if (*s == '\\' && !quoted)
                *to++ = *++s;
            else
                *to++ = *s;
        }
        *to++ = 0;
        s += *s == ' ';
    }
}

char *line_value(const struct line *l, const char *option)
{
    for (int i = 1; i + 1 < l->n; i++)
        if (l->word[i] && !strcmp(l->word[i], option))
            return l->word[i + 1];
    return NULL;
}

/* -ngl N: the last N of the layers and the output; -ts A,B: the first A of these on the first
 * device of -dev, the next B on the second. */
const char *line_layer(const struct line *l, int layer)
{
    const int ngl = atoi(line_value(l, "-ngl")), first = PLACED_LAYERS + 1 - ngl;
    const char *devices = line_value(l, "-dev"), *shares = line_value(l, "-ts");
    static char name[32];
    if (layer < first)
        return "CPU";
    for (int at = 0; devices; at++) {
        const int n = shares ? atoi(shares) : ngl;
        if (layer - first < n) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(devices, ","), devices);
            return name;
        }
        layer -= n;
        devices = strchr(devices, ',') ? strchr(devices, ',') + 1 : NULL;
        shares = shares && strchr(shares, ',') ? strchr(shares, ',') + 1 : NULL;
    }
    fail_msg("layer %d has no device", layer);
    return NULL;
}

/* Where the engine puts a tensor: the first pattern of -ot that is found in its name, else where
 * its layer is. */
const char *line_tensor(const struct line *l, const char *name)
{
    static char list[1 << 16];
    int layer = PLACED_LAYERS;
    snprintf(list, sizeof list, "%s", line_value(l, "-ot") ? line_value(l, "-ot") : "");
    for (char *rest = list, *one; (one = strsep(&rest, ","));) {
        regex_t pattern;
        char *device = strchr(one, '=');
        if (!device)
            continue;
        *device++ = 0;
        assert_int_equal(regcomp(&pattern, one, REG_EXTENDED | REG_NOSUB), 0);
        const bool found = !regexec(&pattern, name, 0, NULL, 0);
        regfree(&pattern);
        if (found)
            return device;
    }
    sscanf(name, "blk.%d.", &layer);
    return line_layer(l, layer);
}
