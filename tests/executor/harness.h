/*
 * harness.h - what the tests of the engine share: tiny random models, plans with given or random
 * placements, and logits of token sequences.
 */
#ifndef OATO_EXECUTOR_HARNESS_H
#define OATO_EXECUTOR_HARNESS_H

#include "executor/executor.h"
#include "tests/models/random_model.h"
#include "tests/random.h"

#include <string.h>

/* A model of 3 layers, width 128, with row counts that are multiples of 64; removed from disk at
 * once (the mapping stays). */
struct model *tiny_model(oato_dtype dtype, uint64_t seed);
/* The same of another architecture than llama; qwen3moe with 8 experts, 3 used. With recurrent
 * state: lfm2, qwen35, granitehybrid, mamba. */
struct model *tiny_model_of(const char *architecture, oato_dtype dtype, uint64_t seed);
/* And with those keys (random_model.h). */
struct model *tiny_model_with(const char *architecture, const char *keys, oato_dtype dtype,
                              uint64_t seed);
/* tiny_model with ReLU. */
struct model *relu_model(oato_dtype dtype);
/* Gives all layers but the last one random predictors of active neurons. */
void add_predictors(struct neurons *n, const struct model *m);
/* A sidecar with nothing else. */
void predictors_init(struct neurons *n, const struct model *m);
/* Above which score they name a neuron; at first 0. */
void predictors_limit(struct neurons *n, float threshold);
void fill_ids(int32_t *ids, int32_t n, int32_t vocab, uint64_t seed);

/* Devices: cpu:0 and `sims` of the given memory each. */
void plan_begin(struct plan *p, const struct model *m, int sims, const char *sim_spec);
/* Fuses every match, as the engine does without a plan. */
void plan_fuse_all(struct plan *p, const struct model *m, struct graph *fused);
/* Puts every operator of `fused` on a random device, products in row parts now and then; KV goes
 * with its layer's attention. Both phases alike. */
void plan_place_randomly(struct plan *p, const struct graph *fused, struct random *r);
bool gpu_is_there(void); /* a real or an emulated one */
/* plan_begin with cuda:0 beside the host, and plan_fuse_all. */
void plan_begin_gpu(struct plan *p, const struct model *m, struct graph *fused);
/* All of the model on that; its matrices have their home there or with the host. */
void plan_on_gpu(struct plan *p, const struct graph *g, bool streams);
void plan_add_part(struct plan *p, const char *op, int64_t begin, int64_t end, int32_t device);
/* All n rows: on the host in prefill, on the first device in decode. */
void plan_add_moving(struct plan *p, const char *op, int64_t n);

/* What --sparse reads; NULL: as without it. */
struct sparse_choice sparse_of(const char *text);
struct engine *open_engine(const struct model *m, const struct plan *p,
                           struct engine_options options);
/* Logits of all n tokens fed to a new sequence, malloc'ed; the sequence is freed. */
float *logits_of(struct engine *e, const int32_t *ids, int32_t n);
void assert_same_bits(const float *a, const float *b, size_t n);
/* Mean square of the difference relative to that of b. */
double nmse(const float *a, const float *b, size_t n);
/* The n candidates are the first ones of the row in falling order, of equal ones by id. */
void assert_candidates(const float *candidates, int32_t n, const float *row, int32_t vocab);

/* The engine refuses the plan with the status and one line that has the words. */
void expect_refused(const struct model *m, const struct plan *p,
                    const struct engine_options *options, oato_status status, const char *what);

#endif
