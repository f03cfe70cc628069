/*
 * json_schema_text.c - literals, intervals of numbers and formats of strings as GBNF.
 */
#include "text/json_schema_internal.h"

#include <inttypes.h>
#include <string.h>

enum { REPEAT_MOST = 10000, DIGITS_MOST = 16 /* of GBNF_NUMBER_MOST */ };

/* Surrogates only in pairs; a character of a pattern's "." has no escape but these two. */
const char gbnf_common[] =
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"
    "plain ::= [^\"\\\\\\x00-\\x1F\\x7F]\n"
    "hex ::= [0-9a-fA-F]\n"
    "char ::= plain | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" ([0-9abcefABCEF] hex{3} | [dD] [0-7] hex{2} "
    "| "
    "[dD] [89abAB] hex{2} \"\\\\u\" [dD] [c-fC-F] hex{2}))\n"
    "dot ::= [^\"\\\\\\x00-\\x1F\\x7F\\u2028\\u2029] | \"\\\\\" [\"\\\\]\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "integer ::= \"0\" | \"-\"? [1-9] [0-9]{0,15}\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15}) (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?\n"
    "value ::= string | number | \"true\" | \"false\" | \"null\" | array | object\n"
    "array ::= \"[\" ws (value (\",\" ws value)*)? ws \"]\"\n"
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? ws \"}\"\n";

void gbnf_literal(struct text *out, const char *s, size_t n)
{
    text_add(out, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            text_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            text_printf(out, "\\x%02X", c);
        else
            text_add(out, s + i, 1);
    }
    text_add(out, "\"", 1);
}

void gbnf_repeat(struct text *out, int64_t least, int64_t most)
{
    if (most < 0)
        text_printf(out, "{%" PRId64 ",}", least);
    else
        text_printf(out, "{%" PRId64 ",%" PRId64 "}", least,
                    max_i64(least, min_i64(most, REPEAT_MOST)));
}

/* ---------------------------------------------------------------------------------- numbers */

static bool all(const char *digits, char c)
{
    return !digits[strspn(digits, (char[]){c, 0})];
}

/* Numbers of as many digits as both bounds have, from a to b. */
static void same_digits(struct text *out, const char *a, const char *b)
{
    static const char nines[] = "999999999999999999", zeros[] = "000000000000000000";
    const char *join = "";
    if (!*a)
        return;
    const size_t rest = strlen(a + 1);
    if (*a == *b) {
        text_printf(out, "[%c] ", *a);
        same_digits(out, a + 1, b + 1);
        return;
    }
    const bool whole_a = all(a + 1, '0'), whole_b = all(b + 1, '9');
    const char first = (char)(*a + !whole_a), last = (char)(*b - !whole_b);
    text_printf(out, "(");
    if (!whole_a) {
        text_printf(out, "[%c] ", *a);
        same_digits(out, a + 1, nines + strlen(nines) - rest);
        join = "| ";
    }
    if (first <= last) {
        text_printf(out, "%s[%c-%c] ", join, first, last);
        if (rest)
            text_printf(out, "[0-9]{%zu} ", rest);
        join = "| ";
    }
    if (!whole_b) {
        text_printf(out, "%s[%c] ", join, *b);
        same_digits(out, zeros + strlen(zeros) - rest, b + 1);
    }
    text_printf(out, ") ");
}

/* Numbers 0 <= a <= b, in parentheses. */
static void magnitudes(struct text *out, int64_t a, int64_t b)
{
    int64_t begin = 0, end = 9;
    const char *join = "(";
    for (int n = 1; n <= DIGITS_MOST; n++, begin = end + 1, end = end * 10 + 9) {
        char from[24], to[24];
        if (b < begin || a > end)
            continue;
        snprintf(from, sizeof from, "%" PRId64, max_i64(a, begin));
        snprintf(to, sizeof to, "%" PRId64, min_i64(b, end));
        text_printf(out, "%s", join);
        same_digits(out, from, to);
        join = "| ";
    }
    text_printf(out, ")");
}

void gbnf_integers(struct text *out, int64_t least, int64_t most)
{
    least = max_i64(least, -GBNF_NUMBER_MOST);
    most = min_i64(most, GBNF_NUMBER_MOST);
    text_printf(out, "(");
    if (least < 0) {
        text_printf(out, "\"-\" ");
        magnitudes(out, most < 0 ? -most : 1, -least);
        text_printf(out, "%s", most < 0 ? "" : " | ");
    }
    if (most >= 0)
        magnitudes(out, max_i64(least, 0), most);
    text_printf(out, ")");
}

/* Alternatives for numbers from a to b, both not below 0. */
static void real_magnitudes(struct text *out, int64_t a, bool above, int64_t b, bool below)
{
    const char *join = "";
    if (a < b && above) {
        magnitudes(out, a, a);
        text_printf(out, " \".\" [0-9]{0,14} [1-9]");
        join = " | ";
        a++;
    }
    if (a < b) {
        text_printf(out, "%s", join);
        magnitudes(out, a, b - 1);
        text_printf(out, " (\".\" [0-9]{1,15})?");
        join = " | ";
    }
    if (below)
        return;
    text_printf(out, "%s", join);
    magnitudes(out, b, b);
    text_printf(out, " (\".\" \"0\"{1,15})?");
}

void gbnf_numbers(struct text *out, int64_t least, bool above, int64_t most, bool below)
{
    const char *join = "";
    least = max_i64(least, -GBNF_NUMBER_MOST);
    most = min_i64(most, GBNF_NUMBER_MOST);
    text_printf(out, "(");
    if (least < 0) { /* mirrored; 0 itself has no sign */
        const bool reaches = most >= 0;
        text_printf(out, "\"-\" (");
        real_magnitudes(out, reaches ? 0 : -most, reaches || below, -least, above);
        text_printf(out, ")");
        join = " | ";
    }
    if (most > 0 || (most == 0 && !below)) {
        text_printf(out, "%s", join);
        real_magnitudes(out, max_i64(least, 0), least >= 0 && above, most, below);
    }
    text_printf(out, ")");
}

/* ---------------------------------------------------------------------------------- formats */

#define DATE                                                                                       \
    "[1-9] [0-9]{3} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" "  \
    "[01]) "                                                                                       \
    "| "                                                                                           \
    "(\"0\" [469] | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | "                          \
    "\"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8]))"
#define CLOCK "([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9]"
#define TIME  CLOCK " \":\" [0-5] [0-9] (\".\" [0-9]{1,9})? (\"Z\" | [-+] " CLOCK ")"
#define OCTET "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9] [0-9] | [1-9]? [0-9])"
#define LABEL "[a-zA-Z0-9] ([-a-zA-Z0-9]{0,30} [a-zA-Z0-9])?"

bool gbnf_format(struct text *out, const char *format)
{
    static const struct {
        const char *name, *gbnf;
    } formats[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE " \"T\" " TIME},
        {"uuid", "hex{8} (\"-\" hex{4}){3} \"-\" hex{12}"},
        {"ipv4", OCTET " (\".\" " OCTET "){3}"},
        {"hostname", LABEL " (\".\" " LABEL "){0,3}"},
        {"email",
         "[a-zA-Z0-9]{1,32} ([-._+] [a-zA-Z0-9]{1,8}){0,3} \"@\" " LABEL " (\".\" " LABEL "){1,3}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        if (!strcmp(formats[i].name, format)) {
            text_printf(out, "%s", formats[i].gbnf);
            return true;
        }
    }
    return false;
}
