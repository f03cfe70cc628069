/*
 * test_jinja.c - the language of Jinja programs as jinja2 defines it, and the limits that end a
 * program whatever it does. tests/oracle/test_jinja.py compares with jinja2 itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pace.h"
#include "text/jinja/jinja_internal.h"

static const char variables[] =
    "{\"n\": 3, \"s\": \"Gr\\u00fc\\u00dfe, \\ud83d\\ude00!\", \"empty\": [], \"no\": null,"
    "\"list\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": [true, 1.5, \"x'y\"]},"
    "\"people\": [{\"name\": \"Eva\", \"age\": 7}, {\"name\": \"Adam\", \"age\": 9}]}";

static oato_status render(const char *program, size_t n, const struct jinja_limits *limits,
                          struct text *out, struct oato_error *err)
{
    struct jinja_template *t = NULL;
    text_init(out);
    *err = (struct oato_error){0};
    oato_status status = jinja_parse("test", program, n, limits, &t, err);
    if (status)
        return status;
    struct jinja *x = jinja_begin(t, err);
    assert_non_null(x);
    x->now = 1795521600; /* 24 November 2026, 12:00 UTC */
    jinja_set_json(x, variables, strlen(variables));
    status = jinja_run(x, out);
    jinja_end(x);
    jinja_free(t);
    return status;
}

static void check(const char *const cases[][2], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct text out;
        struct oato_error err;
        if (render(cases[i][0], strlen(cases[i][0]), &jinja_limits_default, &out, &err))
            fail_msg("%s: %s", cases[i][0], err.text);
        if (strcmp(out.data ? out.data : "", cases[i][1]) != 0)
            fail_msg("%s: '%s' instead of '%s'", cases[i][0], out.data ? out.data : "",
                     cases[i][1]);
        text_free(&out);
    }
}

static void expressions_have_pythons_values(void **state)
{
    static const char *const cases[][2] = {
        {"{{ 1 + 2 * 9 - 3 }} {{ -7 % 3 }} {{ 7 % -3 }}", "16 2 -2"},
        {"{{ '[1e3, 0.30000000000000004, 1e20, 1e-7, -0.0, 1234567890123456, 12345678901234567e1, "
         "0.0001, 5e-324, 1.7976931348623157e308]' | from_json }} {{ 2.0 }} {{ 0.1 }}",
         "[1000.0, 0.30000000000000004, 1e+20, 1e-07, -0.0, 1234567890123456, "
         "1.2345678901234566e+17, 0.0001, 5e-324, 1.7976931348623157e+308] 2.0 0.1"},
        {"{{ 9223372036854775807 }}", "9223372036854775807"},
        {"{{ 'a' ~ 1 ~ none ~ true ~ missing }}", "a1NoneTrue"},
        {"{{ 'ab' + \"c\\n\\u0041\\u00fc\\t\\q\" }}", "abc\nA\xc3\xbc\t\\q"},
        {"{{ 'ab' * 2 }} {{ [1] + [2] }}", "abab [1, 2]"},
        {"{{ 1 < 2 }} {{ 3 <= 2 }} {{ 2 >= 1.5 }} {{ 1 == 1.0 }} {{ true == 1 }}",
         "True False True True True"},
        {"{{ 'b' > 'a' }} {{ 'a' < 'ab' }} {{ [1, 2] == [1, 3] }} {{ 'x' == none }}",
         "True True False False"},
        {"{{ not 1 == 2 and 2 in list or false }} {{ 'b' in d }} {{ 'z' not in 'xyz' }}",
         "True True False"},
        {"{{ 0 or 'x' }} {{ '' and 'x' }} {{ 'a' if n > 2 else 'b' }} {{ 'a' if n > 5 }}", "x  a "},
        {"{{ list|first }}{{ list|last }} {{ []|first }}{{ d.keys()|list }} {{ {1: "
         "2}.values()|list }}",
         "32 ['b', 'a'] [2]"},
        {"{{ list[0] }}{{ list[-1] }}{{ list[9] }}{{ d['b'] }}{{ d.a[1] }}{{ d.zz }}", "3211.5"},
        {"{{ list[::-1] }} {{ list[1:] }} {{ list[:-1] }} {{ list[5:] }} {{ list[-2:9] }}",
         "[2, 1, 3] [1, 2] [3, 1] [] [1, 2]"},
        {"{{ s[:5] }}|{{ s[-2] }}|{{ s | length }}", "Gr\xc3\xbc\xc3\x9f"
                                                     "e|\xf0\x9f\x98\x80|9"},
        {"{{ d }} {{ (1,) }} {{ () }} {{ {'k': \"it's\", 2: none} }}",
         "{'b': 1, 'a': [True, 1.5, \"x'y\"]} (1,) () {'k': \"it's\", 2: None}"},
        {"{{ -n }} {{ - 2 | int if false else n }} {{ 2 - -1 }}", "-3 3 3"},
        {"{{ {'a': {'b': 1}}['a']['b'] }}{{ {} }}", "1{}"},
        {"{{ n is defined }} {{ zz is defined }} {{ zz is not defined }} {{ n is number }}",
         "True False True True"},
        {"{{ s is string and d is mapping and list is sequence and list is iterable }}", "True"},
        {"{{ no is none }} {{ n is eq(3) }} ", "True True "},
        {"{{ true is boolean }} {{ 1 is boolean }} {{ true is true }} {{ 1 is true }}",
         "True False True False"},
    };
    (void)state;
    check(cases, ARRAY_LEN(cases));
}

static void filters_and_methods_do_as_in_python(void **state)
{
    static const char *const cases[][2] = {
        {"{{ '  a b ' | trim }}|{{ '\xe3\x80\x80 x\xc2\xa0' | trim }}|{{ 'xxaxx'.strip('x') }}",
         "a b|x|a"},
        {"{{ 'a,b,c'.split(',') }} {{ 'a-b-c'.split('-', 1)[1] }}", "['a', 'b', 'c'] b-c"},
        {"{{ 'a-b-c'.split('-', maxsplit=1) }}", "['a', 'b-c']"},
        {"{{ 'a-b-c'.split('-', -9223372036854775807 - 1) }}", "['a', 'b', 'c']"},
        {"{{ 'a-b-c'.replace('-', '+', -9223372036854775807 - 1) }}", "a+b+c"},
        {"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('c') }} {{ 'b'.endswith('ab') }}",
         "True True False"},
        {"{{ 'aXbX'.replace('X', '-') }} {{ 'aXbX' | replace('X', '-', 1) }}", "a-b- a-bX"},
        {"{{ 'aB' | upper }} {{ 'aB'.lower() }}", "AB ab"},
        {"{{ list | join(', ') }} {{ ['a', 'b'] | join }}", "3, 1, 2 ab"},
        {"{{ list | sort }} {{ ['b', 'A'] | sort }} {{ [2, 1, 2.0, 1.0] | sort }}",
         "[1, 2, 3] ['A', 'b'] [1, 1.0, 2, 2.0]"},
        {"{{ people | sort(attribute='age') | map(attribute='name') | list }}", "['Eva', 'Adam']"},
        {"{{ people | selectattr('age', 'eq', 9) | map(attribute='name') | join }}", "Adam"},
        {"{{ people | rejectattr('name', 'equalto', 'Eva') | list | length }}", "1"},
        {"{{ [1, 0, 2] | select | list }} {{ [1, 2] | reject('eq', 1) | list }}", "[1, 2] [2]"},
        {"{{ ['a', 'B'] | map('upper') | list }} {{ none | selectattr('x') | list }}",
         "['A', 'B'] []"},
        {"{{ (d | dictsort)[0][0] }} {{ d | items | list | length }}", "a 2"},
        {"{{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }}", "1 None 5"},
        {"{{ people | sort(attribute='zz') | length }}", "2"},
        {"{{ missing | default('x') }} {{ '' | default('x', true) }} {{ '' | default('x') }}|",
         "x x |"},
        {"{{ 12 | int + 1 }} {{ true | int }}", "13 1"},
        {"{{ list | min }}{{ [1, 1, 2] | unique | list }}", "1[1, 2]"},
        {"{{ 'a\\nb\\n\\nc' | indent(2) }}|{{ 'a' | indent(1, first=true) }}", "a\n  b\n\n  c| a"},
        {"{{ d | tojson }} {{ s | tojson }} {{ '<\\n\\u0001\"' | tojson }}",
         "{\"b\": 1, \"a\": [true, 1.5, \"x'y\"]} \"Gr\xc3\xbc\xc3\x9f"
         "e, \xf0\x9f\x98\x80!\" \"<\\n\\u0001\\\"\""},
        {"{{ d | tojson(indent=1) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=2) }}",
         "{\n \"b\": 1,\n \"a\": [\n  true,\n  1.5,\n  \"x'y\"\n ]\n} [] {}"},
        {"{{ s | tojson(ensure_ascii=true) }}", "\"Gr\\u00fc\\u00dfe, \\ud83d\\ude00!\""},
        {"{{ '{\"k\": [1, 2.5, \"\\\\u00e9\"]}' | from_json }}", "{'k': [1, 2.5, '\xc3\xa9']}"},
        {"{{ '<{}|{}>'.format(1, 'x') }}", "<1|x>"},
        {"{{ strftime_now('%Y-%m-%d') }} {{ range(3) | list }} {{ range(5, 1, -2) | list }}",
         "2026-11-24 [0, 1, 2] [5, 3]"},
        {"{{ 'x' | string | safe | length }} {{ missing | length }}", "1 0"},
    };
    (void)state;
    check(cases, ARRAY_LEN(cases));
}

static void statements_do_as_in_jinja2(void **state)
{
    static const char *const cases[][2] = {
        {"{% if n > 5 %}a{% elif n == 3 %}b{% else %}c{% endif %}", "b"},
        {"{% for i in list %}{{ loop.index }}{{ loop.index0 }}{{ i }}{% if not loop.last %},"
         "{% endif %}{% endfor %}",
         "103,211,322"},
        {"{% for i in list %}{{ loop.previtem }}<{{ loop.nextitem }}{{ loop.first }}"
         " {% endfor %}",
         "<1True 3<2False 1<False "},
        {"{% for k, v in d.items() %}{{ k }}{% endfor %}{% for x in d %}{{ x }}{% endfor %}",
         "baba"},
        {"{% for i in empty %}x{% endfor %}{% for c in ['a', 'b'] %}{{ c }}.{% endfor %}", "a.b."},
        {"{% for i in list if i != 1 %}{{ loop.index }}:{{ i }} {% endfor %}", "1:3 2:2 "},
        {"{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}"
         "{% endif %}{{ i }}{% endfor %}",
         "023"},
        {"{% set x = 1 %}{% for i in list %}{{ x }}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
         "1212121"},
        {"{% set ns = namespace(k=0) %}{% for i in list %}{% set ns.k = ns.k + i %}{% endfor %}"
         "{{ ns.k }}",
         "6"},
        {"{% set a, b = 1, (2, 3) %}{{ a }}{{ b }}", "1(2, 3)"},
        {"{% set t %}a{{ n }}{% endset %}{{ t | upper }}{% set u | upper %}q{% endset %}{{ u }}",
         "A3Q"},
        {"{% macro f(a, b='B') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}"
         "{{ f(b=3, a=4) }}{{ f() }}",
         "1B1243B"},
        {"{% macro f(k) %}{% if k %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
         "4321"},
        {"{% filter upper | trim %} ab {% endfilter %}{% generation %}g{% endgeneration %}", "ABg"},
        {"{%- macro f(l) %}{{ l.append(4) }}{{ l.pop(0) }}{% endmacro %}{{ f(list) }}{{ list }}",
         "None3[1, 2, 4]"},
        {"{% for p in people %}{% for c in range(p.name | length) %}{{ loop.index }}{% endfor %}{{ "
         "loop.index }}"
         "{% endfor %}",
         "123112342"},
    };
    (void)state;
    check(cases, ARRAY_LEN(cases));
}

static void white_space_is_removed_around_blocks(void **state)
{
    static const char *const cases[][2] = {
        {"a\n  {% if n %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
        {"a \n {%- if n -%} \n b \n {%- endif -%} \n c", "abc"},
        {"a {{ n }}\n{{ n }}\n\n", "a 3\n3\n"},
        {"a\n  {#- c -#}\n  b", "ab"},
        {"a\n  {# c #}\nb {# {{ }} #} c", "a\nb  c"},
        {"  {%+ if n +%}\nx{% endif %}", "  \nx"},
        {"a\r\nb\rc{{- n -}}\n d", "a\nb\nc3d"},
        {"{{- 1 }} {{ '{{ }} {% %}' }} }} %} { #", "1 {{ }} {% %} }} %} { #"},
        {"x {% if n %} y {% endif %} z", "x  y  z"},
        {"\xe3\x80\x80{%- if n %}k{% endif %}", "k"},
    };
    (void)state;
    check(cases, ARRAY_LEN(cases));
}

static void fails(const char *program, size_t n, const struct jinja_limits *limits, const char *why)
{
    struct text out;
    struct oato_error err;
    if (!render(program, n, limits, &out, &err))
        fail_msg("%.100s: rendered '%.100s'", program, out.data ? out.data : "");
    assert_int_equal(err.status, OATO_EFILE);
    if (!strstr(err.text, why) || strncmp(err.text, "test, line ", 11) != 0 ||
        strchr(err.text, '\n'))
        fail_msg("%.100s: '%s' instead of '%s'", program, err.text, why);
    text_free(&out);
}

static void mistakes_are_told_with_their_line(void **state)
{
    static const char *const cases[][2] = {
        {"\n\n{{ raise_exception('No\nsystem ' ~ n) }}", "line 3: No system 3"},
        {"{{ missing.x }}", "'missing' is undefined"},
        {"{{ d.q.x }}", "'dict object' has no attribute 'q'"},
        {"{{ list[7].x }}", "list object has no element 7"},
        {"{{ missing() }}", "'missing' is undefined"},
        {"{{ missing + 'a' }}", "'missing' is undefined"},
        {"{{ 'a' + 1 }}", "unsupported operand type(s) for +: 'str' and 'int'"},
        {"{{ 1 + 'a' }}", "unsupported operand type(s) for +: 'int' and 'str'"},
        {"{{ 'a' < 1 }}", "unsupported operand type(s) for <: 'str' and 'int'"},
        {"{{ 1 % 0 }}", "division by zero"},
        {"{{ 7 // 2 }}", "found '//'"},
        {"{{ 9223372036854775807 + 1 }}", "more than 64 bits"},
        {"{{ -(0 - 9223372036854775807 - 1) }}", "more than 64 bits"},
        {"{{ 9 ** 99 }}", "found '**'"},
        {"{{ s[::-1] }}", "a slice with this step is not supported"},
        {"{{ 1 / 2 }}", "unsupported operand type(s) for /: 'int' and 'int'"},
        {"{{ s.split() }}", "split() does not take these arguments"},
        {"{{ people | map(attribute='a.b') }}", "a path of attributes is not supported"},
        {"{{ 1.5 + 1 }}", "unsupported operand type(s) for +: 'float' and 'int'"},
        {"{{ '12' | int }}", "int of 'str' is not supported"},
        {"{% for c in s %}{% endfor %}", "'str' object is not iterable"},
        {"{{ 1 < 2 < 3 }}", "a chain of comparisons is not supported"},
        {"{{ list[1::-1] }}", "a slice with this step is not supported"},
        {"{{ list[::2] }}", "a slice with this step is not supported"},
        {"{{ [1] < [2] }}", "unsupported operand type(s) for <: 'list' and 'list'"},
        {"{{ {1: 2} | tojson }}", "a key that is no string is not supported"},
        {"{{ 'a'.join(list) }}", "'str object' has no attribute 'join'"},
        {"{{ s.endswith(('x', 'y')) }}", "endswith() expects a string, not 'tuple'"},
        {"{{ '{:d}'.format(1) }}", "format() supports {} only"},
        {"{{ '\\v' }}", "the escape \\v in a string is not supported"},
        {"{% for i in list recursive %}{% endfor %}",
         "expected the end of the tag, found 'recursive'"},
        {"{% for i in list %}{% else %}{% endfor %}", "expected endfor, found 'else'"},
        {"{% call f() %}{% endcall %}", "the statement 'call' is not supported"},
        {"{{ list[::0] }}", "a slice with this step is not supported"},
        {"{{ n | nothing }}", "the filter 'nothing' is not supported"},
        {"{{ n is nothing }}", "the test 'nothing' is not supported"},
        {"{% for i in 3 %}{% endfor %}", "'int' object is not iterable"},
        {"{% for a, b in [[1]] %}{% endfor %}", "1 values cannot be unpacked to 2 names"},
        {"{% set n.x = 1 %}", "cannot assign attribute on non-namespace object"},
        {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "macro 'f'"},
        {"{{ n | tojson(1, 2, 3, 4, 5) }}", "tojson() does not take these arguments"},
        {"{{ {[]: 1} }}", "unhashable type: 'list'"},
        {"{% set f = s.split %}{{ f() }}",
         "a method that is called without its object is not supported"},
        {"{{ '{' | from_json }}", "malformed JSON"},
        {"{{ d | tojson }}{{ missing | tojson }}", "Undefined is not JSON serializable"},
        {"{% include 'x' %}", "the statement 'include' is not supported"},
        {"{% break %}", "break or continue outside of a loop"},
        {"{% if n %}", "expected endif, found 'the end of the program'"},
        {"{% for x in list %}{% endif %}", "expected endfor, found 'endif'"},
        {"{{ 1 +", "ends inside of a tag"},
        {"{{ 'abc", "a string does not end"},
        {"{# abc", "a comment does not end"},
        {"{{ n ! }}", "unexpected character '!'"},
        {"{{ f(a=1, 2) }}", "an argument without a name"},
        {"{% set true = 1 %}", "what is not a name cannot be assigned to"},
        {"{{ '\\xzz' }}", "the escape \\x in a string is not supported"},
        {"{{ 99999999999999999999 }}", "cannot be read"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        fails(cases[i][0], strlen(cases[i][0]), &jinja_limits_default, cases[i][1]);
}

/* count times `open`, then `middle`, then count times `close`. */
static struct text nested(const char *before, const char *open, const char *middle,
                          const char *close, const char *after, int count)
{
    struct text t;
    text_init(&t);
    text_add(&t, before, strlen(before));
    for (int i = 0; i < count; i++)
        text_add(&t, open, strlen(open));
    text_add(&t, middle, strlen(middle));
    for (int i = 0; i < count; i++)
        text_add(&t, close, strlen(close));
    text_add(&t, after, strlen(after));
    return t;
}

static void nesting_ends_in_one_line(void **state)
{
    static const char *const cases[][5] = {
        {"{{ ", "(", "1", ")", " }}"},
        {"{{ ", "[", "1", "]", " }}"},
        {"{{ ", "{1:", "1", "}", " }}"},
        {"{{ ", "not ", "1", "", " }}"},
        {"{{ ", "- ", "1", "", " }}"},
        {"{{ 1", " + 1", "", "", " }}"},
        {"{{ n", ".a", "", "", " }}"},
        {"{{ n", "[0]", "", "", " }}"},
        {"{{ n", " | int", "", "", " }}"},
        {"{{ n", "(1)", "", "", " }}"},
        {"{{ ", "1 if 1 else ", "1", "", " }}"},
        {"{{ ", "f(", "1", ")", " }}"},
        {"", "{% if 1 %}", "x", "{% endif %}", ""},
        {"", "{% for a in list %}", "x", "{% endfor %}", ""},
        {"{{ n", " is none", "", "", " }}"},
        {"{{ ", "n if ", "n", "", " }}"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct text t =
            nested(cases[i][0], cases[i][1], cases[i][2], cases[i][3], cases[i][4], 10000);
        fails(t.data, t.len, &jinja_limits_default, "more than 500 levels of nesting");
        text_free(&t);
    }
    struct text deep = nested("{{ '", "[", "", "]", "' | from_json }}", 10000);
    fails(deep.data, deep.len, &jinja_limits_default, "more than 500 levels of nesting");
    text_free(&deep);
    static const char *const loops[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set l = [] %}{{ l.append(l) }}{{ l }}",
        "{% set l = [] %}{{ l.append(l) }}{{ l | tojson }}",
        "{% set l = [] %}{{ l.append(l) }}{% set m = [] %}{{ m.append(m) }}{{ l == m }}",
        "{% set d = {} %}{% set l = [d] %}{% for i in [1] %}{{ l.append(l) }}{% endfor %}{{ l }}",
    };
    for (size_t i = 0; i < ARRAY_LEN(loops); i++)
        fails(loops[i], strlen(loops[i]), &jinja_limits_default, "more than 500 levels of nesting");
}

static void endless_work_ends_in_one_line(void **state)
{
    static const char *const cases[][2] = {
        {"{% for a in range(9999999999) %}{% endfor %}", "more than "},
        {"{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
         "more than "},
        {"{% set l = [1] %}{% for a in l %}{% set _ = l.append(a) %}{% endfor %}", "more than "},
        {"{{ 'x' * 99999999999 }}", "more than "},
        {"{{ '' * 99999999999 }}{% for a in range(100000000) %}{% endfor %}", "more than "},
        {"{% set x = 'x' * 1000000 %}{% for a in range(1000) %}{{ x }}{% endfor %}",
         "more than 16777216 bytes of output"},
        {"{% set ns = namespace(x='x') %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}"
         "{% endfor %}",
         "more than 134217728 bytes of memory"},
        {"{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
         "{% endfor %}{{ ns.x }}",
         "more than "},
        {"{% set ns = namespace(x=[1], y=[1]) %}{% for a in range(60) %}"
         "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
         "more than 10000000 steps"},
        {"{% set x = 'a' * 1000000 %}{% for i in range(1000000) %}{{ x.split('ab') | length }}"
         "{% endfor %}",
         "more than 10000000 steps"},
        {"{% set x = 'a' * 1000000 %}{% for i in range(1000000) %}{% if x.strip(x) %}{% endif %}"
         "{% endfor %}",
         "more than 10000000 steps"},
        {"{% set x = '\\n' * 1000000 %}{% for i in range(100) %}{% set y = x.split('\\n') %}"
         "{% endfor %}",
         "more than "},
        {"{{ 1 | tojson(indent=64) }}{% set ns = namespace(x=[1]) %}{% for a in range(400) %}"
         "{% set ns.x = [ns.x] %}{% endfor %}{% for i in range(1000) %}{{ ns.x | tojson(indent=64) "
         "}}"
         "{% endfor %}",
         "more than "},
    };
    (void)state;
    for (size_t i = pace_first(3); i < ARRAY_LEN(cases); i += pace_step(3)) {
        const uint64_t begin = now_ns();
        fails(cases[i][0], strlen(cases[i][0]), &jinja_limits_default, cases[i][1]);
        if (now_ns() - begin > 60000000000u)
            fail_msg("%s takes %.1f s", cases[i][0], (double)(now_ns() - begin) / 1e9);
    }
    struct text t = nested("", "x", "", "", "", 2000000);
    fails(t.data, t.len, &jinja_limits_default,
          "the program has 2000000 bytes; the limit is 1048576");
    text_free(&t);
}

static void long_texts_are_no_work(void **state)
{
    static const char *const cases[][2] = {
        {"{% set x = 'a line of text\n' * 50000 %}{{ x.split('\n') | length }} {{ "
         "x.replace('line', 'l') | "
         "length }} {{ x | trim | length }}",
         "50001 600000 749999"},
        {"{% set ns = namespace(x='') %}{% for i in range(20000) %}{% set ns.x = ns.x ~ 'a line ' "
         "~ i "
         "%}{% endfor %}{{ ns.x | length }}",
         "228890"},
    };
    (void)state;
    check(cases, ARRAY_LEN(cases));
}

static void every_limit_is_the_callers(void **state)
{
    static const char program[] = "{% for i in range(100) %}{{ [i, i] }}{% endfor %}";
    struct jinja_limits l = jinja_limits_default;
    (void)state;
    l.steps = 50;
    fails(program, sizeof program - 1, &l, "line 1: more than 50 steps");
    l = jinja_limits_default;
    l.depth = 2;
    fails(program, sizeof program - 1, &l, "line 1: more than 2 levels of nesting");
    l = jinja_limits_default;
    l.output_bytes = 100;
    fails(program, sizeof program - 1, &l, "line 1: more than 100 bytes of output");
    l = jinja_limits_default;
    l.memory_bytes = 1000;
    fails(program, sizeof program - 1, &l, "line 1: more than 1000 bytes of memory");
}

static void a_program_cut_anywhere_renders_or_fails(void **state)
{
    static const char program[] =
        "{%- set ns = namespace(k='\\u00e9') -%}\n{# note #}\n{% macro f(a, b=[1, {'x': 2.5}]) %}"
        "{{ a ~ b[0:][::-1] | tojson(indent=2) }}{% endmacro %}\n{% for k, v in d.items() if "
        "k is not none %}{% if loop.first and 'a' in k %}{{ f(k, b=v) }}{% elif n >= 2 %}"
        "{{- ns.k if k else 'x'.split('y')[0] -}}{% else %}{% set ns.k = -n %}{% endif %}"
        "{% endfor %}{% set z %}q{% endset %}{% filter upper %}{{ z }}{% endfilter %}\xff\xe2\x82";
    (void)state;
    for (size_t n = 0; n <= sizeof program - 1; n++)
        for (size_t from = n % pace_step(4) * 13; from < n; from += 13 * pace_step(4)) {
            struct text out;
            struct oato_error err;
            char *copy = malloc(n - from); /* of its own, so that reading beyond it is seen */
            memcpy(copy, program + from, n - from);
            if (render(copy, n - from, &jinja_limits_default, &out, &err))
                assert_null(strchr(err.text, '\n'));
            text_free(&out);
            free(copy);
        }
}

static bool nobody_waits(void *user)
{
    return --*(int *)user < 0;
}

/* Whoever asks for a rendering has a budget for it; whatever the program does takes from that. */
static void a_run_spends_its_budget(void **state)
{
    static const char *const programs[] = {
        "{% for i in range(9000) %}{% for k in range(9000) %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{{ 'abcdefghij' * 90 }}{% endfor %}",
        "{% set x = namespace(s='a') %}{% for i in range(40) %}{% set x.s = x.s ~ x.s %}{% endfor "
        "%}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) "
        "}}",
        "{{ range(5000000) | list | tojson }}",
        "{{ (range(90000) | list | sort) | join(',') }}",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(programs); i++) {
        struct jinja_template *t;
        struct oato_error err = {0};
        struct text out;
        int looks = 3;
        struct budget budget = {.steps = 2000000, .bytes = 4 << 20};
        struct budget gone = {
            .steps = UINT64_MAX, .bytes = SIZE_MAX, .cancelled = nobody_waits, .user = &looks};
        assert_int_equal(
            jinja_parse("test", programs[i], strlen(programs[i]), &jinja_limits_default, &t, &err),
            OATO_OK);
        for (int round = 0; round < 2; round++) {
            text_init(&out);
            struct jinja *x = jinja_begin(t, &err);
            jinja_budget(x, round ? &gone : &budget);
            assert_int_equal(jinja_run(x, &out), OATO_EUSAGE);
            assert_non_null(strstr(err.text, round ? "cancelled" : "than one request may take"));
            jinja_end(x);
            text_free(&out);
        }
        jinja_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_have_pythons_values),
        cmocka_unit_test(filters_and_methods_do_as_in_python),
        cmocka_unit_test(statements_do_as_in_jinja2),
        cmocka_unit_test(white_space_is_removed_around_blocks),
        cmocka_unit_test(mistakes_are_told_with_their_line),
        cmocka_unit_test(nesting_ends_in_one_line),
        cmocka_unit_test(endless_work_ends_in_one_line),
        cmocka_unit_test(long_texts_are_no_work),
        cmocka_unit_test(every_limit_is_the_callers),
        cmocka_unit_test(a_run_spends_its_budget),
        cmocka_unit_test(a_program_cut_anywhere_renders_or_fails),
    };
    setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
