/*
 * recipe_internal.h - an architecture as a row: the choices in which transformers of the Llama line
 * differ. arch.c builds the graph of any row; models/recipes.c has the rows. A choice that a row
 * does not name is Llama's: RMS norms before attention and FFN, rotary positions, grouped-query
 * attention scaled by 1/sqrt(head_dim), SwiGLU.
 *
 *     h = x + Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = norm(x)
 *     x = h + Wdown(silu(Wgate m) * Wup m),                m = norm(h)
 *
 * What a file may hold for any row and still is used: biases of products, factors of a quantiser
 * for attention's products, q, k and v in one tensor, gate and up in one tensor, divisors of
 * frequencies, other numbers of heads in each layer. Factors for an FFN's products count only where
 * the row says so.
 */
#ifndef OATO_RECIPE_INTERNAL_H
#define OATO_RECIPE_INTERNAL_H

#include "models/models_internal.h"

/* Where a block's norms stand: before it, before and after it, or only after it. */
enum norm_place { NORMS_BEFORE, NORMS_AROUND, NORMS_AFTER };

/* Norms of q and k: of each head, of each head after its rotation, of all heads together, or only
 * of the part of k that the heads of latent attention share. */
enum qk_norm { QK_PLAIN, QK_HEADS, QK_ROTATED_HEADS, QK_WHOLE, QK_SHARED };

/* ALiBi: slopes up to 2^-8 always, or by the key attention.max_alibi_bias. */
enum alibi { ALIBI_NONE, ALIBI_ALWAYS, ALIBI_BY_KEY };
/* An embedding for each position: none, in all files, or where they hold it. */
enum learned { LEARNED_NONE, LEARNED_ALWAYS, LEARNED_IF_HELD };

/* Constant factors: keys embedding_scale, residual_scale (of a block's output), logit_scale and
 * attention.scale. */
enum factors {
    FACTORS_NONE,
    FACTORS_BY_KEY,    /* logits are divided; files must have logit_scale */
    FACTORS_IF_HELD,   /* the same, but without logit_scale logits stay */
    FACTORS_EMBEDDING, /* only embedding_scale is read */
    FACTORS_MINICPM,   /* by key, with 12, 1.4 / sqrt(layers) and 256 / width for missing ones */
    FACTORS_MINICPM3,  /* these, whatever the keys say */
    FACTORS_ROOT,      /* embeddings are multiplied by sqrt(width); no key is read */
    FACTORS_LOGITS,    /* only logit_scale is read, which files must have; logits are multiplied */
    FACTORS_LOGITS_IF_HELD, /* the same, but files may lack it */
    FACTORS_GROK,      /* by key, with Grok 1's in place of missing ones; logits are multiplied */
    FACTORS_OF_NORMED, /* a block's output is added to its normed input times residual_scale */
};

/* Attention and FFN that both read x, their outputs added to it together. The FFN has a norm of its
 * own, or that of attention where files have none; attention's may be a second one, attn_norm_2. */
enum parallel {
    PARALLEL_NOT,
    PARALLEL_ALWAYS,
    PARALLEL_BY_KEY,   /* use_parallel_residual */
    PARALLEL_ONE_NORM, /* in files without ffn_norm */
};

/* rope.dimension_sections, by which pairs turn by one of several positions, all of them a token's
 * but the last, which is 0: no such key; sections one after the other; first pairs of each in turn;
 * the first where the file has two sections, and then halves are paired. */
enum sections { SECTIONS_NONE, SECTIONS_AFTER, SECTIONS_IN_TURN, SECTIONS_IF_HELD };

/* The width of windows: attention.sliding_window, which files must have; or may have, 0 stands for
 * no windows, and what else stands for a missing one is window_otherwise; or only whether it is 0.
 */
enum window_width { WIDTH_DEMANDED, WIDTH_OPTIONAL, WIDTH_FIXED };

/* attention.sliding_window_pattern, for each layer or, "every", one number: optional; demanded for
 * each layer; not read. */
enum window_pattern { PATTERN_OPTIONAL, PATTERN_DEMANDED, PATTERN_UNREAD };

/* What positions in layers with a window turn by: rope.freq_base; rope.freq_base_swa and, where it
 * is missing, rope.freq_base or 10000; or it is demanded. */
enum window_base { BASE_GLOBAL, BASE_BY_KEY, BASE_10000, BASE_DEMANDED };

/* What of rope.scaling counts in these: nothing; only the magnitude; all. */
enum window_scaling { WINDOWS_PLAIN, WINDOWS_MAGNITUDE, WINDOWS_SCALED };

/* What YaRN does to attention's scores: nothing; they grow as rotations would; the same, and with
 * rope.scaling.yarn_log_multiplier rotations stay as they are. */
enum yarn_scores { SCORES_STAY, SCORES_GROW, SCORES_GROW_ALONE };

/* The FFN's experts. Weights of a choice are the softmax over all experts' logits. */
enum experts_norm {
    EXPERTS_NONE,       /* no experts, whatever the keys say */
    EXPERTS_NORMALISED, /* divided by their sum: the softmax over the chosen */
    EXPERTS_PLAIN,      /* as they are */
    EXPERTS_BY_KEY,     /* as expert_weights_norm says */
};

/* What stands in place of attention: nothing, a short convolution, the gated delta rule, with k
 * heads in turn or each for neighbouring heads, the same with decays of each channel (Kimi), Mamba,
 * Mamba with heads (PLaMo), Mamba-2, linear attention with constant decays (MiniMax). */
enum mixer {
    MIXER_ATTENTION,
    MIXER_CONV,
    MIXER_DELTA,
    MIXER_DELTA_GROUPED,
    MIXER_DELTA_CHANNELS,
    MIXER_MAMBA,
    MIXER_MAMBA_HEADS,
    MIXER_MAMBA2,
    MIXER_LINEAR
};

/* In which layers: without KV heads, as attention.recurrent_layers or full_attention_interval says,
 * in all, or in all beside attention, whose output is added. */
enum mixer_layers { MIXER_WITHOUT_KV, MIXER_BY_INTERVAL, MIXER_EVERYWHERE, MIXER_BESIDE };

/* Blocks of a layer: attention or mixer, then the FFN; no FFN; or one, the FFN where
 * feed_forward_length is not 0. */
enum blocks { BLOCKS_TWO, BLOCKS_WITHOUT_FFN, BLOCKS_ONE };

/* Layers that run several times: all of them, num_loops times (Nanbeige); or those of two stacks,
 * each in turn, by keys hrm.*, and block_count counts their runs. */
enum loops { LOOPS_NONE, LOOPS_OF_ALL, LOOPS_OF_STACKS };

/* How experts are chosen: by their softmax; or with a bias of each expert, which counts for the
 * choice alone, by route_score or, if the file says so, by key expert_gating_func. */
enum router { ROUTER_PLAIN, ROUTER_BIASED, ROUTER_BY_KEY };

/* An FFN of every token beside the experts; these may read the layer's input (norm ffn_norm_exps),
 * and then the FFN is as wide as the model; or both have norms of their own: the experts read
 * pre_ffw_norm_2 of x, the outputs are normed by post_ffw_norm_1 (the FFN's) and _2, and the router
 * reads x / rms(x) times ffn_gate_inp.scale / sqrt(width). */
enum dense_ffn { DENSE_NONE, DENSE_BESIDE, DENSE_BESIDE_OF_INPUT, DENSE_BESIDE_NORMED };

struct recipe {
    const char *name; /* general.architecture */
    enum rope_pairing pairing;
    enum sections sections;
    int32_t no_rope_every; /* layer l is without positions if l + 1 is a multiple of it; 0: none */
    bool no_rope_first;    /* .. if l is a multiple of it */
    bool rope_without_windows; /* models without any window rotate in all layers */
    bool no_rope;              /* no positions at all */
    bool rope_if_finetuned;    /* none where rope.scaling.finetuned is false */
    int32_t rope_layers;       /* only models of so many layers rotate; 0: all */
    bool yarn_betas;           /* rope.scaling.yarn_beta_fast and _slow are read .. */
    float yarn_fast;           /* .. and this stands for a missing one; 0: 32 */
    bool yarn_switch;          /* rope.scaling.yarn_ext_factor and _attn_factor are read */
    float yarn_log_unit; /* rope.scaling.yarn_log_multiplier counts in these; 0: is not read */
    enum yarn_scores yarn_scores;
    bool rope_alpha;  /* rope.scaling.alpha^(d / (d - 2)) multiplies the base, d: a head's size */
    bool rope_unread; /* no key of rope.* counts: the base is 10000 */
    bool temperature; /* q grows with its position by attention.temperature_scale, _length */
    enum alibi alibi;
    int32_t alibi_layers; /* only models of so many layers have it; 0: all */
    enum learned learned; /* position_embd is added to embeddings .. */
    int32_t learned_from; /* .. its row for position 0 */
    float eps;            /* of norms in files without the key; 0: files must have it */
    /* Layers with a window (key attention.sliding_window), unless attention.sliding_window_pattern
     * says it: l mod window_every < window_every - 1; 1: all; 0: no windows */
    int32_t window_every;
    bool window_last; /* l mod window_every > 0 in its place */
    enum window_width window_width;
    int32_t window_otherwise, window_fixed;
    enum window_pattern window_pattern;
    enum window_base window_base;
    enum window_scaling window_scaling;
    int32_t window_layers; /* only models of so many layers have windows; 0: all */
    /* Llama 4's windows: chunks of 8192 positions, unless attention.sliding_window is 0; layers
     * without rotate nothing, norm no heads and temper q */
    bool chunks;
    bool window_dims;      /* layers with one have the keys key_length_swa and value_length_swa */
    bool window_rope_dims; /* .. and rope.dimension_count_swa */
    bool rope_in_windows;  /* layers without a window have no positions */
    bool divisors_global;  /* rope_freqs counts only in these, and files must have it */
    bool rope_by_pattern;  /* key attention.rope_pattern: 0 for layers without positions */
    /* Of scores and logits, by key; and what stands for a missing one. */
    bool score_caps, logit_caps;
    float score_cap, logit_cap;
    bool logit_cap_always; /* 0 is no number for it; of scores it never is */
    bool sinks; /* attn_sinks: a score of each head without a value, where files have it */
    /* a(attn_gate n) multiplies attention's output, by head or by element; 0: nothing does */
    enum activation output_gate;
    enum norm_place norms;
    bool centred_by_key; /* norms are centred in files without attention.layer_norm_rms_epsilon */
    int32_t norm;        /* enum norm_flag of all norms but those of heads; biases where files
                            have them */
    int32_t head_norm;   /* enum norm_flag of those of heads */
    bool k_norm_plain;   /* that of k has no weights */
    bool v_norm;         /* the heads of v have one, without weights */
    bool embedding_norm; /* token_embd_norm follows the embedding */
    bool embedding_rms;  /* the embedding is divided by its RMS */
    const char *attn_post_norm,
        *ffn_post_norm;    /* names, if not post_attention_norm, post_ffw_norm */
    float post_eps;        /* of these; 0: as of the others */
    bool skips;            /* each layer adds the embedding times its layer_output_scale */
    bool output_scales;    /* a layer's output is multiplied by it, where files have it */
    bool layer_embeddings; /* arch_embeddings.c, where embedding_length_per_layer_input is not 0 */
    bool qk_norm_if_held;  /* where files have it */
    const char *ffn_norm;  /* the name of the FFN's norm, if not ffn_norm */
    enum qk_norm qk_norm;
    enum mixer mixer;
    enum mixer_layers mixer_layers;
    int32_t interval;    /* full_attention_interval of files without the key; 0: 4 */
    bool bounded_decays; /* of channels, by kda.gate_lower_bound; one matrix makes their logits */
    enum blocks blocks;
    enum loops loops;
    bool mixer_norms;          /* Mamba's dt, B and C are normed */
    bool mixer_factors_unused; /* files have them, the mixer leaves them out */
    bool q_holds_gate;         /* attn_q has each head's q, then the gate of its output */
    const char *final_norm;    /* if not output_norm */
    bool qkv_biases;           /* are demanded */
    bool qkv_factors_unused;   /* files have them, attention leaves them out */
    enum parallel parallel;
    bool clamp_qkv;   /* by attention.clamp_kqv */
    bool k_is_v;      /* in layers without attn_v v is the product for k */
    bool shares_kv;   /* the last attention.shared_kv_layers layers attend to keys and values of the
                         last one before them that has a window if they have, or none */
    bool value_scale; /* attention's output is multiplied by attention.value_scale */
    bool ungated;     /* the FFN is down(activation(up)) */
    bool sparse;      /* attention to attention.indexer.top_k positions: all of them, and no more */
    bool latent;      /* attention is multi-head latent attention, arch_mla.c */
    bool down_factor; /* the factor of ffn_down counts */
    bool score_by_dim;         /* scores are divided by head_dim, not by its root */
    float score_scale;         /* what they are multiplied by in place of that; 0: as above */
    int32_t wide_score_layers; /* in models of so many layers head_dim is width / heads for that */
    bool up_holds_gate;        /* ffn_up.weight holds the rows of the gate, then those of up */
    bool half_ffn;             /* feed_forward_length counts gate and up together */
    enum activation activation;
    bool ffn_factors;    /* factors of the FFN's products count */
    bool expert_factors; /* factors of the experts' products count */
    enum experts_norm experts;
    bool experts_optional;   /* there are files without experts */
    bool ffn_of_all_experts; /* feed_forward_length is that of all experts that a token uses */
    enum router router;
    enum route_score route_score;
    int32_t sigmoid_vocab;  /* with this vocabulary and 47 or 48 layers it is a sigmoid */
    bool weights_scaled;    /* expert_weights_scale is read; with EXPERTS_BY_KEY it always is */
    bool shared_experts;    /* a dense FFN whose output is added to the experts' */
    bool shared_is_one;     /* it is as wide as an expert, whatever keys say */
    bool shared_gate;       /* it is multiplied by sigmoid(ffn_gate_inp_shexp m) */
    float shared_factor;    /* of the sum; 0: none */
    enum dense_ffn dense;   /* beside the experts */
    bool dense_first;       /* leading_dense_block_count layers have no experts */
    bool experts_in_turn;   /* every interleave_moe_layer_step-th layer has them */
    bool dense_rope;        /* these always have positions */
    bool route_layer_input; /* routers read the layer's input */
    bool second_bank;       /* fewer experts, which read what the experts give */
    bool latent_experts;    /* they read and write moe_latent_size columns made of the model's */
    bool weighs_input;      /* the weights of a choice multiply what the experts read */
    /* SwiGLU is this where a layer has a limit: swiglu_clamp_exp that of experts,
     * swiglu_clamp_shexp that of other FFNs; 0: it never is */
    enum activation clamp_by_key;
    enum factors factors;
    bool mtp;            /* files may have a block that predicts one more token, arch_mtp.c */
    const char *ignored; /* words: tensors that files may carry and the model does not use; a part
                            of their names that starts at a dot starts like a word */
};

/* What a layer is made of; numbers of heads and widths may differ from layer to layer. */
struct layer_shape {
    const struct recipe *recipe;
    int32_t layer, width, heads, kv_heads, head_dim, v_dim, ffn, rope_dims;
    int32_t q_rank, kv_rank;    /* of latent attention; 0: queries have no such rank */
    bool absorbed;              /* the cache holds the latent vector */
    enum activation activation; /* of the FFN: the row's, unless the file or the user has another */
    enum rope_pairing pairing;
    bool has_positions, rope;       /* any layer rotates, this one does */
    bool recurrent, attends, feeds; /* has a mixer with a state, attention, an FFN */
    int32_t norm;                   /* the recipe's, and whether the file's are centred */
    bool predicts;                  /* it is the block that predicts one more token */
    float eps, rope_base, attention_scale;
    enum window_scaling rope_scaling;                   /* what of it counts in this layer */
    float embedding_factor, block_factor, logit_factor; /* 1: none */
    float normed_factor;                                /* 0: blocks' outputs are added to x */
    int32_t window;                                     /* 0: none */
    int32_t window_width;                               /* 0: no layer has one */
    float rope_base_global, rope_base_window, rope_scale_global; /* of layers without and with it */
    float score_cap, logit_cap;                                  /* 0: none */
    float qkv_bound;                                             /* 0: none */
    bool parallel;
    int32_t own_layers; /* from this one on layers attend to keys and values of another, .. */
    int32_t kv_layer;   /* .. this one; before, it is the layer itself */
    float value_factor; /* 1: none */
    float score_factor; /* in place of 1/sqrt(head_dim); 0: none */
    const struct gguf_tensor *rope_divisors, *rope_beyond; /* of contexts beyond the original one */
    bool yarn;
    float yarn_fast, yarn_slow;           /* turns within the original context */
    float rope_magnitude, yarn_magnitude; /* of rotations; what YaRN multiplies it by */
    float rope_scores;                    /* what rope.scaling multiplies scores by */
    int32_t original_context;             /* YaRN's; the model's where the file says 0 or nothing */
    bool always_beyond;                   /* the file says 0 */
    float alibi, temperature, temperature_step, temperature_offset;
    int32_t embedded;                          /* the embedding */
    int32_t input;                             /* value: the layer's */
    int32_t layer_embedding, layer_embeddings; /* width of a layer's, 0: none; value: all of them */
    float clamp, dense_clamp;                  /* of experts' SwiGLU, and of others; 0: none */
    struct experts experts;
};

const struct recipe *recipe_find(const char *name, size_t n); /* NULL: unknown */
int recipe_count(void);
/* What an architecture without a row has that would be new; NULL: nothing is known of it. */
const char *recipe_missing(const char *name);

/* arch.c: builds the graph of b's file. */
void arch_build(struct graph_builder *b, const struct recipe *r);

/* arch_keys.c: factors and windows as the row reads their keys. */
void arch_read_factors(struct graph_builder *b, struct layer_shape *s);
void arch_read_windows(struct graph_builder *b, struct layer_shape *s);
bool arch_has_window(struct graph_builder *b, const struct layer_shape *s, int32_t layer);
/* The layer's window, and whether and by what it rotates. */
void arch_read_window(struct graph_builder *b, struct layer_shape *s, int32_t layer);
/* Refuses what no row can be built for. */
void arch_check_unread(struct graph_builder *b, const struct recipe *r);

/* arch_parts.c */

/* An operator of one input that keeps its width, named NAME and then `suffix`. */
int32_t arch_elementwise(struct graph_builder *b, int32_t layer, const char *name,
                         const char *suffix, struct oato_op op, int32_t in,
                         const struct gguf_tensor *weight);
/* in + "NAME.bias", or in when the file has none and none is demanded. */
int32_t arch_bias(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                  bool demanded);

/* What a quantiser's factor, "blk.N.NAME.scale", multiplies: nothing, the product, or the product
 * with its bias. */
enum factor { FACTOR_UNUSED, FACTOR_OF_PRODUCT, FACTOR_OF_SUM };
/* W x of "blk.N.NAME.weight", n rows. */
int32_t arch_matrix(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                    int64_t n);
/* The product with its bias and factor, if the file has them; without the bias the file is refused
 * if it is `demanded`. */
int32_t arch_extras(struct graph_builder *b, int32_t layer, const char *name, int32_t product,
                    bool demanded, enum factor factor);
/* Both: a product whose bias no file need have. */
int32_t arch_product(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                     int64_t n, enum factor factor);
/* The norm "blk.N.NAME", or "NAME" outside of the layers. */
int32_t arch_norm(struct graph_builder *b, const struct layer_shape *s, int32_t layer,
                  const char *name, int32_t in);
/* The norm (bits of enum norm) of each of `heads` heads; in, if it is optional without a weight. */
int32_t arch_head_norm(struct graph_builder *b, const struct layer_shape *s, const char *name,
                       int32_t in, int32_t heads, int32_t head_dim, int32_t norm, bool optional);
/* Columns [first, first + n) of each of `heads` heads. */
int32_t arch_slice_heads(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                         int32_t heads, int32_t first, int32_t n);
/* Columns [first, first + n) of a value. */
int32_t arch_slice(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                   int32_t first, int32_t n);
int32_t arch_add(struct graph_builder *b, int32_t layer, const char *name, int32_t x, int32_t y);
/* in times a constant; in itself if that is 1. */
int32_t arch_factor(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                    float factor);
bool arch_has(const struct graph_builder *b, int32_t layer, const char *name); /* a tensor */
/* Accepts the weight and bias "blk.N.NAME", which the file may have and the graph does not use. */
void arch_unused(struct graph_builder *b, int32_t layer, const char *name);

/* in times a(gate), whose elements are each of as many neighbours of `in`. */
int32_t arch_gate(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                  int32_t gate, enum activation a);

/* arch_positions.c: keys of positions, and what they do to values. */
void arch_read_positions(struct graph_builder *b, struct layer_shape *s);
void arch_read_sections(struct graph_builder *b, struct layer_shape *s);
void arch_read_divisors(struct graph_builder *b, struct layer_shape *s);
/* x + position_embd, where the model has it. */
int32_t arch_learned_positions(struct graph_builder *b, const struct layer_shape *s, int32_t x);
/* Rotations of rope_dims dimensions of each head, from `first` on. */
int32_t arch_rope(struct graph_builder *b, const struct layer_shape *s, const char *name,
                  int32_t in, int32_t heads, int32_t head_dim, int32_t first);
/* q times its temperature, where the model has one. */
int32_t arch_temper(struct graph_builder *b, const struct layer_shape *s, int32_t q);

/* arch_embeddings.c: of all layers, for the token's embedding x; x with what its own adds to it. */
int32_t arch_layer_embeddings(struct graph_builder *b, const struct layer_shape *s, int32_t x);
int32_t arch_layer_embedding(struct graph_builder *b, const struct layer_shape *s, int32_t x);

/* arch_attention.c: the attention block's output for its normed input. */
int32_t arch_attention(struct graph_builder *b, const struct layer_shape *s, int32_t n);
/* Stores k and v, as the heads of `store` say, unless they are -1, another layer's, and returns the
 * values that q attends to. */
int32_t arch_attend(struct graph_builder *b, const struct layer_shape *s, struct oato_op store,
                    int32_t q, int32_t k, int32_t v);

/* Attention's output o times its gate, which is made of n, where the row has one. */
int32_t arch_gated(struct graph_builder *b, const struct layer_shape *s, int32_t n, int32_t o);

/* arch_mla.c: the same of a row with `latent`; its keys, false if they fit no kernel; the width of
 * a head in the cache. */
int32_t arch_mla(struct graph_builder *b, const struct layer_shape *s, int32_t n);
bool arch_mla_read(struct graph_builder *b, struct layer_shape *s);
int32_t arch_mla_cached(const struct layer_shape *s);

/* arch_state.c: which blocks a layer has; the same of a layer with a recurrent mixer. */
void arch_read_blocks(struct graph_builder *b, struct layer_shape *s);
int32_t arch_state(struct graph_builder *b, const struct layer_shape *s, int32_t n);

/* arch_mtp.c: what the block that predicts one more token reads, x being the last layer's output,
 * and the logits of what it makes of it. */
int32_t arch_mtp_input(struct graph_builder *b, const struct layer_shape *s,
                       const struct gguf_tensor *table, int32_t x);
int32_t arch_mtp_output(struct graph_builder *b, const struct layer_shape *s,
                        const struct gguf_tensor *table, int32_t x);

/* arch_ffn.c: a gated FFN of "ffn_gate", "ffn_up" and "ffn_down" with a suffix for all three. */
int32_t arch_dense(struct graph_builder *b, const struct layer_shape *s, const char *suffix,
                   int32_t m, int32_t width);

/* arch_experts.c: the keys of the layer's experts; whether it has any; the FFN block's output for
 * its normed input m, of x. */
void arch_read_experts(struct graph_builder *b, struct layer_shape *s);
bool arch_has_experts(const struct graph_builder *b, const struct layer_shape *s);
int32_t arch_ffn(struct graph_builder *b, const struct layer_shape *s, int32_t m, int32_t x);

#endif
