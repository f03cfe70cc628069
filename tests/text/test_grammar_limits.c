/*
 * test_grammar_limits.c - schemas and grammars that are made to be expensive are refused in one
 * line or followed, within the budget of a request, on a small stack; a mask is the same in
 * whatever pieces it is made, and typical ones stay far below what a token gives back.
 */
#include "tests/models/random_model.h"
#include "tests/random.h"
#include "text/grammar.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { TOKENS = 30, SLICE_STEPS = 50000, MEGABYTES_MOST = 100 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 8, STACK_BYTES = 4 << 20 };
static const bool counts_memory = false;
#else
enum { SLOWER = 1, STACK_BYTES = 1 << 20 };
static const bool counts_memory = true;
#endif

/* A text: `before`, then `each` so many times, with @ for its number and & for the next, then
 * `after`, then `closing` as often. */
struct nasty {
    const char *name, *before, *each;
    int times;
    const char *after, *closing;
    const char *says; /* of the message; NULL: a text follows it */
};

#define WORK   "needs more work than one request may take"
#define MEMORY "needs more memory than one request may take"
#define DEFS   "{\"$ref\":\"#/$defs/a0\",\"$defs\":{"
#define TWICE(keyword)                                                                             \
    "\"a@\":{\"" keyword "\":[{\"$ref\":\"#/$defs/a&\"},{\"$ref\":\"#/$defs/a&\"}],"               \
    "\"required\":[\"r@\"]},"

static const struct nasty schemas[] = {
    {"a name of 50,000 characters", "{\"additionalProperties\":true,\"properties\":{\"", "k", 50000,
     "\":{}}}", "", NULL},
    {"names that begin alike", "{\"additionalProperties\":true,\"properties\":{\"k\":{}",
     ",\"a name that is long, and then its number @\":{}", 2000, "}}", "", NULL},
    {"a type of a million characters", "{\"type\":\"", "t", 1000000, "\"}", "", "is no type"},
    {"a long reference", "{\"$ref\":\"#/", "r/", 400000, "\"}", "", "there is nothing"},
    {"allOf that doubles", DEFS, TWICE("allOf"), 30, "\"a30\":{}}}", "", NULL},
    {"allOf that doubles 80 times", DEFS, TWICE("allOf"), 80, "\"a80\":{}}}", "", NULL},
    {"allOf that doubles too deep", DEFS, TWICE("allOf"), 250, "\"a250\":{}}}", "", "too deep"},
    {"anyOf that doubles", DEFS, TWICE("anyOf"), 30, "\"a30\":{}}}", "", MEMORY},
    {"oneOf that doubles", DEFS, TWICE("oneOf"), 30, "\"a30\":{}}}", "", MEMORY},
    {"allOf in allOf", "", "{\"allOf\":[", 900, "{}", "]}", "too deep"},
    {"anyOf in anyOf", "", "{\"anyOf\":[", 900, "{}", "]}", "nested"},
    {"allOf of many", "{\"allOf\":[{}", ",{\"title\":\"@\"}", 20000, "]}", "", NULL},
    {"allOf of many with a property", "{\"allOf\":[{}",
     ",{\"properties\":{\"x\":{\"title\":\"@\"}}}", 8000, "]}", "", MEMORY},
    {"allOf of many that require", "{\"allOf\":[{}", ",{\"required\":[\"k@\"]}", 8000, "]}", "",
     MEMORY},
    {"anyOf of many", "{\"anyOf\":[{}", ",{\"title\":\"@\"}", 20000, "]}", "", "more than 20000"},
    {"anyOf that require", "{\"anyOf\":[{}", ",{\"required\":[\"k@\"]}", 3000, "]}", "", NULL},
    {"items in items", "", "{\"items\":", 1500, "{}", "}", "nested"},
    {"items in items, fewer", "", "{\"items\":", 150, "{}", "}", NULL},
    {"brackets", "", "[", 100000, "", "]", "maximum parsing depth"},
    {"a deep value", "{\"const\":", "[", 1900, "0", "]", "expected near"},
    {"a chain of references", DEFS, "\"a@\":{\"$ref\":\"#/$defs/a&\"},", 5000, "\"a5000\":{}}}", "",
     "nested"},
    {"a product of references",
     "{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}],\"$defs\":{\"a\":{"
     "\"properties\":{\"x\":{\"$ref\":\"#/$defs/a\"}}},\"b\":{\"properties\":{\"x\":{\"$ref\":\"#/"
     "$defs/b\"}}}}}",
     "", 0, "", "", NULL},
    {"properties", "{\"properties\":{\"a\":{}", ",\"property @\":{}", 14000, "}}", "",
     "more than 4096 readings"},
    {"required names", "{\"required\":[\"a\"", ",\"property @\"", 14000, "]}", "", NULL},
    {"a required name often", "{\"required\":[\"a\"", ",\"a\"", 100000, "]}", "", NULL},
    {"values", "{\"enum\":[0", ",@", 60000, "]}", "", "begin in more than 4096 ways"},
    {"values of a property", "{\"required\":[\"a\"],\"properties\":{\"a\":{\"enum\":[0", ",@",
     20000, "]}}}", "", "more than 4096 readings"},
    {"types", "{\"type\":[\"null\"", ",\"string\"", 100000, "]}", "", "begin in more than 4096"},
    {"places of an array", "{\"prefixItems\":[{}", ",{}", 60000, "]}", "", "more than 20000"},
    {"empty arrays", "{\"examples\":[[]", ",[]", 400000, "]}", "", MEMORY},
    {"a thousand million characters", "{\"minLength\":1000000000}", "", 0, "", "",
     "more than 100000"},
    {"a thousand million items", "{\"minItems\":1000000000}", "", 0, "", "", "more than 100000"},
    {"long strings", "{\"properties\":{\"a\":{}", ",\"s@\":{\"minLength\":9000}", 200, "}}", "",
     "more than 1048576 symbols"},
    {"repetitions", "{\"pattern\":\"((a{1,100}){1,100}){1,100}\"}", "", 0, "", "", NULL},
    {"a huge repetition", "{\"pattern\":\"", "a{100000}", 12, "\"}", "",
     "more than 1048576 symbols"},
    {"anything, often", "{\"pattern\":\"", ".*", 2000, "x\"}", "", "nested rules"},
    {"groups", "{\"pattern\":\"", "(", 50000, "\"}", "", "groups are nested too deeply"},
    {"alternatives of a pattern", "{\"pattern\":\"x", "|y@", 60000, "\"}", "", MEMORY},
    {"a long pattern", "{\"pattern\":\"", "abc", 50000, "\"}", "", NULL},
    {"a class of a pattern", "{\"pattern\":\"[", "a", 100000, "]\"}", "", "too many ranges"},
};

static const struct nasty grammars[] = {
    {"ambiguous", "root ::= a{0,300}\na ::= [x]? [x]? b*\nb ::= [x] c*\nc ::= [x]{1,3}", "", 0, "",
     "", NULL},
    {"any in any", "root ::= s\ns ::= . s s | . s | .", "", 0, "", "", NULL},
    {"repetitions", "root ::= (((. {1,100}){1,100}){1,100}){1,100}", "", 0, "", "",
     "more than 4096 readings"},
    {"repetitions in repetitions", "root ::= ", "(", 150, "[a-z]", "{1,9})",
     "more than 4096 readings"},
    {"readings", "root ::= \"\"", " | .{1,&} \"@\" root", 350, "", "", WORK},
    {"alternatives", "root ::= \"a\"", " | \"w@\"", 60000, "", "", "begin in more than 4096 ways"},
    {"rules of rules", "root ::= r0\nr3000 ::= [a-z]\n", "r@ ::= [a-z] r& | r& r&\n", 3000, "", "",
     "more than 4096 readings"},
    {"a chain of rules", "root ::= r0 \"y\"\nr30000 ::= \"x\"\n", "r@ ::= r& \"z\"\n", 30000, "",
     "", "1000 nested rules"},
    {"a chain without returns", "root ::= r0\nr30000 ::= \"x\"\n", "r@ ::= r&\n", 30000, "", "",
     "begin in more than 4096 ways"},
    {"parentheses", "root ::= ", "(", 400000, "", "", "nested too deeply"},
    {"stars in stars", "root ::= ", "(", 190, "\"x\"", ")*", NULL},
    {"a name of a million", "root ::= ", "n", 1000000, "", "", "there is no rule"},
    {"a literal of a million", "root ::= \"", "l", 500000, "\"", "", NULL},
    {"a class of a million", "root ::= [", "a", 1000000, "]", "", NULL},
    {"a comment of a million", "#", "c", 1000000, "\nroot ::= \"x\"", "", NULL},
    {"names", "root ::= \"x\"", " n@", 100000, "", "", "there is no rule"},
    {"many names", "root ::= n0\nn60000 ::= \"x\"\n", "n@ ::= \"x\" n&\n", 60000, "", "", NULL},
    {"a million symbols", "root ::= ", "\"x\"{100000} ", 12, "", "", "more than 1048576 symbols"},
    {"optional symbols", "root ::= ", "\"x\"{0,100000} ", 12, "", "", "more than 1048576 symbols"},
    {"left recursion", "root ::= r0\nr20000 ::= r0 \"x\"\n", "r@ ::= \"y\"? r&\n", 20000, "", "",
     "can begin with itself"},
};

static void numbered(struct text *t, const char *each, int number)
{
    for (const char *c = each; *c; c++)
        if (*c == '@' || *c == '&')
            text_printf(t, "%d", number + (*c == '&'));
        else
            text_add(t, c, 1);
}

static void nasty_text(const struct nasty *x, struct text *t)
{
    text_init(t);
    text_printf(t, "%s", x->before);
    for (int i = 0; i < x->times; i++)
        numbered(t, x->each, i);
    text_printf(t, "%s", x->after);
    for (int i = 0; i < x->times; i++)
        text_add(t, x->closing, strlen(x->closing));
    assert_false(t->failed);
}

/* ------------------------------------------------------------------------------------- words */

static char path[] = "/tmp/oato-limits-XXXXXX";

static struct words {
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct grammar_vocab *vocab;
} words;

static int setup(void **state)
{
    struct random_model m = random_model_default();
    struct oato_error err;
    (void)state;
    m.tokenizer = true;
    m.vocab = 512;
    const int fd = mkstemp(path);
    return fd < 0 || close(fd) || random_model_save(&m, path, &err) ||
           gguf_open(path, &words.gguf, &err) ||
           tokenizer_create(words.gguf, &words.tokenizer, &err) ||
           grammar_vocab_create(words.tokenizer, &words.vocab, &err);
}

static int teardown(void **state)
{
    (void)state;
    grammar_vocab_free(words.vocab);
    tokenizer_free(words.tokenizer);
    gguf_close(words.gguf);
    return unlink(path);
}

/* A random allowed token; -1: an end, too, is allowed. */
static int32_t some_token(struct random *r, const uint64_t *mask)
{
    const int32_t size = tokenizer_size(words.tokenizer);
    int32_t id = (int32_t)random_below(r, (uint32_t)size);
    while (!(mask[id / 64] >> (id % 64) & 1))
        id = (id + 1) % size;
    return tokenizer_is_end(words.tokenizer, id) ? -1 : id;
}

/* ------------------------------------------------------------------------------------ limits */

struct trial {
    const struct nasty *nasty;
    bool schema;
    struct text text;
    struct oato_error err; /* of whatever refused it */
    double seconds;
};

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Until the text is over, is refused, or has so many tokens. */
static void follow(struct grammar_state *s, struct oato_error *err)
{
    struct random r = {7};
    for (int i = 0; i < TOKENS; i++) {
        const uint64_t *mask;
        enum sampler_mask made = MASK_MORE;
        while (made == MASK_MORE)
            made = grammar_mask(s, SLICE_STEPS, &mask);
        if (made == MASK_FAILED) {
            *err = *grammar_state_error(s);
            return;
        }
        const int32_t id = some_token(&r, mask);
        if (id < 0 || !grammar_accept_token(s, id))
            return;
    }
}

static void *trial_run(void *user)
{
    struct trial *t = user;
    struct budget b = BUDGET_REQUEST;
    struct grammar *g = NULL;
    struct grammar_state *s;
    const double begin = thread_seconds();
    oato_status status = t->schema ? grammar_of_schema(t->text.data, t->text.len, &b, &g, &t->err)
                                   : grammar_parse(t->text.data, t->text.len, &b, &g, &t->err);
    if (!status && !grammar_state_create(g, words.vocab, &b, &s, &t->err)) {
        follow(s, &t->err);
        grammar_state_free(s);
    }
    grammar_free(g);
    t->seconds = thread_seconds() - begin;
    return NULL;
}

static long megabytes(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_maxrss / 1024;
}

static void check_nasty(const struct nasty *x, bool schema)
{
    struct trial t = {.nasty = x, .schema = schema, .err = {.text = ""}};
    pthread_attr_t small;
    pthread_t thread;
    nasty_text(x, &t.text);
    const long before = megabytes();
    pthread_attr_init(&small);
    assert_int_equal(pthread_attr_setstacksize(&small, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &small, trial_run, &t), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&small);
    if (t.err.status ? t.err.status != OATO_EUSAGE || !x->says || !strstr(t.err.text, x->says) ||
                           strchr(t.err.text, '\n')
                     : x->says != NULL)
        fail_msg("%s: %s, not %s", x->name, t.err.status ? t.err.text : "followed",
                 x->says ? x->says : "followed");
    if (t.seconds > 2.0 * SLOWER) /* 0.3 s at most where nothing else runs */
        fail_msg("%s: %.2f s", x->name, t.seconds);
    if (counts_memory && megabytes() - before > MEGABYTES_MOST)
        fail_msg("%s: %ld MB", x->name, megabytes() - before);
    text_free(&t.text);
}

static void nasty_schemas_are_refused_or_followed(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++)
        check_nasty(&schemas[i], true);
}

static void nasty_grammars_are_refused_or_followed(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(grammars); i++)
        check_nasty(&grammars[i], false);
}

/* Ranges that do not touch, in the planes that UTF-8 writes with two to four bytes. */
static void a_class_of_20000_ranges_takes_few_steps(void **state)
{
    struct budget b = BUDGET_REQUEST;
    struct oato_error err;
    struct grammar *g;
    struct grammar_state *s;
    struct text t;
    (void)state;
    text_init(&t);
    text_printf(&t, "root ::= [");
    for (uint32_t i = 0; i < 20000; i++)
        text_printf(&t, "\\U%08X", (unsigned)(0x80 + 50 * i + (i > 1000 ? 0x3000 : 0)));
    text_printf(&t, "]");
    assert_int_equal(grammar_parse(t.data, t.len, &b, &g, &err), OATO_OK);
    assert_true(BUDGET_REQUEST.steps - b.steps < 3000000);
    assert_int_equal(grammar_state_create(g, NULL, &b, &s, &err), OATO_OK);
    assert_true(grammar_allows(s, "\xc2\x80", 2) && grammar_allows(s, "\xc2\xb2", 2)); /* U+B2 */
    assert_false(grammar_allows(s, "\xc2\x81", 2) || grammar_allows(s, "\xc2\xb3", 2));
    grammar_state_free(s);
    grammar_free(g);
    text_free(&t);
}

/* ------------------------------------------------------------------------------------- masks */

static const char json_schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"size\":{\"type\":"
    "\"number\"},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\"]}},\"inner\":{"
    "\"$ref\":\"#\"}},\"required\":[\"name\"],\"additionalProperties\":{\"type\":\"string\","
    "\"maxLength\":40}}";

/* Steps of a mask that is made anew at each token. */
static void typical_masks_take_less_than_a_token_gives_back(void **state)
{
    struct budget b = BUDGET_REQUEST;
    struct oato_error err;
    struct grammar *g;
    struct grammar_state *s;
    struct random r = random_of_run();
    (void)state;
    assert_int_equal(grammar_of_schema(json_schema, strlen(json_schema), &b, &g, &err), OATO_OK);
    assert_true(BUDGET_REQUEST.steps - b.steps < 100000);
    b.steps = 0; /* what the tokens give back must do */
    for (int round = 0; round < 20; round++) {
        assert_int_equal(grammar_state_create(g, words.vocab, &b, &s, &err), OATO_OK);
        const uint64_t *mask;
        for (int32_t id = 0, i = 0; id >= 0 && i < 400; i++) {
            const uint64_t used = grammar_state_used(s);
            assert_int_equal(grammar_mask(s, UINT64_MAX, &mask), MASK_READY);
            assert_true(grammar_state_used(s) - used < 60000);
            id = some_token(&r, mask);
            assert_true(id < 0 || grammar_accept_token(s, id));
        }
        grammar_state_free(s);
    }
    grammar_free(g);
}

/* Also with tables that hold little, so that they are emptied in the middle. */
static void pieces_make_the_same_mask(void **state)
{
    struct oato_error err;
    struct grammar *g;
    struct grammar_state *whole, *pieces;
    struct random r = random_of_run();
    const struct budget little = {.steps = UINT64_MAX, .bytes = 200000};
    const size_t bytes = ((size_t)tokenizer_size(words.tokenizer) + 63) / 64 * sizeof(uint64_t);
    (void)state;
    assert_int_equal(grammar_of_schema(json_schema, strlen(json_schema), NULL, &g, &err), OATO_OK);
    for (int round = 0; round < 8; round++) {
        assert_int_equal(grammar_state_create(g, words.vocab, NULL, &whole, &err), OATO_OK);
        assert_int_equal(grammar_state_create(g, words.vocab, &little, &pieces, &err), OATO_OK);
        for (int32_t id = 0, i = 0; id >= 0 && i < 40; i++) {
            const uint64_t *one, *two;
            int calls = 1;
            assert_int_equal(grammar_mask(whole, UINT64_MAX, &one), MASK_READY);
            while (grammar_mask(pieces, 1, &two) == MASK_MORE)
                calls++;
            assert_non_null(two);
            assert_memory_equal(one, two, bytes);
            assert_true(i || calls > 2);
            id = some_token(&r, one);
            assert_true(id < 0 ||
                        (grammar_accept_token(whole, id) && grammar_accept_token(pieces, id)));
        }
        grammar_state_free(whole);
        grammar_state_free(pieces);
    }
    grammar_free(g);
}

static void what_a_schema_asks_in_vain_is_named(void **state)
{
    static const struct {
        const char *schema, *says;
    } bad[] = {
        {"{\"type\":\"integer\",\"multipleOf\":2}", "'multipleOf' is not supported"},
        {"{\"not\":{}}", "'not' is not supported"},
        {"{\"propertyNames\":{\"maxLength\":2}}", "'propertyNames' is not supported"},
        {"{\"minProperties\":1}", "'minProperties' is not supported"},
        {"{\"items\":{\"if\":{}}}", "'if' is not supported"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "'uniqueItems' is not"},
        {"{\"$ref\":\"http://x/y\"}", "only references within"},
        {"{\"$ref\":\"#/$defs/a\"}", "there is nothing"},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "leads back to itself"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "leaves no type"},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "'pattern' differs"},
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{"
         "\"b"
         "\":{}}}]}",
         "'additionalProperties' forbids"},
        {"{\"pattern\":\"(?=a)\"}", "only (...) and (?:...)"},
        {"{\"pattern\":\"a\\\\b\"}", "an escape that is not supported"},
        {"{\"pattern\":\"a^b\"}", "at the ends only"},
        {"{\"pattern\":\"a\",\"minLength\":1}", "beside another limit"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "leave no number"},
        {"{\"type\":\"number\",\"minimum\":0.1234567890123456}", "more than 15 digits"},
        {"{\"type\":\"number\",\"minimum\":0.5,\"exclusiveMaximum\":0.5}", "leave no number"},
        {"{\"minLength\":3,\"maxLength\":2}", "is above maxLength"},
        {"{\"minItems\":3,\"maxItems\":2}", "minItems"},
        {"{\"minLength\":-1}", "whole number"},
        {"{\"enum\":[1],\"type\":\"string\"}", "no value"},
        {"{\"enum\":[1],\"maximum\":0}", "'maximum' beside enum"},
        {"{\"type\":\"strin\"}", "'strin' is no type"},
        {"{\"properties\":{\"a\":1}}", "no schema"},
        {"{\"required\":[\"a\"],\"additionalProperties\":false}", "'a' is required, but"},
        {"{\"type\":\"object\"", "JSON schema line 1"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"false", "allows nothing"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct grammar *g = NULL;
        struct oato_error err = {.text = ""};
        if (grammar_of_schema(bad[i].schema, strlen(bad[i].schema), NULL, &g, &err) != OATO_EUSAGE)
            fail_msg("%s: accepted", bad[i].schema);
        assert_null(g);
        if (!strstr(err.text, bad[i].says) || strchr(err.text, '\n'))
            fail_msg("%s: %s", bad[i].schema, err.text);
    }
    struct oato_error err;
    struct grammar *g;
    struct grammar_state *s;
    assert_int_equal(grammar_of_schema("{\"$ref\":\"#\"}", 12, NULL, &g, &err), OATO_OK);
    assert_int_equal(grammar_state_create(g, NULL, NULL, &s, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "no text at all"));
    grammar_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nasty_schemas_are_refused_or_followed),
        cmocka_unit_test(nasty_grammars_are_refused_or_followed),
        cmocka_unit_test(a_class_of_20000_ranges_takes_few_steps),
        cmocka_unit_test(typical_masks_take_less_than_a_token_gives_back),
        cmocka_unit_test(pieces_make_the_same_mask),
        cmocka_unit_test(what_a_schema_asks_in_vain_is_named),
    };
    return cmocka_run_group_tests_name("grammar limits", tests, setup, teardown);
}
