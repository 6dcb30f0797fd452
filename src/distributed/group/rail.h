/* rail.h: tensors that travel from GPU to GPU, without the host's memory (core/rail.h).
 *
 * A group has a rail for each device that a call has used on this rank; device by device all ranks
 * make them together, with the first call that needs one. If a rail cannot be had on all ranks,
 * none has it, and the device's tensors are staged (staging.h). A failure of the job ends all
 * rails: NCCL cannot go on with what a rank has left. The next calls make new ones.
 *
 * Note [One order of jobs]
 *
 * Jobs of two groups on one GPU must run in the same order on all ranks; otherwise each could wait
 * behind the other for ever. The order is that of Lamport clocks. Once all ranks of a group are
 * ready for a job, each proposes the next reading of its clock. The largest is the job's time, and
 * all clocks go on from there. A rank begins the job with the least time of those that it knows, if
 * that time is agreed, because any other job gets a larger one. The group's number breaks ties.
 *
 * A job begins when its tensors are complete on all ranks. So no GPU ever waits for a rank that
 * computes. */
#ifndef EK_GROUP_RAIL_H
#define EK_GROUP_RAIL_H

#include "core/rail.h"
#include "link/communication.h"

/* A group's rail of one device. */
typedef struct ek_group_rail {
    struct ek_group_rail *next;
    ek_dev *dev;
    bool library;      /* sums are left to the library behind the rail */
    int number;        /* the number of this rail within its group, from 1 on */
    ek_rail *rail;     /* NULL: refused, its tensors are staged */
    uint32_t failures; /* of the communication when it was made; others have ended it */
    int users;         /* under the communication's lock */
    bool busy, broken; /* the communication thread's */
} ek_group_rail;

/* The rail of the device; a collective call if this rank has none yet. *rail becomes NULL for
 * devices whose tensors are staged; else it has one user more. `what` begins the sentence. */
int ek_rail_find(const char *what, ek_process_group *group, ek_dev *dev, ek_group_rail **rail);
void ek_rail_release(const ek_process_group *group, ek_group_rail *rail);

/* ---- one job ---- */

/* A job's time (Note [One order of jobs]). */
typedef struct ek_turn {
    struct ek_turn *next;
    uint64_t time;
    int group;
    bool agreed;
} ek_turn;

struct ek_rail_run {
    ek_group_rail *rail; /* a user */
    ek_rail_job job;
    ek_bytes *bytes;    /* four lists of the group's size, for the job */
    ek_tensor *scratch; /* on the device; one reference, or NULL */
    bool meets;         /* the ranks have not told each other yet that they are ready */
    /* The communication thread's: */
    int step, state; /* state: ek_rail_state, or negative with `error` */
    ek_turn turn;
    uint64_t *times;
    ek_error_record error;
    uint32_t failure; /* the number of the failure of the job that ended it; 0: none */
};

/* Makes the run of a rail that the caller uses, which the run releases. */
int ek_rail_run_open(ek_rail_run *run, const ek_process_group *group, ek_group_rail *rail);
void ek_rail_run_close(ek_rail_run *run, const ek_process_group *group);
/* Sets the job: a combination over ranks of `count` elements in place, for `root` or for all (-1).
 */
int ek_rail_run_sum(ek_rail_run *run, const ek_process_group *group, ek_dist_op op, ek_dtype dtype,
                    char *address, int64_t count, int root);
/* Sets the job: the tensor's memory, of the rank `root`, to all. */
void ek_rail_run_broadcast(ek_rail_run *run, const ek_tensor *memory, int root);
/* Sets the job: work->out and in. op >= 0: what comes in is combined in the memory of the work's
 * first tensor. */
void ek_rail_run_pairs(ek_rail_run *run, const ek_dist_work *work, int op);
/* Sets scratch to `nbytes` of the rail's device. */
int ek_rail_run_room(ek_rail_run *run, size_t nbytes);

/* On the communication thread, once this rank is ready for the job, and all are unless run->meets:
 * as ek_verb's go_on and ready. The first starts transfers in *request. */
void ek_rail_run_restart(ek_rail_run *run);
int ek_rail_run_go_on(ek_rail_run *run, const ek_process_group *group, ek_request **request);
ek_readiness ek_rail_run_ready(ek_rail_run *run, const ek_process_group *group);
bool ek_rail_run_is_over(const ek_rail_run *run);

/* ---- works ---- */

/* Gives the work a run (work->rail) if the tensor's device has a rail. Before tensors are added. */
int ek_dist_work_rail(ek_dist_work *work, const ek_tensor *tensor);

/* For verbs: go_on of a work with a run, and `ready` of any work. */
int ek_rail_go_on(ek_dist_work *work);
ek_readiness ek_rail_ready(ek_dist_work *work);

/* ---- rail_open.c ---- */

/* Makes the rail of `entry`, together with all ranks of the group; entry->rail stays NULL if there
 * can be none, and `why` is the reason, alike on all ranks. */
int ek_rail_open(ek_process_group *group, ek_group_rail *entry, char why[200]);

#endif
