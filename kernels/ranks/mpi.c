/*
 * mpi.c - messages between ranks by MPI: built once for each implementation of MPI that is
 * installed, as a module that open.c opens. Errors are returned, not fatal: MPI's own
 * reports name no rank in one line. Waiting is the caller's, which has deadlines.
 */
#include "kernels/ranks/transport.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES_MAX = 256 }; /* of a channel, which is the tag */

static MPI_Request requests[CHANNELS * MESSAGES_MAX]; /* MPI_REQUEST_NULL: free */
static MPI_Comm ranks_comm;
static _Thread_local char reason[MPI_MAX_ERROR_STRING + 32];

static int failed(const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(code, text, &n);
    snprintf(reason, sizeof reason, "%s: %s", what, text);
    return -1;
}

static int ranks_open(int *rank, int *ranks, char host[TRANSPORT_HOST])
{
    char name[MPI_MAX_PROCESSOR_NAME] = "";
    int provided = 0, n = 0;
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    if (code)
        return failed("MPI_Init_thread", code);
    if (provided < MPI_THREAD_MULTIPLE) {
        snprintf(reason, sizeof reason, "this MPI cannot be called by two threads at once");
        return -1;
    }
    code = MPI_Comm_dup(MPI_COMM_WORLD, &ranks_comm);
    if (code)
        return failed("MPI_Comm_dup", code);
    MPI_Comm_set_errhandler(ranks_comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(ranks_comm, rank);
    MPI_Comm_size(ranks_comm, ranks);
    MPI_Get_processor_name(name, &n);
    snprintf(host, TRANSPORT_HOST, "%.*s", TRANSPORT_HOST - 1, name);
    for (int i = 0; i < CHANNELS * MESSAGES_MAX; i++)
        requests[i] = MPI_REQUEST_NULL;
    return 0;
}

static void ranks_close(void)
{
    MPI_Comm_free(&ranks_comm);
    MPI_Finalize();
}

static int handle_find(int channel)
{
    for (int i = 0; i < MESSAGES_MAX; i++)
        if (requests[channel * MESSAGES_MAX + i] == MPI_REQUEST_NULL)
            return channel * MESSAGES_MAX + i;
    snprintf(reason, sizeof reason, "more than %d messages on their way", MESSAGES_MAX);
    return -1;
}

static int message_send(int channel, int to, const void *data, size_t bytes)
{
    const int h = handle_find(channel);
    const int code =
        h < 0 ? 0 : MPI_Isend(data, (int)bytes, MPI_BYTE, to, channel, ranks_comm, &requests[h]);
    return code ? failed("MPI_Isend", code) : h;
}

static int message_receive(int channel, int from, void *data, size_t most)
{
    const int h = handle_find(channel);
    const int code =
        h < 0 ? 0 : MPI_Irecv(data, (int)most, MPI_BYTE, from, channel, ranks_comm, &requests[h]);
    return code ? failed("MPI_Irecv", code) : h;
}

static int message_test(int handle, size_t *bytes)
{
    MPI_Status status;
    int done = 0, count = 0;
    const int code = MPI_Test(&requests[handle], &done, &status);
    if (code)
        return failed("MPI_Test", code);
    if (done && bytes) {
        MPI_Get_count(&status, MPI_BYTE, &count);
        *bytes = (size_t)count;
    }
    return done;
}

static int library_sum(float *x, size_t n, int by_root)
{
    int rank = 0;
    float *own = by_root ? NULL : malloc(n * sizeof *own);
    if (!by_root && !own) {
        snprintf(reason, sizeof reason, "no memory for a sum of %zu bytes", n * sizeof *own);
        return -1;
    }
    /* HAN of OpenMPI 4.1 takes MPI_IN_PLACE for an address when it divides what is long */
    if (own)
        memcpy(own, x, n * sizeof *own);
    MPI_Comm_rank(ranks_comm, &rank);
    int code = !by_root ? MPI_Allreduce(own, x, (int)n, MPI_FLOAT, MPI_SUM, ranks_comm)
               : !rank  ? MPI_Reduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, 0, ranks_comm)
                        : MPI_Reduce(x, NULL, (int)n, MPI_FLOAT, MPI_SUM, 0, ranks_comm);
    free(own);
    if (!code && by_root)
        code = MPI_Bcast(x, (int)n, MPI_FLOAT, 0, ranks_comm);
    return code ? failed(by_root ? "MPI_Reduce and MPI_Bcast" : "MPI_Allreduce", code) : 0;
}

static const char *why(void)
{
    return reason;
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
