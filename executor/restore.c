/*
 * restore.c - see restore.h. Points are weighted by 1 / ns, because the relative error counts. The
 * regression solves its normal equations with a small ridge; the forest's trees split bootstrap
 * samples of log time where the variance falls most. All numbers are drawn from a fixed seed: the
 * same points give the same model.
 */
#include "executor/restore.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TERMS = 6, /* 1, x, y, x^2, x y, y^2 */
    POINTS_LEAST = 8,
    HELD_OUT = 4,
    TREES = 32,
    DEPTH = 5,
    NODES = 1 << (DEPTH + 1),
    LEAF_POINTS = 2,
};

#define PRIOR_NS_PER_TOKEN 1e6
#define PRIOR_NS_PER_BYTE  0.25
#define RIDGE              1e-9
#define SEEN_WEIGHT        0.1 /* of one more observation; the first ones count more */

const char *const restore_form_names[RESTORE_FORMS] = {"prior", "regression", "forest"};

struct point {
    double x, y, ns;
};

/* Node i has the children 2 i + 1 and 2 i + 2. */
struct tree {
    struct {
        int8_t term; /* that is compared; -1: a leaf */
        float below; /* goes left; of a leaf the logarithm of the time */
    } node[NODES];
};

struct way_model {
    struct restore_quality quality;
    double scale_x, scale_y; /* features are of about 1 */
    double coefficient[TERMS];
    struct tree *trees; /* TREES; NULL: no forest */
    double correction;
};

struct restore_predictor {
    struct way_model way[RESTORE_WAYS];
};

/* --------------------------------------------------------------------------------- features */

static void terms_of(const struct way_model *m, double x, double y, double t[TERMS])
{
    const double u = x / m->scale_x, v = y / m->scale_y;
    const double all[TERMS] = {1, u, v, u * u, u * v, v * v};
    memcpy(t, all, sizeof all);
}

/* ------------------------------------------------------------------------------- regression */

/* Gaussian elimination with pivoting; the matrix is positive. */
static void solve(double a[TERMS][TERMS + 1], double out[TERMS])
{
    for (int c = 0; c < TERMS; c++) {
        int best = c;
        for (int r = c + 1; r < TERMS; r++)
            if (fabs(a[r][c]) > fabs(a[best][c]))
                best = r;
        for (int k = 0; k <= TERMS; k++) {
            const double swap = a[c][k];
            a[c][k] = a[best][k];
            a[best][k] = swap;
        }
        for (int r = c + 1; r < TERMS && a[c][c] != 0; r++) {
            const double by = a[r][c] / a[c][c];
            for (int k = c; k <= TERMS; k++)
                a[r][k] -= by * a[c][k];
        }
    }
    for (int c = TERMS - 1; c >= 0; c--) {
        double sum = a[c][TERMS];
        for (int k = c + 1; k < TERMS; k++)
            sum -= a[c][k] * out[k];
        out[c] = a[c][c] != 0 ? sum / a[c][c] : 0;
    }
}

static void regression_fit(struct way_model *m, const struct point *p, int32_t n)
{
    double a[TERMS][TERMS + 1] = {{0}};
    for (int32_t i = 0; i < n; i++) {
        double t[TERMS];
        terms_of(m, p[i].x, p[i].y, t);
        for (int r = 0; r < TERMS; r++) {
            for (int c = 0; c < TERMS; c++)
                a[r][c] += t[r] * t[c] / (p[i].ns * p[i].ns);
            a[r][TERMS] += t[r] / p[i].ns;
        }
    }
    double trace = 0;
    for (int r = 0; r < TERMS; r++)
        trace += a[r][r];
    for (int r = 0; r < TERMS; r++)
        a[r][r] += RIDGE * trace;
    solve(a, m->coefficient);
}

static double regression_predict(const struct way_model *m, double x, double y)
{
    double t[TERMS], sum = 0;
    terms_of(m, x, y, t);
    for (int i = 0; i < TERMS; i++)
        sum += m->coefficient[i] * t[i];
    return fmax(sum, 1);
}

/* ----------------------------------------------------------------------------------- forest */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

struct sample {
    double t[TERMS], log_ns;
};

static double mean_of(const struct sample *s, int32_t n, double *variance)
{
    double sum = 0, square = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += s[i].log_ns;
        square += s[i].log_ns * s[i].log_ns;
    }
    *variance = square - sum * sum / n;
    return sum / n;
}

/* Moves the samples below the value to the front; returns how many. */
static int32_t partition(struct sample *s, int32_t n, int term, double below)
{
    int32_t left = 0;
    for (int32_t i = 0; i < n; i++) {
        if (s[i].t[term] >= below)
            continue;
        const struct sample swap = s[left];
        s[left++] = s[i];
        s[i] = swap;
    }
    return left;
}

static void tree_grow(struct tree *tree, int32_t node, struct sample *s, int32_t n)
{
    double variance, best = 0, best_below = 0;
    int best_term = -1;
    const double mean = mean_of(s, n, &variance);
    tree->node[node].term = -1;
    tree->node[node].below = (float)mean;
    if (2 * node + 2 >= NODES || n < 2 * LEAF_POINTS)
        return;
    for (int term = 1; term < TERMS; term++) {
        for (int32_t i = 0; i < n; i++) {
            double left, right;
            const double below = s[i].t[term];
            const int32_t at = partition(s, n, term, below);
            if (at < LEAF_POINTS || n - at < LEAF_POINTS)
                continue;
            mean_of(s, at, &left);
            mean_of(s + at, n - at, &right);
            if (variance - left - right > best + 1e-12) {
                best = variance - left - right;
                best_term = term;
                best_below = below;
            }
        }
    }
    if (best_term < 0)
        return;
    tree->node[node].term = (int8_t)best_term;
    tree->node[node].below = (float)best_below;
    const int32_t at = partition(s, n, best_term, (double)(float)best_below);
    if (at && at < n) {
        tree_grow(tree, 2 * node + 1, s, at);
        tree_grow(tree, 2 * node + 2, s + at, n - at);
    } else { /* the float has moved the border: a leaf */
        tree->node[node].term = -1;
        tree->node[node].below = (float)mean;
    }
}

static bool forest_fit(struct way_model *m, const struct point *p, int32_t n)
{
    uint64_t random = 1;
    struct sample *s = calloc((size_t)n, sizeof *s);
    struct tree *trees = calloc(TREES, sizeof *trees);
    if (!s || !trees) {
        free(s);
        free(trees);
        return false;
    }
    for (int tree = 0; tree < TREES; tree++) {
        for (int32_t i = 0; i < n; i++) {
            const struct point *from = &p[next_random(&random) % (uint32_t)n];
            terms_of(m, from->x, from->y, s[i].t);
            s[i].log_ns = log(from->ns);
        }
        tree_grow(&trees[tree], 0, s, n);
    }
    free(s);
    free(m->trees);
    m->trees = trees;
    return true;
}

static double forest_predict(const struct way_model *m, double x, double y)
{
    double t[TERMS], sum = 0;
    terms_of(m, x, y, t);
    for (int tree = 0; tree < TREES; tree++) {
        int32_t at = 0;
        while (m->trees[tree].node[at].term >= 0)
            at = 2 * at + 1 +
                 (t[m->trees[tree].node[at].term] >= (double)m->trees[tree].node[at].below);
        sum += (double)m->trees[tree].node[at].below;
    }
    return exp(sum / TREES);
}

/* ---------------------------------------------------------------------------- the predictor */

static double model_predict(const struct way_model *m, enum restore_form form, double x, double y)
{
    return form == RESTORE_FOREST       ? forest_predict(m, x, y)
           : form == RESTORE_REGRESSION ? regression_predict(m, x, y)
                                        : fmax(1, x) * m->coefficient[1];
}

static double model_error(const struct way_model *m, enum restore_form form, const struct point *p,
                          int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += fabs(model_predict(m, form, p[i].x, p[i].y) / p[i].ns - 1);
    return n ? sum / n : 0;
}

/* Fits on what is not held out, judges on what is, then fits the better form on all. */
static bool way_fit(struct way_model *m, struct point *p, int32_t n)
{
    struct restore_quality *q = &m->quality;
    q->points = n;
    if (n < POINTS_LEAST)
        return true;
    for (int32_t i = 0; i < n; i++) {
        m->scale_x = fmax(m->scale_x, p[i].x);
        m->scale_y = fmax(m->scale_y, p[i].y);
    }
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) { /* the held-out ones to the end; others keep their order */
        if (i % HELD_OUT == HELD_OUT / 2)
            continue;
        const struct point x = p[i];
        memmove(p + kept + 1, p + kept, (size_t)(i - kept) * sizeof *p);
        p[kept++] = x;
    }
    regression_fit(m, p, kept);
    if (!forest_fit(m, p, kept))
        return false;
    for (int form = RESTORE_REGRESSION; form < RESTORE_FORMS; form++)
        q->error[form] = model_error(m, (enum restore_form)form, p + kept, n - kept);
    q->form = q->error[RESTORE_FOREST] < q->error[RESTORE_REGRESSION] ? RESTORE_FOREST
                                                                      : RESTORE_REGRESSION;
    regression_fit(m, p, n);
    return q->form == RESTORE_REGRESSION || forest_fit(m, p, n);
}

struct restore_predictor *restore_create(const struct profile *p, uint64_t model,
                                         const char *devices)
{
    const int32_t most = p ? p->n_restores : 0;
    struct restore_predictor *r = calloc(1, sizeof *r);
    struct point *points = calloc((size_t)most + 1, sizeof *points);
    bool good = r && points;
    for (int way = 0; way < RESTORE_WAYS && good; way++) {
        struct way_model *m = &r->way[way];
        int32_t n = 0;
        *m = (struct way_model){.scale_x = 1, .scale_y = 1, .correction = 1};
        m->coefficient[1] = way == RESTORE_COPY ? PRIOR_NS_PER_BYTE : PRIOR_NS_PER_TOKEN;
        for (int32_t i = 0; i < most; i++) {
            const struct profile_restore *x = &p->restores[i];
            if (x->model != model || strcmp(x->devices, devices) != 0 ||
                (x->bytes > 0) != (way == RESTORE_COPY))
                continue;
            points[n++] = way == RESTORE_COPY
                              ? (struct point){(double)x->bytes, x->extents, x->median_ns}
                              : (struct point){x->tokens, x->beside, x->median_ns};
        }
        good = way_fit(m, points, n);
    }
    free(points);
    if (!good) {
        restore_free(r);
        r = NULL;
    }
    return r;
}

void restore_free(struct restore_predictor *r)
{
    for (int way = 0; way < RESTORE_WAYS && r; way++)
        free(r->way[way].trees);
    free(r);
}

double restore_predict(const struct restore_predictor *r, enum restore_way way, double x, double y)
{
    const struct way_model *m = &r->way[way];
    return m->correction * model_predict(m, m->quality.form, x, y);
}

void restore_seen(struct restore_predictor *r, enum restore_way way, double x, double y, double ns)
{
    struct way_model *m = &r->way[way];
    const double predicted = restore_predict(r, way, x, y);
    const double weight = fmax(SEEN_WEIGHT, 1.0 / (double)++m->quality.seen);
    if (!(ns > 0))
        return;
    m->quality.seen_error += weight * (fabs(predicted / ns - 1) - m->quality.seen_error);
    m->correction *= pow(ns / predicted, weight);
}

struct restore_quality restore_quality(const struct restore_predictor *r, enum restore_way way)
{
    return r->way[way].quality;
}
