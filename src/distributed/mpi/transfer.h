/* transfer.h: transfers between ranks, in parts. A part has at most EK_MPI_PART bytes, or between
 * ranks of one machine TRANSFER_NEAR times as many.
 *
 * A request has a stream for each rank to which bytes go and for each rank from which bytes come. A
 * few parts of a stream are under way at a time. `test` posts the next part when an earlier one is
 * complete. MPI matches the parts of a tag between two ranks in the order in which they are posted.
 * So a stream waits until all parts of earlier requests of its communicator, tag, rank and
 * direction are posted.
 *
 * Statuses are MPI's error codes, negated, and TRANSFER_NO_MEMORY. */
#ifndef EK_MPI_TRANSFER_H
#define EK_MPI_TRANSFER_H

#include <limits.h>
#include <mpi.h>

#include "link/transport.h"

/* Parts are so small that on a link of 20 Mbit/s one takes less than half a second, and so large
 * that MPI's handshakes cost little. Tests set a smaller number. */
#ifndef EK_MPI_PART
#define EK_MPI_PART ((size_t)1 << 20)
#endif

enum {
    TRANSFER_NEAR = 16,   /* between ranks of one machine a part has this many times EK_MPI_PART */
    TRANSFER_TAG = 32768, /* of collective calls; messages have smaller tags */
    TRANSFER_NO_MEMORY = INT_MIN
};

struct ek_communicator {
    MPI_Comm comm;
    int rank, size;
    uint64_t moved; /* parts of all ranks in both directions that are complete */
    struct {
        int world;     /* the rank's number in MPI_COMM_WORLD */
        bool near;     /* the rank is on this machine */
        uint64_t came; /* parts that have come from the rank */
    } ranks[];
};

static inline int transfer_status(int code)
{
    return code == MPI_SUCCESS ? 0 : -code;
}

/* The functions of the transport's table. */
int transfer_send(ek_communicator *communicator, const void *data, size_t nbytes, int to, int tag,
                  ek_request **request);
int transfer_receive(ek_communicator *communicator, void *data, size_t nbytes, int from, int tag,
                     ek_request **request);
int transfer_all_to_all(ek_communicator *communicator, const ek_bytes *out, const ek_bytes *in,
                        ek_request **request);
int transfer_all_gather(ek_communicator *communicator, void *all, const size_t *at,
                        ek_request **request);
int transfer_broadcast(ek_communicator *communicator, void *data, size_t nbytes, int root,
                       ek_request **request);
int transfer_test(ek_request **request, int *source);
void transfer_cancel(ek_request **request);
uint64_t transfer_moved(const ek_communicator *communicator, int rank);
bool transfer_awaits(const ek_communicator *communicator, int rank);
int transfer_blamed(void);

#endif
