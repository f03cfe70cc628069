/*
 * restore.h - predicts what it takes to bring back a sequence whose KV was given away: by computing
 * it again, or by copying it from host memory. From measured points (planfmt, struct
 * profile_restore), for each way the better of two models on points held out: a regression of
 * degree 2 and a forest of regression trees on the same features (AdaptiveLLM, sec. 4.1). What is
 * seen later corrects the prediction.
 */
#ifndef OATO_RESTORE_H
#define OATO_RESTORE_H

#include "planfmt/planfmt.h"

enum restore_way { RESTORE_COMPUTE, RESTORE_COPY, RESTORE_WAYS };
enum restore_form { RESTORE_PRIOR, RESTORE_REGRESSION, RESTORE_FOREST, RESTORE_FORMS };
extern const char *const restore_form_names[RESTORE_FORMS];

struct restore_predictor;
/* From the points of a model on devices (as in struct profile_restore); with fewer than 8 of a way,
 * or p NULL, of that way only a prior: proportional, until something is seen. NULL: memory is
 * short.
 */
struct restore_predictor *restore_create(const struct profile *p, uint64_t model,
                                         const char *devices);
void restore_free(struct restore_predictor *r);
/* Nanoseconds. Way COMPUTE: x = tokens, y = sequences beside; COPY, out and in: x = bytes one way,
 * y = extents. */
double restore_predict(const struct restore_predictor *r, enum restore_way way, double x, double y);
/* It took so long: later predictions follow. */
void restore_seen(struct restore_predictor *r, enum restore_way way, double x, double y, double ns);

struct restore_quality {
    enum restore_form form;
    int32_t points; /* measured, of which every fourth is held out */
    /* mean |predicted / true - 1| on the held-out ones, by form; 0: not known */
    double error[RESTORE_FORMS];
    int64_t seen;
    double seen_error; /* the same for what was seen later, old ones count less */
};
struct restore_quality restore_quality(const struct restore_predictor *r, enum restore_way way);

#endif
