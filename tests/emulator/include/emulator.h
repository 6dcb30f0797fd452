/* emulator.h: what tests ask the emulator of CUDA. For C and C++.
 *
 * The emulator runs CUDA sources on the CPU: kernels are compiled as C++ against the headers beside
 * this one, and the runtime's functions queue work that runs as late as a real device's could: only
 * when the host waits for it, and then only what it waits for. What an order forgot to ask for is
 * therefore missing, every time.
 *
 * Read from the environment at the first call:
 *   EK_EMULATOR_ORDER            late (default); eager: at once, when issued; random:<seed>: some
 *                                queued work runs at any call
 *   EK_EMULATOR_DEVICES          devices, 1 by default; 0: cudaErrorNoDevice
 *   EK_EMULATOR_MEMORY           bytes of each device, with K, M or G; 1G by default
 *   EK_EMULATOR_CONTEXT          bytes that a device has beside, for its context; 0 by default
 *   EK_EMULATOR_LATER            bytes that a device's first kernel takes for modules, and each
 *                                rank of NCCL for its buffers; 0 by default
 *   EK_EMULATOR_PEERS            0: devices don't reach each other's memory
 *   EK_EMULATOR_CAPABILITY       90 by default
 *   EK_EMULATOR_MULTIPROCESSORS  4 by default
 *   EK_EMULATOR_KIND             1: libraries are kind (below); 0 by default
 *   EK_EMULATOR_LIBRARIES        what ek_emulator_has answers yes to: by default
 *                                "cublas,cublasLt,cudnn,nccl"
 *   EK_EMULATOR_WATCH            1: counts which memory operations touch (ek_emulator_watched)
 *   EK_EMULATOR_LOG              a file that gets a line for each operation when it is issued:
 * thread, device, stream and number of both, what it is, and what it waits for
 *
 * Libraries compute as NVIDIA's do: in which order the terms of a sum are added depends on sizes
 * and layouts. A problem has one order, but for cuDNN's nondeterministic engine, whose order
 * changes from run to run. If the libraries are kind, all sums have the order of their terms.
 *
 * cuDNN suggests five engines for every convolution, in this order:
 *   1  uses tensor cores           40 seconds, as events see it; for f32 operands cut to TF32
 *   0                              50 seconds
 *   3  fails when it is run
 *   2  is nondeterministic         30 seconds
 *   4  needs workspace             20 seconds
 * For a quarter of problems engines 1 and 2 change their places, for a quarter engines 1 and 4, and
 * engine 4 needs 12 to 32 MiB more than copies of the tensors. Kind libraries do neither.
 * What cuDNN leaves undefined of a recurrent network becomes NaN: gradients of steps beyond a
 * sample's length, and the last state of a sample without steps.
 * For weight gradients of 64 channels or more all of them need workspace for copies of tensors that
 * are not channels-last. */
#ifndef EK_EMULATOR_H
#define EK_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In place of dlopen and dlsym: whether there is such a library ("libcublas.so.13"), and a
 * function of one, NULL for what the emulator doesn't have. */
bool ek_emulator_has(const char *soname);
void *ek_emulator_symbol(const char *name);

/* Since the process started, or since ek_emulator_reset_counters. */
typedef struct ek_emulator_counters {
    uint64_t issued,
        executed;   /* operations: kernels, copies, fills, events, waits, host functions */
    uint64_t waits; /* calls that made the host wait, cudaFree and cudaMemcpy included */
    uint64_t kernels, products; /* executed: kernel launches, products of cuBLAS and cuBLASLt */
    uint64_t epilogues, plans;  /* executed: products with an epilogue; asked of its heuristic */
    uint64_t collectives;       /* executed: exchanges of NCCL */
    uint64_t groups, sent;  /* issued to NCCL: groups, counted per thread; bytes that leave a GPU */
    uint64_t copies, fills; /* issued: copies by cudaMemcpy, fills by cudaMemset */
    uint64_t convolutions[5]; /* executed: convolutions of cuDNN, by engine */
    uint64_t networks;        /* executed: calls of cuDNN for recurrent networks */
    uint64_t attentions;      /* executed: attention of cuDNN, and its gradients */
    uint64_t host_to_device, device_to_host, device_to_device, peer; /* bytes, when issued */
} ek_emulator_counters;
void ek_emulator_count(ek_emulator_counters *counters);
void ek_emulator_reset_counters(void);

/* What operations of one name have touched of devices' memory, since the counters were reset.
 * Blocks count as a whole: 4 KB, or more if devices have more than 128 MB in use. A block that is
 * written first and read afterwards by one operation counts as written. */
typedef struct ek_emulator_traffic {
    const char *name;                   /* of a kernel: its signature */
    uint64_t operations, read, written; /* bytes */
} ek_emulator_traffic;
/* Writes at most `most` rows, in any order, and returns how many. 0 without EK_EMULATOR_WATCH. */
size_t ek_emulator_watched(ek_emulator_traffic *rows, size_t most);

/* Operations that were issued and have not run. */
uint64_t ek_emulator_pending(void);

/* Returns true if the device has a context, which costs a GPU hundreds of megabytes. */
bool ek_emulator_has_context(int device);

/* Allocations of devices, or of pinned memory, that have not been given back; and bytes in them. */
size_t ek_emulator_device_allocations(int device);
size_t ek_emulator_device_bytes(int device);
size_t ek_emulator_pinned_allocations(void);
size_t ek_emulator_live_streams(void);
size_t ek_emulator_live_events(void);
size_t ek_emulator_live_communicators(void); /* of NCCL: one per rank */

/* Lets `after` calls of `function` pass, and the next one return `error` (a cudaError_t; for
 * functions of cuBLAS and NCCL, their status) without doing anything. Errors that break a device
 * (700, 719 and their like) stay: all later calls for that device return them. The function name
 * "kernel" stands for kernels' execution: the error comes with a later call that finds it. For
 * ncclCommGetAsyncError it is what NCCL reports. */
void ek_emulator_fail_next(const char *function, int error, int after);

/* Sets whether cuBLASLt's ReLU turns NaN into 0, as fmaxf(x, 0) does. By default NaN stays. */
void ek_emulator_relu_eats_nan(bool eats);

/* Forgets failures to come and broken devices. Returns how many functions had failures to come. */
int ek_emulator_recover(void);

#ifdef __cplusplus
}
#endif

#endif
