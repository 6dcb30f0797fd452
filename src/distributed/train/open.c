/* open.c: archives that one rank reads for all ranks of a group.
 *
 * Each file of the archive goes to every machine once: ranks on the machine of the rank that reads
 * map its file, and the first rank of each other machine copies the file, which comes by
 * broadcasts, to a file without a name, which the machine's other ranks map. A rank opens another
 * rank's file under the path that the system shows for its descriptor. If that is impossible, as in
 * separate containers, the rank makes a copy of its own.
 *
 *     open_run        the path, then all files
 *       open_map      one file: ek_tensor_file_map
 *         open_own    the file that this rank reads or writes
 *         open_other  the file of this machine's first rank
 *         open_copy   brings the elements to the copies */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive/archive.h"
#include "evenkeel/ddp.h"
#include "evenkeel/ops.h"
#include "evenkeel/scope.h"
#include "group/same.h"
#include "group/world.h"

static const char open_name[] = "dist_archive_open";
enum { OPEN_BLOCK = 8 << 20 }; /* bytes that are sent at once */

typedef struct open_call {
    const char *path;
    int rank; /* of the world: the rank that reads */
    int root; /* that rank in the group */
    ek_process_group *group;
    ek_archive *archive;
} open_call;

/* An open file, and where other ranks of the machine find it. */
enum { OPEN_PID, OPEN_DESCRIPTOR, OPEN_FILESYSTEM, OPEN_INODE, OPEN_NUMBERS };
typedef struct open_file {
    const char *path; /* for sentences */
    int descriptor;   /* -1: none */
    bool copy;        /* this rank writes the file */
    int64_t place[OPEN_NUMBERS];
} open_file;

static void open_note_place(open_file *file)
{
    struct stat about;
    if (file->descriptor < 0 || fstat(file->descriptor, &about) < 0)
        return;
    file->place[OPEN_PID] = getpid();
    file->place[OPEN_DESCRIPTOR] = file->descriptor;
    file->place[OPEN_FILESYSTEM] = (int64_t)about.st_dev;
    file->place[OPEN_INODE] = (int64_t)about.st_ino;
}

/* Opens the file that this rank reads, or a file for a copy. */
static int open_own(open_file *file, bool reads, size_t *nbytes)
{
    file->copy = !reads;
    file->descriptor =
        reads ? ek_file_open(open_name, file->path, nbytes) : ek_file_open_nameless(open_name);
    open_note_place(file);
    return file->descriptor < 0 ? file->descriptor : 0;
}

/* Opens the file at this place. Returns false if that is impossible. */
static bool open_other(open_file *file, const int64_t *place)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)place[OPEN_PID],
             (long long)place[OPEN_DESCRIPTOR]);
    file->descriptor = ek_open(path, O_RDONLY);
    open_note_place(file);
    if (file->descriptor >= 0 && file->place[OPEN_FILESYSTEM] == place[OPEN_FILESYSTEM] &&
        file->place[OPEN_INODE] == place[OPEN_INODE])
        return true;
    if (file->descriptor >= 0)
        close(file->descriptor);
    file->descriptor = -1;
    return false;
}

/* Returns the rank in the group from which this rank's machine has the file. */
static int open_first(const open_call *call)
{
    const ek_process_group *group = call->group;
    char(*hosts)[64] = group->communication->hosts;
    const char *own = hosts[group->ranks[group->rank]];
    int first = 0;
    if (strcmp(hosts[group->ranks[call->root]], own) == 0)
        return call->root;
    while (strcmp(hosts[group->ranks[first]], own) != 0)
        first++;
    return first;
}

/* Sends the mapped bytes of the rank that reads, block by block, to the ranks that copy them. */
static int open_copy(const open_call *call, const open_file *file, const ek_mapped *mapped,
                     size_t nbytes)
{
    const ek_file to = {open_name, file->path, file->descriptor};
    ek_tensor *block = ek_empty(EK_SHAPE(OPEN_BLOCK), EK_U8, .device = ek_cpu());
    if (!block)
        return ek_error_pending();
    for (size_t at = 0, size; at < nbytes; at += size) {
        size = nbytes - at < OPEN_BLOCK ? nbytes - at : OPEN_BLOCK;
        ek_scope scope = ek_scope_begin();
        ek_tensor *part = ek_narrow(block, 0, 0, (int64_t)size);
        int rc = part ? 0 : ek_error_pending();
        if (rc == 0 && mapped->bytes)
            rc = ek_set_data(part, mapped->bytes + at, size);
        if (rc == 0)
            rc = ek_dist_broadcast(part, call->rank, .group = call->group);
        if (rc >= 0 && file->copy)
            rc = ek_file_write(&to, ek_tensor_data(part), size);
        ek_scope_end(&scope);
        EK_TRY(rc);
    }
    return ek_dist_barrier(.group = call->group); /* all copies are complete */
}

static int open_map_file(const open_call *call, open_file *file, size_t nbytes, ek_mapped *mapped)
{
    const int rank = call->group->rank, first = open_first(call);
    const bool reads = rank == call->root;
    if (rank == first && !reads)
        EK_TRY(open_own(file, false, NULL));
    const int64_t *places = ek_group_lists(file->place, OPEN_NUMBERS, call->group);
    if (!places)
        return ek_error_pending();
    for (int r = 0; r < first; r++)
        places = ek_group_next_list(places);
    if (rank != first && !open_other(file, places + 1))
        EK_TRY(open_own(file, false, NULL));
    double copies = file->copy;
    EK_TRY(ek_dist_all_reduce_number(&copies, EK_DIST_SUM, call->group));
    if (reads)
        EK_TRY(ek_file_map_open(open_name, file->path, file->descriptor, nbytes, mapped));
    if (copies > 0)
        EK_TRY(open_copy(call, file, mapped, nbytes));
    return reads ? 0 : ek_file_map_open(open_name, file->path, file->descriptor, nbytes, mapped);
}

/* The ek_tensor_file_map of all ranks. */
static int open_map(void *user, const char *path, ek_mapped *mapped)
{
    const open_call *call = user;
    open_file file = {.path = path, .descriptor = -1};
    size_t nbytes = 0;
    *mapped = (ek_mapped){NULL, 0};
    ek_scope scope = ek_scope_begin();
    int rc = call->group->rank == call->root ? open_own(&file, true, &nbytes) : 0;
    double told = (double)nbytes; /* to the bit up to 2^53 */
    if (rc >= 0)
        rc = ek_dist_broadcast_number(&told, call->rank, call->group);
    if (rc >= 0 && told > 0)
        rc = open_map_file(call, &file, (size_t)told, mapped);
    if (rc < 0)
        ek_file_unmap(mapped);
    if (file.descriptor >= 0)
        close(file.descriptor);
    ek_scope_end(&scope);
    return rc;
}

/* Gives all ranks the path that is opened, for sentences. The caller frees it. */
static char *open_tell_path(const open_call *call)
{
    const bool reads = call->group->rank == call->root;
    char *path = NULL;
    if (reads && ek_check_given(open_name, "the path", call->path) == 0)
        path = ek_set_find(call->path);
    if (reads && !path)
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_value value =
        reads ? ek_value_of_tensor(ek_from_data(path, EK_SHAPE((int64_t)strlen(path) + 1), EK_U8))
              : ek_value_none();
    value = ek_dist_broadcast_value(value, call->rank, call->group);
    if (value.kind == EK_VALUE_TENSOR && !reads)
        path = ek_strdup(ek_tensor_data(value.as.tensor));
    ek_scope_end(&scope);
    if (value.kind == EK_VALUE_TENSOR)
        return path;
    free(path);
    return NULL;
}

static int open_run(ek_process_group *group, void *user)
{
    open_call *call = user;
    call->group = group;
    call->root = ek_world_root(open_name, group, call->rank);
    EK_TRY(call->root);
    char *path = open_tell_path(call);
    if (!path)
        return ek_error_pending();
    call->archive =
        group->size > 1 ? ek_archive_open_mapped(path, open_map, call) : ek_archive_open(path);
    free(path);
    if (call->archive)
        return 0;
    return ek_error_status() == EK_E_FORMAT ? ek_ranks_alike(EK_E_FORMAT) : ek_error_pending();
}

ek_archive *ek_dist_archive_open(const char *path, int rank, ek_process_group *group)
{
    open_call call = {.path = path, .rank = rank};
    if (ek_group_call(open_name, group, open_run, &call) >= 0)
        return call.archive;
    ek_archive_free(call.archive);
    return NULL;
}
