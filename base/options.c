/*
 * options.c - command lines by table, in the manner of git and GNU: the program walks its options
 * with options_next and gets a row's id, an operand, or one line about what is wrong.
 */
#include "base/base.h"

#include <string.h>
#include <unistd.h>

enum { NEAR = 3, WORD = 32, PREFIX = 4 };

static int edit_distance(const char *a, const char *b)
{
    int row[WORD + 1];
    size_t n = strlen(b);
    if (strlen(a) > WORD || n > WORD)
        return WORD;
    for (size_t j = 0; j <= n; j++)
        row[j] = (int)j;
    for (size_t i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int insert = row[j - 1] + 1, remove = row[j] + 1;
            row[j] = change < insert ? change : insert;
            row[j] = row[j] < remove ? row[j] : remove;
        }
    }
    return row[n];
}

const char *nearest_name(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    int least = NEAR;
    for (size_t i = 0; i < n; i++) {
        int d = edit_distance(word, names[i]);
        if (d < least && d < (int)strlen(word)) {
            least = d;
            best = names[i];
        }
    }
    for (size_t i = 0; i < n && !best; i++) {
        const size_t a = strlen(word), b = strlen(names[i]), shorter = a < b ? a : b;
        if (shorter >= PREFIX && !strncmp(word, names[i], shorter))
            best = names[i];
    }
    return best;
}

oato_status verb_check(const char *word, const char *const *verbs, size_t n, struct oato_error *err)
{
    const char *near =
        strpbrk(word, "./-") || !access(word, F_OK) ? NULL : nearest_name(word, verbs, n);
    return near ? oato_fail(err, OATO_EUSAGE,
                            "'%s' is neither a verb nor a file; did you mean '%s'?", word, near)
                : OATO_OK;
}

void options_init(struct options *o, const struct option_row *rows, int argc, char **argv)
{
    memset(o, 0, sizeof *o);
    o->rows = rows;
    o->argc = argc;
    o->argv = argv;
}

static int unknown(const struct options *o, const char *word, struct oato_error *err)
{
    const char *names[256];
    size_t n = 0;
    for (const struct option_row *r = o->rows; r->name && n < ARRAY_LEN(names); r++)
        if (r->help && r->kind != OPT_ANSWER)
            names[n++] = r->name;
    const char *near = nearest_name(word, names, n);
    if (near)
        oato_fail(err, OATO_EUSAGE, "unknown option '%s'; did you mean '--%s'?", o->name, near);
    else
        oato_fail(err, OATO_EUSAGE, "unknown option '%s'; --help lists them", o->name);
    return OPT_ERROR;
}

/* Whether the word is one of "a|b|c". */
static bool is_choice(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *w = words; *w; w += strcspn(w, "|"), w += *w == '|')
        if (strcspn(w, "|") == n && !memcmp(w, word, n))
            return true;
    return false;
}

/* Whether an option's value is the name of a file or a folder. */
static bool is_file(const char *value)
{
    static const char *const files[] = {"FILE", "DIR", "PLAN", "PROFILE", "MODEL"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (!strncmp(value, files[i], strlen(files[i])))
            return true;
    return false;
}

static int empty_word(const char *where, struct oato_error *err)
{
    oato_fail(err, OATO_EUSAGE, "%s: an empty word is no file's name; is a shell variable unset?",
              where);
    return OPT_ERROR;
}

static int take_value(struct options *o, const struct option_row *r, const char *attached,
                      struct oato_error *err)
{
    o->value = NULL;
    if (r->kind == OPT_ANSWER) {
        oato_fail(err, OATO_EUSAGE, "option '%s' is not supported: %s", o->name, r->help);
        return OPT_ERROR;
    }
    if (r->kind == OPT_CHOICE) {
        o->value = attached;
        if (!attached && o->index < o->argc && is_choice(r->value, o->argv[o->index]))
            o->value = o->argv[o->index++];
        return r->id;
    }
    if (r->kind == OPT_FLAG) {
        if (o->glued)
            return unknown(o, o->name + 1, err);
        if (attached) {
            oato_fail(err, OATO_EUSAGE, "option --%s takes no value", r->name);
            return OPT_ERROR;
        }
        return r->id;
    }
    if (!attached && o->index >= o->argc) {
        oato_fail(err, OATO_EUSAGE, "option --%s needs a value: %s", r->name, r->value);
        return OPT_ERROR;
    }
    o->value = attached ? attached : o->argv[o->index++];
    return *o->value || !is_file(r->value) ? r->id : empty_word(o->name, err);
}

int options_next(struct options *o, struct oato_error *err)
{
    if (o->index >= o->argc)
        return OPT_END;
    const char *word = o->argv[o->index++];
    o->name = word;
    o->glued = false;
    if (o->only_operands || word[0] != '-' || !word[1]) {
        o->value = word;
        return *word ? OPT_OPERAND : empty_word("operand", err);
    }
    if (!strcmp(word, "--")) {
        o->only_operands = true;
        return options_next(o, err);
    }
    /* llama.cpp writes long names with one dash, too (-temp): whole names win over letters */
    const char *name = word + (word[1] == '-' ? 2 : 1), *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    for (const struct option_row *r = o->rows; r->name; r++)
        if (strlen(r->name) == n && !memcmp(r->name, name, n))
            return take_value(o, r, equals ? equals + 1 : NULL, err);
    for (const struct option_row *r = o->rows; r->name && word[1] != '-'; r++)
        if (r->letter && r->letter == word[1]) {
            o->glued = word[2];
            return take_value(o, r, word[2] ? word + 2 : NULL, err);
        }
    char bare[WORD + 1];
    snprintf(bare, sizeof bare, "%.*s", (int)(n < WORD ? n : WORD), name);
    return unknown(o, bare, err);
}

size_t options_rows(const struct option_of *all, size_t n, unsigned verbs, struct option_row *rows)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        const struct option_of *x = &all[i];
        const enum option_kind kind = !x->value               ? OPT_FLAG
                                      : strchr(x->value, '|') ? OPT_CHOICE
                                                              : OPT_VALUE;
        if (x->verbs & verbs)
            rows[used++] = (struct option_row){x->name, x->letter, kind, x->value, x->help, (int)i};
    }
    rows[used] = (struct option_row){0};
    return used;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

int options_take(struct options *o, const struct option_of *all, void *into, struct oato_error *err)
{
    const int id = options_next(o, err);
    if (id < 0)
        return id;
    o->of = &all[id];
    if (!o->of->take(o, (char *)into + o->of->at, err))
        return id;
    /* "-ngl" is not -n with a value of "gl", but an option that is not known here */
    return o->glued && is_letter(o->value[0]) ? unknown(o, o->name + 1, err) : OPT_ERROR;
}

oato_status option_flag(const struct options *o, void *to, struct oato_error *err)
{
    (void)o;
    (void)err;
    *(bool *)to = true;
    return OATO_OK;
}

oato_status option_text(const struct options *o, void *to, struct oato_error *err)
{
    (void)err;
    *(const char **)to = o->value;
    return OATO_OK;
}

void options_help(const struct option_row *rows, FILE *out)
{
    for (const struct option_row *r = rows; r->name; r++) {
        char left[64];
        if (!r->help || r->kind == OPT_ANSWER)
            continue;
        snprintf(left, sizeof left, "%c%c%s --%s%s%s", r->letter ? '-' : ' ',
                 r->letter ? r->letter : ' ', r->letter ? "," : " ", r->name, r->value ? " " : "",
                 r->value ? r->value : "");
        fprintf(out, "  %-28s %s\n", left, r->help);
    }
}
