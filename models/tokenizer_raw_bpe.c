/*
 * tokenizer_raw_bpe.c - byte-pair encoding of characters, as Gemma 4 has it (tokenizer.ggml.model =
 * gemma4, or gpt2 with a pre-tokeniser of that kind).
 *
 * A vocabulary in the manner of SentencePiece, with U+2581 for a space and <0x00> to <0xFF> for
 * what no token covers, whose neighbours merge by the rank of their pair instead of by score.
 * Nothing is cut: the whole text is one piece. (llama.cpp cuts it at line ends, which no merge
 * crosses.)
 */
#include "models/tokens_internal.h"

oato_status raw_bpe_load(struct tokenizer *t, const struct gguf *g, struct oato_error *err)
{
    if (vocab_load(t, g, space_undo, err) || merges_load(t, g, space_undo, err))
        return err->status;
    byte_ids_load(t);
    /* Files of Gemma 4 made before its tokenizer was corrected say that there is no BOS. */
    struct gguf_string pre = {"", 0}, model = {"", 0};
    (void)gguf_get_string(g, "tokenizer.ggml.pre", &pre);
    (void)gguf_get_string(g, "tokenizer.ggml.model", &model);
    if (gguf_string_is(pre, "gemma4") || gguf_string_is(model, "gemma4"))
        t->add_bos = true;
    return OATO_OK;
}

oato_status raw_bpe_encode(const struct tokenizer *t, struct encode_work *w, const char *text,
                           size_t n, bool after_special, struct id_list *out,
                           struct oato_error *err)
{
    (void)after_special;
    return chars_encode(t, w, text, n, false, merge_by_rank, out, err);
}
