/*
 * chat_formats.c - named prompt formats, for --chat-template NAME and for models whose own program
 * (tokenizer.chat_template) cannot be parsed.
 *
 * Each is a row, recognised by strings that only its program contains. A row renders the same text
 * as its program, with two differences: the begin-of-text token is left to tokenizer_encode, and a
 * system message that the program would refuse is put in front of the first user message. Tool
 * calls, today's date and switches for reasoning, which some programs add to a format, are not
 * rendered.
 */
#include "models/chat_internal.h"

#include <string.h>

enum { MAX_MARKS = 3 };

/* Where the system message goes. */
enum system_place { SYSTEM_ALONE, SYSTEM_IN_FIRST_USER, SYSTEM_IN_LAST_USER };

struct wrap {
    const char *before, *after;
};

struct chat_format {
    const char *name;
    const char *marks[MAX_MARKS + 1]; /* the program contains them all ... */
    const char *absent;               /* ... and not this */
    struct wrap system, user, assistant;
    const char *open;           /* begins an answer */
    const char *turn;           /* before every user message but the first, or NULL */
    const char *default_system; /* given when there is no system message, or NULL */
    enum system_place place;
    bool trim, trim_assistant; /* white space around all contents, around answers */
};

#define CHATML_TURNS                                                                               \
    .system = {"<|im_start|>system\n", "<|im_end|>\n"},                                            \
    .user = {"<|im_start|>user\n", "<|im_end|>\n"},                                                \
    .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"}, .open = "<|im_start|>assistant\n"

#define SMOLLM_SYSTEM "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define QWEN25_SYSTEM "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
#define QWEN2_SYSTEM  "You are a helpful assistant."
#define QWEN15_SYSTEM "You are a helpful assistant"
#define DEEPSEEK_CODER_SYSTEM                                                                      \
    "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "       \
    "Deepseek Company, and you only answer questions related to computer science. For "            \
    "politically sensitive questions, security and privacy issues, and other non-computer "        \
    "science questions, you will refuse to answer\n"

#define LLAMA2_TURNS                                                                               \
    .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"}, .user = {"[INST] ", " [/INST]"},                    \
    .assistant = {" ", " </s>"}, .place = SYSTEM_IN_FIRST_USER

#define LLAMA3_TURNS                                                                               \
    .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},                        \
    .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},              \
    .open = "<|start_header_id|>assistant<|end_header_id|>\n\n", .trim = true

#define ZEPHYR_TURNS(end)                                                                          \
    .system = {"<|system|>\n", end "\n"}, .user = {"<|user|>\n", end "\n"},                        \
    .assistant = {"<|assistant|>\n", end "\n"}, .open = "<|assistant|>\n"

/* The first row that matches is taken: particular ones stand before general ones. */
static const struct chat_format rows[] = {
    {.name = "phi4",
     .marks = {"<|im_start|>", "<|im_sep|>"},
     .system = {"<|im_start|>system<|im_sep|>", "<|im_end|>"},
     .user = {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
     .assistant = {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"},
     .open = "<|im_start|>assistant<|im_sep|>"},
    {.name = "smollm",
     .marks = {"<|im_start|>", SMOLLM_SYSTEM "<|im_end|>"},
     CHATML_TURNS,
     .default_system = SMOLLM_SYSTEM},
    {.name = "qwen2.5",
     .marks = {"<|im_start|>", QWEN25_SYSTEM "<|im_end|>"},
     CHATML_TURNS,
     .default_system = QWEN25_SYSTEM},
    {.name = "qwen2",
     .marks = {"<|im_start|>", QWEN2_SYSTEM "<|im_end|>"},
     CHATML_TURNS,
     .default_system = QWEN2_SYSTEM},
    {.name = "qwen1.5",
     .marks = {"<|im_start|>", QWEN15_SYSTEM "<|im_end|>"},
     CHATML_TURNS,
     .default_system = QWEN15_SYSTEM},
    /* SmolVLM begins with <|im_start|> but is another format. */
    {.name = "chatml", .marks = {"<|im_start|>"}, .absent = "<end_of_utterance>", CHATML_TURNS},

    {.name = "mistral-v7",
     .marks = {"[SYSTEM_PROMPT] "},
     .system = {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", "</s>"}},
    {.name = "mistral-v7-tekken",
     .marks = {"[SYSTEM_PROMPT]"},
     .system = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", "</s>"}},
    {.name = "mistral-v1",
     .marks = {"' [INST] ' + system_message"},
     .system = {"", "\n\n"},
     .user = {" [INST] ", " [/INST]"},
     .assistant = {" ", "</s>"},
     .place = SYSTEM_IN_FIRST_USER},
    {.name = "mistral-v3-tekken",
     .marks = {"[AVAILABLE_TOOLS]", "\"[INST]\""},
     .system = {"", "\n\n"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", "</s>"},
     .place = SYSTEM_IN_LAST_USER},
    {.name = "mistral-v3",
     .marks = {"[AVAILABLE_TOOLS]", "[INST]"},
     .system = {"", "\n\n"},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", "</s>"},
     .place = SYSTEM_IN_LAST_USER,
     .trim_assistant = true},
    {.name = "llama2",
     .marks = {"<<SYS>>", "content.strip()", "bos_token + '[INST]"},
     LLAMA2_TURNS,
     .turn = "<s>",
     .trim = true},
    {.name = "llama2-one-bos",
     .marks = {"<<SYS>>", "content.strip()", "[INST]"},
     LLAMA2_TURNS,
     .trim = true},
    {.name = "llama2-untrimmed",
     .marks = {"<<SYS>>", "bos_token + '[INST]"},
     LLAMA2_TURNS,
     .turn = "<s>"},
    {.name = "mistral-v0",
     .marks = {"'[INST] ' + message['content'] + ' [/INST]'"},
     .absent = "<<SYS>>",
     .system = {"", "\n"},
     .user = {"[INST] ", " [/INST]"},
     .assistant = {"", "</s>"},
     .place = SYSTEM_IN_FIRST_USER},

    {.name = "phi3",
     .marks = {"<|assistant|>", "<|end|>"},
     .absent = "\\n<|end|>",
     ZEPHYR_TURNS("<|end|>")},
    {.name = "phi3",
     .marks = {"'<|' + message['role'] + '|>'", "<|end|>"},
     ZEPHYR_TURNS("<|end|>")},
    {.name = "stablelm-zephyr",
     .marks = {"<|user|>", "<|endoftext|>"},
     .absent = "[gMASK]",
     ZEPHYR_TURNS("<|endoftext|>")},
    {.name = "zephyr",
     .marks = {"'<|user|>\n' + message['content'] + eos_token"},
     ZEPHYR_TURNS("</s>")},
    {.name = "zephyr",
     .marks = {"'<|user|>\\n' + message['content'] + eos_token"},
     ZEPHYR_TURNS("</s>")},
    {.name = "gemma",
     .marks = {"<start_of_turn>"},
     .system = {"", "\n\n"},
     .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
     .assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"},
     .open = "<start_of_turn>model\n",
     .place = SYSTEM_IN_FIRST_USER,
     .trim = true},
    /* The date is the one that the program falls back to. */
    {.name = "llama3.1",
     .marks = {"<|start_header_id|>", "Cutting Knowledge Date: December 2023\\n", "Today Date: "},
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n"
                "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
                "<|eot_id|>"},
     LLAMA3_TURNS,
     .default_system = ""},
    {.name = "llama3",
     .marks = {"<|start_header_id|>", "<|end_header_id|>"},
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     LLAMA3_TURNS},
    {.name = "deepseek",
     .marks = {"### Instruction:", "<|EOT|>"},
     .system = {"", ""},
     .user = {"### Instruction:\n", "\n"},
     .assistant = {"### Response:\n", "\n<|EOT|>\n"},
     .open = "### Response:\n",
     .default_system = DEEPSEEK_CODER_SYSTEM},
    {.name = "deepseek2",
     .marks = {"'Assistant: ' + message['content'] + eos_token"},
     .system = {"", "\n\n"},
     .user = {"User: ", "\n\n"},
     .assistant = {"Assistant: ", "<｜end▁of▁sentence｜>"},
     .open = "Assistant:"},
    {.name = "deepseek-r1",
     .marks = {"<｜Assistant｜><think>\\n'", "<｜User｜>"},
     .system = {"", ""},
     .user = {"<｜User｜>", ""},
     .assistant = {"<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .open = "<｜Assistant｜><think>\n"},
    {.name = "deepseek3",
     .marks = {"<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>"},
     .absent = "<think>",
     .system = {"", ""},
     .user = {"<｜User｜>", ""},
     .assistant = {"<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .open = "<｜Assistant｜>"},
};

void chat_format_names(struct text *out)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (i == 0 || strcmp(rows[i].name, rows[i - 1].name) != 0)
            text_printf(out, "%s%s", i ? ", " : "", rows[i].name);
    }
}

static bool contains(struct gguf_string program, const char *mark)
{
    return memmem(program.data, program.len, mark, strlen(mark)) != NULL;
}

static bool row_matches(const struct chat_format *c, struct gguf_string program)
{
    for (const char *const *mark = c->marks; *mark; mark++) {
        if (!contains(program, *mark))
            return false;
    }
    return !c->absent || !contains(program, c->absent);
}

const struct chat_format *chat_format_named(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (strcmp(name, rows[i].name) == 0)
            return &rows[i];
    return NULL;
}

const struct chat_format *chat_format_recognise(struct gguf_string program)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (row_matches(&rows[i], program))
            return &rows[i];
    return NULL;
}

const char *chat_format_name(const struct chat_format *c)
{
    return c->name;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void add_content(struct text *out, const char *content, bool trim)
{
    size_t n = strlen(content);
    while (trim && n > 0 && is_space(content[n - 1]))
        n--;
    while (trim && n > 0 && is_space(*content)) {
        content++;
        n--;
    }
    text_add(out, content, n);
}

static void add_str(struct text *out, const char *s)
{
    text_add(out, s, strlen(s));
}

static void add_wrapped(struct text *out, const struct wrap *w, const char *content, bool trim)
{
    add_str(out, w->before);
    add_content(out, content, trim);
    add_str(out, w->after);
}

static bool role_is(const struct chat_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

/* Roles are known; a system message that belongs into a user's message finds one. */
static oato_status messages_check(const struct chat_format *c, const struct chat_message *m,
                                  size_t n, struct oato_error *err)
{
    size_t last_system = SIZE_MAX, last_user = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        if (role_is(&m[i], "system"))
            last_system = i;
        else if (role_is(&m[i], "user"))
            last_user = i;
        else if (!role_is(&m[i], "assistant"))
            return oato_fail(err, OATO_EUSAGE,
                             "message %zu has the role \"%.40s\"; system, user and assistant are "
                             "allowed",
                             i + 1, m[i].role);
    }
    bool inside = c->place != SYSTEM_ALONE && last_system != SIZE_MAX;
    if (inside &&
        (last_user == SIZE_MAX || (c->place == SYSTEM_IN_FIRST_USER && last_user < last_system)))
        return oato_fail(err, OATO_EUSAGE,
                         "the chat template %s merges message %zu (role system) into the user "
                         "message after it, which is missing; add one",
                         c->name, last_system + 1);
    return OATO_OK;
}

/* The system messages of m[begin..end), inside a user message. */
static void add_inner_system(struct text *out, const struct chat_format *c,
                             const struct chat_message *m, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        if (role_is(&m[i], "system"))
            add_wrapped(out, &c->system, m[i].content, c->trim);
    }
}

oato_status chat_format_apply(const struct chat_format *c, const struct chat_message *m, size_t n,
                              bool add_assistant, struct text *out, struct oato_error *err)
{
    oato_status s = messages_check(c, m, n, err);
    if (s != OATO_OK)
        return s;
    bool has_system = false;
    size_t last_user = 0, after_user = 0; /* after_user: one past the user message before */
    for (size_t i = 0; i < n; i++) {
        has_system = has_system || role_is(&m[i], "system");
        last_user = role_is(&m[i], "user") ? i : last_user;
    }
    if (!has_system && c->default_system)
        add_wrapped(out, &c->system, c->default_system, false);

    for (size_t i = 0; i < n; i++) {
        if (role_is(&m[i], "assistant")) {
            add_wrapped(out, &c->assistant, m[i].content, c->trim || c->trim_assistant);
        } else if (role_is(&m[i], "user")) {
            if (c->turn && after_user > 0)
                add_str(out, c->turn);
            add_str(out, c->user.before);
            if (c->place == SYSTEM_IN_FIRST_USER)
                add_inner_system(out, c, m, after_user, i);
            else if (c->place == SYSTEM_IN_LAST_USER && i == last_user)
                add_inner_system(out, c, m, 0, n);
            add_content(out, m[i].content, c->trim);
            add_str(out, c->user.after);
            after_user = i + 1;
        } else if (c->place == SYSTEM_ALONE) {
            add_wrapped(out, &c->system, m[i].content, c->trim);
        }
    }
    if (add_assistant && c->open)
        add_str(out, c->open);
    return out->failed ? oato_fail_memory(err, out->len, "the prompt text") : OATO_OK;
}
