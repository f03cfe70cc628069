/*
 * verbs.h - the verbs of oato-plan: main.c reads the command line into a struct command, and the
 * verbs (verbs_make.c, verbs_plan.c, verbs_file.c) carry it out.
 */
#ifndef OATO_VERBS_H
#define OATO_VERBS_H

#include "solver/solver.h"

/* The options of the command line, for any verb. */
struct command {
    const char *operands[3];
    int n_operands;
    const char *profile, *hardware, *model, *neurons, *output;
    struct planner_options plan;
    double max_slower;
    int32_t steps;
    const char *svg, *trace;
    struct export_options export;
    struct export_name names[SOLVER_DEVICES];
    bool json, text_order, no_frontier;
    bool maximize_context;
    double at_least; /* tokens/s */
};

/* The model, the profile and the neurons; NULL if not given. */
struct inputs {
    struct model *model;
    struct profile *profile, storage;
    struct neurons *neurons, neurons_storage;
};

/* True when a profile or a library machine is given. */
bool names_machine(const struct command *c);
oato_status inputs_open(const struct command *c, struct inputs *in, struct oato_error *err);
void inputs_close(struct inputs *in);
/* Opens the plan given by the first operand, and the inputs. */
oato_status plan_inputs_open(const struct command *c, struct plan *plan, struct inputs *in,
                             struct oato_error *err);
void plan_inputs_close(struct plan *plan, struct inputs *in);
/* Warns on stderr when prices come from a busy machine; p may be NULL. */
void warn_if_disturbed(const struct problem *p);
/* Writes the file whole or not at all. */
oato_status save_text(const char *path, const struct text *t, struct oato_error *err);

/* Runs a verb; its output for stdout goes to out. */
typedef oato_status run_fn(struct command *c, struct text *out, struct oato_error *err);
run_fn run_make, run_frontier;                                 /* verbs_make.c */
run_fn run_show, run_explain, run_diff, run_check, run_export; /* verbs_plan.c */
run_fn run_simulate, run_report;                               /* verbs_plan.c */
run_fn run_header, run_import;                                 /* verbs_file.c */

#endif
