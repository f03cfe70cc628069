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
        struct thinking *t = thinking_create(follows, w->tokenizer, "<t>", "</t>", rows[i].begun);
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
        struct thinking *t = thinking_create(follows, w->tokenizer, "<t>", "</t>", false);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_follow_behind_reasoning),
        cmocka_unit_test(masks_allow_what_is_allowed),
    };
    return cmocka_run_group_tests_name("thinking", tests, setup, teardown);
}
