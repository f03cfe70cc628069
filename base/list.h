/*
 * list.h - lists of a command line: items with commas between, and one of several names.
 */
#ifndef OATO_LIST_H
#define OATO_LIST_H

#include "base/base.h"

/* All zeros: there is none. */
struct list {
    struct text text;
    const char **item; /* NULL-terminated; NULL: there is none */
};

/* Makes a list of the list's text, in which items are, which is cut in place: items end at any of
 * these characters, and blanks around one are none of it. `name` is the option's. OATO_EUSAGE:
 * there is no item. */
oato_status list_cut(struct list *l, const char *at_any, const char *name, struct oato_error *err);
/* The same of a copy of `text`, at commas and blanks; text NULL: the list stays empty. */
oato_status list_read(struct list *l, const char *text, const char *name, struct oato_error *err);
void list_free(struct list *l);

/* *out: which of the names, NULL at the end, it is. OATO_EUSAGE, with all of them: none. */
oato_status list_find(const char *option, const char *name, const char *const *names, int *out,
                      struct oato_error *err);

#endif
