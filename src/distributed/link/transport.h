/* transport.h: the functions that carry bytes between processes.
 *
 * A transport is a table of functions. One thread makes all calls (communication.h). Calls that
 * start a transfer return at once with a request, which `test` completes. Only open, split and
 * close block. A transport carries bytes and adds no numbers: the library adds them in a fixed
 * order, so that results depend neither on the transport nor on timing.
 *
 * A message travels in parts. A few parts of a message are under way at a time, so that messages of
 * other tags and communicators need not wait until a long message has arrived. The count of parts
 * that have moved shows that a slow transfer makes progress.
 *
 * The plugins (distributed/mpi) are compiled against this header alone, and call no function of the
 * library. The tests' transport connects threads of one program. */
#ifndef EK_LINK_TRANSPORT_H
#define EK_LINK_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"
#include "core/world.h"

enum {
    EK_TRANSPORT_VERSION = 2, /* of this header; a plugin of another version is refused */
    EK_TRANSPORT_ANY = -1     /* for receive and moved: any rank */
};

/* The communication thread's name, by which other processes find it. */
#define EK_COMMUNICATION_THREAD "ek communicate"

/* The function that a plugin exports: const ek_transport *ek_transport_of_plugin(void). */
#define EK_TRANSPORT_SYMBOL "ek_transport_of_plugin"

typedef struct ek_communicator ek_communicator; /* a set of ranks; its transport defines it */
typedef struct ek_request ek_request;           /* a transfer that has been started */
typedef struct ek_transport ek_transport;

/* Functions that return int return 0, or a negative status of the transport, for which `reason` has
 * a text. Memory that a request reads or writes stays valid until the request is complete. On one
 * communicator all ranks make the same calls of split, all_to_all, all_gather and broadcast in the
 * same order. */
struct ek_transport {
    unsigned version; /* EK_TRANSPORT_VERSION */
    const char *name; /* "Open MPI 4.1.4" */
    size_t part;      /* messages of at most this many bytes travel in one part */

    /* Opens the transport. Writes the communicator of all processes and this process's place.
     * `context` is for transports that a program can open several times; plugins get NULL. */
    int (*open)(void *context, ek_communicator **world, ek_world_place *place);

    /* Makes the communicator of the ranks that give the same color, in the order of their keys.
     * Ranks with a negative color get NULL. All ranks of `communicator` make this call, which
     * blocks. */
    int (*split)(ek_communicator *communicator, int color, int key, ek_communicator **part);
    /* Closes a communicator that split made. No request is open on it. */
    void (*close_communicator)(ek_communicator *communicator);

    /* Start to send or to receive a message of any number of bytes. Messages of one tag (0 to
     * 32767) between two ranks arrive in order. If a message or its room has more bytes than
     * `part`, message and room have equally many bytes, and `from` is a rank. If both have at most
     * `part` bytes, the message may be shorter than the room. A longer message is an error. */
    int (*send)(ek_communicator *communicator, const void *data, size_t nbytes, int to, int tag,
                ek_request **request);
    int (*receive)(ek_communicator *communicator, void *data, size_t nbytes, int from, int tag,
                   ek_request **request);

    /* Sends out[r] to rank r and receives in[r] from rank r, for every other rank r. A rank's own
     * out and in are not used. Both lists have a member per rank of the communicator, and are read
     * during the call only. Both ends of a pair agree on the number of bytes, which may be 0 or
     * beyond 2^31. */
    int (*all_to_all)(ek_communicator *communicator, const ek_bytes *out, const ek_bytes *in,
                      ek_request **request);

    /* Every rank gives the bytes [at[rank], at[rank + 1]) of `all`, and receives the other ranks'
     * bytes in the other ranges. `at` is equal on all ranks, and is read during the call only. */
    int (*all_gather)(ek_communicator *communicator, void *all, const size_t *at,
                      ek_request **request);

    /* Sends the root's bytes to all ranks. */
    int (*broadcast)(ek_communicator *communicator, void *data, size_t nbytes, int root,
                     ek_request **request);

    /* Makes progress with all requests. Returns 1 if this request is complete, and then frees the
     * request, sets *request to NULL and writes the rank that a message came from to *source (may
     * be NULL). Returns 0 if the request is not complete. A negative status means that the request
     * has failed and is freed. */
    int (*test)(ek_request **request, int *source);
    /* Gives up a receive that no message has reached, and frees the request. */
    void (*cancel)(ek_request **request);

    /* Returns how many parts have come from a rank of the communicator so far. For EK_TRANSPORT_ANY
     * returns how many parts have come from all ranks and gone to all ranks. */
    uint64_t (*moved)(const ek_communicator *communicator, int rank);
    /* Tells whether an open request of the communicator waits for bytes from a rank. A receive from
     * any rank does not count. */
    bool (*awaits)(const ek_communicator *communicator, int rank);

    const char *(*reason)(int status);
    /* Returns the rank of the world to or from which the last transfer that failed went, or -1 if
     * that rank is not known. */
    int (*blamed)(void);

    /* Ends the transport. All ranks make this call, with no open requests, after closing their
     * communicators. */
    int (*close)(ek_communicator *world);
    /* Ends all processes of the job without waiting for any of them. The function may return. */
    void (*end)(ek_communicator *world, int status);
};

#endif
