/*
 * tokens_internal.h - what the files of the tokenizer share.
 *
 * A tokenizer works on plain bytes: loading replaces the GPT-2 alphabet of byte-level BPE and the
 * U+2581 of SentencePiece by the bytes they stand for, so that a token's bytes are both what
 * encoding looks up and what decoding prints.
 */
#ifndef OATO_TOKENS_INTERNAL_H
#define OATO_TOKENS_INTERNAL_H

#include "text/text.h"

/* The numbers are those of tokenizer.ggml.token_type. */
enum token_type {
    TOKEN_UNDEFINED,
    TOKEN_NORMAL,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE,
};

struct token {
    const char *bytes; /* as decoded; control and user-defined tokens: as written */
    uint32_t len;
    float score; /* never NaN */
    uint8_t type;
    bool end;          /* ends a generation */
    bool strips_right; /* white space after it belongs to it (Phi-3) */
};

/* Bytes -> id, open addressing. Keys are the bytes of tokens. */
struct piece_slot {
    uint32_t tag;
    int32_t id; /* -1: empty */
};

struct piece_map {
    struct piece_slot *slots;
    size_t mask;
    uint32_t longest; /* key, bytes */
};

/* (left id, right id) -> the merged token, open addressing. */
struct pair_slot {
    uint64_t key; /* left << 32 | right */
    uint32_t rank;
    int32_t id; /* -1: empty */
};

struct pair_map {
    struct pair_slot *slots;
    size_t mask;
};

/* Tokens sorted by their bytes; see tokenizer_prefix.c. */
struct prefix {
    int32_t id;
    int32_t shorter; /* the longest other one in the list that begins this one; -1: none */
};

struct charsmap {
    const uint32_t *units; /* a double array of n_units; see tokenizer_unigram.c */
    size_t n_units;
    const char *texts; /* n_texts bytes, of which the last is 0 */
    size_t n_texts;
};

struct prefix_list {
    struct prefix *items;
    int32_t n;
    int32_t ends[256]; /* where the tokens that begin with a byte end */
};

enum tokenizer_kind {
    TOKENIZER_BPE,
    TOKENIZER_SPM,
    TOKENIZER_RAW_BPE,
    TOKENIZER_WORDPIECE,
    TOKENIZER_UNIGRAM,
};

struct encode_work;
struct id_list;
/* Encodes text without special tokens inside. after_special: it stands at the begin or behind a
 * special token. */
typedef oato_status encode_fn(const struct tokenizer *t, struct encode_work *w, const char *text,
                              size_t n, bool after_special, struct id_list *out,
                              struct oato_error *err);

struct tokenizer {
    struct arena arena;
    enum tokenizer_kind kind;
    encode_fn *encode;
    struct token *tokens;
    int32_t n_tokens;
    int32_t bos, eos, unknown; /* -1: none */
    bool add_bos, add_eos, add_space_prefix, ignore_merges;

    struct piece_map pieces; /* what merging can produce */
    int32_t byte_id[256];    /* -1: the vocabulary has no token for this byte */

    /* Control and user-defined tokens, searched for in the text before anything else. */
    struct prefix_list specials;
    uint8_t special_begin[256]; /* enum special_kind bits of the tokens that begin with a byte */

    struct pair_map merges;            /* both kinds of BPE */
    struct pretokenizer *pretokenizer; /* byte-level BPE */
    bool lowercase, strip_accents;     /* WordPiece */
    struct prefix_list normal;         /* unigram: tokens that have a score */
    struct charsmap charsmap;
    float unknown_score;
    bool merge_spaces;
};

enum special_kind { SPECIAL_USER = 1, SPECIAL_CONTROL = 2 };

/* ------------------------------------------------------------------------------- lists ---- */

struct id_list {
    int32_t *ids;
    size_t n, cap;
    bool failed; /* memory was short */
};

void id_list_push(struct id_list *l, int32_t id);

/* Ends of the pieces that a text was cut into. */
struct span_list {
    uint32_t *ends;
    size_t n, cap;
    bool failed;
};

/* -------------------------------------------------------------------- tokenizer_merge.c --- */

/* A power of two that leaves a map of count keys (at most 2^31) at most two thirds full. */
size_t map_capacity(size_t count);
bool piece_map_init(struct piece_map *m, struct arena *a, size_t count);
/* False when a token with the same bytes is already in the map; that one stays. */
bool piece_map_add(struct piece_map *m, const struct token *tokens, int32_t id);
int32_t piece_map_find(const struct piece_map *m, const struct token *tokens, const char *bytes,
                       size_t len); /* -1: not found */

/* A piece of the text during merging; a linked list in text order. */
struct symbol {
    int32_t prev, next;   /* -1: none */
    uint32_t offset, len; /* len 0: merged into its left neighbour */
    int32_t id;           /* -1: no token has these bytes */
};

struct merge_candidate {
    uint64_t order; /* priority << 32 | left; the lowest goes first */
    int32_t right, id;
    uint32_t len; /* sum of both when found: a change means that the candidate is stale */
};

struct merge_work {
    struct symbol *symbols;       /* room for cap */
    struct merge_candidate *heap; /* and for twice as many */
    size_t n_symbols, n_heap, cap;
};

/* Whether two neighbours may merge, how early (lower first) and to which token. */
typedef bool merge_find_fn(const struct tokenizer *t, const char *text, const struct symbol *left,
                           const struct symbol *right, uint32_t *priority, int32_t *id);

/* Room for n symbols; false when memory is short. Empties the list. */
bool merge_reserve(struct merge_work *w, size_t n);
void merge_add(struct merge_work *w, uint32_t offset, uint32_t len, int32_t id);
/* Merges until nothing can be merged; the result is the list that starts at symbol 0. */
void merge_run(struct merge_work *w, const struct tokenizer *t, const char *text,
               merge_find_fn *find);
void merge_free(struct merge_work *w);

/* ------------------------------------------------------------------- tokenizer_prefix.c --- */

typedef bool prefix_filter_fn(const struct token *k);
/* Of tokens with the same bytes the list has the first. */
oato_status prefix_list_build(struct prefix_list *l, struct tokenizer *t, prefix_filter_fn *wanted,
                              struct oato_error *err);
/* The item from which on, along `shorter`, all tokens that the text (n > 0) begins with are found:
 * those of at most *same bytes. -1: none. */
int32_t prefix_list_find(const struct prefix_list *l, const struct token *tokens, const char *text,
                         size_t n, size_t *same);

/* -------------------------------------------------- pretokenize.c, pretokenize_rows.c --- */

struct pretokenizer;

/* Settings that belong to the pre-tokeniser's regular expressions. */
struct pretokenizer_traits {
    bool ignore_merges; /* a piece that is itself a token is not merged from parts */
    bool add_bos;       /* unless the file says otherwise */
    bool cuts_before;   /* a match begins a piece, but its end does not end one */
};

enum { PRETOKENIZER_NAMES = 20, PRETOKENIZER_EXPRESSIONS = 6 };

struct pretokenizer_row {
    const char *names[PRETOKENIZER_NAMES + 1]; /* values of tokenizer.ggml.pre */
    const char *expressions[PRETOKENIZER_EXPRESSIONS + 1];
    struct pretokenizer_traits traits;
};
extern const struct pretokenizer_row pretokenizer_rows[];
extern const size_t n_pretokenizer_rows;

oato_status pretokenizer_create(const struct gguf *g, struct pretokenizer **out,
                                struct pretokenizer_traits *traits, struct oato_error *err);
/* Its trait add_bos; false for an unknown one. */
bool pretokenizer_adds_bos(const struct gguf *g);
void pretokenizer_free(struct pretokenizer *p);

struct pretokenize_work {
    struct span_list spans, spare;
    void *match; /* pcre2_match_data */
};

/* Cuts text, which is valid UTF-8 of fewer than 2^31 bytes, into w->spans. */
oato_status pretokenize(const struct pretokenizer *p, struct pretokenize_work *w, const char *text,
                        size_t n, struct oato_error *err);
void pretokenize_work_free(struct pretokenize_work *w);

/* -------------------------------------------------------------------- tokenizer_vocab.c --- */

/* Reads the tokens, their types and scores, the special ids and flags. `undo` writes the
 * decoded bytes of a normal token (at most len) and sets *n; false when the text cannot be decoded:
 * the token then keeps its text and nothing merges to it. */
typedef bool token_undo_fn(const char *s, size_t len, char *out, size_t *n);
oato_status vocab_load(struct tokenizer *t, const struct gguf *g, token_undo_fn *undo,
                       struct oato_error *err);

/* --------------------------------------------------------- tokenizer_KIND.c --- */

struct encode_work {
    struct budget *budget; /* NULL: no limits */
    size_t taken_bytes;    /* of it, by what is freed in the end */
    uint64_t unpaid_steps;
    struct merge_work merge;
    struct pretokenize_work pre;
    char *buffer;
    size_t cap_buffer;
};

typedef oato_status load_fn(struct tokenizer *t, const struct gguf *g, struct oato_error *err);
load_fn bpe_load, spm_load, raw_bpe_load, wordpiece_load, unigram_load;
encode_fn bpe_encode, spm_encode, raw_bpe_encode, wordpiece_encode, unigram_encode;

/* The pieces of merges are written as those of the vocabulary. */
oato_status merges_load(struct tokenizer *t, const struct gguf *g, token_undo_fn *undo,
                        struct oato_error *err);
merge_find_fn merge_by_rank;
/* U+2581 becomes a space. */
token_undo_fn space_undo;
/* Room for n bytes in w->buffer; false when memory is short. */
bool buffer_reserve(struct encode_work *w, size_t n);
/* Takes the work on a piece of n symbols that are merged, and the memory of them, from the budget.
 */
oato_status merge_afford(struct encode_work *w, size_t n, struct oato_error *err);

/* ------------------------------------------------------------------------ utf8_stream.c --- */

/* Bytes at the start of s that are whole valid characters. */
size_t utf8_valid_prefix(const char *s, size_t n);

#endif
