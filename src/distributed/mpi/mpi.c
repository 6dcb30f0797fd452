/* mpi.c: the transport over MPI, a plugin. Each MPI has a plugin, which is compiled against that
 * MPI's mpi.h. The library opens the plugin (distributed/launch/launcher.h).
 *
 * One thread makes all calls, and need not be the program's first thread. The plugin asks MPI for
 * MPI_THREAD_FUNNELED, and MPI takes the thread that makes the calls for the main thread. If the
 * program has started MPI itself, the program's own thread may call MPI too, and must have started
 * MPI with MPI_THREAD_SERIALIZED at least.
 *
 * Statuses are MPI's error codes, negated, and the TRANSPORT statuses below. */
#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link/transport.h"

#if MPI_VERSION < 3
#error "Evenkeel needs MPI 3.0 or later: non-blocking collectives"
#endif

/* MPI's counts are ints. Broadcasts of more bytes than this travel in several parts, and messages
 * as one element of a large datatype (large_type). Tests set a smaller number. */
#ifndef EK_MPI_PART
#define EK_MPI_PART ((size_t)1 << 30)
#endif

enum {
    EXCHANGE_TAG = 32768 /* of all_to_all; messages have smaller tags */
};

/* Statuses of the plugin, which are far from MPI's error codes. */
enum {
    TRANSPORT_NO_MEMORY = INT_MIN,
    TRANSPORT_MPI_ENDED,
    TRANSPORT_NO_THREADS,
    TRANSPORT_OWN_THREADS,
    TRANSPORT_FEW_TAGS
};

struct ek_communicator {
    MPI_Comm comm;
    int rank, size;
};

/* A transfer in parts, which complete in any order and are tested in their order. */
struct ek_request {
    bool receives; /* the request receives a message */
    int code;      /* the code of the first part that failed, or MPI_SUCCESS */
    int count;     /* parts that were started */
    int complete;  /* how many parts at the front are complete */
    int *ranges;   /* of all_gather: counts and offsets, which MPI reads until the end */
    MPI_Request parts[];
};

static bool mpi_is_ours; /* the plugin has started MPI, and ends it */

/* ---- statuses ---- */

static int status_of(int code)
{
    return code == MPI_SUCCESS ? 0 : -code;
}

static const char *transport_reason(int status)
{
    static char text[MPI_MAX_ERROR_STRING + 1];
    switch (status) {
    case TRANSPORT_NO_MEMORY:
        return "process out of memory";
    case TRANSPORT_MPI_ENDED:
        return "MPI has been ended in this process, and cannot be started again";
    case TRANSPORT_NO_THREADS:
        return "this MPI does not allow threads (MPI_THREAD_FUNNELED)";
    case TRANSPORT_OWN_THREADS:
        return "the program has started MPI with less than MPI_THREAD_SERIALIZED";
    case TRANSPORT_FEW_TAGS:
        return "this MPI has fewer than 32769 tags";
    }
    /* MPI has texts only while it runs. The text of a class is short. The text of a code can be a
     * page, and is used only for codes of the classes OTHER, INTERN and UNKNOWN. */
    int code = -status, class = MPI_ERR_OTHER, length = 0, running = 0, ended = 0;
    MPI_Initialized(&running);
    MPI_Finalized(&ended);
    if (running && !ended) {
        MPI_Error_class(code, &class);
        bool vague = class == MPI_ERR_OTHER || class == MPI_ERR_INTERN || class == MPI_ERR_UNKNOWN;
        if (MPI_Error_string(vague ? code : class, text, &length) != MPI_SUCCESS)
            length = 0;
    }
    if (length == 0)
        snprintf(text, sizeof text, "error %d", code);
    for (char *at = text; (at = strpbrk(at, "\n\t"));)
        *at = ' ';
    return text;
}

/* ---- requests ---- */

/* Makes a request with room for `parts` parts and `ranges` ints. */
static ek_request *request_new(int parts, int ranges)
{
    size_t nbytes = sizeof(ek_request) + (size_t)parts * sizeof(MPI_Request);
    ek_request *request = malloc(nbytes + (size_t)ranges * sizeof(int));
    if (request) {
        *request = (ek_request){.code = MPI_SUCCESS};
        request->ranges = (int *)(request->parts + parts);
    }
    return request;
}

/* Takes the code that MPI has returned when a part was started. Counts the part if the code is no
 * error. Notes the first code that is an error. */
static void request_count(ek_request *request, int code)
{
    if (code == MPI_SUCCESS)
        request->count++;
    else if (request->code == MPI_SUCCESS)
        request->code = code;
}

/* Writes `begun` to *request. If a part could not be started, the request fails once its other
 * parts are complete, because MPI uses their memory until then. If there are no other parts, frees
 * `begun` and returns the error. */
static int request_begin(ek_request *begun, ek_request **request)
{
    int code = begun->code;
    if (code != MPI_SUCCESS && begun->count == 0) {
        free(begun);
        return status_of(code);
    }
    *request = begun;
    return 0;
}

static int transport_test(ek_request **request, int *source)
{
    ek_request *tested = *request;
    /* MPI_Test of an incomplete part makes progress with all requests. */
    while (tested->complete < tested->count) {
        MPI_Request *part = &tested->parts[tested->complete];
        MPI_Status status;
        int done = 0, code = MPI_Test(part, &done, &status);
        if (code == MPI_SUCCESS && !done)
            return 0;
        if (code != MPI_SUCCESS) {
            if (*part != MPI_REQUEST_NULL)
                MPI_Request_free(part);
            if (tested->code == MPI_SUCCESS)
                tested->code = code;
        } else if (tested->receives && source) {
            *source = status.MPI_SOURCE;
        }
        tested->complete++;
    }
    int code = tested->code;
    free(tested);
    *request = NULL;
    return code == MPI_SUCCESS ? 1 : status_of(code);
}

static void transport_cancel(ek_request **request)
{
    ek_request *cancelled = *request;
    for (int i = cancelled->complete; i < cancelled->count; i++) {
        MPI_Cancel(&cancelled->parts[i]);
        MPI_Wait(&cancelled->parts[i], MPI_STATUS_IGNORE);
    }
    free(cancelled);
    *request = NULL;
}

/* ---- messages ---- */

/* Makes a datatype of `nbytes` bytes, which are more than a part. The datatype keeps a message
 * whole. Separate parts could be mistaken for other messages, or for messages shorter than their
 * room. */
static int large_type(size_t nbytes, MPI_Datatype *type)
{
    if (nbytes / EK_MPI_PART > INT_MAX)
        return MPI_ERR_COUNT;
    MPI_Datatype part;
    int code = MPI_Type_contiguous((int)EK_MPI_PART, MPI_BYTE, &part);
    if (code != MPI_SUCCESS)
        return code;
    size_t rest = nbytes % EK_MPI_PART;
    code = MPI_Type_create_struct(2, (int[2]){(int)(nbytes / EK_MPI_PART), (int)rest},
                                  (MPI_Aint[2]){0, (MPI_Aint)(nbytes - rest)},
                                  (MPI_Datatype[2]){part, MPI_BYTE}, type);
    MPI_Type_free(&part);
    if (code == MPI_SUCCESS && (code = MPI_Type_commit(type)) != MPI_SUCCESS)
        MPI_Type_free(type);
    return code;
}

/* Starts to send or to receive the next part of a request. */
static void request_message(ek_request *request, ek_communicator *communicator, bool send,
                            void *data, size_t nbytes, int rank, int tag)
{
    MPI_Request *part = &request->parts[request->count];
    MPI_Datatype type = MPI_BYTE;
    int code = MPI_SUCCESS, count = (int)nbytes;
    bool large = nbytes > EK_MPI_PART;
    if (large) {
        code = large_type(nbytes, &type);
        count = 1;
    }
    if (code == MPI_SUCCESS) {
        code = send ? MPI_Isend(data, count, type, rank, tag, communicator->comm, part)
                    : MPI_Irecv(data, count, type, rank, tag, communicator->comm, part);
        if (large)
            MPI_Type_free(&type); /* MPI keeps the type until the message is complete */
    }
    request_count(request, code);
}

static int transport_send(ek_communicator *communicator, const void *data, size_t nbytes, int to,
                          int tag, ek_request **request)
{
    ek_request *begun = request_new(1, 0);
    if (!begun)
        return TRANSPORT_NO_MEMORY;
    request_message(begun, communicator, true, (void *)(uintptr_t)data, nbytes, to, tag);
    return request_begin(begun, request);
}

static int transport_receive(ek_communicator *communicator, void *data, size_t nbytes, int from,
                             int tag, ek_request **request)
{
    ek_request *begun = request_new(1, 0);
    if (!begun)
        return TRANSPORT_NO_MEMORY;
    begun->receives = true;
    request_message(begun, communicator, false, data, nbytes,
                    from == EK_TRANSPORT_ANY ? MPI_ANY_SOURCE : from, tag);
    return request_begin(begun, request);
}

/* ---- collectives ---- */

static int transport_all_to_all(ek_communicator *communicator, const ek_bytes *out,
                                const ek_bytes *in, ek_request **request)
{
    int size = communicator->size;
    ek_request *begun = request_new(2 * (size - 1), 0);
    if (!begun)
        return TRANSPORT_NO_MEMORY;
    for (int i = 1; i < size; i++) {
        int from = (communicator->rank + size - i) % size;
        if (in[from].nbytes > 0)
            request_message(begun, communicator, false, in[from].data, in[from].nbytes, from,
                            EXCHANGE_TAG);
    }
    for (int i = 1; i < size; i++) {
        int to = (communicator->rank + i) % size; /* each rank begins with another receiver */
        if (out[to].nbytes > 0)
            request_message(begun, communicator, true, out[to].data, out[to].nbytes, to,
                            EXCHANGE_TAG);
    }
    return request_begin(begun, request);
}

/* Makes an all_gather of more bytes than MPI_Iallgatherv can count. */
static int all_gather_large(ek_communicator *communicator, char *all, const size_t *at,
                            ek_request **request)
{
    int size = communicator->size, rank = communicator->rank;
    ek_bytes *out = malloc(2 * (size_t)size * sizeof *out), *in = out + size;
    if (!out)
        return TRANSPORT_NO_MEMORY;
    for (int r = 0; r < size; r++) {
        out[r] = (ek_bytes){all + at[rank], at[rank + 1] - at[rank]};
        in[r] = (ek_bytes){all + at[r], at[r + 1] - at[r]};
    }
    int status = transport_all_to_all(communicator, out, in, request);
    free(out);
    return status;
}

static int transport_all_gather(ek_communicator *communicator, void *all, const size_t *at,
                                ek_request **request)
{
    int size = communicator->size;
    if (at[size] - at[0] > EK_MPI_PART)
        return all_gather_large(communicator, all, at, request);
    ek_request *begun = request_new(1, 2 * size);
    if (!begun)
        return TRANSPORT_NO_MEMORY;
    int *counts = begun->ranges, *starts = counts + size;
    for (int r = 0; r < size; r++) {
        counts[r] = (int)(at[r + 1] - at[r]);
        starts[r] = (int)(at[r] - at[0]);
    }
    request_count(begun, MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, (char *)all + at[0], counts,
                                         starts, MPI_BYTE, communicator->comm, &begun->parts[0]));
    return request_begin(begun, request);
}

static int transport_broadcast(ek_communicator *communicator, void *data, size_t nbytes, int root,
                               ek_request **request)
{
    size_t parts = nbytes / EK_MPI_PART + (nbytes % EK_MPI_PART > 0);
    if (parts > INT_MAX)
        return status_of(MPI_ERR_COUNT);
    ek_request *begun = request_new((int)parts, 0);
    if (!begun)
        return TRANSPORT_NO_MEMORY;
    for (size_t at = 0; at < nbytes; at += EK_MPI_PART) {
        size_t left = nbytes - at;
        int count = (int)(left < EK_MPI_PART ? left : EK_MPI_PART);
        request_count(begun, MPI_Ibcast((char *)data + at, count, MPI_BYTE, root,
                                        communicator->comm, &begun->parts[begun->count]));
    }
    return request_begin(begun, request);
}

/* ---- begin and end ---- */

/* Makes a communicator, which owns `comm`. On an error frees `comm`. */
static int communicator_new(MPI_Comm comm, ek_communicator **communicator)
{
    ek_communicator *made = malloc(sizeof *made);
    int code = MPI_SUCCESS;
    if (made) {
        made->comm = comm;
        code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        if (code == MPI_SUCCESS)
            code = MPI_Comm_rank(comm, &made->rank);
        if (code == MPI_SUCCESS)
            code = MPI_Comm_size(comm, &made->size);
        if (code == MPI_SUCCESS) {
            *communicator = made;
            return 0;
        }
    }
    MPI_Comm_free(&comm);
    free(made);
    return code == MPI_SUCCESS ? TRANSPORT_NO_MEMORY : status_of(code);
}

static void transport_close_communicator(ek_communicator *communicator)
{
    MPI_Comm_free(&communicator->comm);
    free(communicator);
}

static int transport_split(ek_communicator *communicator, int color, int key,
                           ek_communicator **part)
{
    MPI_Comm comm;
    *part = NULL;
    int code = MPI_Comm_split(communicator->comm, color < 0 ? MPI_UNDEFINED : color, key, &comm);
    if (code != MPI_SUCCESS)
        return status_of(code);
    return comm == MPI_COMM_NULL ? 0 : communicator_new(comm, part);
}

static int mpi_start(void)
{
    int running = 0, ended = 0, level = MPI_THREAD_SINGLE, code;
    if ((code = MPI_Finalized(&ended)) != MPI_SUCCESS || ended)
        return ended ? TRANSPORT_MPI_ENDED : status_of(code);
    if ((code = MPI_Initialized(&running)) != MPI_SUCCESS)
        return status_of(code);
    if (running) {
        code = MPI_Query_thread(&level);
        return code == MPI_SUCCESS && level < MPI_THREAD_SERIALIZED ? TRANSPORT_OWN_THREADS
                                                                    : status_of(code);
    }
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (code != MPI_SUCCESS)
        return status_of(code);
    mpi_is_ours = true;
    /* Errors that belong to no communicator are reported on one of these two communicators. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    return level < MPI_THREAD_FUNNELED ? TRANSPORT_NO_THREADS : 0;
}

static int mpi_end(void)
{
    int code = mpi_is_ours ? MPI_Finalize() : MPI_SUCCESS;
    mpi_is_ours = false;
    return status_of(code);
}

/* Finds this process's place among the processes of its machine. */
static int place_on_machine(MPI_Comm world, ek_world_place *place)
{
    MPI_Comm machine;
    int code = MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Comm_rank(machine, &place->local_rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(machine, &place->local_size);
    MPI_Comm_free(&machine);
    return code;
}

static int transport_open(void *context, ek_communicator **world, ek_world_place *place)
{
    (void)context;
    MPI_Comm comm;
    ek_communicator *made = NULL;
    int status = mpi_start();
    if (status == 0)
        status = status_of(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    if (status == 0)
        status = communicator_new(comm, &made);
    if (status < 0)
        goto fail;
    int *last_tag, known = 0;
    status = status_of(MPI_Comm_get_attr(made->comm, MPI_TAG_UB, &last_tag, &known));
    if (status == 0 && known && *last_tag < EXCHANGE_TAG)
        status = TRANSPORT_FEW_TAGS;
    *place = (ek_world_place){.rank = made->rank, .size = made->size};
    if (status == 0)
        status = status_of(place_on_machine(made->comm, place));
    if (status < 0)
        goto fail;
    *world = made;
    return 0;

fail:
    if (made)
        transport_close_communicator(made);
    mpi_end();
    return status;
}

static int transport_close(ek_communicator *world)
{
    transport_close_communicator(world);
    return mpi_end();
}

static void transport_end(ek_communicator *world, int status)
{
    MPI_Abort(world->comm, status > 0 && status < 256 ? status : 1);
}

/* ---- what the plugin exports ---- */

/* Writes "Open MPI 4.1.4" for "Open MPI v4.1.4, package: .." and "MPICH 4.0.2" for "MPICH
 * Version:\t4.0.2\n..". */
static void name_of_library(char *name, size_t room)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS || length == 0)
        snprintf(text, sizeof text, "MPI");
    text[strcspn(text, ",\r\n")] = '\0';
    size_t used = 0;
    char *rest = text;
    for (char *word; (word = strtok_r(rest, " \t:", &rest));) {
        if (strcmp(word, "Version") == 0)
            continue;
        if (word[0] == 'v' && word[1] >= '0' && word[1] <= '9')
            word++;
        if (used < room)
            used += (size_t)snprintf(name + used, room - used, used > 0 ? " %s" : "%s", word);
    }
}

__attribute__((visibility("default"))) const ek_transport *ek_transport_of_plugin(void);

const ek_transport *ek_transport_of_plugin(void)
{
    static char name[64];
    static const ek_transport transport = {
        .version = EK_TRANSPORT_VERSION,
        .name = name,
        .open = transport_open,
        .split = transport_split,
        .close_communicator = transport_close_communicator,
        .send = transport_send,
        .receive = transport_receive,
        .all_to_all = transport_all_to_all,
        .all_gather = transport_all_gather,
        .broadcast = transport_broadcast,
        .test = transport_test,
        .cancel = transport_cancel,
        .reason = transport_reason,
        .close = transport_close,
        .end = transport_end,
    };
    if (!name[0])
        name_of_library(name, sizeof name);
    return &transport;
}
