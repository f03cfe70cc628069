/*
 * lanes_columns_run.h - the loops over tokens and blocks of lanes_columns.h, for a file that has
 * defined
 *   block_tokens(work, block's list, group, its results, lists to prefetch, bits, tokens)
 *   float_tokens(type, work, columns, first token of a group, whether to prefetch)
 * which go over the thread's rows.
 */
#ifndef OATO_LANES_COLUMNS_RUN_H
#define OATO_LANES_COLUMNS_RUN_H

/* How many tiles ahead of the one at hand columns are prefetched. */
static int64_t tiles_ahead(const struct columns_work *w)
{
    int64_t columns = 0, blocks = 0;
    for (int64_t b = 0; b < w->c.blocks; b++) {
        const uint32_t bits = columns_active(w, b, 0, (int)w->T);
        columns += __builtin_popcount(bits);
        blocks += bits != 0;
    }
    const int64_t scale = (w->c.form->half ? 2 : 4) * (w->c.form->has_min ? 2 : 1);
    const int64_t bytes = TILE * (scale * blocks + columns * w->c.form->bits / 8);
    return max_i64(2, AHEAD_BYTES * blocks / max_i64(1, bytes) / 2 * 2); /* whole lines */
}

static void integers_rows(const struct columns_work *w, const struct block_list *l,
                          const struct block_group *g, int64_t t, const struct lists_ahead *next)
{
    const int tokens = (int)min_i64(GROUP, w->T - t);
    float *y[GROUP];
    for (int i = 0; i < GROUP; i++)
        y[i] = w->y + (t + i) * w->j->y_stride;
    if (w->c.form->bits == 4)
        block_tokens(w, l, g, y, next, 4, tokens);
    else
        block_tokens(w, l, g, y, next, 8, tokens);
}

static void integers_run(const struct columns_work *w)
{
    struct block_list lists[PENDING];
    int64_t b = 0, made = 0, done = 0;
    work_pack(w);
    bool more = list_fill(w, &b, &lists[0]);
    if (more)
        made++;
    const int64_t tiles = columns_rows(w->end - w->begin) / TILE;
    const int64_t tile = min_i64(tiles_ahead(w), (PENDING - 2) * tiles), ahead = tile / tiles;
    for (; done < made; done++) {
        while (more && made <= done + ahead + 1) {
            more = list_fill(w, &b, &lists[made % PENDING]);
            made += more;
        }
        const struct block_list *l = &lists[done % PENDING];
        struct lists_ahead next = {.rows = tile % tiles * TILE};
        for (int i = 0; i < 2 && done + ahead + i < made; i++)
            next.list[i] = &lists[(done + ahead + i) % PENDING];
        for (int64_t t = 0; t < w->T; t += GROUP) {
            integers_rows(w, l, &l->group[t / GROUP], t, &next);
            next = (struct lists_ahead){0};
        }
    }
}

static void floats_rows(const struct columns_work *w, const struct float_list *l, int64_t first,
                        bool prefetches)
{
#define TOKENS_OF(type, ...)                                                                       \
    case DT_##type: float_tokens(DT_##type, w, l, first, prefetches); break;
    switch ((int)w->j->w->dtype) {
        FLOAT_TYPES(TOKENS_OF)
    }
#undef TOKENS_OF
}

static void floats_run(const struct columns_work *w, int32_t *list)
{
    const int64_t n = floats_list(w, list);
    struct float_list l;
    for (int64_t i = 0; i < n; i += l.columns) {
        float_list_fill(w, list + i, n - i, &l);
        for (int64_t t = 0; t < w->T; t += GROUP)
            floats_rows(w, &l, t, t == 0);
    }
}

static void columns_run(const struct columns_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    struct columns_work w = {.j = j,
                             .c = columns_of(j->w),
                             .begin = begin,
                             .end = end,
                             .q_stride = pack_stride(j->w->k),
                             .step_stride = pack_stride(j->w->k)};
    for (int64_t t = 0; t < j->T; t += TOKENS) {
        w.T = min_i64(TOKENS, j->T - t);
        w.x = j->x + t * j->w->k;
        w.y = j->y + t * j->y_stride;
        w.q = (int8_t *)scratch;
        w.step = floats(scratch + w.T * w.q_stride);
        for (int64_t i = 0; i < w.T; i++)
            memset(w.y + i * j->y_stride + begin, 0, (size_t)(end - begin) * sizeof(float));
        if (w.c.form->bits)
            integers_run(&w);
        else
            floats_run(&w, (int32_t *)(void *)scratch);
    }
}

static const char *columns_numerics(oato_dtype dtype)
{
    const struct columns_form *f = columns_form_of(dtype);
    return !f->bits ? "f32" : f->block == 32 ? "s8b32" : "s8b16";
}

#endif
