/*
 * profile_reader_internal.h - a profile that is being read: profile_yaml.c follows libyaml's events
 * and reads mappings by their schema, profile_lists.c checks the rows of its lists. workload.c has
 * a workload read in the same way.
 */
#ifndef OATO_PROFILE_READER_INTERNAL_H
#define OATO_PROFILE_READER_INTERNAL_H

#include "planfmt/planfmt_internal.h"

#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    yaml_event_t event;      /* the one being looked at; empty before the first */
    const char *name, *what; /* of the file; "profile" or "workload", for messages */
    struct profile *profile; /* NULL: none is read; unknown keys are errors then */
    struct workload *workload;
    warn_fn warn;
    void *user;
    struct oato_error *err;
};

/* What a mapping said: which fields, and where. */
struct mapping_marks {
    uint32_t seen;
    yaml_mark_t begin, value[FIELDS_MAX];
};

/* OATO_EFILE, with file, line and column. */
oato_status fail_at(struct reader *r, yaml_mark_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads the mapping that begins at the event. */
oato_status read_mapping(struct reader *r, const struct schema *schema, void *base,
                         struct mapping_marks *m);
oato_status next_event(struct reader *r);
/* The items of a list that begins at the event. */
oato_status read_list(struct reader *r, const char *key, oato_status (*item)(struct reader *r));
/* Reads a file of one mapping, whose content `head` reads up to its end; begin: where it begins. */
typedef oato_status read_head_fn(struct reader *r, yaml_mark_t begin);
oato_status read_yaml(struct reader *r, const void *data, size_t bytes, read_head_fn *head);
/* The array for at most n devices or links; it is allocated with the first of them. */
void *array_of(struct reader *r, void *array, int32_t n, size_t size);

/* A row of each list but devices, at the event. */
oato_status read_link(struct reader *r);
oato_status read_runs(struct reader *r);
oato_status read_row(struct reader *r);
oato_status read_restore(struct reader *r);
oato_status read_storage(struct reader *r);
oato_status read_sum(struct reader *r);

#endif
