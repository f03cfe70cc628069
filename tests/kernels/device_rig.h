/*
 * device_rig.h - small programs for tests, put together record by record on one device: values are
 * numbered slots of its arena, weights are random by a seed that is the same on every device. A
 * failure ends the test.
 */
#ifndef OATO_TESTS_DEVICE_RIG_H
#define OATO_TESTS_DEVICE_RIG_H

#include "kernels/device.h"

enum {
    RIG_TOKENS = 8, /* of a step, at most */
    RIG_ROWS = 4,
    RIG_WIDTH = 256, /* of a value, at most */
    RIG_VALUES = 24,
    RIG_RECORDS = 24,
    RIG_WEIGHTS = 16,
    RIG_VOCABULARY = 96,
    RIG_STEPS = 512,                            /* of rig_submit_beside in all */
    RIG_LOGITS = 3 * RIG_ROWS * RIG_VOCABULARY, /* what rig_run_layer gives */
};

struct rig {
    struct oato_device *d; /* NULL: closed already */
    struct program p;
    struct program_record records[RIG_RECORDS];
    struct oato_weight *weights[RIG_WEIGHTS];
    void *host_arena; /* own memory until compiled beside a host device */
    struct compiled *c;
    struct program_peer peers[DEVICES_MAX];
    struct timeline *timelines[2]; /* of the step: devices 0 and 1 */
    uint64_t bases[2];             /* of the next step */
    struct {
        struct step step;
        struct timeline *timelines[2];
        uint64_t bases[2];
    } pending[RIG_STEPS]; /* of rig_submit_beside */
    int submitted, self;
};

struct oato_device *rig_open(const char *spec);
struct rig *rig_create(const char *spec, int self);
void rig_free(struct rig *g);

/* Weights; the index of the new one. Rows [begin, end) of n x k. */
int rig_matrix(struct rig *g, int k, int n, int begin, int end, uint32_t seed); /* Q8_0 */
int rig_f32_matrix(struct rig *g, int k, int n, uint32_t seed);
int rig_lookup(struct rig *g, int k, int n, uint32_t seed); /* Q8_0 */
int rig_vector(struct rig *g, int k, uint32_t seed);
/* One that is streamed to staging + offset. */
int rig_stage(struct rig *g, const struct weight_source *s, void *staging, uint64_t offset);
void rig_kv(struct rig *g, const struct kv_layer_shape *layers, int n, oato_dtype dtype, int pages);

/* Records. in and out are values, weights (NULL: none) as many as the operator takes. */
struct program_record *rig_put(struct rig *g, const char *key, int n_in, const int *in, int n_out,
                               const int *out, const int *weights);
/* Between value `from` and value `to` of the two arenas. */
struct program_record *rig_put_copy(struct rig *g, enum record_kind kind, int width, int from,
                                    int to);
/* From a value of another device. */
struct program_record *rig_put_peer(struct rig *g, const struct rig *other, int width, int from,
                                    int to);
struct program_record *rig_put_stream(struct rig *g, int weight);
void rig_wait(struct program_record *r, int device, uint32_t ordinal);
/* Fills in what the records imply and gives the program. */
const struct program *rig_program(struct rig *g);
/* Copies go to the arena of host, or to memory of its own. */
void rig_compile(struct rig *g, struct rig *host);

void rig_random(float *out, size_t n, uint32_t seed); /* in -1 .. 1 */
void rig_write(struct rig *g, int value, const float *from, size_t bytes);
void rig_read(struct rig *g, int value, float *to, size_t bytes);

/* Two devices that reach each other: a product on the first, what it gives on the second and back,
 * again and again, is what one device gives. */
void rig_run_peers(struct rig *const g[2], struct rig *alone);

/* Runs one step on n devices, the host first in the list and last to start, and waits. */
void rig_step(struct rig *const *g, int n, struct step *step);
/* For one device, of index 1, beside a device 0 that the test plays: the next step with its
 * timelines, as a copy; putting it on the queue; and waiting for it, too. */
struct step *rig_step_begin(struct rig *g, struct timeline *other, const struct step *step);
void rig_submit_beside(struct rig *g, struct timeline *other, const struct step *step);
void rig_step_beside(struct rig *g, struct timeline *other, const struct step *step);

/* A transformer layer with every operator of a graph: a prompt, one more token, and a fork of the
 * sequence after its pages were copied. Logits of the last rows of the three steps. */
void rig_run_layer(const char *spec, int prompt, float logits[RIG_LOGITS]);

#endif
