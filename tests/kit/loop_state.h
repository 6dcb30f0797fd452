/* loop_state.h: what the files of the loop share; see loop.h. loop->lock guards everything.
 * Functions are called with it, but loop_enter and loop_start, which lock it, and those of the
 * transport's table. */
#ifndef EK_TESTS_KIT_LOOP_STATE_H
#define EK_TESTS_KIT_LOOP_STATE_H

#include <pthread.h>

#include "kit/loop.h"

enum { LOOP_TAGS = 32768, LOOP_EAGER = 4096, LOOP_TEXT = 2048 };

typedef struct loop_process loop_process;
typedef struct loop_record loop_record;

/* A communicator as all its ranks share it; it lives as long as the loop. */
typedef struct loop_members {
    struct loop_members *next;
    int id, size;
    int *ranks; /* in the world */
    loop_record *records;
} loop_members;

/* A communicator as one rank holds it. */
struct ek_communicator {
    ek_communicator *next; /* of the rank's */
    loop_process *process;
    loop_members *members;
    int rank;
    uint64_t calls; /* collective ones */
};

/* A collective call that not all ranks have made, or left, yet. */
struct loop_record {
    loop_record *next;
    uint64_t number;
    const char *call;
    int first; /* the rank that made it first */
    size_t *sizes;
    int joined, left;
    bool broken;
    int *colors, *keys; /* split: by rank */
    loop_members **parts;
};

struct ek_request {
    ek_request *next;
    loop_process *process;
    loop_members *members;
    const char *call;
    uint64_t number; /* of the collective call, from 1; 0: a message */
    int from, tag;   /* receive */
    ek_bytes *out, *in;
    int outs, ins;
    uint64_t sum;        /* of the memory that is sent */
    int missing, unsent; /* parcels that are to come, and to go */
    uint64_t due_tests, due_ns;
    int source;
    bool taken; /* receive: a message has reached it */
    bool hangs;
    int status;
};

/* Bytes on their way to a rank. */
typedef struct loop_parcel {
    struct loop_parcel *next;
    loop_members *members;
    uint64_t number; /* as a request's */
    int from, tag;
    char *data;
    size_t nbytes;
    uint64_t due_tests, due_ns;
    ek_request *sender, *receiver; /* NULL: no longer, or not yet */
    bool sent; /* it has left; until then the sender waits for the receiver to be there */
    bool held; /* its sender has stopped */
    bool lost; /* its receiver has gone */
} loop_parcel;

struct loop_process {
    loop *loop;
    int rank;
    pthread_t thread;
    bool opened, closed, stopped, dead;
    ek_communicator *handles; /* open ones */
    ek_request *requests;
    loop_parcel *parcels; /* to this rank, in the order of sending */
    uint64_t random, tests;
    int collectives;             /* that were started */
    int fail_call, fail_request; /* counted down; 0: none */
    int drop, drop_to;
};

struct loop {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, ids;
    loop_process *processes;
    loop_members *members, *world; /* of all communicators, and the one of all ranks */
    uint64_t seed;
    int delay_tests, delay_ms;
    bool ended;
    int end_status;
    char violations[LOOP_TEXT];
};

/* ---- loop.c ---- */

/* Zeroed memory; ends the program if there is none. */
void *loop_room(size_t count, size_t size);
/* Records a sentence; LOOP_E_INVALID. */
int loop_violation(loop *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
loop_members *loop_members_new(loop *l, int size);
ek_communicator *loop_handle(loop_process *process, loop_members *members, int rank);
void loop_handle_free(ek_communicator *communicator);
int loop_open_handles(const loop_process *process);
void loop_record_free(loop_record *record);

/* In [0, bound]. Each rank draws from a sequence of its own, so that its draws depend on its calls
 * alone. */
uint64_t loop_draw(loop_process *process, int bound);
/* When something that `from` starts now will have happened for `at`. */
void loop_draw_due(loop_process *from, const loop_process *at, uint64_t *tests, uint64_t *ns);
bool loop_is_due(const loop_process *at, uint64_t tests, uint64_t ns);

/* Locks, and finds out whether the rank may call at all. */
int loop_enter(loop_process *process);
/* loop_enter of a call that starts something. */
int loop_start(loop_process *process);
/* Unlocks, and returns `rc`. */
int loop_leave(loop_process *process, int rc);
/* Waits until something has changed; whether the rank may still call. */
int loop_wait(loop_process *process);

/* ---- loop_transfer.c ---- */

/* `outs` and `ins` are the lengths of its lists: a message has one of the two, of one member; a
 * collective has both, of a member per rank. */
ek_request *loop_request(ek_communicator *communicator, const char *call, uint64_t number, int outs,
                         int ins);
void loop_request_free(ek_request *request);
/* Of the memory that the request sends. */
uint64_t loop_sum(const ek_request *request);
/* Of the rank, on one communicator or (NULL) all. */
int loop_open_requests(const loop_process *process, const loop_members *members);
/* Sends bytes to the rank `to` of the request's communicator. */
void loop_post(ek_request *request, int rank, int to, const ek_bytes *bytes);
/* LOOP_E_INVALID unless there are such a rank and such a tag. */
int loop_check_message(const ek_communicator *communicator, const char *call, int rank, int tag);

int loop_send(ek_communicator *communicator, const void *data, size_t nbytes, int to, int tag,
              ek_request **request);
int loop_receive(ek_communicator *communicator, void *data, size_t nbytes, int from, int tag,
                 ek_request **request);
void loop_cancel(ek_request **request);
int loop_test(ek_request **request, int *source);

/* ---- loop_collective.c ---- */

/* The rank makes its next collective call; `sizes` are what must be the same on all ranks. */
loop_record *loop_join(ek_communicator *communicator, const char *call, const size_t *sizes,
                       int count);
/* The rank needs the record no more. */
void loop_part(ek_communicator *communicator, loop_record *record);

int loop_all_to_all(ek_communicator *communicator, const ek_bytes *out, const ek_bytes *in,
                    ek_request **request);
int loop_all_gather(ek_communicator *communicator, void *all, const size_t *at,
                    ek_request **request);
int loop_broadcast(ek_communicator *communicator, void *data, size_t nbytes, int root,
                   ek_request **request);

#endif
