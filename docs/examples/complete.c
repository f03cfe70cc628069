/* complete.c - continues a text with its most likely tokens: complete MODEL.gguf TEXT [TOKENS] */
#include <oato.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct oato_error err = {0};
    struct session s = {0};
    struct sampler *sampler = NULL;
    int32_t *ids = NULL, seq = 0, left = argc > 3 ? atoi(argv[3]) : 32;
    size_t n = 0;
    if (argc < 3)
        return fprintf(stderr, "usage: complete MODEL.gguf TEXT [TOKENS]\n"), 2;

    /* A plan of oato-plan would go into .plan; without one all runs on the CPU. The most likely
     * tokens. */
    const struct session_args args = {.model = argv[1],
                                      .sampling = {.top_p = 1, .repeat_penalty = 1}};
    if (session_open(&s, &args, SESSION_TOKENIZER, &err) ||
        tokenizer_encode(s.tokenizer, argv[2], strlen(argv[2]), TOKENIZE_PROMPT, &ids, &n, &err) ||
        engine_seq_create(s.engine, &seq, &err) ||
        engine_feed(s.engine, seq, ids, (int32_t)n, LOGITS_LAST, NULL, NULL, &err))
        goto out;
    sampler = session_sampler(&s);
    for (fputs(argv[2], stdout); sampler && left > 0; left--) {
        const char *bytes = "";
        size_t size = 0;
        const int32_t id = sampler_next(sampler, engine_logits(s.engine, 0));
        if (tokenizer_is_end(s.tokenizer, id))
            break;
        tokenizer_piece(s.tokenizer, id, false, &bytes, &size);
        fwrite(bytes, 1, size, stdout);
        sampler_accept(sampler, id);
        const struct engine_input input = {seq, &id, 1, LOGITS_LAST, false};
        if (engine_step(s.engine, &input, 1, &err))
            break;
    }
    putchar('\n');
out:
    if (err.status)
        fprintf(stderr, "complete: %s\n", err.text);
    sampler_free(sampler);
    free(ids);
    session_close(&s);
    return err.status;
}
