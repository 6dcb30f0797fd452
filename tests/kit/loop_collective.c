/* loop_collective.c: calls that all ranks of a communicator make; see loop.h. */
#include "kit/loop_state.h"

loop_record *loop_join(ek_communicator *communicator, const char *call, const size_t *sizes,
                       int count)
{
    loop_members *members = communicator->members;
    uint64_t number = ++communicator->calls;
    loop_record **at = &members->records;
    while (*at && (*at)->number != number)
        at = &(*at)->next;
    loop_record *record = *at;
    size_t nbytes = (size_t)count * sizeof *sizes;
    if (!record) {
        record = *at = loop_room(1, sizeof *record);
        record->number = number;
        record->call = call;
        record->first = communicator->rank;
        record->sizes = loop_room((size_t)count, sizeof *sizes);
        if (count > 0)
            memcpy(record->sizes, sizes, nbytes);
        record->colors = loop_room((size_t)members->size, sizeof(int));
        record->keys = loop_room((size_t)members->size, sizeof(int));
        record->parts = loop_room((size_t)members->size, sizeof(loop_members *));
    }
    bool same_call = strcmp(record->call, call) == 0;
    if (!same_call || (count > 0 && memcmp(record->sizes, sizes, nbytes) != 0)) {
        loop_violation(communicator->process->loop,
                       "call %llu of communicator %d: rank %d calls %s, rank %d %s%s",
                       (unsigned long long)number, members->id, communicator->process->rank, call,
                       members->ranks[record->first], record->call,
                       same_call ? " with other sizes" : "");
        record->broken = true;
    }
    record->joined++;
    communicator->process->transfers++;
    pthread_cond_broadcast(&communicator->process->loop->changed);
    return record;
}

void loop_part(ek_communicator *communicator, loop_record *record)
{
    if (++record->left < communicator->members->size)
        return;
    loop_record **at = &communicator->members->records;
    while (*at != record)
        at = &(*at)->next;
    *at = record->next;
    loop_record_free(record);
}

/* Makes the request of a collective call. If the ranks' calls differ, the request stays open,
 * because what it sends would reach the wrong calls. */
static ek_request *loop_collective(ek_communicator *communicator, const char *call,
                                   const size_t *sizes, int count)
{
    int size = communicator->members->size;
    loop_record *record = loop_join(communicator, call, sizes, count);
    ek_request *request = loop_request(communicator, call, record->number, size, size);
    request->hangs = record->broken;
    loop_part(communicator, record);
    return request;
}

/* Starts a request whose lists are filled. It sends to all other ranks or to none, and receives
 * from the rank `from` or from all. */
static void loop_transfer(ek_communicator *communicator, ek_request *request, bool to_all, int from)
{
    request->sum = loop_sum(request);
    for (int rank = 0; rank < request->ins && !request->hangs; rank++) {
        if (rank == communicator->rank)
            continue;
        if (to_all)
            loop_post(request, communicator->rank, rank, &request->out[rank]);
        if (from == EK_TRANSPORT_ANY || from == rank) {
            request->missing++;
            request->lacks[rank] = true;
            if (request->in[rank].nbytes > 0)
                memset(request->in[rank].data, 0xff, request->in[rank].nbytes);
        }
    }
}

static bool loop_overlap(const ek_bytes *a, const ek_bytes *b)
{
    return a->nbytes > 0 && b->nbytes > 0 && (char *)a->data < (char *)b->data + b->nbytes &&
           (char *)b->data < (char *)a->data + a->nbytes;
}

/* Returns true if no memory is both sent and received into, or received into twice. */
static bool loop_is_apart(const ek_request *request)
{
    for (int i = 0; i < request->ins; i++)
        for (int j = 0; j < request->ins; j++)
            if (loop_overlap(&request->in[i], &request->out[j]) ||
                (i != j && loop_overlap(&request->in[i], &request->in[j])))
                return false;
    return true;
}

int loop_all_to_all(ek_communicator *communicator, const ek_bytes *out, const ek_bytes *in,
                    ek_request **request)
{
    loop_process *process = communicator->process;
    int rc = loop_start(process);
    *request = NULL;
    if (rc < 0)
        return loop_leave(process, rc);
    *request = loop_collective(communicator, "all_to_all", NULL, 0);
    for (int rank = 0; rank < communicator->members->size; rank++)
        if (rank != communicator->rank) {
            (*request)->out[rank] = out[rank];
            (*request)->in[rank] = in[rank];
        }
    if (!loop_is_apart(*request)) {
        loop_violation(process->loop, "rank %d calls all_to_all with memory that overlaps",
                       process->rank);
        (*request)->hangs = true;
    }
    loop_transfer(communicator, *request, true, EK_TRANSPORT_ANY);
    return loop_leave(process, 0);
}

int loop_all_gather(ek_communicator *communicator, void *all, const size_t *at,
                    ek_request **request)
{
    loop_process *process = communicator->process;
    int rc = loop_start(process), own = communicator->rank;
    *request = NULL;
    if (rc < 0)
        return loop_leave(process, rc);
    *request = loop_collective(communicator, "all_gather", at, communicator->members->size + 1);
    for (int rank = 0; rank < communicator->members->size; rank++)
        if (rank != own) {
            (*request)->out[rank] = (ek_bytes){(char *)all + at[own], at[own + 1] - at[own]};
            (*request)->in[rank] = (ek_bytes){(char *)all + at[rank], at[rank + 1] - at[rank]};
        }
    loop_transfer(communicator, *request, true, EK_TRANSPORT_ANY);
    return loop_leave(process, 0);
}

int loop_broadcast(ek_communicator *communicator, void *data, size_t nbytes, int root,
                   ek_request **request)
{
    loop_process *process = communicator->process;
    int rc = loop_start(process);
    *request = NULL;
    if (rc == 0)
        rc = loop_check_message(communicator, "broadcast", root, 0);
    if (rc < 0)
        return loop_leave(process, rc);
    bool is_root = communicator->rank == root;
    *request = loop_collective(communicator, "broadcast", (size_t[]){nbytes, (size_t)root}, 2);
    for (int rank = 0; is_root && rank < communicator->members->size; rank++)
        (*request)->out[rank] = (ek_bytes){data, rank == root ? 0 : nbytes};
    if (!is_root)
        (*request)->in[root] = (ek_bytes){data, nbytes};
    loop_transfer(communicator, *request, is_root, root);
    return loop_leave(process, 0);
}
