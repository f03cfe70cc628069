/*
 * verbs.h - the verbs of oato-plan: main.c reads the command line into a struct command, and the
 * verbs carry it out.
 */
#ifndef OATO_VERBS_H
#define OATO_VERBS_H

#include "solver/solver.h"

/* The options of the command line, for any verb, and what a verb opens or makes: zero until then,
 * freed by command_close. */
struct command {
    const char *operands[2];
    int n_operands;
    const char *profile, *hardware, *model, *shape, *neurons, *output;
    struct model_choice choice;
    struct planner_options plan;
    double max_slower;
    int32_t steps;
    const char *svg, *trace;
    struct export_options export;
    struct export_name names[SOLVER_DEVICES];
    bool json, text_order, no_frontier, help, version;
    bool maximize_context;
    double at_least;           /* tokens/s */
    struct rank_options ranks; /* ranks 0: one process */
    uint32_t open;             /* OPEN_KV ...: not given */
    int32_t depth;             /* of the one point that is planned for */
    struct workload workload;  /* else; of show: for which to predict, if it asks, */
    bool asks;
    int32_t batch;                    /* with so many sequences; 0: as planned */
    const char *of_cluster;           /* an option that only a simulated cluster has */
    int32_t per_host;                 /* devices of a simulated cluster */
    const char *more[SOLVER_DEVICES]; /* profiles of ranks after the first */
    int n_more;
    /* The model, the profile and the neurons; NULL if not given. */
    struct {
        struct model *model;
        struct profile *profile, profile_storage, more[SOLVER_DEVICES];
        struct neurons *neurons, neurons_storage;
    } in;
    struct plan the_plan; /* that is read or made */
    struct text file;     /* output for elsewhere than stdout */
};

/* answers.c: refused, each with a hint; the last one is empty. */
enum { PLAN_ANSWERS = 64 };
extern const struct option_row plan_answers[PLAN_ANSWERS];

/* True when a profile or a library machine is given; a file or a shape of a model. */
bool names_machine(const struct command *c);
bool names_model(const struct command *c);
void command_close(struct command *c);

/* verbs.c, for the verbs: open what the command names, at least the model and the machine, or the
 * plan; whether prices are those of ranks; write c->file; warn when prices come from a busy
 * machine (p may be NULL). */
oato_status open_inputs(struct command *c, struct oato_error *err);
oato_status open_plan(struct command *c, struct oato_error *err);
bool prices_ranks(const struct command *c);
oato_status save_file(const struct command *c, const char *path, struct oato_error *err);
void warn_if_disturbed(const struct problem *p);

/* shapes.c: whether the shape asked for is the list of them; the model of c->shape; the list. */
bool asks_for_shapes(const struct command *c);
oato_status open_shape(const struct command *c, struct model **out, struct oato_error *err);
oato_status list_shapes(bool json, struct text *out, struct oato_error *err);

/* Runs a verb; its output for stdout goes to out. */
typedef oato_status run_fn(struct command *c, struct text *out, struct oato_error *err);
run_fn run_make, run_frontier, run_header, run_import;
run_fn run_show, run_explain, run_diff, run_check, run_export, run_simulate, run_report;

/* header_url.c: a model without data, of which only the headers are fetched. */
oato_status header_of_url(const char *url, struct model **out, struct oato_error *err);

#endif
