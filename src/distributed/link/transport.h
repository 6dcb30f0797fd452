/* transport.h: what carries bytes between processes.
 *
 * A transport is a table of functions. One thread makes all calls (communication.h). Calls that
 * start a transfer return at once with a request, which `test` completes; only open, split and
 * close block. Nothing but bytes is carried: numbers are added by us, in the order of ranks, so
 * that results depend neither on the library nor on timing.
 *
 * The plugins (distributed/mpi) are compiled against this header alone, and call no function of
 * the library. Tests have a transport of their own, between threads of one program. */
#ifndef EK_LINK_TRANSPORT_H
#define EK_LINK_TRANSPORT_H

#include <stddef.h>

#include "core/bytes.h"
#include "core/world.h"

enum {
    EK_TRANSPORT_VERSION = 1, /* of this header; a plugin of another version is refused */
    EK_TRANSPORT_ANY = -1     /* receive: from any rank */
};

/* The communication thread's name, by which other processes know it. */
#define EK_COMMUNICATION_THREAD "ek communicate"

/* What a plugin exports: const ek_transport *ek_transport_of_plugin(void). */
#define EK_TRANSPORT_SYMBOL "ek_transport_of_plugin"

typedef struct ek_communicator ek_communicator; /* a set of ranks; its transport defines it */
typedef struct ek_request ek_request;           /* a transfer that has been started */
typedef struct ek_transport ek_transport;

/* Functions that return int return 0, or a negative number of the transport's own, for which
 * `reason` has a text. Memory that a request reads or writes stays valid until the request is
 * complete. On one communicator all ranks make the same calls of split, all_to_all, all_gather
 * and broadcast in the same order. */
struct ek_transport {
    unsigned version; /* EK_TRANSPORT_VERSION */
    const char *name; /* "Open MPI 4.1.4" */

    /* Begins: writes the communicator of all processes and this process's place. `context` is for
     * transports that can be opened several times in one program; NULL for plugins. */
    int (*open)(void *context, ek_communicator **world, ek_world_place *place);

    /* Makes the communicator of the ranks that give the same color, in the order of their keys.
     * Those of a negative color get NULL. All ranks of `communicator` call it; it blocks. */
    int (*split)(ek_communicator *communicator, int color, int key, ek_communicator **part);
    /* Closes a communicator of split, on which no request is open. */
    void (*close_communicator)(ek_communicator *communicator);

    /* Messages. Those of one tag (0 to 32767) between two ranks arrive in order. A message of more
     * bytes than the receiver has room for is an error. Any number of bytes. */
    int (*send)(ek_communicator *communicator, const void *data, size_t nbytes, int to, int tag,
                ek_request **request);
    int (*receive)(ek_communicator *communicator, void *data, size_t nbytes, int from, int tag,
                   ek_request **request);

    /* Sends out[r] to rank r and receives in[r] from it, for every other rank r; what a rank has
     * for itself is not moved. Both lists have `size` members, and are read during the call only.
     * Both ends of a pair agree on the number of bytes, which may be 0 or beyond 2^31. */
    int (*all_to_all)(ek_communicator *communicator, const ek_bytes *out, const ek_bytes *in,
                      ek_request **request);

    /* Every rank gives the bytes [at[rank], at[rank + 1]) of `all`, in place, and receives those
     * of the others. `at` is the same on all ranks, and read during the call only. */
    int (*all_gather)(ek_communicator *communicator, void *all, const size_t *at,
                      ek_request **request);

    /* Sends the root's bytes to all ranks. */
    int (*broadcast)(ek_communicator *communicator, void *data, size_t nbytes, int root,
                     ek_request **request);

    /* 1: the request is complete and freed, and *request is NULL; *source (may be NULL) is the
     * rank that a message came from. 0: not yet. Negative: it failed, and is freed. A call makes
     * all requests go on. */
    int (*test)(ek_request **request, int *source);
    /* Gives up a receive that no message has reached, and frees it. */
    void (*cancel)(ek_request **request);

    const char *(*reason)(int status);

    /* Ends. All ranks call it, without open requests, after closing their communicators. */
    int (*close)(ek_communicator *world);
    /* Ends all processes of the job, without waiting for any. May return. */
    void (*end)(ek_communicator *world, int status);
};

#endif
