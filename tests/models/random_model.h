/*
 * random_model.h - models made of random weights, for tests that need a model of some shape but
 * not its knowledge. The same description gives the same bytes on every machine, however the file
 * is split. Used by oato-make-model and, as a library, by tests of every room.
 */
#ifndef OATO_RANDOM_MODEL_H
#define OATO_RANDOM_MODEL_H

#include "models/models.h"

struct random_model {
    const char *architecture; /* any that oato runs */
    int64_t layers, width, ffn, heads, kv_heads, vocab, context;
    int64_t head_dim;              /* 0: width / heads */
    int64_t experts, experts_used; /* of ffn neurons each */
    const char *keys; /* "KEY=VALUE ...", more keys of the architecture or in place of the above:
                         "attention.sliding_window=512 rope.freq_base=1e6"; NULL: none */
    const char *optional;  /* words: optional tensors with one in their name are made; NULL: none */
    const char *title;     /* general.name; NULL: "random" */
    const char *plain;     /* as of a shape; NULL: none */
    oato_dtype least_v;    /* as of a shape */
    oato_dtype dtype;      /* of matrices; rows that are no whole blocks get a smaller block */
    const struct mix *mix; /* types as in a file that llama-quantize makes; NULL: dtype */
    uint64_t seed;
    bool tied;        /* the embedding is the output matrix too */
    bool header_only; /* shapes without data */
    bool tokenizer;   /* with a byte-level vocabulary, merges and a ChatML template */
    int64_t parts;    /* files; more than one: NAME-00001-of-00003.gguf and so on */
};

/* Sets the types of matrices by a name as --type takes it: "Q4_0" for all of them, or that of a
 * mix, "Q4_K_M". */
bool random_model_set_type(struct random_model *m, const char *name);
/* Takes over architecture and sizes of a shape by its name as --shape has it, "8b", "qwen3-8b", and
 * the types of "qwen3-8b:Q4_0" as of a file: shapes of tests (tests/models/shapes) and those of
 * models/shapes. False: there is none. Its texts live as long as the program. */
bool random_model_set_shape(struct random_model *m, const char *name);
/* All that a header says of it. */
struct shape_spec random_model_shape(const struct random_model *m);
int64_t random_model_head_dim(const struct random_model *m);
/* A model of 2 layers that runs in a moment. */
struct random_model random_model_default(void);
/* OATO_EUSAGE when the shape is no model's. */
oato_status random_model_save(const struct random_model *m, const char *path,
                              struct oato_error *err);

/* Saves it under a name of its own, opens it and removes the file; the mapping stays. */
oato_status random_model_open(const struct random_model *m, struct model **out,
                              struct oato_error *err);

/* The same in pieces. */
enum { RANDOM_VOCAB_LEAST = 259 }; /* 3 control tokens and 256 bytes */
/* Adds tokenizer.* for a vocabulary of `size` tokens. */
void random_vocab_add(struct gguf_writer *w, int64_t size);

#endif
