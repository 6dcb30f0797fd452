/* rail.h: what carries tensors between the devices of several processes without the host's memory:
 * a table of functions of a backend (backend.h). Device d of all ranks is a rail. Jobs run in
 * EK_STREAM_COMMUNICATE. */
#ifndef EK_CORE_RAIL_H
#define EK_CORE_RAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bytes.h"
#include "evenkeel/dist.h"

typedef struct ek_dev ek_dev;
typedef struct ek_rail ek_rail; /* this rank's part of a rail; defined by the backend */

enum {
    EK_RAIL_ID = 128, /* bytes of the name of a rail that is being made */
    EK_RAIL_GPU = 32  /* characters of a GPU's name */
};

/* What a rail has to do, on all its ranks alike. Three steps, of which the second and third may be
 * missing; or instead of them a step that the library behind it makes as it likes. Members are read
 * until the job is done. */
typedef struct ek_rail_job {
    /* 1: out[r] goes to rank r, and in[r] comes from there. What a rank has for itself is copied if
     * in[rank] is other memory. NULL: `data` instead. */
    const ek_bytes *out, *in;

    /* 2: sum[i] = terms[0][i] op terms[1][i] op ..., in the order of ranks, as ek_combine
     * (distributed/link/combine.h) to the bit. The term of rank r lies `stride` bytes after that of
     * rank r - 1, but this rank's own at `own`. `sum` may be `own`. Nothing if `sum` is NULL. */
    const char *terms, *own;
    size_t stride;
    void *sum;
    int64_t count;
    ek_dist_op op;
    ek_dtype dtype;

    /* 3: as the first; NULL: nothing. */
    const ek_bytes *out_after, *in_after;

    /* Instead: `nbytes` of the root to all, or, with root -1, `count` elements reduced in place on
     * all ranks, in an order of the library's. */
    void *data;
    size_t nbytes;
    int root;
} ek_rail_job;

typedef enum ek_rail_state {
    EK_RAIL_BUSY = 0,
    EK_RAIL_ISSUED, /* all of the job is in the stream */
    EK_RAIL_DONE
} ek_rail_state;

/* One thread makes all calls but `reason`, `shares` and `identify`. None waits for another rank. */
typedef struct ek_rail_backend {
    /* Why this process can have no rails, for the end of a sentence; NULL if it can. */
    const char *(*reason)(void);
    /* True if two ranks of a rail may be on one GPU. */
    bool (*shares)(void);
    /* Writes the name of the device's GPU, by which those of a machine differ. */
    int (*identify)(ek_dev *dev, char gpu[EK_RAIL_GPU]);

    /* Makes the name of a new rail, on one rank, which gives it to the others. */
    int (*make_id)(ek_dev *dev, char id[EK_RAIL_ID]);
    /* Begins to make a rank's part; it is there when `test` says EK_RAIL_DONE. */
    int (*open)(ek_dev *dev, const char id[EK_RAIL_ID], int ranks, int rank, ek_rail **rail);
    /* Begins a job, while none is under way. The device's work with the memory is done, and all
     * ranks have begun the job or are about to. */
    int (*begin)(ek_rail *rail, const ek_rail_job *job);
    /* How far the job is (ek_rail_state), or a negative status: the rail can only be closed then.
     */
    int (*test)(ek_rail *rail);
    /* Frees the rail, with a job under way too. Other ranks may then wait for this one for ever. */
    void (*close)(ek_rail *rail);
} ek_rail_backend;

#endif
