/*
 * test_grammar.c - grammars accept the texts of their language and no others, whatever way a text
 * is cut into tokens; masks agree with tokens asked one by one; bad grammars are refused in one
 * line; and a walk that takes only what is allowed ends in a JSON document.
 */
#include "tests/models/random_model.h"
#include "tests/random.h"
#include "text/grammar.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STRINGS = 16 };
struct language {
    const char *grammar;
    const char *accepted[STRINGS], *rejected[STRINGS];
};

/* llama.cpp's grammars/json.gbnf, shortened */
static const char json_gbnf[] =
    "root ::= object\n"
    "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n"
    "array ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n"
    "string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" "
    "[0-9a-fA-F]{4}))* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static const struct language languages[] = {
    {"root ::= \"a\"*", {"", "a", "aaaaa"}, {"b", "ab", "A"}},
    {"root ::= \"a\"+", {"a", "aaaaa"}, {"", "ab"}},
    {"root ::= \"a\"?", {"", "a"}, {"aa", "b"}},
    {"root ::= \"ab\"{2}", {"abab"}, {"", "ab", "ababab", "abb"}},
    {"root ::= [ab]{4,6}", {"aaaa", "ababb", "bbbbbb"}, {"aaa", "aaaabbb", "aaac"}},
    {"root ::= [ab]{4,}", {"aaaa", "ababbabab"}, {"aaa", "aaaac"}},
    {"root ::= ( \"x\" | \"yz\" ) {,2} \"!\"", {"!", "x!", "yzx!"}, {"", "yzxx!", "y!"}},
    {"root ::= [^\\n]+ \"\\n\"", {"one line\n", "\xc3\xa9\n"}, {"\n", "a\nb", "a"}},
    {"root ::= .",
     {"a", "\n", "\xe3\x81\x82", "\xf0\x9f\x98\x80"},
     {"", "ab", "\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"}},
    {"root ::= [\xe3\x81\x81-\xe3\x82\x9f]+ [\\u00e0-\\u00FF] \"\\U0001F600\\x41\"",
     {"\xe3\x81\x82\xe3\x82\x9f\xc3\xa9\xf0\x9f\x98\x80\x41"},
     {"\xe3\x82\xa0\xc3\xa9\xf0\x9f\x98\x80\x41", "\xe3\x81\x82\xc3\x9f\xf0\x9f\x98\x80\x41"}},
    {"root ::= [-a^\\]]+", {"-", "a-^]"}, {"b", "\\"}},
    {"# lists\nroot ::= item+ # one or more\nitem ::= \"- \" [^\\r\\n]+ \"\\n\"\n",
     {"- a\n", "- a\n- b c\n"},
     {"", "- \n", "- a"}},
    {"root ::= (expr \"=\" term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n"
     "term ::= number | \"(\" expr \")\"\nnumber ::= [0-9]+",
     {"42=42\n", "1+2=3\n", "(1*(2-3))/4=5\n1=2\n"},
     {"1+=3\n", "(1=2\n", "1=2", "1+2\n"}},
    {"root ::= one |\n  two |\n  (\n  \"three\"\n  | \"t\" \"\"\n  )\none ::= \"1\"\ntwo ::= \"2\"",
     {"1", "2", "three", "t"},
     {"", "12", "thre"}},
    {"root ::= (\"a\"?)* \"b\" ((\"c\"?)* \"d\"?)*", {"b", "aab", "bccdcdd"}, {"a", "ba", "bcdb"}},
    {"root ::= x \"c\" | \"abd\"\nx ::= y\ny ::= \"ab\" | x2\nx2 ::= \"a\"",
     {"abc", "ac", "abd"},
     {"ab", "bc", "abdc"}},
    {"root ::= \"(\" root \")\" root | \"\"",
     {"", "()", "(())()", "((((()))))()"},
     {"(", ")", "())"}},
    {"root ::= \"a\" root \"b\" | \"\"", {"", "ab", "aaabbb"}, {"aab", "abb", "ba"}},
    {json_gbnf,
     {"{}", "{ \"a\":[1,-2.5e+7, {\"\\u00e9\\n\":null}]}", "{\"\xc3\xa9\": \"\"}", "{\n\t\t}"},
     {"", "{", "[]", "{\"a\":1 ]", "{\"a\":01}", "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}", "{}}",
      "{\"a\":1,}", "{\"\xc3\": 1}"}},
};

static struct grammar *parse(const char *text)
{
    struct grammar *g;
    struct oato_error err;
    if (grammar_parse(text, strlen(text), NULL, &g, &err))
        fail_msg("%s: %s", text, err.text);
    return g;
}

static struct grammar_state *begin(const struct grammar *g, const struct grammar_vocab *v)
{
    struct grammar_state *s;
    struct oato_error err;
    if (grammar_state_create(g, v, NULL, &s, &err))
        fail_msg("%s", err.text);
    return s;
}

/* In pieces of `piece` bytes. */
static bool matches(const struct grammar *g, const char *text, size_t piece)
{
    struct grammar_state *s = begin(g, NULL);
    const size_t n = strlen(text);
    bool fine = true;
    for (size_t at = 0; at < n && fine; at += piece) {
        const size_t some = n - at < piece ? n - at : piece;
        fine = grammar_allows(s, text + at, some);
        assert_int_equal(grammar_accept(s, text + at, some), fine);
    }
    fine = fine && grammar_complete(s);
    grammar_state_free(s);
    return fine;
}

static void check_language(const struct grammar *g, const struct language *x)
{
    for (int yes = 0; yes < 2; yes++) {
        const char *const *strings = yes ? x->accepted : x->rejected;
        for (int i = 0; i < STRINGS && strings[i]; i++)
            for (size_t piece = 1; piece < 9; piece += 7)
                if (matches(g, strings[i], piece) != yes)
                    fail_msg("%s\n%s: %s", x->grammar, yes ? "refuses" : "accepts", strings[i]);
    }
}

static void languages_are_those_of_their_grammars(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(languages); i++) {
        struct grammar *g = parse(languages[i].grammar);
        check_language(g, &languages[i]);
        grammar_free(g);
    }
}

static void bad_grammars_are_refused_with_their_line(void **state)
{
    static const struct {
        const char *grammar, *says;
    } bad[] = {
        {"", "no rule 'root'"},
        {"a ::= \"x\"", "no rule 'root'"},
        {"root ::= a\n", "line 1: there is no rule 'a'"},
        {"root ::= \"x\"\nroot ::= \"y\"", "line 2: rule 'root' is defined twice"},
        {"root ::= \"x", "line 1: a literal without"},
        {"root ::= [x", "a class without"},
        {"root ::= [b-a]", "runs backwards"},
        {"root ::= (\"x\"", "a group without"},
        {"root ::= \"x\")", "without its group"},
        {"root ::= \"\\q\"", "unknown escape"},
        {"root ::= \"\\x4\"", "hexadecimal"},
        {"root ::= \"\\uD800\"", "no Unicode character"},
        {"root ::= \"\\UFFFFFFFF\"", "no Unicode character"},
        {"root ::= \"\xff\"", "not UTF-8"},
        {"root ::= \"x\"{3,2}", "m below n"},
        {"root ::= \"x\"{3", "closing brace"},
        {"root ::= \"x\"{}", "repetition wants"},
        {"root ::= \"x\"{100001}", "more than 100000"},
        {"root ::= \"x\"**", "before it"},
        {"root ::= + \"x\"", "before it"},
        {"root := \"x\"", "NAME ::= SYMBOLS"},
        {"\n\n::= \"x\"", "line 3: a rule wants"},
        {"root ::= \"x\" \"y\"\n  | \"z\"", "line 2: a rule wants"},
        {"root ::= <think>", "not supported"},
        {"root ::= root \"x\" | \"y\"", "rule 'root' can begin with itself"},
        {"root ::= a\na ::= (b? a)+ \"x\" | \"y\"\nb ::= \"z\"", "line 2: rule 'a' can begin"},
        {"root ::= ([a]? [b]?){100000}[c]{100000}[d]{100000}[e]{100000}[f]{100000}[g]{100000}[h]{"
         "100000}[i]{100000}[j]{100000}[k]{100000}[l]{100000}",
         "more than 1048576 symbols"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct grammar *g = NULL;
        struct oato_error err = {.text = ""};
        if (grammar_parse(bad[i].grammar, strlen(bad[i].grammar), NULL, &g, &err) != OATO_EUSAGE)
            fail_msg("%s: accepted", bad[i].grammar);
        assert_null(g);
        if (!strstr(err.text, bad[i].says) || strchr(err.text, '\n'))
            fail_msg("%s: %s", bad[i].grammar, err.text);
    }
    struct text deep;
    struct oato_error err;
    struct grammar *g;
    text_init(&deep);
    text_printf(&deep, "root ::= ");
    for (int i = 0; i < 100000; i++)
        text_add(&deep, "(", 1);
    assert_int_equal(grammar_parse(deep.data, deep.len, NULL, &g, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "nested too deeply"));
    text_free(&deep);
}

/* However ambiguous and deep: memory and time are bounded, and what is within that is right. */
static void hostile_grammars_are_bounded(void **state)
{
    (void)state;
    struct grammar *g =
        parse("root ::= a{0,300}\na ::= [x]? [x]? b*\nb ::= [x] c*\nc ::= [x]{1,3}");
    struct grammar_state *s = begin(g, NULL);
    for (int i = 0; i < 200 && grammar_accept(s, "x", 1);)
        i++;
    grammar_state_free(s);
    grammar_free(g);
    g = parse("root ::= \"(\" root \")\" | \"x\"");
    s = begin(g, NULL);
    int depth = 0;
    while (grammar_accept(s, "(", 1))
        depth++;
    assert_int_equal(depth, 1000);
    assert_true(grammar_accept(s, "x", 1));
    for (; depth > 0; depth--)
        assert_true(!grammar_complete(s) && grammar_accept(s, ")", 1));
    assert_true(grammar_complete(s));
    grammar_state_free(s);
    grammar_free(g);
    /* more places than the tables hold */
    g = parse("root ::= \"x\"{20000} \"y\"");
    s = begin(g, NULL);
    for (int i = 0; i < 20000; i++)
        assert_true(grammar_accept(s, "x", 1));
    assert_false(grammar_allows(s, "x", 1));
    assert_true(grammar_accept(s, "y", 1) && grammar_complete(s));
    grammar_state_free(s);
    grammar_free(g);
}

/* ------------------------------------------------------------------------------ JSON schemas */

/* Strings are held to jsonschema of Python and to llama.cpp's test-grammar-integration.cpp. */
static const struct language schemas[] = {
    {"{\"type\":\"integer\",\"minimum\":-123,\"maximum\":42}",
     {"-123", "-122", "-11", "-1", "0", "1", "5", "10", "39", "40", "42"},
     {"-0", "-124", "-1123", "43", "142", "99", "01", "4.0", "-130"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":455.5}",
     {"456", "4560", "1234567890000000"},
     {"455", "356", "50", "0456", "-456", "12345678900000000"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":-3,\"maximum\":5}",
     {"-2.999", "-0.5", "0", "0.25", "4.999", "5", "5.000"},
     {"-3", "-3.0", "5.001", "6", "05", "1e1", "-"}},
    {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":2.25}",
     {"-1.5", "-1.500", "-1.49", "-0.5", "0", "2", "2.25", "2.2499", "2.0"},
     {"-1.6", "-1.501", "-2", "2.26", "2.2501", "3", "-0", "2.", "12"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0.05,\"exclusiveMaximum\":0.5}",
     {"0.1", "0.0501", "0.06", "0.49", "0.499999"},
     {"0.05", "0.050", "0.5", "0.50", "0", "0.04", "0.51", "1", "0."}},
    {"{\"type\":\"number\"}", {"0", "-12.50", "1E+7"}, {"", ".5", "1.", "+1", "0x1", "01"}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\n\\u00e9\\ud83d\\ude00\""},
     {"\"a\"", "\"abcd\"", "ab", "\"a\n\"", "\"a\\ud83d\"", "\"ab"}},
    {"{\"pattern\":\"^(\\\\d{3}-)?[A-Z\\\"]\\\\w*$|x.z\"}",
     {"\"123-A_9\"", "\"\\\"\"", "\"Q\"", "\"--xyz--\"", "\"x\\\"z\""},
     {"\"12-A\"", "\"\"", "\"123-a\"", "\"xz\"", "\"A-\""}},
    {"{\"format\":\"date-time\"}",
     {"\"2024-02-28T23:59:59Z\"", "\"1999-12-31T00:00:00.25-08:30\""},
     {"\"2024-02-30T00:00:00Z\"", "\"2024-13-01T00:00:00Z\"", "\"2024-04-31T00:00:00Z\"",
      "\"2024-01-01T24:00:00Z\"", "\"2024-01-01 00:00:00Z\""}},
    {"{\"format\":\"duration\"}",
     {"\"P3Y6M4DT12H30M5S\"", "\"P2W\"", "\"PT5M\""},
     {"\"P\"", "\"PT\"", "\"P1D2Y\"", "\"P1WT1S\""}},
    {"{\"format\":\"ipv6\"}",
     {"\"::\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\""},
     {"\":\"", "\"1:2\"", "\"1::2::3\"", "\"12345::\""}},
    {"{\"format\":\"uri\"}",
     {"\"https://a.example:80/b?c=d/#e\"", "\"file:///x\"", "\"mailto:a@b.c\""},
     {"\"a\"", "\"/a\"", "\"a: b\"", "\"1:a\"", "\"http://a b\"", "\"http://a:b\""}},
    {"{\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"string\"},\"maxItems\":2}",
     {"null", "[]", "[\"a\"]", "[ \"a\", \"b\" ]"},
     {"", "[1]", "[\"a\",]", "[\"a\",\"b\",\"c\"]"}},
    {"{\"propertyNames\":{\"type\":\"string\"},\"minProperties\":0,\"patternProperties\":{},"
     "\"type\":\"object\",\"uniqueItems\":false,\"additionalProperties\":{\"type\":\"null\"}}",
     {"{}", "{\"a\":null}"},
     {"", "{\"a\":1}", "[]"}},
    {"{\"prefixItems\":[{\"const\":1},true],\"items\":{\"type\":\"null\"},\"minItems\":3}",
     {"[1,\"x\",null]", "[1,{},null,null]"},
     {"[1,2]", "[2,2,null]", "[1,2,3]"}},
    {"{\"enum\":[\"a\\n\",1,null,{\"k\":[true,0.1]}]}",
     {"\"a\\n\"", "1", "null", "{\"k\":[true,0.1]}"},
     {"\"a\"", "2", "true", "{}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
     "\"boolean\"},"
     "\"c\":{\"type\":\"null\"}},\"required\":[\"b\"]}",
     {"{\"b\":true}", "{ \"a\": 1,\"b\":true, \"c\":null }", "{\"a\":1,\n  \"b\":false}"},
     {"{}", "{\"a\":1}", "{\"b\":true,\"a\":1}", "{\"b\":true,}", "{\"b\":true,\"d\":1}"}},
    {"{\"properties\":{\"a\":{\"type\":\"null\"},\"ab\":false},\"additionalProperties\":{\"type\":"
     "\"integer\"}}",
     {"{}", "{\"a\":null}", "{\"a\":null,\"abc\":1,\"b\":2}", "{\"\":1}", "{\"\xc3\xa9\":1}"},
     {"{\"a\":1}", "{\"b\":1,\"a\":2}", "{\"ab\":1}", "{\"b\":null}", "{\"\\u0061\":1}"}},
    {"{\"anyOf\":[{\"$ref\":\"#/$defs/x%79\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}],"
     "\"$defs\":{\"xy\":{\"const\":\"leaf\"}}}",
     {"\"leaf\"", "[]", "[[\"leaf\"],[[]]]"},
     {"[1]", "[\"leaf\"", "leaf"}},
    {"{\"allOf\":[{\"$ref\":\"#/definitions/n\"},{\"properties\":{\"v\":{\"maximum\":9},\"w\":{}},"
     "\"required\":[\"w\"]}],\"definitions\":{\"n\":{\"properties\":{\"v\":{\"type\":\"integer\","
     "\"minimum\":5}},\"required\":[\"v\"]}}}",
     {"{\"v\":5,\"w\":1}", "{\"v\":9,\"w\":{}}"},
     {"{\"v\":4,\"w\":1}", "{\"v\":10,\"w\":1}", "{\"v\":5}"}},
    {"{\"type\":\"object\",\"properties\":{\"k\":{}},\"oneOf\":[{\"required\":[\"k\"]},{"
     "\"properties\":{"
     "\"k\":{\"const\":2}}}]}",
     {"{\"k\":1}", "{\"k\":2}", "{}"},
     {"{\"l\":1}", "1"}},
    {"{\"type\":\"object\",\"properties\":{}}", {"{}", "{ }"}, {"{\"a\":1}", "1"}},
    {"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}",
     {"{}"},
     {"{\"a\":1}"}},
    {"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":true}",
     {"{}", "{\"a\":1}"},
     {"1"}},
    {"{\"type\":\"object\"}", {"{}", "{\"a\":1}"}, {"1"}},
    {"{\"type\":\"string\",\"format\":\"uri-reference\"}", {"\"x:y\"", "\"\""}, {"1"}},
    {"{\"type\":\"string\",\"format\":\"date\",\"maxLength\":2}", {"\"x\""}, {"\"xyz\""}},
    {"{\"type\":\"string\",\"format\":\"phone\",\"pattern\":\"^[0-9]$\"}", {"\"1\""}, {"\"x\""}},
    {"{\"type\":\"integer\",\"format\":\"int32\"}", {"1"}, {"\"x\""}},
    {"{\"format\":\"color\",\"enum\":[\"red\"]}", {"\"red\""}, {"\"x\""}},
    {"{\"allOf\":[{\"type\":\"string\",\"format\":\"a\"},{\"format\":\"b\"}]}", {"\"x\""}, {"1"}},
    {"{}", {"1", "\"x\"", "[{\"a\":[]}, null]", "{ }"}, {"", "x", "[1", "{a:1}"}},
};

static void schemas_allow_what_they_accept(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
        const char *json = schemas[i].grammar;
        struct grammar *g;
        struct oato_error err;
        if (grammar_of_schema(json, strlen(json), NULL, &g, &err))
            fail_msg("%s: %s", json, err.text);
        check_language(g, &schemas[i]);
        grammar_free(g);
    }
}

/* Numbers with few digits, also near the bounds: allowed where they are in the interval. */
static void intervals_have_their_numbers(void **state)
{
    struct random r = random_of_run();
    (void)state;
    for (int i = 0; i < 200; i++) {
        const bool open[] = {random_below(&r, 2), random_below(&r, 2)};
        const int low = (int)random_below(&r, 401) - 200;
        const int high = low + 2 + (int)random_below(&r, i % 2 ? 30 : 300);
        char json[160], number[32];
        snprintf(json, sizeof json, "{\"type\":\"number\",\"%s\":%.2f,\"%s\":%.2f}",
                 open[0] ? "exclusiveMinimum" : "minimum", low / 100.,
                 open[1] ? "exclusiveMaximum" : "maximum", high / 100.);
        struct grammar *g;
        assert_int_equal(grammar_of_schema(json, strlen(json), NULL, &g, NULL), OATO_OK);
        for (int n = (low - 3) * 10; n < (high + 3) * 10; n += 1 + (int)random_below(&r, 7)) {
            const bool in = n >= low * 10 + open[0] && n <= high * 10 - open[1];
            snprintf(number, sizeof number, "%.*f", n % 1000 ? n % 100 ? 3 : 1 : 0, n / 1000.);
            if (matches(g, number, 8) != in)
                fail_msg("%s: %s", json, number);
        }
        grammar_free(g);
    }
}

/* ----------------------------------------------------------------------------------- tokens */

static char path[] = "/tmp/oato-grammar-XXXXXX";

struct words {
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct grammar_vocab *vocab;
};

static int setup(void **state)
{
    static struct words w;
    struct random_model m = random_model_default();
    struct oato_error err;
    m.tokenizer = true;
    m.vocab = 512;
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd) || random_model_save(&m, path, &err) ||
        gguf_open(path, &w.gguf, &err) || tokenizer_create(w.gguf, &w.tokenizer, &err) ||
        grammar_vocab_create(w.tokenizer, &w.vocab, &err))
        return 1;
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    struct words *w = *state;
    grammar_vocab_free(w->vocab);
    tokenizer_free(w->tokenizer);
    gguf_close(w->gguf);
    return unlink(path);
}

static bool in_mask(const uint64_t *mask, int32_t id)
{
    return mask[id / 64] >> (id % 64) & 1;
}

static const uint64_t *mask_in_pieces(struct grammar_state *s, uint64_t steps)
{
    const uint64_t *mask = NULL;
    while (!mask)
        assert_int_not_equal(grammar_mask(s, steps, &mask), MASK_FAILED);
    return mask;
}

/* Takes `most` allowed tokens at random, then bytes that close the text. */
static void walk(struct random *r, const struct words *w, struct grammar_state *s, int most,
                 struct text *text)
{
    const int32_t size = tokenizer_size(w->tokenizer);
    for (int step = 0; step < most; step++) {
        const uint64_t *mask = mask_in_pieces(s, UINT64_MAX);
        int32_t n = 0, some[64] = {0}, id = (int32_t)random_below(r, (uint32_t)size);
        for (int32_t i = 0; i < size && n < 64; i++, id = (id + 1) % size)
            if (in_mask(mask, id))
                some[n++] = id;
        assert_true(n > 0);
        id = some[random_below(r, (uint32_t)n)];
        if (tokenizer_is_end(w->tokenizer, id)) {
            assert_true(grammar_complete(s));
            return;
        }
        const char *bytes;
        size_t len;
        assert_true(tokenizer_piece(w->tokenizer, id, false, &bytes, &len));
        text_add(text, bytes, len);
        assert_true(grammar_accept_token(s, id));
    }
    while (!grammar_complete(s)) { /* the shortest way out: these, or whatever is allowed */
        static const char ways[] = "\"]}10:e";
        const char *way = ways;
        while (*way && !grammar_allows(s, way, 1))
            way++;
        char byte = *way ? *way : 'z';
        while (!*way && !grammar_allows(s, &byte, 1))
            byte--;
        text_add(text, &byte, 1);
        assert_true(grammar_accept(s, &byte, 1));
    }
}

static void walks_end_in_json(void **state)
{
    const struct words *w = *state;
    struct random r = random_of_run();
    struct grammar *g = parse(json_gbnf);
    for (int round = 0; round < 60; round++) {
        struct grammar_state *s = begin(g, w->vocab);
        struct text text;
        json_error_t error;
        text_init(&text);
        walk(&r, w, s, 60, &text);
        json_t *json = json_loadb(text.data, text.len, JSON_ALLOW_NUL, &error);
        /* the grammar lets "\ud800" and "1e999" through, which jansson does not */
        if (!json && !strstr(error.text, "Unicode") && !strstr(error.text, "overflow") &&
            !strstr(error.text, "too big"))
            fail_msg("%.*s: %s", (int)text.len, text.data, error.text);
        json_decref(json);
        text_free(&text);
        grammar_state_free(s);
    }
    grammar_free(g);
}

static void masks_agree_with_tokens_asked_one_by_one(void **state)
{
    const struct words *w = *state;
    struct random r = random_of_run();
    const int32_t size = tokenizer_size(w->tokenizer);
    static const char many[] = "root ::= ([a-z] \" \"?){2000} | .{3000}"; /* tables fill up */
    for (int round = 0; round < 12; round++) {
        struct grammar *g = parse(round % 3 ? json_gbnf : many);
        struct grammar_state *s = begin(g, w->vocab), *twin;
        struct oato_error err;
        struct text text;
        text_init(&text);
        for (int step = 0; step < 12; step++) {
            assert_int_equal(grammar_state_clone(s, &twin, &err), OATO_OK);
            const uint64_t *mask = mask_in_pieces(s, random_below(&r, 2) ? UINT64_MAX : 50);
            for (int32_t id = 0; id < size; id++)
                if (in_mask(mask, id) != grammar_allows_token(twin, id))
                    fail_msg("token %d after '%.*s'", (int)id, (int)text.len, or_empty(text.data));
            grammar_state_free(twin);
            int32_t id = (int32_t)random_below(&r, (uint32_t)size);
            while (!in_mask(mask, id))
                id = (id + 1) % size;
            const char *bytes;
            size_t n;
            if (tokenizer_is_end(w->tokenizer, id))
                break;
            assert_true(tokenizer_piece(w->tokenizer, id, false, &bytes, &n));
            text_add(&text, bytes, n);
            assert_true(grammar_accept_token(s, id));
        }
        text_free(&text);
        grammar_state_free(s);
        grammar_free(g);
    }
}

/* Logits that want the impossible still give a text of the grammar, and then its end. */
static void a_sampler_follows_a_grammar(void **state)
{
    const struct words *w = *state;
    struct random r = random_of_run();
    const int32_t size = tokenizer_size(w->tokenizer);
    struct grammar *g = parse("root ::= \"{\\\"answer\\\": \" (\"true\" | \"false\") \"}\"");
    float *logits = calloc((size_t)size, sizeof *logits);
    assert_non_null(logits);
    for (int round = 0; round < 20; round++) {
        const struct sampler_options o = {.temperature = round % 2 ? 1 : 0,
                                          .top_p = 1,
                                          .repeat_penalty = 1,
                                          .seed = random_below(&r, 1 << 30)};
        struct grammar_state *s = begin(g, w->vocab);
        struct sampler *sampler = sampler_create(&o, size);
        const struct sampler_constraint c = grammar_constraint(s);
        struct text text;
        text_init(&text);
        assert_non_null(sampler);
        sampler_constrain(sampler, &c);
        for (int32_t step = 0, id = 0;; step++) {
            const char *bytes;
            size_t n = 0;
            for (int32_t i = 0; i < size; i++)
                logits[i] = (float)random_below(&r, 1000) / 100;
            id = sampler_next(sampler, logits);
            if (tokenizer_is_end(w->tokenizer, id))
                break;
            assert_true(step < 40 && tokenizer_piece(w->tokenizer, id, false, &bytes, &n));
            text_add(&text, bytes, n);
        }
        assert_true(!strcmp(text.data, "{\"answer\": true}") ||
                    !strcmp(text.data, "{\"answer\": false}"));
        text_free(&text);
        sampler_free(sampler);
        grammar_state_free(s);
    }
    free(logits);
    grammar_free(g);
}

/* ---------------------------------------------------------------------------- oato-run ---- */

/* Its exit status; out gets what it prints to both. */
static int run(struct text *out, const char *args)
{
    char command[1024], block[512];
    snprintf(command, sizeof command, "'%s' %s %s 2>&1 </dev/null", OATO_RUN, path, args);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    out->len = 0;
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
        text_add(out, block, n);
    const int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_command_line_constrains_answers(void **state)
{
    static const struct {
        const char *args;
        int status;
        const char *says;
    } rows[] = {
        {"-p a -p b --temp 5 --no-display-prompt --grammar 'root ::= \"y\"{3}'", 0,
         "[1] yyy\n\n[2] yyy\n"},
        {"-p a --no-display-prompt --logit-bias 65+900 -n 2 --logit-bias 66-inf", 0, ">>\n"},
        {"-p a --grammar 'root ::= (\"y\"'", 2, "grammar line 1: a group without"},
        {"-p a --grammar 'root ::= \"y\"' --ignore-eos", 2, "--ignore-eos goes on"},
        {"-p a --grammar 'root ::= \"y\"' --grammar-file /dev/null", 2, "more than one grammar"},
        {"-p a --no-display-prompt --json-schema '{\"type\":\"object\",\"properties\":{\"a\":{"
         "\"const\":1}},\"required\":[\"a\"]}' -n 60",
         0, "1"},
        {"-p a -j '{\"not\":{}}'", 2, "JSON schema: 'not' is not supported"},
        {"-p a --json-schema-file /dev/null", 3, "/dev/null: JSON schema line"},
        {"-p a --grammar-file /dev/null", 3, "/dev/null: the grammar has no rule 'root'"},
        {"-p a --grammar-file /nowhere", 6, "/nowhere"},
        {"-p a --logit-bias 99999+1", 2, "there is no token 99999"},
        {"-p a --logit-bias 5", 2, "such as 15043+1"},
        {"-p a --logit-bias 5+x", 2, "such as 15043+1"},
    };
    struct text out;
    (void)state;
    text_init(&out);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const int status = run(&out, rows[i].args);
        if (status != rows[i].status || !strstr(out.data, rows[i].says))
            fail_msg("%s: %d, %s", rows[i].args, status, out.data);
    }
    text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(languages_are_those_of_their_grammars),
        cmocka_unit_test(bad_grammars_are_refused_with_their_line),
        cmocka_unit_test(hostile_grammars_are_bounded),
        cmocka_unit_test(schemas_allow_what_they_accept),
        cmocka_unit_test(intervals_have_their_numbers),
        cmocka_unit_test(walks_end_in_json),
        cmocka_unit_test(masks_agree_with_tokens_asked_one_by_one),
        cmocka_unit_test(a_sampler_follows_a_grammar),
        cmocka_unit_test(the_command_line_constrains_answers),
    };
    return cmocka_run_group_tests_name("grammar", tests, setup, teardown);
}
