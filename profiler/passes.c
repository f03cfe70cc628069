/*
 * passes.c - the rows of several passes over the operators of a device. Disturbances on a
 * machine last for seconds, timing a row takes milliseconds: so the pass with the median time
 * counts.
 */
#include "profiler/profiler_internal.h"

#include <stdlib.h>

void passes_free(struct passes *p)
{
    for (int i = 0; i < PASSES_MAX; i++)
        free(p->pass[i].rows);
    *p = (struct passes){0};
}

bool passes_add(struct passes *p, const struct profile_row *row)
{
    struct pass *pass = &p->pass[p->n - 1];
    struct profile_row *rows = array_room(pass->rows, (size_t)pass->n, &pass->cap, sizeof *rows);
    if (rows)
        (pass->rows = rows)[pass->n++] = *row;
    return rows;
}

static const struct profile_row *find(const struct pass *pass, const struct profile_row *like)
{
    for (int32_t i = 0; i < pass->n; i++)
        if (row_is_of(&pass->rows[i], &like->op, &like->size))
            return &pass->rows[i];
    return NULL;
}

bool times_disagree(double least_ns, double most_ns)
{
    return most_ns > 2 * least_ns;
}

struct profile_row passes_middle(const struct passes *p, const struct profile_row *like)
{
    const struct profile_row *sorted[PASSES_MAX] = {NULL};
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        const struct profile_row *r = find(&p->pass[i], like);
        int at = n;
        if (!r)
            continue;
        for (; at > 0 && sorted[at - 1]->median_ns > r->median_ns; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = r;
        n++;
    }
    struct profile_row middle = n ? *sorted[(n - 1) / 2] : *like;
    if (n && times_disagree(sorted[0]->median_ns, middle.median_ns))
        middle.disturbed = true;
    return middle;
}
