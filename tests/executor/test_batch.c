/*
 * test_batch.c - requests that share an engine get what each gets alone, however they come and go
 * whoever is preempted, and whose masks take long; none is cut short or held up by another; ends
 * are told once, with their reason.
 */
#include "executor/batch.h"
#include "tests/executor/harness.h"

#include <stdlib.h>

enum { REQUESTS = 64, PREEMPTED = 24, PROMPT_MAX = 72, MOST = 20, SEQS = 6, CONTEXT = 512 };

struct asked {
    int32_t prompt[PROMPT_MAX], n_prompt, most, stop; /* after so many tokens; -1: never */
    int32_t got[MOST], n_got;
    struct sampler *sampler;
    int slow, waited; /* how often its mask is asked for before it is made; -1: it fails */
    int ends;
    enum batch_end why;
    uint64_t id;
};

static bool on_token(void *user, int32_t id)
{
    struct asked *x = user;
    if (x->n_got == x->stop)
        return false;
    assert_true(x->n_got < MOST);
    x->got[x->n_got++] = id;
    return true;
}

static void on_end(void *user, enum batch_end why)
{
    struct asked *x = user;
    x->ends++;
    x->why = why;
}

/* A third of the requests may have even tokens only. */
static int slow_masks; /* of those that are added now */

static bool is_even(void *user, int32_t id)
{
    (void)user;
    return id % 2 == 0;
}

static enum sampler_mask even_mask(void *user, uint64_t steps, const uint64_t **bits)
{
    static const uint64_t even[5] = {0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
                                     0x5555555555555555, 0x5555555555555555};
    struct asked *x = user;
    assert_true(steps > 0);
    *bits = even;
    if (x->slow < 0)
        return MASK_FAILED;
    if (x->waited++ < x->slow)
        return MASK_MORE;
    x->waited = 0;
    return MASK_READY;
}

static void even_take(void *user, int32_t id)
{
    assert_true(is_even(user, id));
}

static struct batch_request request_of(struct asked *x, uint64_t seed)
{
    const struct sampler_options options = {.temperature = seed % 4 ? 1.5f : 0,
                                            .top_k = 0,
                                            .top_p = 1,
                                            .repeat_penalty = 1.1f,
                                            .repeat_last = 8,
                                            .seed = seed};
    sampler_free(x->sampler);
    x->sampler = sampler_create(&options, 320);
    assert_non_null(x->sampler);
    x->slow = slow_masks;
    x->waited = 0;
    if (seed % 3 == 0)
        sampler_constrain(x->sampler,
                          &(struct sampler_constraint){is_even, even_mask, even_take, x});
    x->n_got = x->ends = 0;
    return (struct batch_request){.ids = x->prompt,
                                  .n_ids = x->n_prompt,
                                  .most = x->most,
                                  .seq = -1,
                                  .sampler = x->sampler,
                                  .on_token = on_token,
                                  .on_end = on_end,
                                  .user = x};
}

static void step(struct batch *b)
{
    struct oato_error err;
    if (batch_step(b, &err))
        fail_msg("%s", err.text);
}

static void add(struct batch *b, struct asked *x, uint64_t seed)
{
    struct oato_error err;
    const struct batch_request r = request_of(x, seed);
    if (batch_add(b, &r, &x->id, &err))
        fail_msg("%s", err.text);
}

static struct batch *batch_with(struct engine *e, const struct batch_options *options)
{
    struct batch *b;
    struct oato_error err;
    if (batch_create(e, options, &b, &err))
        fail_msg("%s", err.text);
    return b;
}

static struct batch *batch_on(struct engine *e)
{
    return batch_with(e, NULL);
}

static struct asked *ask_randomly(struct random *r, int32_t n)
{
    struct asked *all = calloc((size_t)n, sizeof *all);
    assert_non_null(all);
    for (int32_t i = 0; i < n; i++) {
        struct asked *x = &all[i];
        x->n_prompt = 1 + (int32_t)random_below(r, PROMPT_MAX);
        x->most = (int32_t)random_below(r, MOST + 1);
        x->stop = random_below(r, 4) ? -1 : (int32_t)random_below(r, MOST);
        fill_ids(x->prompt, x->n_prompt, 320, r->state);
    }
    return all;
}

static void free_asked(struct asked *all, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        sampler_free(all[i].sampler);
    free(all);
}

/* A schedule by dice: requests run, are swapped out and evicted in any order. */
struct dice {
    struct random random;
    int32_t requests; /* at the last look */
    uint64_t told[RESTORE_KINDS], bytes[RESTORE_KINDS];
};

static void dice_schedule(void *user, struct batch_view *v, int32_t n,
                          const struct batch_room *room)
{
    struct dice *d = user;
    int32_t running = 0, pages = room->pages_free;
    d->requests = n;
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = (int32_t)random_below(&d->random, (uint32_t)i + 1);
        const struct batch_view x = v[i];
        v[i] = v[j];
        v[j] = x;
    }
    for (int32_t i = 0; i < n; i++) {
        const uint32_t die = random_below(&d->random, 16);
        assert_true(v[i].fed <= v[i].prompt + v[i].generated);
        assert_int_equal(v[i].length, v[i].state == BATCH_WAITING ? 0 : v[i].fed);
        batch_view_measure(&v[i]);
        assert_int_equal(v[i].pages, kv_pages_of(v[i].length));
        running += v[i].state == BATCH_RUNNING;
        pages += v[i].state == BATCH_RUNNING ? v[i].pages : 0;
        if (v[i].state != BATCH_RUNNING)
            v[i].action = die < 8 ? BATCH_RUN : die == 15 ? BATCH_EVICT : BATCH_KEEP;
        else
            v[i].action = die < 2 ? BATCH_SWAP_OUT : die < 3 ? BATCH_EVICT : BATCH_KEEP;
    }
    assert_true(running <= room->seqs);
    assert_int_equal(pages, room->pages);
}

static void dice_told(void *user, const struct batch_restored *r)
{
    struct dice *d = user;
    d->told[r->what]++;
    d->bytes[r->what] += r->bytes;
}

static void dice_tell(const struct dice *d, const struct batch_times *t)
{
    assert_true(d->told[RESTORE_SWAP_OUT] > 4 && d->told[RESTORE_SWAP_IN] > 2);
    assert_true(d->told[RESTORE_RECOMPUTE] > 2);
    assert_int_equal(d->told[RESTORE_SWAP_OUT], t->swaps_out);
    assert_int_equal(d->told[RESTORE_SWAP_IN], t->swaps_in);
    assert_int_equal(d->bytes[RESTORE_SWAP_IN] + d->bytes[RESTORE_SWAP_OUT], t->swapped_bytes);
    assert_true(t->evictions >= d->told[RESTORE_RECOMPUTE] && t->recomputed_tokens > 0);
}

/* Requests join and leave at random steps; some are cancelled on the way. With dice they are
 * preempted, too, and pages are so few that a step cannot always serve all. */
static void company_changes_no_token(const struct model *m, const struct plan *p,
                                     struct engine_options options, struct dice *dice)
{
    const int32_t requests = dice ? PREEMPTED : REQUESTS;
    const struct batch_options by_dice = {
        .schedule = dice_schedule, .restored = dice_told, .user = dice};
    struct random r = random_of_run();
    struct asked *alone = ask_randomly(&r, requests), *together;
    together = malloc(requests * sizeof *together);
    assert_non_null(together);
    memcpy(together, alone, requests * sizeof *together);
    options.context = CONTEXT;

    options.seqs = 1;
    struct engine *e = open_engine(m, p, options);
    slow_masks = 0;
    for (int32_t i = 0; i < requests; i++) {
        struct batch *b = batch_on(e);
        add(b, &alone[i], (uint64_t)i);
        while (batch_requests(b))
            step(b);
        assert_int_equal(alone[i].ends, 1);
        batch_free(b);
    }
    engine_close(e);

    options.seqs = SEQS;
    options.context = dice ? CONTEXT / 2 : CONTEXT;
    e = open_engine(m, p, options);
    const int32_t pages = engine_free_pages(e);
    struct batch *b = batch_with(e, dice ? &by_dice : NULL);
    if (dice)
        *dice = (struct dice){.random = r};
    bool cancelled[REQUESTS] = {false};
    slow_masks = 3;
    for (int32_t next = 0; next < requests || batch_requests(b);) {
        for (; next < requests && random_below(&r, 2); next++)
            add(b, &together[next], (uint64_t)next);
        if (next && !random_below(&r, 12)) {
            const int32_t i = (int32_t)random_below(&r, (uint32_t)next);
            batch_cancel(b, together[i].id);
            cancelled[i] = true;
        }
        step(b);
    }
    int32_t whole = 0;
    slow_masks = 0;
    for (int32_t i = 0; i < requests; i++) {
        const struct asked *x = &together[i];
        assert_int_equal(x->ends, 1);
        if (x->why == BATCH_CANCELLED) {
            assert_true(cancelled[i]);
        } else {
            assert_int_equal(x->n_got, alone[i].n_got);
            assert_int_equal(x->why, alone[i].why);
            whole++;
        }
        if (memcmp(x->got, alone[i].got, (size_t)x->n_got * sizeof *x->got) != 0)
            fail_msg("request %d says something else in company", i);
    }
    assert_true(whole > requests / 2);
    struct batch_times times;
    batch_get_times(b, &times);
    if (dice)
        dice_tell(dice, &times);
    batch_free(b);
    assert_int_equal(engine_free_pages(e), pages);
    engine_close(e);
    free_asked(alone, requests);
    free_asked(together, requests);
}

static void one_class_gives_each_request_its_own_tokens(void **state)
{
    struct model *m = tiny_model(DT_Q4_K, 5);
    (void)state;
    company_changes_no_token(
        m, NULL, (struct engine_options){.threads = 2, .ubatch = 48, .deterministic = true}, NULL);
    company_changes_no_token(
        m, NULL,
        (struct engine_options){
            .threads = 1, .ubatch = 16, .kv = DT_F32, .kv_given = true, .deterministic = true},
        NULL);
    model_close(m);
    m = tiny_model_of("qwen35", DT_Q4_0, 5);
    company_changes_no_token(
        m, NULL, (struct engine_options){.threads = 2, .ubatch = 48, .deterministic = true}, NULL);
    model_close(m);
}

/* A plan whose prefill streams half of each feed-forward block's last product to a simulated
 * device. */
static void plan_streamed_prefill(struct plan *p, const struct model *m, struct graph *fused)
{
    plan_begin(p, m, 1, "vram=64MiB");
    plan_fuse_all(p, m, fused);
    for (int32_t i = 1; i < fused->n_ops; i++) {
        const struct graph_op *o = &fused->ops[i];
        if (fused->ops[i - 1].op.kind != OP_GATE_UP)
            continue;
        for (int32_t half = 0; half < 2; half++) {
            const int64_t begin = half * o->op.n / 2;
            for (int32_t phase = 0; phase < PHASE_COUNT; phase++) {
                plan_add_part(p, o->name, begin, begin + o->op.n / 2,
                              phase == PHASE_PREFILL ? half : 0);
                p->parts[p->n_parts - 1].phases = 1u << phase;
                p->parts[p->n_parts - 1].home = 0;
            }
        }
    }
}

/* On hosts with AVX-512 the classes of F16 differ. */
static void each_phase_gives_each_request_its_own_tokens(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_K, 5), *f16 = tiny_model(DT_F16, 5);
    struct plan p;
    struct graph fused;
    company_changes_no_token(m, NULL, (struct engine_options){.threads = 2, .ubatch = 48}, NULL);
    company_changes_no_token(f16, NULL, (struct engine_options){.threads = 2, .ubatch = 48}, NULL);
    plan_streamed_prefill(&p, f16, &fused);
    company_changes_no_token(f16, &p, (struct engine_options){.threads = 2, .ubatch = 48}, NULL);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
    model_close(f16);
}

/* Whether its KV is in pages of windows, states, or on several devices. */
static void preemption_changes_no_token(void **state)
{
    struct engine_options options = {.threads = 2, .ubatch = 48, .deterministic = true};
    struct dice dice;
    struct model *m = tiny_model(DT_Q4_K, 5);
    (void)state;
    company_changes_no_token(m, NULL, options, &dice);
    options.kv_given = true;
    options.kv = DT_Q8_0;
    options.threads = 1;
    company_changes_no_token(m, NULL, options, &dice);
    model_close(m);
    options.kv_given = false;
    static const char *const others[][2] = {
        {"qwen35", NULL},
        {"gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=3"}};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        struct plan p;
        struct graph fused;
        struct random r = random_of_run();
        m = others[i][1] ? tiny_model_with(others[i][0], others[i][1], DT_Q8_0, 5)
                         : tiny_model_of(others[i][0], DT_Q8_0, 5);
        plan_begin(&p, m, 2, "vram=64MiB");
        plan_fuse_all(&p, m, &fused);
        plan_place_randomly(&p, &fused, &r);
        company_changes_no_token(m, &p, options, &dice);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

/* The same where KV is copied from and to a GPU. */
static void preemption_on_a_gpu_changes_no_token(void **state)
{
    const struct engine_options options = {.threads = 1, .ubatch = 48, .deterministic = true};
    (void)state;
    if (!gpu_is_there())
        skip();
    struct model *m = tiny_model(DT_Q8_0, 5);
    struct plan p;
    struct graph fused;
    struct dice dice;
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    company_changes_no_token(m, &p, options, &dice);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* A request that waits for pages gets them all; none that was admitted is cut short. */
static void the_cache_is_promised_once(void **state)
{
    struct model *m = tiny_model(DT_Q8_0, 3);
    struct engine *e = open_engine(m, NULL, (struct engine_options){.context = 128, .seqs = 4});
    struct batch *b = batch_on(e);
    struct asked all[8] = {0};
    int most_running = 0;
    (void)state;
    for (int i = 0; i < 8; i++) {
        all[i].n_prompt = 60;
        all[i].most = i == 3 ? -1 : 20; /* 79 positions: two pages, of five */
        all[i].stop = i == 3 ? 9 : -1;
        fill_ids(all[i].prompt, 60, 320, (uint64_t)i);
        add(b, &all[i], 0);
    }
    while (batch_requests(b)) {
        step(b);
        int running = 0;
        for (int i = 0; i < 8; i++)
            running += all[i].n_got && !all[i].ends;
        most_running = running > most_running ? running : most_running;
        if (all[3].n_got && !all[3].ends)
            assert_int_equal(running, 1 + (all[2].n_got && !all[2].ends));
    }
    assert_in_range(most_running, 2, 2);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(all[i].why, i == 3 ? BATCH_STOPPED : BATCH_LIMIT);
        assert_int_equal(all[i].n_got, i == 3 ? 9 : 20);
        sampler_free(all[i].sampler);
    }
    batch_free(b);
    engine_close(e);
    model_close(m);
}

static void the_context_ends_an_answer(void **state)
{
    struct model *m = tiny_model(DT_Q8_0, 3);
    struct engine *e = open_engine(m, NULL, (struct engine_options){.context = 70, .ubatch = 64});
    struct batch *b = batch_on(e);
    struct asked x = {.n_prompt = 66, .most = -1, .stop = -1}, y = {.n_prompt = 71, .stop = -1};
    struct oato_error err;
    (void)state;
    fill_ids(x.prompt, PROMPT_MAX, 320, 1);
    fill_ids(y.prompt, PROMPT_MAX, 320, 1);
    add(b, &x, 0);
    while (batch_requests(b))
        step(b);
    assert_int_equal(x.why, BATCH_CONTEXT);
    assert_int_equal(x.n_got, 5); /* four of them fed to positions 66 to 69 */

    struct batch_request r = request_of(&y, 0);
    assert_int_equal(batch_add(b, &r, NULL, &err), OATO_EFIT);
    assert_non_null(
        strstr(err.text, "the prompt has 71 tokens, but the context holds only 70; use -c 256"));
    y.prompt[2] = 320;
    r.n_ids = 3;
    assert_int_equal(batch_add(b, &r, NULL, &err), OATO_EUSAGE);
    r.n_ids = 0;
    assert_int_equal(batch_add(b, &r, NULL, &err), OATO_EUSAGE);
    assert_int_equal(batch_requests(b), 0);
    assert_int_equal(y.ends, 0);
    batch_free(b);
    sampler_free(x.sampler);
    sampler_free(y.sampler);
    engine_close(e);
    model_close(m);
}

static void a_sequence_of_the_caller_goes_on(void **state)
{
    struct model *m = tiny_model(DT_Q8_0, 3);
    const struct engine_options options = {.context = 256, .deterministic = true};
    struct engine *e = open_engine(m, NULL, options);
    struct batch *b = batch_on(e);
    struct asked whole = {.n_prompt = 70, .most = 8, .stop = -1}, part = whole;
    struct oato_error err;
    int32_t seq;
    (void)state;
    fill_ids(whole.prompt, 70, 320, 1);
    memcpy(part.prompt, whole.prompt, sizeof part.prompt);
    add(b, &whole, 0);
    while (batch_requests(b))
        step(b);
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    part.most = 0;
    part.n_prompt = 30;
    struct batch_request r = request_of(&part, 0);
    r.seq = seq;
    assert_int_equal(batch_add(b, &r, NULL, &err), OATO_OK);
    step(b);
    assert_int_equal(part.why, BATCH_LIMIT);
    assert_int_equal(engine_seq_length(e, seq), 30);
    r.ids = part.prompt + 30;
    r.n_ids = 40;
    r.most = 8;
    assert_int_equal(batch_add(b, &r, NULL, &err), OATO_OK);
    while (batch_requests(b))
        step(b);
    assert_int_equal(engine_seq_length(e, seq), 77);
    assert_memory_equal(part.got, whole.got, 8 * sizeof *part.got);
    batch_free(b);
    sampler_free(whole.sampler);
    sampler_free(part.sampler);
    engine_close(e);
    model_close(m);
}

/* A reader that leaves and a request that arrives between two steps. */
struct visitor {
    struct asked *leaves, *arrives;
    int steps;
};

static void before_step(void *user, struct batch *b)
{
    struct visitor *v = user;
    v->steps++;
    if (v->leaves->n_got == 3)
        batch_cancel(b, v->leaves->id);
    if (v->steps == 2)
        add(b, v->arrives, 0);
}

static void the_hook_may_add_and_cancel(void **state)
{
    struct model *m = tiny_model(DT_Q8_0, 3);
    struct engine *e = open_engine(m, NULL, (struct engine_options){.context = 256, .seqs = 2});
    struct asked x = {.n_prompt = 5, .most = 20, .stop = -1}, y = x;
    struct visitor v = {&x, &y, 0};
    struct batch *b;
    struct oato_error err;
    (void)state;
    assert_int_equal(
        batch_create(e, &(struct batch_options){.before_step = before_step, .user = &v}, &b, &err),
        OATO_OK);
    add(b, &x, 0);
    while (batch_requests(b))
        step(b);
    assert_int_equal(x.why, BATCH_CANCELLED);
    assert_int_equal(x.n_got, 3);
    assert_int_equal(y.why, BATCH_LIMIT);
    assert_int_equal(y.n_got, 20);
    assert_int_equal(y.got[0], x.got[0]);
    batch_cancel(b, x.id); /* long gone */
    add(b, &x, 0);
    batch_free(b);
    assert_int_equal(x.why, BATCH_CANCELLED);
    sampler_free(x.sampler);
    sampler_free(y.sampler);
    engine_close(e);
    model_close(m);
}

/* Each step works on the mask for a while only, and looks for cancelled requests. */
static void a_slow_mask_holds_up_nobody(void **state)
{
    struct model *m = tiny_model(DT_Q8_0, 3);
    struct engine *e = open_engine(m, NULL, (struct engine_options){.context = 256, .seqs = 3});
    struct asked slow = {.n_prompt = 5, .most = 20, .stop = -1}, other = slow, failing = slow;
    struct batch *b = batch_on(e);
    (void)state;
    slow_masks = 1000000;
    add(b, &slow, 0); /* the most likely token is odd */
    slow_masks = -1;
    add(b, &failing, 0);
    slow_masks = 0;
    add(b, &other, 1);
    for (int i = 0; i < 21; i++)
        step(b);
    assert_int_equal(other.why, BATCH_LIMIT);
    assert_int_equal(other.n_got, 20);
    assert_int_equal(failing.why, BATCH_REFUSED);
    assert_int_equal(failing.n_got, slow.n_got);
    assert_true(slow.n_got < 20 && slow.waited > 5 && !slow.ends);
    batch_cancel(b, slow.id);
    step(b);
    assert_int_equal(slow.why, BATCH_CANCELLED);
    assert_int_equal(batch_requests(b), 0);
    batch_free(b);
    sampler_free(slow.sampler);
    sampler_free(other.sampler);
    sampler_free(failing.sampler);
    engine_close(e);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_class_gives_each_request_its_own_tokens),
        cmocka_unit_test(each_phase_gives_each_request_its_own_tokens),
        cmocka_unit_test(preemption_changes_no_token),
        cmocka_unit_test(preemption_on_a_gpu_changes_no_token),
        cmocka_unit_test(the_cache_is_promised_once),
        cmocka_unit_test(the_context_ends_an_answer),
        cmocka_unit_test(a_sequence_of_the_caller_goes_on),
        cmocka_unit_test(the_hook_may_add_and_cancel),
        cmocka_unit_test(a_slow_mask_holds_up_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
