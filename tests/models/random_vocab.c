/*
 * random_vocab.c - a small but whole byte-level BPE vocabulary in GPT-2's manner: control tokens,
 * the 256 bytes as printable characters, the first merges of English text, and fillers up to the
 * wanted size that no text encodes to. Any text can be encoded and comes back.
 */
#include "tests/models/random_model.h"

#include <stdlib.h>
#include <string.h>

enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, CONTROLS = 3, TOKEN_BYTES = 24 };
enum { ENDOFTEXT = 0, IM_START = 1, IM_END = 2 };

static const char *const control[CONTROLS] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

/* Frequent pairs of English, each made of tokens before it; '_' stands for a space in front. */
static const char *const merges[] = {
    "_ t",  "h e",   "_ a",  "i n",  "r e",    "o n",  "_t he", "e r",   "_ s",  "a t",  "_ w",
    "_ o",  "e n",   "_ c",  "i t",  "i s",    "a n",  "o r",   "e s",   "_ b",  "e d",  "_ f",
    "in g", "_ p",   "o u",  "_a n", "a l",    "a r",  "_t o",  "_ m",   "_o f", "_ in", "_ d",
    "_ h",  "_an d", "i c",  "a s",  "l e",    "_t h", "i on",  "o m",   "l l",  "en t", "_ n",
    "_ l",  "s t",   "_ re", "v e",  "_ e",    "r o",  "l y",   "_b e",  "_ g",  "_ T",  "c t",
    "_ S",  "i d",   "o t",  "_ I",  "u t",    "e t",  "_ A",   "_ is",  "_ on", "i m",  "a m",
    "o w",  "a y",   "a d",  "s e",  "_th at", "_ C",  "i g",   "_f or", "a c",  "_ y",  "v er",
    "u r",  "_ u",   "l d",  "_s t", "_ M",    "' s",  "_ he",  "_ it",
};

static const char chat_template[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";

struct vocab {
    char (*text)[TOKEN_BYTES];
    struct gguf_string *tokens;
    int32_t *types;
    int64_t n;
};

static void push(struct vocab *v, const char *s, int32_t type)
{
    snprintf(v->text[v->n], TOKEN_BYTES, "%s", s);
    v->tokens[v->n] = (struct gguf_string){v->text[v->n], strlen(v->text[v->n])};
    v->types[v->n++] = type;
}

/* GPT-2 writes a byte as itself when it is printable Latin-1, else as U+0100 and up in order. */
static void push_bytes(struct vocab *v)
{
    int moved = 0;
    for (int b = 0; b < 256; b++) {
        bool printable = (b > ' ' && b <= '~') || (b > 0xa0 && b != 0xad);
        int c = printable ? b : 256 + moved++;
        char s[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            s[0] = (char)(0xc0 | c >> 6);
            s[1] = (char)(0x80 | (c & 63));
        }
        push(v, s, TOKEN_NORMAL);
    }
}

/* The merge with a space spelt as U+0120, and without the gap when joined. */
static void spell(const char *merge, bool joined, char out[TOKEN_BYTES])
{
    char *end = out;
    for (const char *s = merge; *s; s++) {
        if (*s == '_') {
            memcpy(end, "\xc4\xa0", 2);
            end += 2;
        } else if (*s != ' ' || !joined) {
            *end++ = *s;
        }
    }
    *end = 0;
}

static void add_token_ids(struct gguf_writer *w)
{
    static const struct {
        const char *key;
        uint32_t id;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", IM_START},
        {"tokenizer.ggml.eos_token_id", IM_END},
        {"tokenizer.ggml.unknown_token_id", ENDOFTEXT},
        {"tokenizer.ggml.padding_token_id", IM_END},
    };
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        gguf_writer_scalar(w, ids[i].key, GGUF_U32, &ids[i].id);
    gguf_writer_scalar(w, "tokenizer.ggml.add_bos_token", GGUF_BOOL, &(uint8_t){0});
    gguf_writer_scalar(w, "tokenizer.ggml.add_space_prefix", GGUF_BOOL, &(uint8_t){0});
}

void random_vocab_add(struct gguf_writer *w, int64_t size)
{
    size_t n = (size_t)size;
    struct vocab v = {malloc(n * sizeof *v.text), malloc(n * sizeof *v.tokens),
                      malloc(n * sizeof *v.types), 0};
    char spelt[ARRAY_LEN(merges)][TOKEN_BYTES], text[TOKEN_BYTES];
    struct gguf_string list[ARRAY_LEN(merges)];
    size_t n_merges = 0;
    if (!v.text || !v.tokens || !v.types)
        goto out;
    for (int i = 0; i < CONTROLS; i++)
        push(&v, control[i], TOKEN_CONTROL);
    push_bytes(&v);
    for (; n_merges < ARRAY_LEN(merges) && v.n < size; n_merges++) {
        spell(merges[n_merges], true, text);
        push(&v, text, TOKEN_NORMAL);
        spell(merges[n_merges], false, spelt[n_merges]);
        list[n_merges] = (struct gguf_string){spelt[n_merges], strlen(spelt[n_merges])};
    }
    while (v.n < size) {
        snprintf(text, sizeof text, "[%lld]", (long long)v.n);
        push(&v, text, TOKEN_NORMAL);
    }
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(w, "tokenizer.ggml.pre", "gpt-2");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", v.tokens, (uint64_t)v.n);
    gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, v.types, (uint64_t)v.n);
    gguf_writer_strings(w, "tokenizer.ggml.merges", list, n_merges);
    add_token_ids(w);
    gguf_writer_string(w, "tokenizer.chat_template", chat_template);
out:
    free(v.text);
    free(v.tokens);
    free(v.types);
}
