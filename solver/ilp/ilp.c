/*
 * ilp.c - the exact solver: runs GLPK silently and never returns less than the placement it was
 * given. The bound it reports is that of the best open node, so that plans
 * can state their maximum distance from the optimum.
 */
#include "solver/ilp/ilp_internal.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <string.h>

static const double OBJECTIVE_SIZE = 1e4; /* far above GLPK's tolerance of 1e-7 */
/* GLPK calls its error hook and then abort() when memory is short. */
static void on_glpk_error(void *home)
{
    longjmp(*(jmp_buf *)home, 1);
}

static int on_glpk_text(void *user, const char *text)
{
    (void)user;
    (void)text;
    return 1; /* nobody's business */
}

static void mip_free(struct mip *m)
{
    if (m->lp)
        glp_delete_prob(m->lp);
    memset(m, 0, sizeof *m);
}

oato_status ilp_guarded(ilp_run *run, void *search, struct mip *m, struct oato_error *err)
{
    jmp_buf home;
    if (glp_init_env() > 1)
        return oato_fail_memory(err, sizeof home, "the ILP");
    if (setjmp(home)) {
        glp_free_env(); /* all that GLPK may still be asked for */
        m->lp = NULL;
        return oato_fail_memory(err, sizeof home, "the ILP");
    }
    glp_term_hook(on_glpk_text, NULL);
    glp_error_hook(on_glpk_error, &home);
    const oato_status status = run(search, err);
    mip_free(m);
    glp_free_env();
    return status;
}

void mip_init(struct mip *m, int64_t typical_ns)
{
    mip_free(m);
    glp_term_out(GLP_OFF);
    m->lp = glp_create_prob();
    glp_set_obj_dir(m->lp, GLP_MIN);
    m->scale = OBJECTIVE_SIZE / (double)typical_ns;
}

static const struct {
    int kind, bounds; /* GLPK's; bounds of 0 and, if it is bounded above, 1 */
} column_kinds[] = {[MIP_SHARE] = {GLP_CV, GLP_DB},
                    [MIP_FLOW] = {GLP_CV, GLP_LO},
                    [MIP_BINARY] = {GLP_IV, GLP_DB},
                    [MIP_COUNT] = {GLP_IV, GLP_LO}};

int mip_column(struct mip *m, enum mip_kind kind, int64_t cost_ns)
{
    int j = glp_add_cols(m->lp, 1);
    glp_set_col_kind(m->lp, j, column_kinds[kind].kind);
    glp_set_col_bnds(m->lp, j, column_kinds[kind].bounds, 0, 1);
    glp_set_obj_coef(m->lp, j, (double)cost_ns * m->scale);
    return j;
}

int mip_row(struct mip *m, int kind, double lo, double hi)
{
    int i = glp_add_rows(m->lp, 1);
    glp_set_row_bnds(m->lp, i, kind, lo, hi);
    return i;
}

bool mip_complete(const struct mip *m, struct arena *a, double *value)
{
    const size_t most = (size_t)glp_get_num_cols(m->lp) + 1;
    int *columns = arena_alloc(a, most, sizeof *columns);
    double *factors = arena_alloc(a, most, sizeof *factors);
    for (int i = 1; columns && factors && i <= glp_get_num_rows(m->lp); i++) {
        double demand = -glp_get_row_ub(m->lp, i);
        int other = 0; /* collects what concerns binary columns only */
        for (int k = glp_get_mat_row(m->lp, i, columns, factors); k > 0; k--) {
            if (glp_get_col_kind(m->lp, columns[k]) == GLP_BV)
                demand += factors[k] * value[columns[k]];
            else
                other = columns[k];
        }
        value[other] = fmax(value[other], demand);
    }
    value[0] = 0;
    return columns && factors;
}

/* A little less than GLPK says, for what rounding inside it may have added; up to whole
 * nanoseconds, as all placements take. */
static int64_t bound_in_ns(const struct mip *m, double objective)
{
    return (int64_t)ceil(objective / m->scale * (1 - 1e-9));
}

struct watch {
    const struct mip *mip;
    struct ilp_clock *clock;
    const double *warm;
    double bound;
};

/* Branches on the most fractional of the preferred columns. */
static void branch(glp_tree *tree, const struct mip *m)
{
    int best = 0;
    double most = 0;
    for (int j = m->branch_first; j < m->branch_end; j++) {
        if (!glp_ios_can_branch(tree, j))
            continue;
        double x = glp_get_col_prim(glp_ios_get_prob(tree), j), part = fabs(x - nearbyint(x));
        if (part > most) {
            most = part;
            best = j;
        }
    }
    if (best)
        glp_ios_branch_upon(tree, best, GLP_NO_BRNCH);
}

static void on_node(glp_tree *tree, void *user)
{
    struct watch *w = user;
    int best = glp_ios_best_node(tree);
    if (best)
        w->bound = glp_ios_node_bound(tree, best);
    if (glp_ios_reason(tree) == GLP_IHEUR && w->warm) {
        glp_ios_heur_sol(tree, w->warm);
        w->warm = NULL;
    }
    if (glp_ios_reason(tree) == GLP_IBRANCH)
        branch(tree, w->mip);
    if (ilp_late(w->clock))
        glp_ios_terminate(tree);
}

uint64_t ilp_deadline(double seconds)
{
    return seconds > 0 ? now_ns() + (uint64_t)fmin(seconds * 1e9, 1e18) : 0;
}

uint64_t ilp_share(uint64_t deadline_ns, int32_t of)
{
    const uint64_t now = now_ns();
    return deadline_ns > now ? now + (deadline_ns - now) / (uint64_t)of : deadline_ns;
}

uint64_t ilp_most(uint64_t deadline_ns)
{
    const uint64_t now = now_ns();
    return deadline_ns > now ? now + (deadline_ns - now) / 4 * 3 : deadline_ns;
}

uint64_t ilp_sooner(uint64_t a, uint64_t b)
{
    return !a || (b && b < a) ? b : a;
}

bool ilp_late(struct ilp_clock *c)
{
    const bool late = c->deadline_ns && now_ns() >= c->deadline_ns;
    c->ended = c->ended || late;
    return late;
}

oato_status ilp_ended(struct ilp_clock *c, struct oato_error *err)
{
    c->ended = true;
    return oato_fail(err, OATO_NEGATIVE,
                     "no placement that fits was found in time; raise --time-limit");
}

/* What is left, as GLPK takes it. */
static int limit_ms(const struct ilp_clock *c)
{
    const uint64_t now = now_ns();
    if (!c->deadline_ns)
        return INT_MAX;
    return now < c->deadline_ns ? (int)fmin((double)(c->deadline_ns - now) / 1e6 + 1, 1e9) : 0;
}

oato_status mip_relax(struct mip *m, struct ilp_clock *clock, struct ilp_result *result,
                      struct oato_error *err)
{
    glp_smcp simplex;
    result->bound_ns = 0;
    glp_init_smcp(&simplex);
    simplex.msg_lev = GLP_MSG_OFF;
    simplex.tm_lim = limit_ms(clock);
    if (!m->started)
        glp_adv_basis(m->lp, 0);
    m->started = true;
    int code = glp_simplex(m->lp, &simplex);
    if (code == GLP_ETMLIM)
        return ilp_ended(clock, err);
    if (code)
        return oato_fail(err, OATO_NEGATIVE, "GLPK gave up on the relaxation (code %d)", code);
    if (glp_get_status(m->lp) != GLP_OPT) {
        result->bound_ns = glp_get_status(m->lp) == GLP_NOFEAS ? INT64_MAX : 0;
        return oato_fail(err, OATO_NEGATIVE, "no placement fits");
    }
    result->bound_ns = bound_in_ns(m, glp_get_obj_val(m->lp));
    return OATO_OK;
}

oato_status mip_search(struct mip *m, double gap, struct ilp_clock *clock, const double *warm,
                       struct ilp_result *result, struct oato_error *err)
{
    struct watch watch = {.mip = m, .clock = clock, .warm = warm, .bound = glp_get_obj_val(m->lp)};
    glp_iocp search;
    glp_init_iocp(&search);
    search.msg_lev = GLP_MSG_OFF;
    search.presolve = GLP_OFF;
    search.mip_gap = gap;
    search.mir_cuts = GLP_ON; /* the other cuts do not help here */
    search.cb_func = on_node;
    search.cb_info = &watch;
    search.tm_lim = limit_ms(clock);
    int code = glp_intopt(m->lp, &search);
    const bool ended = code == GLP_ETMLIM || code == GLP_ESTOP;
    clock->ended = clock->ended || ended;
    int found = glp_mip_status(m->lp);
    if (code == 0 && found == GLP_OPT) /* nothing is left open */
        watch.bound = glp_mip_obj_val(m->lp);
    result->bound_ns = max_i64(result->bound_ns, bound_in_ns(m, watch.bound));
    if (code && code != GLP_EMIPGAP && !ended)
        return oato_fail(err, OATO_NEGATIVE, "GLPK gave up on the ILP (code %d)", code);
    if (found == GLP_OPT || found == GLP_FEAS)
        return OATO_OK;
    if (ended)
        return ilp_ended(clock, err);
    return oato_fail(err, OATO_NEGATIVE, "no placement fits");
}
