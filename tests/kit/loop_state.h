/* loop_state.h: what the files of the loop share; see loop.h. loop->lock guards everything.
 * Functions are called with this lock held, except loop_enter and loop_start, which lock it, and
 * the functions of the transport's table. */
#ifndef EK_TESTS_KIT_LOOP_STATE_H
#define EK_TESTS_KIT_LOOP_STATE_H

#include <pthread.h>

#include "kit/loop.h"

enum { LOOP_TAGS = 32768, LOOP_EAGER = 4096, LOOP_TEXT = 2048 };

typedef struct loop_process loop_process;
typedef struct loop_record loop_record;

/* What all ranks of a communicator share. It lives as long as the loop. */
typedef struct loop_members {
    struct loop_members *next;
    int id, size;
    int *ranks; /* in the world */
    loop_record *records;
} loop_members;

/* One rank's handle of a communicator. */
struct ek_communicator {
    ek_communicator *next; /* the rank's next handle */
    loop_process *process;
    loop_members *members;
    int rank;
    uint64_t calls; /* collective calls */
    uint64_t moved; /* parts of messages that have come and gone */
    uint64_t *came; /* per rank: parts that have come from that rank */
};

/* A collective call that not all ranks have made and left yet. */
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
    uint64_t number; /* number of the collective call, from 1 on; 0: a message */
    int from, tag;   /* receive */
    ek_bytes *out, *in;
    int outs, ins;
    bool *lacks;         /* per element of `in`: its bytes still have to arrive */
    uint64_t sum;        /* hash of the memory that is sent */
    int missing, unsent; /* parcels that still have to arrive, and to leave */
    uint64_t due_tests, due_ns;
    int source;
    bool taken; /* receive: a message has matched the request */
    bool hangs;
    int status;
};

/* Bytes on their way to a rank. */
typedef struct loop_parcel {
    struct loop_parcel *next;
    loop_members *members;
    uint64_t number; /* as in ek_request */
    int from, tag;
    char *data;
    size_t nbytes, came; /* came: bytes of the parts that have arrived */
    uint64_t part_ns;    /* when the next part arrives */
    uint64_t due_tests, due_ns;
    ek_request *sender, *receiver; /* NULL: no request any more, or not yet */
    bool sent; /* the parcel has left; before, the sender waits for the receiver's request */
    bool held; /* the sender was stopped when it sent the parcel */
    bool lost; /* the receiver's request was freed */
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
    int transfers;               /* collective calls that were made, and sends */
    int fail_call, fail_request; /* counted down; 0: none */
    int drop, drop_to;
    uint64_t cut; /* a bit per rank to which nothing arrives */
};

struct loop {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, ids;
    loop_process *processes;
    loop_members *members, *world; /* of all communicators, and of the one of all ranks */
    uint64_t seed;
    int delay_tests, delay_ms;
    size_t part; /* bytes of a part; 0: messages arrive whole */
    int part_ms;
    bool ended;
    int end_status;
    char violations[LOOP_TEXT];
};

/* ---- loop.c ---- */

/* Returns zeroed memory. Ends the program if memory is short. */
void *loop_room(size_t count, size_t size);
/* Records a violation as a sentence. Returns LOOP_E_INVALID. */
int loop_violation(loop *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
loop_members *loop_members_new(loop *l, int size);
ek_communicator *loop_handle(loop_process *process, loop_members *members, int rank);
void loop_handle_free(ek_communicator *communicator);
int loop_open_handles(const loop_process *process);
void loop_record_free(loop_record *record);

/* Returns a random number in [0, bound]. Each rank draws from a separate sequence, so that its
 * draws depend on its calls alone. */
uint64_t loop_draw(loop_process *process, int bound);
/* Draws when something that `from` starts now reaches `at`. */
void loop_draw_due(loop_process *from, const loop_process *at, uint64_t *tests, uint64_t *ns);
bool loop_is_due(const loop_process *at, uint64_t tests, uint64_t ns);

/* Locks. Returns 0, or the error if the rank's calls fail. */
int loop_enter(loop_process *process);
/* loop_enter for a call that starts something, which loop_fail_call can make fail. */
int loop_start(loop_process *process);
/* Unlocks, and returns `rc`. */
int loop_leave(loop_process *process, int rc);
/* Waits until something has changed. Returns 0, or the error if the rank's calls fail. */
int loop_wait(loop_process *process);

/* ---- loop_transfer.c ---- */

/* Makes a request. `outs` and `ins` are the lengths of its lists. A message has one list, of one
 * element; a collective call has both, of one element per rank. */
ek_request *loop_request(ek_communicator *communicator, const char *call, uint64_t number, int outs,
                         int ins);
void loop_request_free(ek_request *request);
/* Returns a hash of the memory that the request sends. */
uint64_t loop_sum(const ek_request *request);
/* Counts the rank's open requests, on one communicator or (NULL) on all. */
int loop_open_requests(const loop_process *process, const loop_members *members);
/* Sends bytes to the rank `to` of the request's communicator. */
void loop_post(ek_request *request, int rank, int to, const ek_bytes *bytes);
/* Returns 0 if the communicator has such a rank and the transport such a tag, else LOOP_E_INVALID.
 */
int loop_check_message(const ek_communicator *communicator, const char *call, int rank, int tag);

int loop_send(ek_communicator *communicator, const void *data, size_t nbytes, int to, int tag,
              ek_request **request);
int loop_receive(ek_communicator *communicator, void *data, size_t nbytes, int from, int tag,
                 ek_request **request);
void loop_cancel(ek_request **request);
int loop_test(ek_request **request, int *source);
uint64_t loop_moved(const ek_communicator *communicator, int rank);
bool loop_awaits(const ek_communicator *communicator, int rank);

/* ---- loop_collective.c ---- */

/* Makes the rank join its next collective call. Returns the call's record. `sizes` must be the same
 * on all ranks. */
loop_record *loop_join(ek_communicator *communicator, const char *call, const size_t *sizes,
                       int count);
/* Tells that the rank needs the record no more. The last rank frees it. */
void loop_part(ek_communicator *communicator, loop_record *record);

int loop_all_to_all(ek_communicator *communicator, const ek_bytes *out, const ek_bytes *in,
                    ek_request **request);
int loop_all_gather(ek_communicator *communicator, void *all, const size_t *at,
                    ek_request **request);
int loop_broadcast(ek_communicator *communicator, void *data, size_t nbytes, int root,
                   ek_request **request);

#endif
