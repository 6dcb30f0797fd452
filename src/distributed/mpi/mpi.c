/* mpi.c: the transport over MPI, a plugin. Each MPI has a plugin, which is compiled against that
 * MPI's mpi.h. The library opens the plugin (distributed/launch/launcher.h).
 *
 * One thread makes all calls, and need not be the program's first thread. The plugin asks MPI for
 * MPI_THREAD_FUNNELED, and MPI takes the thread that makes the calls for the main thread. If the
 * program has started MPI itself, the program's own thread may call MPI too, and must have started
 * MPI with MPI_THREAD_SERIALIZED at least.
 *
 * Statuses are MPI's error codes, negated, and the TRANSPORT statuses below. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transfer.h"

#if MPI_VERSION < 3
#error "Evenkeel needs MPI 3.0 or later: MPI_Comm_split_type"
#endif

/* Statuses of the plugin, which are far from MPI's error codes. */
enum {
    TRANSPORT_MPI_ENDED = TRANSFER_NO_MEMORY + 1,
    TRANSPORT_NO_THREADS,
    TRANSPORT_OWN_THREADS,
    TRANSPORT_FEW_TAGS
};

static bool mpi_is_ours;                     /* the plugin has started MPI, and ends it */
static MPI_Comm mpi_machine = MPI_COMM_NULL; /* the processes of this machine */

/* ---- statuses ---- */

static const char *transport_reason(int status)
{
    static char text[MPI_MAX_ERROR_STRING + 1];
    switch (status) {
    case TRANSFER_NO_MEMORY:
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

/* ---- begin and end ---- */

/* Writes the numbers of the communicator's ranks in MPI_COMM_WORLD, and which ranks are near. */
static int communicator_number(ek_communicator *communicator)
{
    MPI_Group groups[3]; /* members, world, machine */
    const MPI_Comm comms[] = {communicator->comm, MPI_COMM_WORLD, mpi_machine};
    int made = 0, code = MPI_SUCCESS;
    while (made < 3 && code == MPI_SUCCESS) {
        code = MPI_Comm_group(comms[made], &groups[made]);
        made += code == MPI_SUCCESS;
    }
    for (int r = 0; r < communicator->size && code == MPI_SUCCESS; r++) {
        int local = MPI_UNDEFINED;
        code =
            MPI_Group_translate_ranks(groups[0], 1, &r, groups[1], &communicator->ranks[r].world);
        if (code == MPI_SUCCESS)
            code = MPI_Group_translate_ranks(groups[0], 1, &r, groups[2], &local);
        communicator->ranks[r].near = local != MPI_UNDEFINED;
    }
    while (made > 0)
        MPI_Group_free(&groups[--made]);
    return code;
}

/* Makes a communicator, which owns `comm`. On an error frees `comm`. */
static int communicator_new(MPI_Comm comm, ek_communicator **communicator)
{
    ek_communicator *made = NULL;
    int size = 0, code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(comm, &size);
    if (code == MPI_SUCCESS)
        made = calloc(1, sizeof *made + (size_t)size * sizeof made->ranks[0]);
    if (made) {
        made->comm = comm;
        made->size = size;
        code = MPI_Comm_rank(comm, &made->rank);
        if (code == MPI_SUCCESS)
            code = communicator_number(made);
        if (code == MPI_SUCCESS) {
            *communicator = made;
            return 0;
        }
    }
    MPI_Comm_free(&comm);
    free(made);
    return code == MPI_SUCCESS ? TRANSFER_NO_MEMORY : transfer_status(code);
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
        return transfer_status(code);
    return comm == MPI_COMM_NULL ? 0 : communicator_new(comm, part);
}

/* By default, transfers over TCP that go both ways at once reach half of the link's rate, because
 * requests to put or get data, and answers that data may come, wait behind data. If each part is
 * sent at once, the transfers reach the whole rate. A setting of the user counts. */
static void mpi_choose(void)
{
#ifdef OPEN_MPI
    char limit[32];
    snprintf(limit, sizeof limit, "%zu", (size_t)EK_MPI_PART + 128); /* a part, MPI's header */
    setenv("OMPI_MCA_btl_tcp_eager_limit", limit, 0);
    setenv("OMPI_MCA_btl_tcp_flags", "9", 0); /* sends alone, from where the data lie */
#else
    if (access("/sys/class/infiniband", F_OK) != 0) /* of UCX; InfiniBand gets memory well */
        setenv("UCX_RNDV_THRESH", "inf", 0);
#endif
}

static int mpi_start(void)
{
    int running = 0, ended = 0, level = MPI_THREAD_SINGLE, code;
    if ((code = MPI_Finalized(&ended)) != MPI_SUCCESS || ended)
        return ended ? TRANSPORT_MPI_ENDED : transfer_status(code);
    if ((code = MPI_Initialized(&running)) != MPI_SUCCESS)
        return transfer_status(code);
    if (running) {
        code = MPI_Query_thread(&level);
        return code == MPI_SUCCESS && level < MPI_THREAD_SERIALIZED ? TRANSPORT_OWN_THREADS
                                                                    : transfer_status(code);
    }
    mpi_choose();
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (code != MPI_SUCCESS)
        return transfer_status(code);
    mpi_is_ours = true;
    /* Errors that belong to no communicator are reported on one of these two communicators. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    return level < MPI_THREAD_FUNNELED ? TRANSPORT_NO_THREADS : 0;
}

static int mpi_end(void)
{
    if (mpi_machine != MPI_COMM_NULL)
        MPI_Comm_free(&mpi_machine);
    int code = mpi_is_ours ? MPI_Finalize() : MPI_SUCCESS;
    mpi_is_ours = false;
    return transfer_status(code);
}

/* Finds this process's place among the processes of its machine. */
static int place_on_machine(ek_world_place *place)
{
    int code =
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &mpi_machine);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(mpi_machine, &place->local_rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(mpi_machine, &place->local_size);
    return code;
}

static int transport_open(void *context, ek_communicator **world, ek_world_place *place)
{
    (void)context;
    MPI_Comm comm;
    ek_communicator *made = NULL;
    int status = mpi_start();
    *place = (ek_world_place){0};
    if (status == 0)
        status = transfer_status(place_on_machine(place));
    if (status == 0)
        status = transfer_status(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    if (status == 0)
        status = communicator_new(comm, &made);
    if (status < 0)
        goto fail;
    int *last_tag, known = 0;
    status = transfer_status(MPI_Comm_get_attr(made->comm, MPI_TAG_UB, &last_tag, &known));
    if (status == 0 && known && *last_tag < TRANSFER_TAG)
        status = TRANSPORT_FEW_TAGS;
    if (status < 0)
        goto fail;
    place->rank = made->rank;
    place->size = made->size;
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
        .part = EK_MPI_PART,
        .open = transport_open,
        .split = transport_split,
        .close_communicator = transport_close_communicator,
        .send = transfer_send,
        .receive = transfer_receive,
        .all_to_all = transfer_all_to_all,
        .all_gather = transfer_all_gather,
        .broadcast = transfer_broadcast,
        .test = transfer_test,
        .cancel = transfer_cancel,
        .moved = transfer_moved,
        .awaits = transfer_awaits,
        .reason = transport_reason,
        .blamed = transfer_blamed,
        .close = transport_close,
        .end = transport_end,
    };
    if (!name[0])
        name_of_library(name, sizeof name);
    return &transport;
}
