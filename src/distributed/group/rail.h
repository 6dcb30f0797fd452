/* rail.h: tensors that travel from GPU to GPU, without the host's memory (core/rail.h).
 *
 * A group has a rail for each device that a call has used on this rank. All ranks make a device's
 * rail together, in the first call that needs the rail. If a rank can't make its part, no rank has
 * the rail, and the device's tensors are staged (staging.h). A failure of the ranks
 * (communication.h) ends all rails, because NCCL cannot continue what a rank has left undone. The
 * next calls make new rails.
 *
 * Note [One order of jobs]
 *
 * Jobs of two groups on one GPU must run in the same order on all ranks. Otherwise each job could
 * wait for the other one for ever. The order is that of Lamport clocks. Once all ranks of a group
 * are ready for a job, each rank proposes the next reading of its clock. The largest proposal is
 * the job's time, and all clocks continue from that time. Each rank begins the job with the least
 * time among the jobs that the rank knows, if the ranks have agreed on that time. A job on which
 * the ranks agree later gets a larger time. The group's number breaks ties.
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
    bool library;      /* the library behind the rail makes sums */
    int number;        /* the rail's number in its group, from 1 on */
    ek_rail *rail;     /* NULL: there is no rail, and tensors are staged */
    uint32_t failures; /* failures before the rail was made; a later failure ends the rail */
    int users;         /* runs and calls that use the rail; guarded by the communication's lock */
    /* The communication thread's: a job is under way; a failure has ended the rail. */
    bool busy, broken;
} ek_group_rail;

/* Finds the rail of the device, or makes it in a collective call. Writes the rail, with one user
 * more, or NULL if tensors of the device are staged. `what` begins the sentence of an error.
 * ek_rail_release takes the user away, and ignores NULL. */
int ek_rail_find(const char *what, ek_process_group *group, ek_dev *dev, ek_group_rail **rail);
void ek_rail_release(const ek_process_group *group, ek_group_rail *rail);

/* ---- one job ---- */

/* The time of a job (Note [One order of jobs]). */
typedef struct ek_turn {
    struct ek_turn *next;
    uint64_t time;
    int group;
    bool agreed;
} ek_turn;

struct ek_rail_run {
    ek_group_rail *rail; /* the run is one of its users */
    ek_rail_job job;
    ek_bytes *bytes;    /* four lists of the group's size, for the job; owned */
    ek_tensor *scratch; /* on the device; one reference, or NULL */
    bool meets;         /* the ranks must first tell each other that they are ready for the job */
    /* For the communication thread. `state` is an ek_rail_state, or negative after the failure that
     * `error` tells. */
    int step, state;
    ek_turn turn;
    ek_rounds rounds;
    uint64_t times[EK_ROUNDS_DIRECT]; /* proposals, of which the rounds find the largest */
    ek_error_record error;
    uint32_t failure; /* the number of the failure of the ranks that ended the run; 0: none */
};

/* Opens a run of a rail. The run takes over the caller's user of the rail, also on an error.
 * ek_rail_run_close takes the user away. */
int ek_rail_run_open(ek_rail_run *run, const ek_process_group *group, ek_group_rail *rail);
void ek_rail_run_close(ek_rail_run *run, const ek_process_group *group);
/* Sets the job: combines `count` elements of all ranks in place, for the rank `root` or for all
 * (-1). */
int ek_rail_run_sum(ek_rail_run *run, const ek_process_group *group, ek_dist_op op, ek_dtype dtype,
                    char *address, int64_t count, int root);
/* Sets the job: sends what rank `root` has in the tensor's memory to all ranks. */
void ek_rail_run_broadcast(ek_rail_run *run, const ek_tensor *memory, int root);
/* Sets the job: moves work->out to work->in. If op >= 0, also combines what arrives, and writes the
 * result to the memory of the work's first tensor. */
void ek_rail_run_pairs(ek_rail_run *run, const ek_dist_work *work, int op);
/* Makes run->scratch, with `nbytes` on the rail's device. */
int ek_rail_run_room(ek_rail_run *run, size_t nbytes);

/* ek_rail_run_restart sets a run to its first step. go_on and ready are as in ek_verb, but `ready`
 * also completes the run's rounds. The communication thread calls both once this
 * rank is ready for the job, or, if run->meets is false, once all ranks are. is_over tells whether
 * the last step was made. */
void ek_rail_run_restart(ek_rail_run *run);
int ek_rail_run_go_on(ek_rail_run *run, const ek_process_group *group);
ek_readiness ek_rail_run_ready(ek_rail_run *run, const ek_process_group *group);
bool ek_rail_run_is_over(const ek_rail_run *run);

/* ---- works ---- */

/* Gives the work a run (work->rail) if the tensor's device has a rail. Called before the work has
 * tensors. */
int ek_dist_work_rail(ek_dist_work *work, const ek_tensor *tensor);

/* ek_rail_go_on is the go_on of works that have a run. ek_rail_ready can be the `ready` of any
 * work. */
int ek_rail_go_on(ek_dist_work *work);
ek_readiness ek_rail_ready(ek_dist_work *work);

/* ---- rail_open.c ---- */

/* Makes the rail of `entry`, together with all ranks of the group. If there can be no rail,
 * entry->rail stays NULL on all ranks, and `why` gets the reason, which is equal on all ranks. */
int ek_rail_open(ek_process_group *group, ek_group_rail *entry, char why[200]);

#endif
