/* collective.c: see collective.h. */
#include "group/collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/thread.h"
#include "group/rail.h"
#include "group/sum.h"
#include "link/combine.h"

enum {
    SUM_WHOLE_NBYTES = 1 << 20, /* the most bytes of all ranks' tensors that are gathered whole */
    SUM_PART_NBYTES = 32 << 20  /* larger tensors are summed part by part */
};

/* Fills the descriptor's dtype and shape from the work's first tensor, and its payload with the
 * elements if they fit. */
static void collective_describe(ek_dist_work *work)
{
    ek_descriptor *descriptor = &work->descriptor;
    const ek_dist_work_tensor *one = &work->tensors[0];
    const ek_tensor *memory = one->memory;
    size_t nbytes = ek_comm_nbytes(memory);
    descriptor->shape = ek_wire_shape_of(memory);
    /* In a large group all ranks' payloads would be gathered. A broadcast needs one rank's. */
    bool many = descriptor->op < 0 && work->group->size > EK_ROUNDS_DIRECT;
    if (nbytes > EK_DESCRIPTOR_PAYLOAD || work->rail || many)
        return;
    descriptor->nbytes = (uint32_t)nbytes;
    if (!one->source) /* agreement.c copies elements that are still on their way from a device */
        memcpy(descriptor->payload, ek_tensor_address(memory), nbytes);
}

int ek_dist_work_lists(ek_dist_work *work)
{
    size_t ranks = (size_t)work->group->size + 1;
    work->out = ek_calloc(ranks, sizeof *work->out);
    work->in = ek_calloc(ranks, sizeof *work->in);
    return work->out && work->in ? 0 : ek_error_pending();
}

/* Writes the terms' combination to the memory of the work's first tensor. */
static void collective_combine(const ek_dist_work *work, ek_dist_op op, const void *const *terms)
{
    const ek_tensor *memory = work->tensors[0].memory;
    void *out = ek_tensor_address(memory);
    ek_combine(op, memory->dtype, terms, work->group->size, &out, 1, ek_count(memory));
}

/* ---- barrier and broadcast ---- */

static int collective_barrier(ek_dist_work *work)
{
    (void)work;
    return 0;
}
const ek_verb ek_verb_barrier = {EK_VERB_BARRIER, .go_on = collective_barrier};

static int collective_broadcast(ek_dist_work *work)
{
    if (work->rail)
        return ek_rail_go_on(work);
    const ek_process_group *group = work->group;
    const ek_tensor *memory = work->tensors[0].memory;
    size_t nbytes = ek_comm_nbytes(memory);
    int root = work->descriptor.root;
    if (work->stage > 0 || nbytes == 0)
        return 0;
    if (work->descriptor.nbytes > 0) {
        memcpy(ek_tensor_address(memory), ek_group_payload(group, root), nbytes);
        return 0;
    }
    int rc =
        group->communication->transport->broadcast(group->communicator, ek_tensor_address(memory),
                                                   nbytes, root, &work->request);
    return ek_dist_work_started(work, rc);
}
const ek_verb ek_verb_broadcast = {EK_VERB_BROADCAST, collective_broadcast, .ready = ek_rail_ready};

/* ---- sums (sum.h) ---- */

/* Tells whether tensors are gathered whole, so that every rank combines all elements. The bits of
 * the result are the same as with slices. */
static bool sum_is_whole(const ek_tensor *memory, int ranks)
{
    return ek_comm_nbytes(memory) * (size_t)ranks <= SUM_WHOLE_NBYTES;
}

/* A sum in parts. The struct lies at the beginning of work->scratch. work->room has the schedule.
 */
typedef struct sum_parts {
    ek_sum sum;
    char *copy; /* A copy of the part, if this rank does not get the result and its tensor must not
                   change. */
    _Alignas(16) char terms[];
} sum_parts;

static sum_parts *sum_parts_of(const ek_dist_work *work)
{
    return (sum_parts *)(void *)work->scratch;
}

/* Makes the schedule and memory of a sum in parts. */
static int sum_prepare_parts(ek_dist_work *work)
{
    const ek_process_group *group = work->group;
    const ek_tensor *memory = work->tensors[0].memory;
    const int root = work->descriptor.root;
    const size_t size = ek_dtype_size(memory->dtype);
    int64_t count = ek_count(memory), most = SUM_PART_NBYTES / (int64_t)size;
    ek_sum_schedule *schedule =
        ek_sum_schedule_new(group->size, group->rank, ek_sum_block(group),
                            ek_dtype_is_narrow(memory->dtype) ? EK_SUM_DIRECT : EK_SUM_SENT);
    work->room = (char *)schedule;
    if (!schedule)
        return ek_error_pending();
    count = count < most ? count : most;
    size_t terms = ek_sum_scratch_nbytes(schedule, memory->dtype, count);
    bool copies = root >= 0 && root != group->rank;
    work->scratch = ek_calloc(sizeof(sum_parts) + terms + (copies ? (size_t)count * size : 0), 1);
    if (!work->scratch)
        return ek_error_pending();
    sum_parts *parts = sum_parts_of(work);
    parts->copy = copies ? parts->terms + terms : NULL;
    parts->sum = (ek_sum){.group = group,
                          .schedule = schedule,
                          .op = (ek_dist_op)work->descriptor.op,
                          .dtype = memory->dtype,
                          .root = root,
                          .address = ek_tensor_address(memory),
                          .scratch = parts->terms,
                          .requests = (ek_request **)(void *)work->out};
    return 0;
}

/* Prepares the sum of the work's tensor: sets the job of the rail, or allocates lists and
 * scratch. */
static int sum_prepare(ek_dist_work *work)
{
    const ek_tensor *memory = work->tensors[0].memory;
    size_t nbytes = ek_comm_nbytes(memory), ranks = (size_t)work->group->size;
    if (work->rail)
        return ek_rail_run_sum(work->rail, work->group, (ek_dist_op)work->descriptor.op,
                               memory->dtype, ek_tensor_address(memory), ek_count(memory),
                               work->descriptor.root);
    EK_TRY(ek_dist_work_lists(work));
    if (nbytes > EK_DESCRIPTOR_PAYLOAD && !sum_is_whole(memory, (int)ranks))
        return sum_prepare_parts(work);
    work->scratch = ek_calloc(nbytes <= EK_DESCRIPTOR_PAYLOAD ? 1 : nbytes * ranks, 1);
    return work->scratch ? 0 : ek_error_pending();
}

int ek_dist_work_one(ek_dist_work *work, ek_tensor *tensor, int op, int root)
{
    int rank = work->group->rank;
    bool sends = op >= 0 || root == rank;
    bool receives = op < 0 ? root != rank : root < 0 || root == rank;
    work->descriptor.root = root;
    work->descriptor.op = op;
    if (ek_comm_nbytes(tensor) > EK_DESCRIPTOR_PAYLOAD)
        EK_TRY(ek_dist_work_rail(work, tensor));
    EK_TRY(ek_dist_work_add(work, tensor, sends, receives));
    collective_describe(work);
    if (op >= 0)
        return sum_prepare(work);
    if (work->rail)
        ek_rail_run_broadcast(work->rail, work->tensors[0].memory, root);
    return 0;
}

/* Combines the ranks' tensors, on the ranks that get the result. The tensor of rank r lies at
 * first + r * stride. */
static int sum_combine(ek_dist_work *work, const char *first, size_t stride)
{
    const void **terms = (const void **)(void *)work->out; /* no transfer uses `out` any more */
    for (int r = 0; r < work->group->size; r++)
        terms[r] = first + (size_t)r * stride;
    if (work->descriptor.root < 0 || work->descriptor.root == work->group->rank)
        collective_combine(work, (ek_dist_op)work->descriptor.op, terms);
    return 0;
}

static int sum_whole(ek_dist_work *work)
{
    ek_process_group *group = work->group;
    const ek_tensor *memory = work->tensors[0].memory;
    size_t nbytes = ek_comm_nbytes(memory);
    if (work->stage > 0)
        return sum_combine(work, work->scratch, nbytes);
    memcpy(work->scratch + (size_t)group->rank * nbytes, ek_tensor_address(memory), nbytes);
    return ek_process_group_gather(group, work->scratch, nbytes);
}

/* Begins the next part. Returns 1, or 0 if there is none. */
static int sum_begin_part(ek_dist_work *work, ek_sum *sum)
{
    const ek_tensor *memory = work->tensors[0].memory;
    const size_t size = ek_dtype_size(memory->dtype);
    int64_t left = ek_count(memory) - work->done, most = SUM_PART_NBYTES / (int64_t)size;
    char *part = (char *)ek_tensor_address(memory) + (size_t)work->done * size;
    sum->count = left < most ? left : most;
    if (left == 0)
        return 0;
    sum->address = sum_parts_of(work)->copy ? sum_parts_of(work)->copy : part;
    if (sum->address != part)
        memcpy(sum->address, part, (size_t)sum->count * size);
    ek_sum_begin(sum);
    return 1;
}

static int sum_in_parts(ek_dist_work *work)
{
    ek_sum *sum = &sum_parts_of(work)->sum;
    int rc = work->stage > 0 ? ek_sum_go_on(sum) : 1;
    if (rc <= 0)
        return rc < 0 ? ek_dist_work_started(work, rc) : 1;
    work->done += sum->count; /* 0 before the first part */
    return sum_begin_part(work, sum);
}

static int collective_sum(ek_dist_work *work)
{
    if (work->rail)
        return ek_rail_go_on(work);
    const ek_tensor *memory = work->tensors[0].memory;
    if (ek_comm_nbytes(memory) <= EK_DESCRIPTOR_PAYLOAD)
        return sum_combine(work, work->group->payloads, work->group->payload_stride);
    if (work->room)
        return sum_in_parts(work);
    return ek_dist_work_started(work, sum_whole(work));
}

ek_readiness ek_dist_work_sum_ready(ek_dist_work *work)
{
    return work->room && work->stage > 0 ? ek_sum_ready(&sum_parts_of(work)->sum)
                                         : ek_rail_ready(work);
}
const ek_verb ek_verb_all_reduce = {EK_VERB_ALL_REDUCE, collective_sum,
                                    .ready = ek_dist_work_sum_ready};
const ek_verb ek_verb_reduce = {EK_VERB_REDUCE, collective_sum, .ready = ek_dist_work_sum_ready};

/* ---- a tensor for each pair of ranks ---- */

/* What one rank says about the shapes that other ranks give it, or the first rank that objects. */
typedef struct verdict {
    int32_t status, rank; /* status 0: there is no objection */
    char text[248];
} verdict;

/* Where the comparison of shapes keeps its data in work->scratch. */
typedef struct pairs_room {
    ek_wire_shape *theirs; /* per rank: the shape that the rank gives to this one */
    verdict *verdicts;     /* room for ek_rounds_reduce; the first is this rank's */
    ek_bytes *out, *in;
} pairs_room;

static size_t pairs_room_of(char *scratch, int ranks, pairs_room *room)
{
    size_t n = (size_t)ranks, at = 0;
    room->theirs = (ek_wire_shape *)(void *)(scratch + at);
    at += n * sizeof *room->theirs;
    room->verdicts = (verdict *)(void *)(scratch + at);
    at += (size_t)ek_rounds_room(ranks) * sizeof *room->verdicts;
    room->out = (ek_bytes *)(void *)(scratch + at);
    at += n * sizeof *room->out;
    room->in = (ek_bytes *)(void *)(scratch + at);
    return at + n * sizeof *room->in;
}

int ek_dist_work_pairs(ek_dist_work *work)
{
    int ranks = work->group->size;
    size_t n = (size_t)ranks;
    pairs_room room;
    char nowhere[1];
    work->scratch = ek_calloc(pairs_room_of(nowhere, ranks, &room), 1);
    EK_TRY(ek_dist_work_lists(work));
    work->gives = ek_calloc(n, sizeof *work->gives);
    work->takes = ek_calloc(n, sizeof *work->takes);
    if (!work->scratch || !work->gives || !work->takes)
        return ek_error_pending();
    for (int r = 0; r < ranks; r++)
        work->gives[r].dtype = work->takes[r].dtype = -1;
    return 0;
}

static int pairs_send_shapes(ek_dist_work *work, const pairs_room *room)
{
    for (int r = 0; r < work->group->size; r++) {
        room->out[r] = (ek_bytes){&work->gives[r], sizeof *work->gives};
        room->in[r] = (ek_bytes){&room->theirs[r], sizeof *room->theirs};
    }
    room->theirs[work->group->rank] = work->gives[work->group->rank];
    if (work->verb == &ek_verb_all_gather) /* a rank gives all others one shape */
        return ek_process_group_gather(work->group, room->theirs, sizeof *room->theirs);
    return work->group->communication->transport->all_to_all(work->group->communicator, room->out,
                                                             room->in, &work->request);
}

/* Combines two verdicts (rounds.h). */
static void pairs_combine(void *block, const void *other, size_t nbytes)
{
    const verdict *a = block, *b = other;
    if (b->status < 0 && (a->status >= 0 || b->rank < a->rank))
        memcpy(block, other, nbytes);
}

static int pairs_send_verdict(ek_dist_work *work, const pairs_room *room)
{
    ek_process_group *group = work->group;
    verdict *mine = room->verdicts;
    mine->rank = group->rank;
    for (int r = 0; r < group->size && mine->status == 0; r++) {
        if (memcmp(&room->theirs[r], &work->takes[r], sizeof *work->takes) == 0)
            continue;
        char given[120], taken[120];
        ek_wire_shape_text(&room->theirs[r], given);
        ek_wire_shape_text(&work->takes[r], taken);
        mine->status = room->theirs[r].dtype != work->takes[r].dtype ? EK_E_DTYPE : EK_E_SHAPE;
        snprintf(mine->text, sizeof mine->text,
                 "rank %d gives %.80s to rank %d, which awaits %.80s", group->ranks[r], given,
                 group->ranks[group->rank], taken);
    }
    return ek_rounds_reduce(&group->rounds, group, EK_ROUNDS_TAG, mine, sizeof *mine,
                            pairs_combine);
}

/* Makes the next of the stages that compare shapes. Returns 1 once the ranks agree about the
 * shapes, 0 before, or a negative status. */
static int pairs_agree(ek_dist_work *work)
{
    const ek_process_group *group = work->group;
    pairs_room room;
    pairs_room_of(work->scratch, group->size, &room);
    int rc;
    switch (work->stage) {
    case 0:
        rc = pairs_send_shapes(work, &room);
        break;
    case 1:
        rc = pairs_send_verdict(work, &room);
        break;
    default:
        if (room.verdicts->status < 0) /* alike on all ranks */
            return EK_FAIL(room.verdicts->status, "%s: %.247s", ek_verb_name(work->verb->id),
                           room.verdicts->text);
        return 1;
    }
    return ek_dist_work_started(work, rc);
}

enum { PAIRS_MOVE = 2 }; /* the stage that starts to send the data */

/* Makes the next stage of a work that has no rail. Returns 1 once the data has arrived, 0 before,
 * or a negative status. */
static int pairs_go_on(ek_dist_work *work)
{
    const ek_process_group *group = work->group;
    if (work->stage > PAIRS_MOVE)
        return 1;
    int rc = pairs_agree(work);
    if (rc <= 0)
        return rc;
    rc = group->communication->transport->all_to_all(group->communicator, work->out, work->in,
                                                     &work->request);
    return ek_dist_work_started(work, rc);
}

/* Compares shapes, and then leaves the work to its rail. */
static int pairs_go_on_rail(ek_dist_work *work)
{
    int rc = work->stage <= PAIRS_MOVE ? pairs_agree(work) : 1;
    return rc <= 0 ? rc : ek_rail_go_on(work);
}

static int collective_exchange(ek_dist_work *work)
{
    if (work->rail)
        return pairs_go_on_rail(work);
    int rc = pairs_go_on(work), rank = work->group->rank;
    if (rc > 0 && work->in[rank].data && work->in[rank].data != work->out[rank].data)
        memcpy(work->in[rank].data, work->out[rank].data, work->in[rank].nbytes);
    return rc < 0 ? rc : 0;
}
const ek_verb ek_verb_all_gather = {EK_VERB_ALL_GATHER, collective_exchange,
                                    .ready = ek_rail_ready};
const ek_verb ek_verb_gather = {EK_VERB_GATHER, collective_exchange, .ready = ek_rail_ready};
const ek_verb ek_verb_scatter = {EK_VERB_SCATTER, collective_exchange, .ready = ek_rail_ready};
const ek_verb ek_verb_all_to_all = {EK_VERB_ALL_TO_ALL, collective_exchange,
                                    .ready = ek_rail_ready};

int ek_dist_work_terms(ek_dist_work *work)
{
    const ek_tensor *memory = work->tensors[0].memory;
    size_t nbytes = (ek_comm_nbytes(memory) + 63) / 64 * 64, ranks = (size_t)work->group->size;
    if (work->rail)
        EK_TRY(ek_rail_run_room(work->rail, nbytes * ranks + 1));
    else if (!(work->room = ek_calloc(nbytes * ranks + 1, 1)))
        return ek_error_pending();
    char *terms = work->rail ? ek_tensor_address(work->rail->scratch) : work->room;
    for (size_t r = 0; r < ranks; r++)
        work->in[r] = (ek_bytes){terms + nbytes * r, ek_comm_nbytes(memory)};
    return 0;
}

void ek_dist_work_combine(ek_dist_work *work, ek_dist_op op)
{
    int rank = work->group->rank;
    const void *own = work->out[rank].data;
    const void **terms = (const void **)(void *)work->out; /* no transfer uses `out` any more */
    for (int r = 0; r < work->group->size; r++)
        terms[r] = r == rank ? own : work->in[r].data;
    collective_combine(work, op, terms);
}

static int collective_reduce_scatter(ek_dist_work *work)
{
    if (work->rail)
        return pairs_go_on_rail(work);
    int rc = pairs_go_on(work);
    if (rc <= 0)
        return rc;
    ek_dist_work_combine(work, (ek_dist_op)work->descriptor.op);
    return 0;
}
const ek_verb ek_verb_reduce_scatter = {EK_VERB_REDUCE_SCATTER, collective_reduce_scatter,
                                        .ready = ek_rail_ready};
