/*
 * list.c - see list.h.
 */
#include "base/list.h"

#include <stdlib.h>
#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

oato_status list_cut(struct list *l, const char *at_any, const char *name, struct oato_error *err)
{
    size_t n = 0;
    l->item = l->text.failed ? NULL : calloc(l->text.len + 1, sizeof *l->item);
    if (!l->item)
        return oato_fail_memory(err, l->text.len, name);
    for (char *at = l->text.data; *(at += strspn(at, at_any));) {
        const size_t length = strcspn(at, at_any);
        char *const next = at + length + (at[length] != 0), *end = at + length;
        while (at < end && is_blank(*at)) /* around an item they are none of it */
            at++;
        while (at < end && is_blank(end[-1]))
            end--;
        *end = 0;
        if (at < end)
            l->item[n++] = at;
        at = next;
    }
    return n ? OATO_OK : oato_fail(err, OATO_EUSAGE, "%s has nothing in it; name something", name);
}

oato_status list_read(struct list *l, const char *text, const char *name, struct oato_error *err)
{
    if (!text)
        return OATO_OK;
    text_printf(&l->text, "%s\n", text);
    return list_cut(l, ", \n", name, err);
}

void list_free(struct list *l)
{
    free(l->item);
    text_free(&l->text);
}

oato_status list_find(const char *option, const char *name, const char *const *names, int *out,
                      struct oato_error *err)
{
    struct text all;
    for (*out = 0; names[*out]; ++*out)
        if (!strcmp(name, names[*out]))
            return OATO_OK;
    text_init(&all);
    for (int i = 0; names[i]; i++)
        text_printf(&all, "%s%s", i ? ", " : "", names[i]);
    oato_fail(err, OATO_EUSAGE, "unknown --%s %.40s; choose one of %.200s", option, name,
              or_empty(all.data));
    text_free(&all);
    return err->status;
}
