/*
 * grammar.h - text that must follow a grammar: GBNF, llama.cpp's notation, or a JSON schema. A
 * grammar is compiled once; a state follows one text through it and tells which bytes and tokens
 * may come next.
 *
 * grammar_parse or grammar_of_schema -> grammar_state_create -> sampler_constrain with
 * grammar_constraint. Text counts as UTF-8: what is not never matches. Nothing here is shared
 * between threads, except that several states may follow one grammar and one vocabulary.
 */
#ifndef OATO_GRAMMAR_H
#define OATO_GRAMMAR_H

#include "text/sampler.h"

struct grammar;       /* opaque, as all of these */
struct grammar_vocab; /* the tokens of a tokenizer, sorted by their text */
struct grammar_state;

/* n bytes of GBNF, from its rule `root` on: all that llama.cpp documents but tokens in angle
 * brackets. OATO_EUSAGE names the line: syntax, a rule that is missing, defined twice or begins
 * with itself (left recursion), a grammar of more than a million symbols, or of more work or memory
 * than `budget` has (NULL: no limits), here and below. */
oato_status grammar_parse(const char *gbnf, size_t n, struct budget *budget, struct grammar **out,
                          struct oato_error *err);
/* n bytes of a JSON schema (draft 2020-12 or 7). Every text that the grammar allows is a JSON
 * document that the schema accepts, except that oneOf counts as anyOf; not the other way round:
 * objects have the listed properties in the listed order, and others only where the schema has an
 * additionalProperties that is not false, or lists no `properties`. Formats are remarks; those that
 * are known are kept where they are a text's only limit. OATO_EUSAGE names a keyword that is not
 * supported. */
oato_status grammar_of_schema(const char *json, size_t n, struct budget *budget,
                              struct grammar **out, struct oato_error *err);
/* The same of a value of jansson's. */
struct json_t;
oato_status grammar_of_json(const struct json_t *schema, struct budget *budget,
                            struct grammar **out, struct oato_error *err);
/* JSON that a schema accepts, between two texts. */
struct grammar_piece {
    const char *before, *schema, *after;
    const char *name; /* of the tool, for messages */
};
/* One of the pieces, or with `more` one or more of them. */
oato_status grammar_of_pieces(const struct grammar_piece *pieces, size_t n, bool more,
                              struct budget *budget, struct grammar **out, struct oato_error *err);
/* The GBNF of a JSON schema, appended to out. */
oato_status grammar_schema_gbnf(const char *json, size_t n, struct budget *budget, struct text *out,
                                struct oato_error *err);
void grammar_free(struct grammar *g);

/* The tokenizer is borrowed until grammar_vocab_free. */
oato_status grammar_vocab_create(const struct tokenizer *t, struct grammar_vocab **out,
                                 struct oato_error *err);
void grammar_vocab_free(struct grammar_vocab *v);

/* At the beginning of a text. Both are borrowed until grammar_state_free; without a vocabulary
 * (NULL) only the functions of bytes work. The budget (copied; NULL: no limits) is what is left of
 * the request's: its bytes for the tables, of at most 16 MiB, and its steps for all that is asked.
 * Each token of the text gives back some steps, several times as many as it takes in grammars that
 * people write, so that the length of a text is not limited. When they are spent everything is
 * refused: grammar_state_error. */
oato_status grammar_state_create(const struct grammar *g, const struct grammar_vocab *v,
                                 const struct budget *budget, struct grammar_state **out,
                                 struct oato_error *err);
/* A second state at the same place of the text. */
oato_status grammar_state_clone(const struct grammar_state *s, struct grammar_state **out,
                                struct oato_error *err);
void grammar_state_free(struct grammar_state *s);

/* Steps of the budget that it has used so far. */
uint64_t grammar_state_used(const struct grammar_state *s);
/* From now on its tables take at most so many bytes. */
void grammar_state_bytes(struct grammar_state *s, size_t bytes);
/* Why the text cannot go on, though the grammar goes on: the budget is spent, or what may follow
 * needs more readings or nested rules than are followed. NULL: it can. Borrowed from s. */
const struct oato_error *grammar_state_error(struct grammar_state *s);

/* May the text go on with these bytes, and then somehow to its end? What would need more than 1,000
 * nested rules or 4,096 readings of the text at once counts as not allowed, so that memory (some
 * MiB) and time are bounded whatever the grammar and the text. */
bool grammar_allows(struct grammar_state *s, const char *bytes, size_t n);
/* Appends them to the text. False, and the text stays as it is, when they are not allowed. */
bool grammar_accept(struct grammar_state *s, const char *bytes, size_t n);
/* May the text end here? */
bool grammar_complete(const struct grammar_state *s);

/* The same of tokens. A token that ends an answer is allowed where the text may end; one without
 * text, as most control tokens are, never. */
bool grammar_allows_token(struct grammar_state *s, int32_t id);
bool grammar_accept_token(struct grammar_state *s, int32_t id);
/* All allowed tokens, of tokenizer_size bits: bit id % 64 of word id / 64. Where none is allowed,
 * the tokens that end an answer are set, complete or not. Goes on with it for about so many steps:
 * MASK_MORE and *bits NULL when that was not enough, and the next call goes on. MASK_FAILED:
 * grammar_state_error. Valid until the next call on s. */
enum sampler_mask grammar_mask(struct grammar_state *s, uint64_t steps, const uint64_t **bits);
/* For sampler_constrain; s is borrowed while the sampler uses it. The sampler's vocabulary must not
 * be larger than the tokenizer's. */
struct sampler_constraint grammar_constraint(struct grammar_state *s);

#endif
