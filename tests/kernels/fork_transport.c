/*
 * fork_transport.c - a module as kernels/ranks/ builds them, for ranks that test_collective.c
 * forks: messages go through memory that they inherit. No MPI is needed, and a rank can be stopped.
 */
#include "fork_transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fork_world *world;
static int own_rank;
enum { MESSAGES = 64 };
static struct message {
    enum { FREE, WAITS, DONE } state;
    int peer;
    bool sends;
    const void *data;
    void *to;
    size_t bytes;
} message[CHANNELS][MESSAGES];

static int ranks_open(int *rank, int *ranks, char host[TRANSPORT_HOST])
{
    const char *at = getenv(FORK_WORLD), *number = getenv(FORK_RANK);
    if (!at || !number)
        return -1;
    world = (struct fork_world *)strtoull(at, NULL, 16); // NOLINT(performance-no-int-to-ptr)
    *rank = own_rank = (int)strtol(number, NULL, 10);
    *ranks = world->ranks;
    snprintf(host, TRANSPORT_HOST, "host%d", own_rank * world->hosts / world->ranks);
    return 0;
}

static void ranks_close(void)
{
    while (world->close_waits && !own_rank)
        pause();
    atomic_fetch_add(&world->closed, 1);
}

/* All messages get on, whichever is waited for: MPI does that, too. */
static void messages_move(int channel)
{
    for (struct message *m = message[channel]; m < message[channel] + MESSAGES; m++) {
        if (m->state != WAITS)
            continue;
        struct fork_box *box = m->sends ? &world->box[channel][own_rank][m->peer]
                                        : &world->box[channel][m->peer][own_rank];
        if (atomic_load(&box->full) == m->sends)
            continue;
        if (m->sends) {
            box->bytes = m->bytes;
            if (m->bytes)
                memcpy(box->data, m->data, m->bytes);
            if (channel == CHANNEL_STEPS)
                atomic_fetch_add(&world->sent_bytes, m->bytes);
        } else {
            m->bytes = box->bytes;
            if (m->bytes)
                memcpy(m->to, box->data, m->bytes);
        }
        atomic_store(&box->full, m->sends);
        m->state = DONE;
    }
}

static int message_begin(int channel, struct message begun)
{
    for (int i = 0; i < MESSAGES; i++)
        if (message[channel][i].state == FREE) {
            message[channel][i] = begun;
            messages_move(channel);
            return channel * MESSAGES + i;
        }
    return -1;
}

static int message_send(int channel, int to, const void *data, size_t bytes)
{
    return message_begin(channel, (struct message){WAITS, to, true, data, NULL, bytes});
}

static int message_receive(int channel, int from, void *data, size_t most)
{
    (void)most;
    return message_begin(channel, (struct message){WAITS, from, false, NULL, data, 0});
}

static int message_test(int handle, size_t *bytes)
{
    struct message *m = &message[handle / MESSAGES][handle % MESSAGES];
    messages_move(handle / MESSAGES);
    if (m->state != DONE)
        return 0;
    if (bytes)
        *bytes = m->bytes;
    m->state = FREE;
    return 1;
}

/* Not the sum, so that a test sees who made it. */
static int library_sum(float *x, size_t n, int by_root)
{
    while (world->sum_waits)
        pause();
    for (size_t i = 0; i < n; i++)
        x[i] = by_root ? -2 : -1;
    return 0;
}

static const char *why(void)
{
    return "";
}

__attribute__((visibility("default"))) const struct transport_ops oato_transport = {
    .version = TRANSPORT_VERSION,
    .open = ranks_open,
    .close = ranks_close,
    .send = message_send,
    .receive = message_receive,
    .test = message_test,
    .sum = library_sum,
    .why = why,
};
