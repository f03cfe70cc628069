/*
 * json_cost.h - what reading the JSON of a request costs.
 */
#ifndef OATO_JSON_COST_H
#define OATO_JSON_COST_H

#include "base/base.h"

/* budget_spend for reading n bytes of JSON into jansson's values. */
oato_status json_afford(struct budget *b, const char *json, size_t n, struct oato_error *err);

#endif
