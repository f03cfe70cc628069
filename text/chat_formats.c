/*
 * chat_formats.c - named prompt formats, for --chat-template NAME and for models whose own program
 * (tokenizer.chat_template) cannot be parsed.
 *
 * Each is a row, recognised by strings that only its program contains, with a short program of its
 * own. It renders the same text, with two differences: the begin-of-text token is left to
 * tokenizer_encode, and a system message that the program would refuse is put in front of the first
 * user message. Tool calls, today's date and switches for reasoning are not rendered.
 */
#include "text/chat_internal.h"

/* Begins an answer. */
#define OPEN(text) "{% if add_generation_prompt %}" text "{% endif %}"
/* Messages of all roles are alike. */
#define ALIKE(before, behind, content, end)                                                        \
    "{% for m in messages %}" before "{{ m.role }}" behind "{{ " content " }}" end "{% endfor %}"
#define TURNS(before, behind, end)                                                                 \
    ALIKE(before, behind, "m.content", end) OPEN(before "assistant" behind)
#define CHATML      TURNS("<|im_start|>", "\n", "<|im_end|>\n")
#define ZEPHYR(end) TURNS("<|", "|>\n", end "\n")
#define LLAMA3(system)                                                                             \
    ALIKE("<|start_header_id|>", "<|end_header_id|>\n\n" system, "m.content | trim", "<|eot_id|>") \
    OPEN("<|start_header_id|>assistant<|end_header_id|>\n\n")
/* Each role has a text of its own, around m.content. */
#define EACH(system, user, assistant)                                                              \
    "{% for m in messages %}{% if m.role == 'system' %}" system "{% elif m.role == 'user' %}" user \
    "{% else %}" assistant "{% endif %}{% endfor %}"
/* The system message, s, is inside of the user message after it; c is what a message contains. */
#define IN_FIRST_USER(content, system, user, assistant)                                            \
    "{% set n = namespace(s='', again=false) %}{% for m in messages %}{% set c = " content         \
    " %}{% if m.role == 'system' %}{% set n.s = n.s ~ " system                                     \
    " %}{% elif m.role == 'user' %}" user                                                          \
    "{% set n.s = '' %}{% set n.again = true %}{% else %}" assistant "{% endif %}{% endfor %}"
#define LLAMA2(content, turn)                                                                      \
    IN_FIRST_USER(content, "'<<SYS>>\\n' ~ c ~ '\\n<</SYS>>\\n\\n'",                               \
                  turn "[INST] {{ n.s ~ c }} [/INST]", " {{ c }} </s>")
#define TURN "{% if n.again %}<s>{% endif %}"
/* It is inside of the last one. */
#define IN_LAST_USER(user, behind, assistant)                                                      \
    "{% set n = namespace(s='', last=0) %}{% for m in messages %}{% if m.role == 'system' %}"      \
    "{% set n.s = n.s ~ m.content ~ '\\n\\n' %}{% elif m.role == 'user' %}"                        \
    "{% set n.last = loop.index %}{% endif %}{% endfor %}{% for m in messages %}"                  \
    "{% if m.role == 'user' %}" user "{{ n.s if loop.index == n.last }}{{ m.content }}" behind     \
    "{% elif m.role == 'assistant' %}" assistant "{% endif %}{% endfor %}"

#define DEEPSEEK_CODER_SYSTEM                                                                      \
    "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "       \
    "Deepseek Company, and you only answer questions related to computer science. For "            \
    "politically sensitive questions, security and privacy issues, and other non-computer "        \
    "science questions, you will refuse to answer\n"

#define DEEPSEEK_TURNS                                                                             \
    EACH("{{ m.content }}", "<｜User｜>{{ m.content }}",                                           \
         "<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>")

#define COHERE(role)                                                                               \
    "<|START_OF_TURN_TOKEN|><|" role "_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>"
#define CHATML_SAYS(format, text)                                                                  \
    {                                                                                              \
        .name = (format), .marks = {"<|im_start|>", text "<|im_end|>"}, .program = CHATML,         \
        .system = (text)                                                                           \
    }

/* The first row that matches is taken: particular ones stand before general ones. */
static const struct chat_format rows[] = {
    {.name = "phi4",
     .marks = {"<|im_start|>", "<|im_sep|>"},
     .program = TURNS("<|im_start|>", "<|im_sep|>", "<|im_end|>")},
    CHATML_SAYS("smollm", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
    CHATML_SAYS("qwen2.5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    CHATML_SAYS("qwen2", "You are a helpful assistant."),
    CHATML_SAYS("qwen1.5", "You are a helpful assistant"),
    /* SmolVLM begins with <|im_start|> but is another format. */
    {.name = "chatml",
     .marks = {"<|im_start|>"},
     .program = CHATML,
     .absent = "<end_of_utterance>"},

    {.name = "mistral-v7",
     .marks = {"[SYSTEM_PROMPT] "},
     .program = EACH("[SYSTEM_PROMPT] {{ m.content }}[/SYSTEM_PROMPT]",
                     "[INST] {{ m.content }}[/INST]", " {{ m.content }}</s>")},
    {.name = "mistral-v7-tekken",
     .marks = {"[SYSTEM_PROMPT]"},
     .program = EACH("[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]",
                     "[INST]{{ m.content }}[/INST]", "{{ m.content }}</s>")},
    {.name = "mistral-v1",
     .marks = {"' [INST] ' + system_message"},
     .program = IN_FIRST_USER("m.content", "c ~ '\\n\\n'", " [INST] {{ n.s ~ c }} [/INST]",
                              " {{ c }}</s>"),
     .place = SYSTEM_IN_FIRST_USER},
    {.name = "mistral-v3-tekken",
     .marks = {"[AVAILABLE_TOOLS]", "\"[INST]\""},
     .program = IN_LAST_USER("[INST]", "[/INST]", "{{ m.content }}</s>"),
     .place = SYSTEM_IN_LAST_USER},
    {.name = "mistral-v3",
     .marks = {"[AVAILABLE_TOOLS]", "[INST]"},
     .program = IN_LAST_USER("[INST] ", "[/INST]", " {{ m.content | trim }}</s>"),
     .place = SYSTEM_IN_LAST_USER},
    {.name = "llama2",
     .marks = {"<<SYS>>", "content.strip()", "bos_token + '[INST]"},
     .program = LLAMA2("m.content | trim", TURN),
     .place = SYSTEM_IN_FIRST_USER},
    {.name = "llama2-one-bos",
     .marks = {"<<SYS>>", "content.strip()", "[INST]"},
     .program = LLAMA2("m.content | trim", ""),
     .place = SYSTEM_IN_FIRST_USER},
    {.name = "llama2-untrimmed",
     .marks = {"<<SYS>>", "bos_token + '[INST]"},
     .program = LLAMA2("m.content", TURN),
     .place = SYSTEM_IN_FIRST_USER},
    {.name = "mistral-v0",
     .marks = {"'[INST] ' + message['content'] + ' [/INST]'"},
     .program =
         IN_FIRST_USER("m.content", "c ~ '\\n'", "[INST] {{ n.s ~ c }} [/INST]", "{{ c }}</s>"),
     .absent = "<<SYS>>",
     .place = SYSTEM_IN_FIRST_USER},

    {.name = "phi3",
     .marks = {"<|assistant|>", "<|end|>"},
     .program = ZEPHYR("<|end|>"),
     .absent = "\\n<|end|>"},
    {.name = "phi3",
     .marks = {"'<|' + message['role'] + '|>'", "<|end|>"},
     .program = ZEPHYR("<|end|>")},
    {.name = "stablelm-zephyr",
     .marks = {"<|user|>", "<|endoftext|>"},
     .program = ZEPHYR("<|endoftext|>"),
     .absent = "[gMASK]"},
    {.name = "zephyr", /* with a line break or \n between the two */
     .marks = {"'<|user|>", "' + message['content'] + eos_token"},
     .program = ZEPHYR("</s>")},
    {.name = "gemma",
     .marks = {"<start_of_turn>"},
     .program = IN_FIRST_USER(
         "m.content | trim", "c ~ '\\n\\n'", "<start_of_turn>user\n{{ n.s ~ c }}<end_of_turn>\n",
         "<start_of_turn>model\n{{ c }}<end_of_turn>\n") OPEN("<start_of_turn>model\n"),
     .place = SYSTEM_IN_FIRST_USER},
    {.name = "llama3.1",
     .marks = {"<|start_header_id|>", "Cutting Knowledge Date: December 2023\\n", "Today Date: "},
     .program = LLAMA3("{% if m.role == 'system' %}Cutting Knowledge Date: December 2023\n"
                       "Today Date: {{ date_string }}\n\n{% endif %}"),
     .system = ""},
    {.name = "llama3",
     .marks = {"<|start_header_id|>", "<|end_header_id|>"},
     .program = LLAMA3("")},
    {.name = "deepseek",
     .marks = {"### Instruction:", "<|EOT|>"},
     .program = EACH("{{ m.content }}", "### Instruction:\n{{ m.content }}\n",
                     "### Response:\n{{ m.content }}\n<|EOT|>\n") OPEN("### Response:\n"),
     .system = DEEPSEEK_CODER_SYSTEM},
    {.name = "deepseek2",
     .marks = {"'Assistant: ' + message['content'] + eos_token"},
     .program = EACH("{{ m.content }}\n\n", "User: {{ m.content }}\n\n",
                     "Assistant: {{ m.content }}<｜end▁of▁sentence｜>") OPEN("Assistant:")},
    {.name = "deepseek-r1",
     .marks = {"<｜Assistant｜><think>\\n'", "<｜User｜>"},
     .program = DEEPSEEK_TURNS OPEN("<｜Assistant｜><think>\n")},
    {.name = "deepseek3",
     .marks = {"<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>"},
     .program = DEEPSEEK_TURNS OPEN("<｜Assistant｜>"),
     .absent = "<think>"},
    {.name = "command-r",
     .marks = {"<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"},
     .program = EACH(COHERE("SYSTEM"), COHERE("USER"), COHERE("CHATBOT"))
         OPEN("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>")},
};

void chat_format_names(struct text *out)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (i == 0 || strcmp(rows[i].name, rows[i - 1].name) != 0)
            text_printf(out, "%s%s", i ? ", " : "", rows[i].name);
}

static bool row_matches(const struct chat_format *c, struct gguf_string program)
{
    for (const char *const *mark = c->marks; *mark; mark++)
        if (!gguf_string_has(program, *mark))
            return false;
    return !c->absent || !gguf_string_has(program, c->absent);
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

/* A system message that belongs into a user's message finds one. */
oato_status chat_format_check(const struct chat_format *c, const struct chat_message *m, size_t n,
                              struct oato_error *err)
{
    size_t last_system = SIZE_MAX, last_user = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(m[i].role, "system"))
            last_system = i;
        else if (!strcmp(m[i].role, "user"))
            last_user = i;
        else if (strcmp(m[i].role, "assistant") != 0)
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
