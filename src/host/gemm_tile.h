/* gemm_tile.h: the tiles of a product that is computed in blocks (gemm_blocked.h). */
#ifndef EK_HOST_GEMM_TILE_H
#define EK_HOST_GEMM_TILE_H

#include <stdatomic.h>

#include "host/gemm.h"
#include "host/gemm_kernel.h"
#include "host/host.h"

/* If threads share packed a, a job is one part of a product: rows [row, row + rows) and [first,
 * first + depth) of k. Otherwise a job is all products. */
typedef struct ek_gemm_job {
    const ek_gemm *gemm;
    const ek_gemm_kernel *kernel;
    int64_t block;     /* The fixed length of a block of k. */
    bool shares_a;     /* Threads share packed a. */
    bool packs_chunks; /* A thread packs chunks of rows of a for itself. */
    bool far_a;        /* Rows of a are read in place, and prefetched. */
    bool direct_b;     /* Of b only columns that don't fill a vector are packed. */
    bool copies_b;     /* The first rows of a tile read b in place and pack it. */
    bool streams_b;    /* Few rows of b at a time are read in place. */
    int64_t chunk_rows;
    bool transposed; /* Rows and columns of c are exchanged. */
    int64_t batch, row, rows, first, depth;
    int64_t panel_rows, panel_columns;  /* Rows of a panel of a; columns of a panel of b. */
    int64_t group_columns, group_depth; /* The most of b that a thread works with at a time. */
    int64_t packed_columns;             /* The most columns of a group that a thread packs. */
    /* If c's columns aren't contiguous, sums are written to so many rows in the thread's workspace,
     * and from there to c; otherwise 0. */
    int64_t copied_rows;
    int64_t started_rows;      /* Rows whose sums over a part of a block the workspace holds. */
    int64_t row_tiles, groups; /* Tiles of a product's part: row_tiles x groups. */
    int64_t tiles, threads;    /* Tiles of the part; threads that take tiles. */
    void *packed_a;
    char *workspace; /* Packed b of each thread. */
    size_t workspace_stride;
    atomic_int next_thread;
    atomic_llong next_tile;
} ek_gemm_job;

/* Packs panels [begin, end) of the part's rows of a for all threads. `job` is an ek_gemm_job. */
void ek_gemm_pack_a_f32(void *job, int64_t begin, int64_t end);
void ek_gemm_pack_a_f64(void *job, int64_t begin, int64_t end);

/* Computes one tile after another until none is left. begin and end are ignored. */
void ek_gemm_compute_tiles_f32(void *job, int64_t begin, int64_t end);
void ek_gemm_compute_tiles_f64(void *job, int64_t begin, int64_t end);

#endif
