/*
 * json_schema_text.c - literals, intervals of numbers and formats of strings as GBNF.
 */
#include "text/json_schema_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
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

/* Digits from `low` on, up to `high`: what may follow a point. NULL: no limit on that side. */
struct fraction {
    const char *low, *high;
    bool above, below; /* the limit itself is not in it */
    int room;          /* how many digits there may be: a double keeps 15 in all */
};

static bool fraction(struct text *out, struct fraction f);

/* Appends `head` and what may follow it, or nothing and gives false: no number begins so. */
static bool fraction_behind(struct text *out, const char *head, const char *point,
                            struct fraction f)
{
    const bool ends =
        (!f.low || (all(f.low, '0') && !f.above)) && (!f.high || !all(f.high, '0') || !f.below);
    const size_t begin = out->len;
    text_printf(out, "%s (%s(", head, point);
    const bool more = fraction(out, f);
    if (!more && !ends) {
        out->len = begin;
        return false;
    }
    if (more)
        text_printf(out, "))%s", ends ? "?" : "");
    else
        out->len = begin + strlen(head);
    return true;
}

/* One digit and more, or nothing and false. */
static bool fraction(struct text *out, struct fraction f)
{
    if (f.low && !*f.low && !f.above)
        f.low = NULL;
    if (f.room < 1 || (f.high && !*f.high && (f.below || (f.low && !all(f.low, '0')))))
        return false;
    if (!f.high || !*f.high) {
        if (!f.low || f.high) {
            text_printf(out, "%s{1,%d}", f.high ? "\"0\"" : "[0-9]", f.room);
            return true;
        }
        if (!*f.low) {
            text_printf(out, "\"0\"{0,%d} [1-9] [0-9]{0,%d}", (f.room - 1) / 2, f.room / 2);
            return true;
        }
    }
    const char low = f.low && *f.low ? *f.low : '0', high = f.high ? *f.high : '9';
    const char *const low_rest = f.low && *f.low ? f.low + 1 : f.low;
    const struct fraction tight[] = {
        {low_rest,
         low < high ? NULL
         : f.high   ? f.high + 1
                    : NULL,
         f.above, low == high && f.below, f.room - 1},
        {NULL, f.high ? f.high + 1 : NULL, false, f.below, f.room - 1}};
    const char *join = "";
    bool any = false;
    for (int side = 0; side < 3; side++) {
        const char from = (char)(low + (f.low != NULL)), to = (char)(high - (f.high != NULL));
        const char head[] = {'[', side ? high : low, ']', 0};
        const size_t begin = out->len;
        bool some = false;
        text_printf(out, "%s", join);
        if (side == 1 && from <= to) {
            text_printf(out, "[%c-%c] [0-9]{0,%d}", from, to, f.room - 1);
            some = true;
        } else if (side == 0 ? f.low != NULL : side == 2 && f.high && (!f.low || low < high)) {
            some = fraction_behind(out, head, "", tight[side / 2]);
        }
        if (!some)
            out->len = begin;
        join = some ? " | " : join;
        any |= some;
    }
    return any;
}

/* Whole numbers a to b, both not below 0, and what may follow the point of each. */
static bool behind_point(struct text *out, const char **join, int64_t a, int64_t b,
                         struct fraction f)
{
    const size_t begin = out->len;
    struct text head;
    text_init(&head);
    magnitudes(&head, a, b);
    f.room = DIGITS_MOST - 1;
    for (int64_t digits = a; (f.low || f.high) && digits; digits /= 10)
        f.room--;
    text_printf(out, "%s", *join);
    const bool some = fraction_behind(out, or_empty(head.data), "\".\" ", f);
    if (some)
        *join = " | ";
    else
        out->len = begin;
    out->failed |= head.failed;
    text_free(&head);
    return some;
}

/* Alternatives for numbers whose magnitudes are from a to b. */
static bool real_magnitudes(struct text *out, const struct gbnf_bound *a,
                            const struct gbnf_bound *b)
{
    const struct fraction low = {a->fraction, NULL, a->open, false, 0},
                          high = {NULL, b->fraction, false, b->open, 0},
                          both = {a->fraction, b->fraction, a->open, b->open, 0};
    const bool tight = a->open || *a->fraction;
    const char *join = "";
    if (a->whole == b->whole)
        return behind_point(out, &join, a->whole, a->whole, both);
    bool any = tight && behind_point(out, &join, a->whole, a->whole, low);
    if (a->whole + tight < b->whole)
        any |= behind_point(out, &join, a->whole + tight, b->whole - 1, (struct fraction){0});
    return behind_point(out, &join, b->whole, b->whole, high) || any;
}

bool gbnf_bound_of(double x, bool open, struct gbnf_bound *out)
{
    const double magnitude = fabs(x);
    char digits[48];
    int n = 1;
    *out = (struct gbnf_bound){.whole = GBNF_NUMBER_MOST, .negative = x < 0};
    if (!(magnitude <= (double)GBNF_NUMBER_MOST))
        return true;
    for (int64_t rest = (int64_t)magnitude; rest >= 10; rest /= 10)
        n++;
    snprintf(digits, sizeof digits, "%.*f", (int)max_i64(DIGITS_MOST - 1 - n, 0), magnitude);
    if (strtod(digits, NULL) != magnitude)
        return false;
    char *point = strchr(digits, '.');
    if (point) {
        size_t len = strlen(point + 1);
        while (len && point[len] == '0')
            len--;
        snprintf(out->fraction, sizeof out->fraction, "%.*s", (int)len, point + 1);
    }
    out->whole = min_i64((int64_t)strtod(digits, NULL), GBNF_NUMBER_MOST);
    out->open = open;
    return true;
}

bool gbnf_numbers(struct text *out, const struct gbnf_bound *least, const struct gbnf_bound *most)
{
    static const struct gbnf_bound zero = {.open = false}, beyond_zero = {.open = true};
    const bool below_zero = least->negative && (least->whole || *least->fraction);
    const size_t begin = out->len;
    bool any = false;
    text_printf(out, "(");
    if (below_zero) { /* mirrored; 0 itself has no sign */
        text_printf(out, "\"-\" (");
        any = real_magnitudes(out, most->negative ? most : &beyond_zero, least);
        if (any)
            text_printf(out, ")");
        else
            out->len = begin + 1;
    }
    if (!most->negative) {
        const size_t before = out->len;
        text_printf(out, "%s", any ? " | " : "");
        if (real_magnitudes(out, below_zero ? &zero : least, most))
            any = true;
        else
            out->len = before;
    }
    text_printf(out, ")");
    return any;
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
#define GROUP "hex{1,4}"
#define SOME  "[0-9]{1,6} "
#define DAYS  SOME "\"D\""
#define DATES "(" SOME "\"Y\" (" SOME "\"M\" (" DAYS ")?)? | " SOME "\"M\" (" DAYS ")? | " DAYS ")"
#define S     SOME "\"S\""
#define TIMES "\"T\" (" SOME "\"H\" (" SOME "\"M\" (" S ")?)? | " SOME "\"M\" (" S ")? | " S ")"
#define URI   "[-a-zA-Z0-9._~!$&'()*+,;=:@] | \"%\" hex{2}"

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
        {"ipv6", "(" GROUP " \":\"){7} " GROUP " | (" GROUP " (\":\" " GROUP
                 "){0,2})? \"::\" (" GROUP " (\":\" " GROUP "){0,3})?"},
        {"duration", "\"P\" (" SOME "\"W\" | " DATES " (" TIMES ")? | " TIMES ")"},
        /* of a host without the name of a user */
        {"uri", "[a-zA-Z] [-+.a-zA-Z0-9]{0,15} \":\" (\"//\" (" LABEL " (\".\" " LABEL
                "){0,5} (\":\" [0-9]{1,4})?)? (\"/\" (" URI ")*)* | (" URI ")+ (\"/\" (" URI
                ")*)*) (\"?\" (" URI " | [/?])*)? (\"#\" (" URI " | [/?])*)?"},
        {"hostname", LABEL " (\".\" " LABEL "){0,3}"},
        {"email",
         "[a-zA-Z0-9]{1,32} ([-._+] [a-zA-Z0-9]{1,8}){0,3} \"@\" " LABEL " (\".\" " LABEL "){1,3}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        if (!strcmp(formats[i].name, format)) {
            text_printf(out, "(%s)", formats[i].gbnf);
            return true;
        }
    }
    return false;
}
