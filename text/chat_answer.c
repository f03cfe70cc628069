/*
 * chat_answer.c - an answer cut into what the model says, its reasoning and its calls of functions,
 * while it arrives.
 *
 * A model's marks are found in two tables by what its chat template contains. Text is held back
 * while it may be the beginning of a mark, and white space until it is clear that no mark follows.
 */
#include "text/chat_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Reasoning. The first row whose needle the program contains is taken. */
static const struct think_format {
    const char *needle, *begin, *end;
    const char *drops[CHAT_DROPS + 1];
} thinks[] = {
    {"<|channel|>",
     "<|channel|>analysis",
     "<|end|>",
     {"<|message|>", "<|channel|>final", "<|channel|>commentary", "<|start|>assistant",
      "<|constrain|>json"}},
    {"open_tag('think')",
     "<|open|>think<|sep|>",
     "<|close|>think<|sep|>",
     {"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"}},
    {"[/THINK]", "[THINK]", "[/THINK]", {NULL}},
    {"</seed:think>", "<seed:think>", "</seed:think>", {NULL}},
    {"</mm:think>", "<mm:think>", "</mm:think>", {NULL}},
    {"<think{}>", "<think:opensource>", "</think:opensource>", {NULL}},
    {"<|END_THINKING|>",
     "<|START_THINKING|>",
     "<|END_THINKING|>",
     {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"}},
    {"<|channel>thought", "<|channel>thought", "<channel|>", {NULL}},
    {"<|inner_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>", {NULL}},
    {"[BEGIN FINAL RESPONSE]",
     "Here are my reasoning steps:",
     "[BEGIN FINAL RESPONSE]",
     {"[END FINAL RESPONSE]"}},
    {"<|think|>", "<|think|>", "<|end|>", {"<|content|>", "<|begin|>assistant"}},
    {"think>", "<think>", "</think>", {NULL}}, /* of either */
};

/* Calls. The first row that the program contains is taken: particular ones stand before general
 * ones. */
static const struct call_format calls[] = {
    {.needle = "<|channel|>", .begin = " to=functions."},
    {.needle = "open_tag('call'",
     .begin = "<|open|>call tool=\"",
     .end = "<|close|>call<|sep|>",
     .key = "<|open|>argument key=\"",
     .key_end = "\"",
     .value = "<|sep|>",
     .value_end = "<|close|>argument<|sep|>",
     .drops = {"<|open|>tools<|sep|>", "<|close|>tools<|sep|>"}},
    {.needle = "DSML",
     .begin = "<｜DSML｜invoke name=\"",
     .end = "</｜DSML｜invoke>",
     .key = "<｜DSML｜parameter name=\"",
     .key_end = "\"",
     .value = ">",
     .value_end = "</｜DSML｜parameter>",
     .drops = {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>",
               "</｜DSML｜tool_calls>"}},
    {.begin = "<｜tool▁call▁begin｜>",
     .end = "<｜tool▁call▁end｜>",
     .name = "function<｜tool▁sep｜>",
     .drops = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}},
    {.begin = "<|tool_call_begin|>",
     .end = "<|tool_call_end|>",
     .drops = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}},
    {.begin = "<|tool_call:begin|>",
     .end = "<|tool_call:end|>",
     .name = "<|tool_call:name|>",
     .drops = {"<|tool_calls|>", "<|calls|>"}},
    {.needle = "minimax:tool_call",
     .begin = "<invoke name=\"",
     .end = "</invoke>",
     .key = "<parameter name=\"",
     .key_end = "\"",
     .value = ">",
     .value_end = "</parameter>",
     .drops = {"<minimax:tool_call>", "</minimax:tool_call>"}},
    {.needle = "<tool_calls{}>",
     .begin = "<tool_call:opensource>",
     .end = "</tool_call:opensource>",
     .key = "<arg_key:opensource>",
     .key_end = "</arg_key:opensource>",
     .value = "<arg_value:opensource>",
     .value_end = "</arg_value:opensource>",
     .drops = {"<tool_calls:opensource>", "</tool_calls:opensource>"}},
    {.needle = "<arg_key>",
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .key = "<arg_key>",
     .key_end = "</arg_key>",
     .value = "<arg_value>",
     .value_end = "</arg_value>"},
    {.begin = "<function=",
     .end = "</function>",
     .key = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>",
     .drops = {"<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>"}},
    {.needle = "<function name=",
     .begin = "<function name=\"",
     .end = "</function>",
     .key = "<param name=\"",
     .key_end = "\"",
     .value = ">",
     .value_end = "</param>"},
    {.begin = "<|tool_call>call:", .end = "<tool_call|>"},
    {.begin = "<|tool_call_start|>", .end = "<|tool_call_end|>"},
    {.begin = "<|START_ACTION|>", .end = "<|END_ACTION|>"},
    {.needle = "Action:\\n```json", .begin = "Action:\n```json", .end = "```"},
    {.begin = "<|tools_prefix|>", .end = "<|tools_suffix|>"},
    {.begin = "<|function_call|>"},
    {.begin = "[TOOL_CALLS]"},
    {.begin = "<TOOLCALL>", .end = "</TOOLCALL>"},
    {.begin = "<tool_calls>", .end = "</tool_calls>"},
    {.begin = "<tool_call>", .end = "</tool_call>"},
    {.begin = "<|tool_call|>"},
    {.needle = "\"parameters\": dictionary of argument name", .begin = "{\"name\":", .bare = true},
};

enum mark_does { MARK_DROP, MARK_THINK, MARK_SAY, MARK_CALL };
enum { MARKS = 3 + 2 * CHAT_DROPS };

struct chat_reader {
    struct chat_sink sink;
    const struct call_format *call; /* NULL: it calls nothing */
    struct {
        const char *text;
        enum mark_does does;
    } marks[MARKS];
    int n_marks, n_thinks; /* those of reasoning come first */
    enum chat_part part;
    bool calling; /* what is held follows the beginning of a call */
    bool fresh;   /* a mark was last: white space is dropped */
    bool told;    /* something was said */
    struct text held;
    struct chat_calls calls;
};

static void mark_add(struct chat_reader *r, const char *text, enum mark_does does)
{
    r->marks[r->n_marks].text = text;
    r->marks[r->n_marks++].does = does;
}

static void reasoning_find(struct chat_reader *r, struct gguf_string program,
                           struct gguf_string prompt)
{
    for (size_t i = 0; i < ARRAY_LEN(thinks); i++) {
        const struct think_format *t = &thinks[i];
        if (!gguf_string_has(program, t->needle))
            continue;
        const size_t n = strlen(t->begin);
        while (prompt.len && isspace((unsigned char)prompt.data[prompt.len - 1]))
            prompt.len--;
        const bool begun = prompt.len >= n && !memcmp(prompt.data + prompt.len - n, t->begin, n);
        r->part = begun ? CHAT_THINKS : CHAT_SAYS;
        r->fresh = begun;
        mark_add(r, t->begin, MARK_THINK);
        mark_add(r, t->end, MARK_SAY);
        for (const char *const *drop = t->drops; *drop; drop++)
            mark_add(r, *drop, MARK_DROP);
        r->n_thinks = r->n_marks;
        return;
    }
}

static const struct call_format generic = {.begin = "<tool_call>", .end = "</tool_call>"};

oato_status chat_reader_of(struct gguf_string program, enum chat_form form,
                           struct gguf_string prompt, const struct chat_sink *sink,
                           struct chat_reader **out, struct oato_error *err)
{
    struct chat_reader *r = calloc(1, sizeof *r);
    *out = r;
    if (!r)
        return oato_fail_memory(err, sizeof *r, "an answer");
    r->sink = *sink;
    text_init(&r->held);
    reasoning_find(r, program, prompt);
    r->call = form == CHAT_FORM_GENERIC ? &generic : NULL;
    for (const struct call_format *f = calls; f < calls + ARRAY_LEN(calls) && !r->call; f++)
        r->call = gguf_string_has(program, f->needle ? f->needle : f->begin) ? f : NULL;
    if (r->call) {
        mark_add(r, r->call->begin, MARK_CALL);
        for (const char *const *drop = r->call->drops; *drop; drop++)
            mark_add(r, *drop, MARK_DROP);
    }
    return OATO_OK;
}

bool chat_reader_thinks(const struct chat_reader *r, const char **begin, const char **end)
{
    *begin = r->n_thinks ? r->marks[0].text : NULL;
    *end = r->n_thinks ? r->marks[1].text : NULL;
    return r->part == CHAT_THINKS;
}

void chat_reader_free(struct chat_reader *r)
{
    if (r) {
        text_free(&r->held);
        chat_calls_free(&r->calls);
    }
    free(r);
}

/* ----------------------------------------------------------------------- what is held ---- */

/* Removes the first n bytes. */
static void held_drop(struct chat_reader *r, size_t n)
{
    r->held.len -= n;
    memmove(r->held.data, r->held.data + n, r->held.len);
}

/* Hands out the first n bytes, without white space behind a mark, and removes them. */
static void held_tell(struct chat_reader *r, size_t n)
{
    size_t from = 0;
    while (r->fresh && from < n && isspace((unsigned char)r->held.data[from]))
        from++;
    if (from < n) {
        r->sink.text(r->sink.user, r->part, r->held.data + from, n - from);
        r->fresh = false;
        r->told = r->told || r->part == CHAT_SAYS;
    }
    held_drop(r, n);
}

static size_t without_space(const struct text *t, size_t n)
{
    while (n && isspace((unsigned char)t->data[n - 1]))
        n--;
    return n;
}

/* Whether a mark counts now: those of calls not in reasoning, which may speak of them. */
static bool counts(const struct chat_reader *r, int i)
{
    return i < r->n_thinks || (r->part == CHAT_SAYS && !(r->told && r->call->bare));
}

/* The first mark in what is held, the longest of those at one place; -1: none. */
static int mark_find(const struct chat_reader *r, size_t *at)
{
    int found = -1;
    for (int i = 0; i < r->n_marks; i++) {
        const char *text = r->marks[i].text, *held = r->held.data;
        const char *p = counts(r, i) ? memmem(held, r->held.len, text, strlen(text)) : NULL;
        const size_t here = p ? (size_t)(p - held) : 0;
        if (p && r->marks[i].does == MARK_CALL && r->call->bare && without_space(&r->held, here))
            continue; /* something is said first */
        if (p && (found < 0 || here < *at ||
                  (here == *at && strlen(text) > strlen(r->marks[found].text)))) {
            found = i;
            *at = here;
        }
    }
    return found;
}

/* Bytes that can be no part of a mark that counts. */
static size_t free_of_marks(const struct chat_reader *r)
{
    size_t n = r->held.len;
    for (int i = 0; i < r->n_marks; i++) {
        const size_t most = strlen(r->marks[i].text) - 1;
        size_t from = r->held.len > most ? r->held.len - most : 0;
        while (from < n && memcmp(r->held.data + from, r->marks[i].text, r->held.len - from) != 0)
            from++;
        n = counts(r, i) && from < n ? from : n;
    }
    return n;
}

/* ------------------------------------------------------------------------------ calls ---- */

/* What looked like calls has ended, behind the mark that ends it or with the answer. */
static void call_end(struct chat_reader *r, bool marked, bool cut)
{
    const char *begin = r->call->begin;
    const bool again = marked && !r->call->end; /* the mark begins the next one, too */
    r->calling = again;
    r->fresh = true;
    if (!chat_calls_end(&r->calls, cut)) { /* it is said as it is */
        const struct text *raw = &r->calls.raw;
        if (!r->call->bare)
            r->sink.text(r->sink.user, r->part, begin, strlen(begin));
        if (raw->len > (again ? strlen(begin) : 0))
            r->sink.text(r->sink.user, r->part, raw->data, raw->len - (again ? strlen(begin) : 0));
        r->fresh = again;
        r->told = true;
    }
    if (again)
        chat_calls_begin(&r->calls, r->call, &r->sink);
}

/* False: the call goes on. */
static bool call_ends(struct chat_reader *r)
{
    bool over = false;
    held_drop(r, chat_calls_push(&r->calls, r->held.data, r->held.len, &over));
    if (over)
        call_end(r, true, false);
    return over;
}

static void mark_obey(struct chat_reader *r, enum mark_does does)
{
    r->fresh = true;
    r->calling = does == MARK_CALL;
    if (r->calling)
        chat_calls_begin(&r->calls, r->call, &r->sink);
    if (does == MARK_THINK || does == MARK_SAY)
        r->part = does == MARK_THINK ? CHAT_THINKS : CHAT_SAYS;
}

void chat_reader_push(struct chat_reader *r, const char *text, size_t n)
{
    text_add(&r->held, text, n);
    while (r->held.len && !r->held.failed) {
        size_t at = 0;
        if (r->calling) {
            if (!call_ends(r))
                return;
            continue;
        }
        const int mark = mark_find(r, &at);
        if (mark < 0)
            break;
        const size_t said = without_space(&r->held, at);
        held_tell(r, said);
        const bool bare = r->marks[mark].does == MARK_CALL && r->call->bare;
        held_drop(r, at - said + (bare ? 0 : strlen(r->marks[mark].text)));
        mark_obey(r, r->marks[mark].does);
    }
    if (r->held.len && !r->held.failed)
        held_tell(r, without_space(&r->held, free_of_marks(r)));
}

oato_status chat_reader_end(struct chat_reader *r, bool cut, struct oato_error *err)
{
    if (r->calling && !r->held.failed)
        call_end(r, false, cut);
    if (r->held.len && !r->held.failed) {
        const size_t n = free_of_marks(r);
        held_tell(r, cut && n < r->held.len ? without_space(&r->held, n) : r->held.len);
    }
    return r->held.failed || chat_calls_failed(&r->calls)
               ? oato_fail_memory(err, r->held.len, "an answer")
               : OATO_OK;
}
