/* rail.h: a rail carries tensors between the devices of several processes without a copy in the
 * host's memory. It joins device d of every rank. A backend implements rails by a table of
 * functions (backend.h). Jobs run in EK_STREAM_COMMUNICATE. */
#ifndef EK_CORE_RAIL_H
#define EK_CORE_RAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bytes.h"
#include "evenkeel/dist.h"

typedef struct ek_dev ek_dev;
typedef struct ek_rail ek_rail; /* this rank's part of a rail; defined by the backend */

enum {
    EK_RAIL_ID = 128, /* bytes of a new rail's name (make_id) */
    EK_RAIL_GPU = 32  /* characters of a GPU's name */
};

/* A job of a rail; all ranks begin equal jobs. A job has three steps, of which the second and third
 * may be missing, or is a single collective of the communication library (`data`). The struct is
 * read until the job is done. */
typedef struct ek_rail_job {
    /* Step 1: out[r] is sent to rank r, and in[r] is received from rank r. out[rank] is copied to
     * in[rank] if they are different memory. NULL: the job is the collective of `data`. */
    const ek_bytes *out, *in;

    /* Step 2: sum[i] = terms[0][i] op terms[1][i] op ..., in the order of Note [Order of a sum]
     * (core/sum_order.h), equal to ek_combine (distributed/link/combine.h) to the bit. The term of
     * rank r lies `stride` bytes after that of rank r - 1; this rank's term lies at `own`. `sum`
     * may be `own`. NULL: there is no step 2. */
    const char *terms, *own;
    size_t stride;
    void *sum;
    int64_t count;
    ek_dist_op op;
    ek_dtype dtype;

    /* Step 3: sends and receives as step 1 does. NULL: there is no step 3. */
    const ek_bytes *out_after, *in_after;

    /* The collective, if there are no steps: `nbytes` are broadcast from the root; or, with root
     * -1, `count` elements are reduced in place on all ranks, in the library's order of
     * addition. */
    void *data;
    size_t nbytes;
    int root;
} ek_rail_job;

typedef enum ek_rail_state {
    EK_RAIL_BUSY = 0,
    EK_RAIL_ISSUED, /* the whole job is in the stream */
    EK_RAIL_DONE
} ek_rail_state;

/* One thread makes all calls except those of `reason`, `shares` and `identify`. No call waits for
 * another rank. */
typedef struct ek_rail_backend {
    /* Returns why this process can have no rails, for the end of a sentence; NULL if it can have
     * rails. */
    const char *(*reason)(void);
    /* Returns true if two ranks of a rail may be on one GPU. */
    bool (*shares)(void);
    /* Writes a name of the device's GPU that is unique on its machine. */
    int (*identify)(ek_dev *dev, char gpu[EK_RAIL_GPU]);

    /* Makes the name of a new rail. One rank calls this and passes the name to the other ranks. */
    int (*make_id)(ek_dev *dev, char id[EK_RAIL_ID]);
    /* Begins to make this rank's part of the rail. The part is ready when `test` returns
     * EK_RAIL_DONE. */
    int (*open)(ek_dev *dev, const char id[EK_RAIL_ID], int ranks, int rank, ek_rail **rail);
    /* Begins a job, while no other job of the rail runs. The device's earlier work with the job's
     * memory is done, and all ranks have begun the job or are about to begin it. */
    int (*begin)(ek_rail *rail, const ek_rail_job *job);
    /* Returns the state of the job (ek_rail_state). After a negative status the rail can only be
     * closed. */
    int (*test)(ek_rail *rail);
    /* Frees the rail, even while a job runs. Other ranks may then wait for this rank for ever. */
    void (*close)(ek_rail *rail);
} ek_rail_backend;

#endif
