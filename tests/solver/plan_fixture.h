/* plan_fixture.h - a model and a profile to plan with, both made up. */
#ifndef OATO_PLAN_FIXTURE_H
#define OATO_PLAN_FIXTURE_H

#include "planfmt/planfmt.h"

struct fixture_options {
    double sim_speed; /* how much faster sim:0 runs operators; 0: no sim:0 at all */
    double link_latency_ns;
    double scale;        /* of all times */
    double fused_factor; /* time of fused operators against their members; 0: not in the profile */
    bool skip_attention; /* rows of attention are missing: estimates */
};

/* Rows for every operator of the model, fused ones too, with times of a plausible machine. */
bool fixture_profile(const struct model *m, const struct fixture_options *o, struct profile *out);

#endif
