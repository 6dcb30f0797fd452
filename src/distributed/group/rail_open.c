/* rail_open.c: makes a rail, together with all ranks of the group.
 *
 * Payloads of descriptors tell what each rank has. From the payloads all ranks conclude alike
 * whether there can be a rail. Then the first rank makes an id and broadcasts it, and each rank
 * begins its part. The ranks tell each other how far they are, again and again, until all have
 * their parts or one has failed or given up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread.h"
#include "group/collective.h"
#include "group/rail.h"

/* The most seconds that a rank waits for NCCL to be ready. */
static const double opening_most = 120;

/* What a rank's descriptor tells. */
typedef struct opening_descriptor {
    char gpu[EK_RAIL_GPU];
    bool shares;     /* two ranks may be on one GPU */
    bool library;    /* EVENKEEL_DIST_SUM is "nccl" */
    char reason[92]; /* why this rank can have no rail; "" if it can have one */
} opening_descriptor;
_Static_assert(sizeof(opening_descriptor) <= EK_DESCRIPTOR_PAYLOAD, "a descriptor has room for it");

/* How far a rank is with its part of the rail. */
typedef struct opening_progress {
    int32_t state; /* ek_rail_state, or negative */
    char reason[124];
} opening_progress;

typedef struct opening {
    ek_group_rail *entry;
    char why[200];
    struct {
        bool made;
        char reason[92];
        char id[EK_RAIL_ID];
    } name;
    uint64_t began;             /* ek_clock_ns() when this rank began its part */
    opening_progress *progress; /* per rank: how far it is */
    enum { OPENING_JUDGE, OPENING_ID, OPENING_TELL, OPENING_HEAR } step;
} opening;

static const ek_rail_backend *opening_backend(const opening *self)
{
    return self->entry->dev->backend->rails;
}

static const char *opening_library_name(void)
{
    const char *given = getenv("EVENKEEL_DIST_SUM");
    return given ? given : "";
}

/* Takes this rank's pending error, and copies its sentence to `reason`. */
static void opening_take(char *reason, size_t room)
{
    ek_error_record error;
    ek_error_take(&error);
    snprintf(reason, room, "%.*s", (int)room - 1, error.message);
}

static void opening_fill(ek_dev *dev, opening_descriptor *descriptor)
{
    const ek_rail_backend *rails = dev->backend->rails;
    const char *reason = rails ? rails->reason() : "its backend has none";
    memset(descriptor, 0, sizeof *descriptor);
    if (!reason && rails->identify(dev, descriptor->gpu) < 0)
        opening_take(descriptor->reason, sizeof descriptor->reason);
    if (reason)
        snprintf(descriptor->reason, sizeof descriptor->reason, "%s", reason);
    descriptor->shares = !reason && rails->shares();
    descriptor->library = strcmp(opening_library_name(), "nccl") == 0;
}

/* ---- the communication thread ---- */

/* Returns true if there can be a rail. Else writes the reason to self->why. */
static bool opening_judge(opening *self, const ek_process_group *group)
{
    opening_descriptor *descriptors = ek_calloc((size_t)group->size, sizeof *descriptors);
    if (!descriptors) {
        opening_take(self->why, sizeof self->why);
        return false;
    }
    char(*hosts)[64] = group->communication->hosts;
    for (int r = 0; r < group->size && !self->why[0]; r++) {
        memcpy(&descriptors[r], ek_group_payload(group, r), sizeof *descriptors);
        if (descriptors[r].reason[0])
            snprintf(self->why, sizeof self->why, "rank %d: %.91s", group->ranks[r],
                     descriptors[r].reason);
        else if (descriptors[r].library != descriptors[0].library)
            snprintf(self->why, sizeof self->why,
                     "EVENKEEL_DIST_SUM differs between ranks %d and %d", group->ranks[0],
                     group->ranks[r]);
        for (int s = 0; s < r && !self->why[0]; s++)
            if (!(descriptors[r].shares && descriptors[s].shares) &&
                strcmp(hosts[group->ranks[r]], hosts[group->ranks[s]]) == 0 &&
                memcmp(descriptors[r].gpu, descriptors[s].gpu, EK_RAIL_GPU) == 0)
                snprintf(self->why, sizeof self->why, "ranks %d and %d share a GPU",
                         group->ranks[s], group->ranks[r]);
    }
    self->entry->library = descriptors[0].library;
    free(descriptors);
    return !self->why[0];
}

static int opening_send_id(opening *self, ek_dist_work *work)
{
    const ek_process_group *group = work->group;
    if (group->rank == 0) {
        self->name.made = opening_backend(self)->make_id(self->entry->dev, self->name.id) >= 0;
        if (!self->name.made)
            opening_take(self->name.reason, sizeof self->name.reason);
    }
    int rc = group->communication->transport->broadcast(group->communicator, &self->name,
                                                        sizeof self->name, 0, &work->request);
    return ek_dist_work_started(work, rc);
}

static void opening_fail(opening *self, opening_progress *mine)
{
    mine->state = -1;
    opening_take(mine->reason, sizeof mine->reason);
    if (self->entry->rail)
        opening_backend(self)->close(self->entry->rail);
    self->entry->rail = NULL;
}

static void opening_begin(opening *self, const ek_process_group *group)
{
    opening_progress *mine = &self->progress[group->rank];
    self->began = ek_clock_ns();
    if (opening_backend(self)->open(self->entry->dev, self->name.id, group->size, group->rank,
                                    &self->entry->rail) < 0)
        opening_fail(self, mine);
}

/* Returns true if this rank must give up: a failure is under way, or half of the time-out (or
 * opening_most) has passed. */
static bool opening_is_late(const opening *self, const ek_dist_work *work)
{
    double most = work->timeout / 2 < opening_most ? work->timeout / 2 : opening_most;
    return work->group->communication->failing ||
           (double)(ek_clock_ns() - self->began) > most * 1e9;
}

static int opening_tell(opening *self, ek_dist_work *work)
{
    ek_process_group *group = work->group;
    opening_progress *mine = &self->progress[group->rank];
    if (mine->state >= 0)
        mine->state = opening_backend(self)->test(self->entry->rail);
    if (mine->state == EK_RAIL_BUSY && opening_is_late(self, work))
        mine->state = EK_FAIL(EK_E_TIMEOUT, "NCCL could not connect the ranks in time");
    if (mine->state < 0 && self->entry->rail)
        opening_fail(self, mine);
    int rc = ek_process_group_gather(group, self->progress, sizeof *mine);
    return ek_dist_work_started(work, rc);
}

/* Returns 1 if the ranks must tell each other again, else 0. */
static int opening_hear(opening *self, const ek_process_group *group)
{
    bool all = true;
    for (int r = 0; r < group->size; r++) {
        const opening_progress *one = &self->progress[r];
        all = all && one->state == EK_RAIL_DONE;
        if (one->state < 0 && !self->why[0])
            snprintf(self->why, sizeof self->why, "rank %d: %.123s", group->ranks[r], one->reason);
    }
    if (self->why[0] && self->entry->rail) {
        opening_backend(self)->close(self->entry->rail);
        self->entry->rail = NULL;
    }
    return !all && !self->why[0];
}

static int opening_go_on(ek_dist_work *work)
{
    opening *self = work->user;
    switch (self->step) {
    case OPENING_JUDGE:
        self->step = OPENING_ID;
        return opening_judge(self, work->group) ? opening_send_id(self, work) : 0;
    case OPENING_ID:
        if (!self->name.made) {
            snprintf(self->why, sizeof self->why, "rank %d: %.91s", work->group->ranks[0],
                     self->name.reason);
            return 0;
        }
        opening_begin(self, work->group);
        self->step = OPENING_TELL;
        return 1;
    case OPENING_TELL:
        self->step = OPENING_HEAR;
        return opening_tell(self, work);
    default:
        self->step = OPENING_TELL;
        return opening_hear(self, work->group);
    }
}
static const ek_verb opening_verb = {EK_VERB_RAIL, .go_on = opening_go_on};

/* ---- the caller ---- */

static int opening_run(opening *self, ek_process_group *group)
{
    opening_descriptor descriptor;
    ek_dist_work *work = ek_dist_work_new(group, &opening_verb, 0);
    if (!work)
        return ek_error_pending();
    opening_fill(self->entry->dev, &descriptor);
    memcpy(work->descriptor.payload, &descriptor, sizeof descriptor);
    work->descriptor.nbytes = sizeof descriptor;
    work->user = self;
    return ek_dist_work_run(work);
}

int ek_rail_open(ek_process_group *group, ek_group_rail *entry, char why[200])
{
    opening self = {.entry = entry};
    self.progress = ek_calloc((size_t)group->size, sizeof *self.progress);
    int rc = self.progress ? opening_run(&self, group) : ek_error_pending();
    snprintf(why, 200, "%s", self.why);
    free(self.progress);
    return rc;
}
