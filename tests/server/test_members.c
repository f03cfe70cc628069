/*
 * test_members.c - the table of members (members.c) is what requests, openapi.json, docs/members.md
 * and the manual page of oato-serve say: nothing that is refused passes, and nothing that
 * asks for nothing is refused. With --print the table of docs/members.md.
 */
#include "server/server_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTH = 64, KINDS = ASK_QUERY_SLOT + 1 };

static bool is_used(const struct member *m)
{
    return !m->idle && !m->refused;
}

/* What the server says to a request of one member, which the value becomes part of. */
static oato_status say(const struct member *m, enum ask_kind kind, json_t *value,
                       struct oato_error *err)
{
    struct ask ask = {.kind = kind};
    json_t *o = json_object();
    json_object_set_new(o, m->name, value);
    err->text[0] = 0;
    const oato_status status = request_members(o, kind, WIDTH, &ask, err);
    json_decref(o);
    return status;
}

static void passes(const struct member *m, enum ask_kind kind, json_t *value)
{
    struct oato_error err;
    if (say(m, kind, value, &err))
        fail_msg("%s: %s", m->name, err.text);
}

static void refused(const struct member *m, enum ask_kind kind, json_t *value)
{
    struct oato_error err;
    if (!say(m, kind, value, &err))
        fail_msg("%s passes", m->name);
    if (strncmp(err.text, m->name, strlen(m->name)) != 0)
        fail_msg("%s is not named: %s", m->name, err.text);
}

/* A value of a type that asks for something. */
static json_t *some(const struct member *m, unsigned type)
{
    switch (type) {
    case MEMBER_FLAG: return json_boolean(!m->off_true);
    case MEMBER_WHOLE:
        return json_integer((json_int_t)(m->most_width        ? WIDTH
                                         : m->least < m->most ? m->most
                                                              : 77));
    case MEMBER_NUMBER: return json_real(m->least < m->most ? m->most : 77.5);
    case MEMBER_TEXT: return json_string("some text");
    case MEMBER_LIST: return json_pack("[i]", 1);
    default: return json_pack("{si}", "a", 1);
    }
}

static void each_row_is_kept_to(void **state)
{
    (void)state;
    for (const struct member *m = members; m->name; m++) {
        for (int kind = 0; kind < KINDS; kind++) {
            if (!(m->on & MEMBER_ON(kind)))
                continue;
            passes(m, kind, json_null());
            for (unsigned type = MEMBER_FLAG; type <= MEMBER_OBJECT; type *= 2) {
                const bool fits =
                    m->types & type || (type == MEMBER_WHOLE && m->types & MEMBER_NUMBER);
                if (type == MEMBER_NUMBER && m->types & MEMBER_WHOLE)
                    continue; /* 1.0 is a whole number, too */
                if (fits && !m->refused)
                    passes(m, kind, some(m, type));
                else
                    refused(m, kind, some(m, type));
            }
            if (m->types == MEMBER_WHOLE)
                refused(m, kind, json_real(0.5));
            if (m->least < m->most && m->types & (MEMBER_WHOLE | MEMBER_NUMBER)) {
                refused(m, kind, json_real(m->most * 2));
                refused(m, kind, json_integer((json_int_t)m->least - 1));
            }
            if (!m->refused || m->strict)
                continue;
            if (m->types & MEMBER_FLAG)
                passes(m, kind, json_boolean(m->off_true));
            if (m->types & (MEMBER_WHOLE | MEMBER_NUMBER))
                passes(m, kind, json_real(m->off));
            if (m->types & MEMBER_TEXT)
                passes(m, kind, json_string(""));
            if (m->types & MEMBER_LIST)
                passes(m, kind, json_array());
            if (m->types & MEMBER_OBJECT)
                passes(m, kind, json_object());
        }
    }
}

static const struct member *find(const char *name, enum ask_kind kind)
{
    const struct member *found = NULL;
    for (const struct member *m = members; m->name; m++) {
        if (strcmp(m->name, name) != 0 || !(m->on & MEMBER_ON(kind)))
            continue;
        if (found)
            fail_msg("%s has two rows", name);
        found = m;
    }
    return found;
}

static void each_member_has_one_row(void **state)
{
    (void)state;
    for (const struct member *m = members; m->name; m++)
        for (int kind = 0; kind < KINDS; kind++)
            if (m->on & MEMBER_ON(kind))
                assert_ptr_equal(find(m->name, kind), m);
}

static void defaults_of_clients_pass(void **state)
{
    static const struct {
        enum ask_kind kind;
        const char *request;
        bool good;
    } cases[] = {
        {ASK_CHAT,
         "{'modalities':['text'],'verbosity':'medium','store':false,'function_call':'none'}", true},
        {ASK_CHAT, "{'modalities':['text','audio']}", false},
        {ASK_CHAT, "{'reasoning_format':'deepseek','skip_special_tokens':true,'min_p':0}", true},
        {ASK_CHAT, "{'reasoning_format':'none'}", false},
        {ASK_CHAT, "{'web_search_options':{}}", false},
        {ASK_TEXT, "{'best_of':1,'suffix':null,'repetition_penalty':1.0,'min_tokens':0}", true},
        {ASK_TEXT, "{'best_of':2}", false},
        {ASK_TEXT, "{'prompt_logprobs':0}", false},
        {ASK_NATIVE, "{'lora':[],'n_indent':0,'t_max_predict_ms':-1,'adaptive_target':-1.0}", true},
        {ASK_NATIVE, "{'n_indent':4,'t_max_predict_ms':250,'t_max_prompt_ms':500}", true},
        {ASK_NATIVE, "{'n_indent':-1}", false},
        {ASK_RERANK, "{'truncate':true,'raw_scores':false}", true},
        {ASK_RERANK, "{'raw_scores':true}", false},
        {ASK_NATIVE, "{'something else':{'a':1},'lora':null}", true},
        {ASK_NATIVE, "{'lora':[{'id':0,'scale':1}]}", false},
        {ASK_EMBED, "{'dimensions':64,'embd_normalize':2,'normalize':true,'endianness':'little'}",
         true},
        {ASK_EMBED, "{'dimensions':65}", false},
        {ASK_OLLAMA, "{'keep_alive':-1,'template':'','context':[],'images':null,'dimensions':8}",
         true},
        {ASK_OPTIONS,
         "{'tfs_z':1,'penalize_newline':true,'num_gpu':99,'numa':false,'num_ctx':999999}", true},
        {ASK_OPTIONS, "{'penalize_newline':false}", false},
        {ASK_CHAT, "{'stream_options':true}", false},
        {ASK_CHAT, "{'parallel_tool_calls':'no'}", false},
        {ASK_CHAT, "{'chat_template_kwargs':[]}", false},
        {ASK_OLLAMA, "{'dimensions':0}", true},
        {ASK_OLLAMA, "{'dimensions':-1}", false},
        {ASK_QUERY_RESPONSE, "{'stream':false}", true},
        {ASK_QUERY_RESPONSE, "{'starting_after':0}", false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[200];
        struct ask ask = {.kind = cases[i].kind};
        struct oato_error err = {0};
        snprintf(text, sizeof text, "%s", cases[i].request);
        for (char *at = text; (at = strchr(at, '\'')) != NULL;)
            *at = '"';
        json_t *o = json_loads(text, 0, NULL);
        assert_non_null(o);
        if (!request_members(o, cases[i].kind, WIDTH, &ask, &err) != cases[i].good)
            fail_msg("%s: %s", cases[i].request, err.text);
        json_decref(o);
    }
}

/* ---------------------------------------------------------------------------- documents --- */

static unsigned types_of(const json_t *schema)
{
    static const struct {
        const char *name;
        unsigned types;
    } names[] = {{"boolean", MEMBER_FLAG}, {"integer", MEMBER_WHOLE}, {"number", MEMBER_NUMBER},
                 {"string", MEMBER_TEXT},  {"array", MEMBER_LIST},    {"object", MEMBER_OBJECT}};
    const json_t *type = json_object_get(schema, "type"), *one;
    const char *const any[] = {"oneOf", "anyOf"};
    unsigned types = 0;
    size_t i;
    for (size_t n = 0; n < ARRAY_LEN(names); n++) {
        types |= json_is_string(type) && !strcmp(json_string_value(type), names[n].name)
                     ? names[n].types
                     : 0;
        json_array_foreach(type, i, one)
        {
            types |= !strcmp(json_string_value(one), names[n].name) ? names[n].types : 0;
        }
    }
    for (size_t a = 0; a < ARRAY_LEN(any); a++) {
        json_array_foreach(json_object_get(schema, any[a]), i, one)
        {
            types |= types_of(one);
        }
    }
    return !types && json_object_get(schema, "enum") ? MEMBER_TEXT : types;
}

static void property_check(const struct member *m, const json_t *p)
{
    const unsigned types = types_of(p);
    const json_t *least = json_object_get(p, "minimum"), *most = json_object_get(p, "maximum");
    if (!types || types & ~m->types)
        fail_msg("openapi.json: %s has other types", m->name);
    if (m->least < m->most &&
        ((least && json_number_value(least) < m->least) || json_number_value(most) > m->most))
        fail_msg("openapi.json: the range of %s is wider than from %g to %g", m->name, m->least,
                 m->most);
}

/* Addresses and what stands behind their ?. */
static const char *const asked_at[] = {[ASK_QUERY] = "/props",
                                       [ASK_QUERY_MODELS] = "/v1/models",
                                       [ASK_QUERY_RESPONSE] = "/v1/responses/{id}",
                                       [ASK_QUERY_ITEMS] = "/v1/responses/{id}/input_items",
                                       [ASK_QUERY_SLOTS] = "/slots",
                                       [ASK_QUERY_SLOT] = "/slots/{id}"};

static json_t *query_schema(const json_t *operation)
{
    json_t *properties = json_object();
    const json_t *p;
    size_t i;
    json_array_foreach(json_object_get(operation, "parameters"), i, p)
    {
        if (!strcmp(json_string_value(json_object_get(p, "in")), "query"))
            json_object_set(properties, json_string_value(json_object_get(p, "name")),
                            json_object_get(p, "schema"));
    }
    return properties;
}

/* Under components, or of a path; the caller's. */
static json_t *schema_of(const json_t *api, enum ask_kind kind)
{
    static const char *const names[] = {
        [ASK_NATIVE] = "Native",      [ASK_TEXT] = "Completion",
        [ASK_CHAT] = "Chat",          [ASK_EMBED] = "Embeddings",
        [ASK_TOKENIZE] = "/tokenize", [ASK_DETOKENIZE] = "/detokenize",
        [ASK_MESSAGES] = "Messages",  [ASK_RESPONSES] = "Responses",
        [ASK_OLLAMA] = "Ollama",      [ASK_OPTIONS] = "OllamaOptions",
        [ASK_INFILL] = "Infill",      [ASK_RERANK] = "Rerank"};
    json_t *paths = json_object_get(api, "paths");
    if (kind >= ASK_QUERY)
        return query_schema(json_object_get(json_object_get(paths, asked_at[kind]),
                                            kind == ASK_QUERY_SLOT ? "post" : "get"));
    json_t *schema = json_object_get(json_object_get(json_object_get(api, "components"), "schemas"),
                                     names[kind]);
    if (*names[kind] == '/')
        json_unpack(json_object_get(paths, names[kind]), "{s{s{s{s{so}}}}}", "post", "requestBody",
                    "content", "application/json", "schema", &schema);
    return json_incref(json_object_get(schema, "properties"));
}

static void openapi_says_the_same(void **state)
{
    const struct sampler_options defaults = {SAMPLING_DEFAULTS};
    json_t *api = openapi_make(&defaults);
    (void)state;
    assert_non_null(api);
    for (int kind = 0; kind < KINDS; kind++) {
        json_t *properties = schema_of(api, kind);
        const char *name;
        json_t *p;
        assert_non_null(properties);
        json_object_foreach(properties, name, p)
        {
            const struct member *m = find(name, kind);
            if (!m || !is_used(m))
                fail_msg("openapi.json has %s, which is not used", name);
            property_check(m, p);
        }
        for (const struct member *m = members; m->name; m++)
            if (is_used(m) && m->on & MEMBER_ON(kind) && !json_object_get(properties, m->name))
                fail_msg("openapi.json lacks %s", m->name);
        json_decref(properties);
    }
    json_decref(api);
}

static void list_add(struct text *t, unsigned bits, const char *const *names, size_t n)
{
    const char *between = "";
    for (size_t i = 0; i < n; i++) {
        if (!(bits >> i & 1))
            continue;
        text_printf(t, "%s%s", between, names[i]);
        between = ", ";
    }
}

static void table_print(struct text *t)
{
    static const char *const at[] = {[ASK_NATIVE] = "/completion",
                                     [ASK_TEXT] = "/v1/completions",
                                     [ASK_CHAT] = "chat",
                                     [ASK_EMBED] = "embeddings",
                                     [ASK_TOKENIZE] = "/tokenize",
                                     [ASK_DETOKENIZE] = "/detokenize",
                                     [ASK_MESSAGES] = "messages",
                                     [ASK_RESPONSES] = "responses",
                                     [ASK_OLLAMA] = "Ollama",
                                     [ASK_OPTIONS] = "Ollama's options",
                                     [ASK_INFILL] = "/infill",
                                     [ASK_RERANK] = "rerank",
                                     [ASK_QUERY] = "any address, behind ?",
                                     [ASK_QUERY_MODELS] = "/v1/models?",
                                     [ASK_QUERY_RESPONSE] = "/v1/responses/{id}?",
                                     [ASK_QUERY_ITEMS] = "/v1/responses/{id}/input_items?",
                                     [ASK_QUERY_SLOTS] = "/slots?",
                                     [ASK_QUERY_SLOT] = "/slots/{id}?"};
    static const char *const types[] = {"flag", "whole number", "number", "text", "list", "object"};
    const unsigned answers = MEMBER_ON(ASK_NATIVE) | MEMBER_ON(ASK_TEXT) | MEMBER_ON(ASK_CHAT);
    text_printf(t, "| member | at | wants | here |\n|---|---|---|---|\n");
    for (const struct member *m = members; m->name; m++) {
        const bool all = (m->on & answers) == answers;
        const unsigned rest = m->on & (all ? ~answers : ~0u) & (MEMBER_ON(KINDS) - 1);
        text_printf(t, "| %s | %s", m->name, all ? rest ? "answers, " : "answers" : "");
        list_add(t, rest, at, ARRAY_LEN(at));
        text_printf(t, " | ");
        list_add(t, m->types, types, ARRAY_LEN(types));
        if (m->least < m->most)
            text_printf(t, ", %.10g to %.10g", m->least, m->most);
        text_printf(t, " | %s%s |\n",
                    m->idle      ? "accepted"
                    : m->refused ? "refused: "
                                 : "used",
                    or_empty(m->refused));
    }
}

static void file_read(const char *path, struct text *out)
{
    struct mapped_file file;
    struct oato_error err;
    assert_int_equal(file_map(path, &file, &err), OATO_OK);
    text_init(out);
    text_printf(out, "%.*s", (int)file.bytes, (const char *)file.data);
    file_unmap(&file);
}

/* A whole word of the page. */
static bool names(const char *page, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = page; (at = strstr(at, word)) != NULL; at++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz_", at[n]) && at > page && strchr(" \n(\"", at[-1]))
            return true;
    return false;
}

static void documents_say_the_same(void **state)
{
    struct text table, page;
    (void)state;
    text_init(&table);
    table_print(&table);
    file_read("docs/members.md", &page);
    if (!strstr(page.data, table.data))
        fail_msg("docs/members.md has another table than test_members --print makes");
    text_free(&page);
    text_free(&table);
    file_read("docs/man/oato-serve.1", &page);
    for (const struct member *m = members; m->name; m++)
        if (is_used(m) && !names(page.data, m->name))
            fail_msg("the manual page of oato-serve does not name %s", m->name);
    text_free(&page);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_row_is_kept_to),      cmocka_unit_test(each_member_has_one_row),
        cmocka_unit_test(defaults_of_clients_pass), cmocka_unit_test(openapi_says_the_same),
        cmocka_unit_test(documents_say_the_same),
    };
    if (argc > 1 && !strcmp(argv[1], "--print")) {
        struct text t;
        text_init(&t);
        table_print(&t);
        fputs(or_empty(t.data), stdout);
        text_free(&t);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
