/*
 * test_thinking.c - reasoning is free and ends; behind its mark the answer follows the grammar,
 * however the text is cut into tokens.
 */
#include "tests/models/random_model.h"
#include "text/thinking.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/oato-thinking-XXXXXX";

struct words {
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct grammar_vocab *vocab;
    struct grammar *grammar;
};

static int setup(void **state)
{
    static const char gbnf[] = "root ::= \"yes\" | \"no\"";
    static struct words w;
    struct random_model m = random_model_default();
    struct oato_error err;
    m.tokenizer = true;
    m.vocab = 512;
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd) || random_model_save(&m, path, &err) ||
        gguf_open(path, &w.gguf, &err) || tokenizer_create(w.gguf, &w.tokenizer, &err) ||
        grammar_vocab_create(w.tokenizer, &w.vocab, &err) ||
        grammar_parse(gbnf, strlen(gbnf), NULL, &w.grammar, &err))
        return 1;
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    struct words *w = *state;
    grammar_free(w->grammar);
    grammar_vocab_free(w->vocab);
    tokenizer_free(w->tokenizer);
    gguf_close(w->gguf);
    return unlink(path);
}

static bool in_mask(const struct sampler_constraint *c, int32_t id)
{
    const uint64_t *mask;
    enum sampler_mask made = MASK_MORE;
    while (made == MASK_MORE) /* in many pieces */
        made = c->mask(c->user, 40, &mask);
    assert_int_equal(made, MASK_READY);
    return mask[id / 64] >> (id % 64) & 1;
}

/* How many bytes of the text are taken, a character at a time. */
static size_t follow(const struct words *w, const struct sampler_constraint *c, const char *text)
{
    for (size_t at = 0; text[at]; at++) {
        int32_t *ids;
        size_t n;
        struct oato_error err;
        assert_int_equal(tokenizer_encode(w->tokenizer, text + at, 1, 0, &ids, &n, &err), OATO_OK);
        const int32_t id = ids[n - 1]; /* behind a space that some vocabularies put in front */
        free(ids);
        if (!c->allows(c->user, id))
            return at;
        c->take(c->user, id);
    }
    return strlen(text);
}

static int32_t end_of(const struct words *w)
{
    int32_t id = 0;
    while (!tokenizer_is_end(w->tokenizer, id))
        id++;
    return id;
}

static struct thinking *thinks(const struct words *w, struct grammar_state *follows, bool begun,
                               int32_t most, const char *message)
{
    const struct thinking_marks marks = {"<t>", "</t>", begun, most, message};
    struct thinking *t;
    struct oato_error err;
    assert_int_equal(thinking_create(follows, w->tokenizer, &marks, &t, &err), OATO_OK);
    return t;
}

static void answers_follow_behind_reasoning(void **state)
{
    static const struct {
        bool begun;
        const char *text;
        size_t taken;
        bool over; /* the answer may end there */
    } rows[] = {
        {false, "yes", 3, true},
        {false, "maybe", 0, false},
        {false, "<t>maybe not</t>\n\nyes", 21, true},
        {false, "<t></t>no", 9, true},
        {false, "<t>x</t>maybe", 8, false},
        {false, "<tyes", 2, false},
        {false, "yes<t>", 3, true},
        {true, "because <t> and </t</t>  no", 27, true},
        {true, "yes", 3, false},
        {true, "</t><t>", 4, false},
        {true, "</t>         yes", 12, false},
        {true, "</</t>yesno", 9, true},
    };
    const struct words *w = *state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct grammar_state *follows;
        struct oato_error err;
        assert_int_equal(grammar_state_create(w->grammar, w->vocab, NULL, &follows, &err), OATO_OK);
        struct thinking *t = thinks(w, follows, rows[i].begun, -1, NULL);
        const struct sampler_constraint c = thinking_constraint(t);
        const size_t taken = follow(w, &c, rows[i].text);
        if (taken != rows[i].taken)
            fail_msg("%s: %zu bytes taken, not %zu", rows[i].text, taken, rows[i].taken);
        assert_int_equal(c.allows(c.user, end_of(w)), rows[i].over);
        thinking_free(t);
        grammar_state_free(follows);
    }
}

/* Where a mask is made of single tokens, and where it is the grammar's. */
static void masks_allow_what_is_allowed(void **state)
{
    static const char *const texts[] = {"<",          "<t>so <",     "<t>so </t",
                                        "<t>so </t>", "<t>so </t>y", "y"};
    const struct words *w = *state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct grammar_state *follows;
        struct oato_error err;
        int n = 0;
        assert_int_equal(grammar_state_create(w->grammar, w->vocab, NULL, &follows, &err), OATO_OK);
        struct thinking *t = thinks(w, follows, false, -1, NULL);
        const struct sampler_constraint c = thinking_constraint(t);
        assert_int_equal(follow(w, &c, texts[i]), strlen(texts[i]));
        const bool behind = !strcmp(texts[i], "<t>so </t>"); /* white space is asked about alone */
        for (int32_t id = 0; id < tokenizer_size(w->tokenizer); id++) {
            const bool is = in_mask(&c, id);
            n += is;
            assert_true(is == c.allows(c.user, id) || (behind && !is));
        }
        assert_in_range(n, 1, tokenizer_size(w->tokenizer) - 1);
        thinking_free(t);
        grammar_state_free(follows);
    }
}

/* A character is a token here, or its bytes are. What is forced is the only one of the mask. */
static void reasoning_ends_after_so_many_tokens(void **state)
{
    static const struct {
        bool grammar, begun;
        int32_t most;
        const char *message, *text;
        size_t taken;
        const char *forced; /* from there on */
    } rows[] = {
        {true, true, 3, NULL, "abcd", 3, "</t>"},
        {true, true, 0, NULL, "abcd", 0, "</t>"},
        {true, false, 2, ".", "<t>abc", 5, ".</t>"},
        {false, true, 3, " Well.", "abcd", 3, " Well.</t>"},
        {false, false, 2, NULL, "so <t>abc", 8, "</t>"},
        {false, false, 5, NULL, "<t>a</t> and <t>bcdefg", 21, "</t>"}, /* each has as many */
        {false, true, 3, NULL, "ab\xc3\xa9z", 4, "</t>"},              /* a whole character */
        {false, true, 1, NULL, "\xf0\xf0\xf0\xf0\xf0", 4, "</t>"},     /* that never is one */
        {false, true, 9, NULL, "a</t> any text", 14, ""},
        {false, true, -1, NULL, "abcdefghi", 9, ""},
    };
    const struct words *w = *state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct grammar_state *follows = NULL;
        struct oato_error err;
        if (rows[i].grammar)
            assert_int_equal(grammar_state_create(w->grammar, w->vocab, NULL, &follows, &err),
                             OATO_OK);
        struct thinking *t = thinks(w, follows, rows[i].begun, rows[i].most, rows[i].message);
        const struct sampler_constraint c = thinking_constraint(t);
        const size_t taken = follow(w, &c, rows[i].text);
        if (taken != rows[i].taken)
            fail_msg("%s: %zu bytes taken, not %zu", rows[i].text, taken, rows[i].taken);
        assert_true(c.allows(c.user, end_of(w)) == (!rows[i].grammar && !*rows[i].forced));
        struct text forced;
        text_init(&forced);
        while (forced.len < strlen(rows[i].forced)) {
            int32_t id = -1, n = 0;
            const char *s = NULL;
            size_t length = 0;
            for (int32_t k = 0; k < tokenizer_size(w->tokenizer); k++)
                if (in_mask(&c, k)) {
                    id = k;
                    n++;
                }
            assert_int_equal(n, 1);
            assert_true(c.allows(c.user, id) &&
                        tokenizer_piece(w->tokenizer, id, true, &s, &length));
            text_add(&forced, s, length);
            c.take(c.user, id);
        }
        assert_string_equal(or_empty(forced.data), rows[i].forced);
        assert_int_equal(follow(w, &c, rows[i].grammar ? "  yes" : "maybe"), 5);
        text_free(&forced);
        thinking_free(t);
        grammar_state_free(follows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_follow_behind_reasoning),
        cmocka_unit_test(masks_allow_what_is_allowed),
        cmocka_unit_test(reasoning_ends_after_so_many_tokens),
    };
    return cmocka_run_group_tests_name("thinking", tests, setup, teardown);
}
