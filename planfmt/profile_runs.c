/*
 * profile_runs.c - which kinds and types of operators a device runs, timed or not: asked of the
 * device by an ordinary operator of each, and as the text of a profile.
 */
#include "planfmt/planfmt_internal.h"

#include <string.h>

/* Each bit is a type's number. */
_Static_assert(DT_COUNT <= 64, "the types of a kind are the bits of a uint64_t");

bool profile_put_runs(struct profile *p, int32_t device,
                      bool (*runs)(const void *user, const struct oato_op *op), const void *user)
{
    struct oato_op op;
    uint64_t *all = arena_alloc(&p->arena, OP_KIND_COUNT, sizeof *all);
    if (!all)
        return false;
    for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT; kind++)
        for (int type = 0; type < DT_COUNT; type++)
            if (op_example((enum op_kind)kind, (oato_dtype)type, &op) && runs(user, &op))
                all[kind] |= UINT64_C(1) << type;
    p->devices[device].runs = all;
    return true;
}

/* Whether the kind has types at all. */
static bool is_typed(int kind)
{
    struct oato_op op;
    for (int type = 0; type < DT_COUNT; type++)
        if (type != DT_F32 && op_example((enum op_kind)kind, (oato_dtype)type, &op))
            return true;
    return false;
}

void runs_text_write(int kind, uint64_t types, struct text *out)
{
    for (int type = 0; type < DT_COUNT && is_typed(kind); type++)
        if (types >> type & 1)
            text_printf(out, "%s%s", out->len ? " " : "", dtype_name((oato_dtype)type));
}

bool runs_text_read(int kind, const char *text, uint64_t *types, char bad[24])
{
    struct oato_op op;
    *types = *text ? 0 : UINT64_C(1) << DT_F32;
    bad[0] = 0;
    if (!*text)
        return !is_typed(kind);
    while (*text) {
        oato_dtype type;
        const size_t n = strcspn(text, " ");
        snprintf(bad, 24, "%.*s", (int)(n < 23 ? n : 23), text);
        if (!is_typed(kind) || !dtype_parse(bad, &type) || *types >> type & 1 ||
            !op_example((enum op_kind)kind, type, &op))
            return false;
        *types |= UINT64_C(1) << type;
        text += n + (text[n] == ' ');
    }
    return true;
}
