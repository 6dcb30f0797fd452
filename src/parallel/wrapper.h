/* wrapper.h: code that the data-parallel wrappers of this folder and of balance share.
 *
 * A wrapper is a module with one child, registered under the empty name, so that parameters have
 * the child's paths. If a wrapper has a single device and no shards, or is a replica (of a wrapper
 * within a wrapper), it makes plain calls: it calls its child directly, without replicas. */
#ifndef EK_PARALLEL_WRAPPER_H
#define EK_PARALLEL_WRAPPER_H

#include "core/device.h"
#include "evenkeel/parallel.h"
#include "parallel/call_guard.h"
#include "parallel/replica_set.h"
#include "plan/planner.h"

/* .shard of the wrapper that ek_distributed_data_parallel makes for EK_SHARD_PARAMETERS: the module
 * stays where it is, until it is sharded over the devices of all ranks. No user's number. */
enum { EK_SHARD_OVER_RANKS = 0x72616e6b };

/* The first member of every wrapper's struct. */
typedef struct ek_wrapper {
    ek_module module;
    ek_module *child;
    ek_device_list devices;       /* empty: calls are plain, on cpu */
    ek_dev *devs[EK_MAX_DEVICES]; /* looked up by ek_wrapper_begin */
    int dim;
    ek_call_guard *guard; /* shared with replicas, which don't enter it */
    ek_planner *planner;  /* the plan by which batches are cut */
    ek_running_stats running_stats;
    bool measures;            /* true with EK_SPLIT_AUTO */
    ek_shard_policy shards;   /* EK_SHARD_NONE: parameters and gradients are whole */
    bool offloads;            /* shards lie on cpu */
    bool calls_back;          /* modules are told of their replication */
    ek_replica_set *replicas; /* NULL: one device, and no shards */
} ek_wrapper;

/* Computes one device's part of a call. `module` is the device's replica; in a plain call, the
 * child. The output is in the caller's scope. */
typedef ek_value ek_part_function(ek_module *module, const ek_args *args, void *user);
/* Calls the module's forward; `user` is ignored. */
ek_value ek_part_forward(ek_module *module, const ek_args *args, void *user);

/* One call, cut for the devices that take part. Its values are in the caller's scope. */
typedef struct ek_wrapper_call {
    ek_rank_list ranks; /* indices into the wrapper's `devices` */
    ek_args args[EK_MAX_DEVICES];
} ek_wrapper_call;

/* The family of all wrappers' types. */
extern const char ek_wrapper_family[];

/* Makes a wrapper around options->module, which it owns from now on, even after an error. `type`
 * must have the wrappers' family, and ek_wrapper_destroy as `destroy`. Moves the module to the
 * first device and its parameters into slabs. Ignores output_device, output_on_cpu and plain. */
ek_wrapper *ek_wrapper_new(const ek_module_type *type, const ek_data_parallel_options *options);
void ek_wrapper_destroy(ek_module *module);
/* Logs one line if devices are unequal and the options don't provide for that. Unequal: the
 * smallest device has less than 3/4 of the largest's memory, or the slowest less than 3/4 of the
 * fastest's speed. The line suggests a plan. */
void ek_wrapper_warn(const ek_wrapper *wrapper, const ek_data_parallel_options *options);
/* EK_E_INVALID if the value is no offload policy. */
int ek_offload_check(const char *what, ek_offload_policy offload);
/* Returns the module as a wrapper; NULL, without an error, if it is no wrapper. */
ek_wrapper *ek_wrapper_of(ek_module *module);

/* ek_wrapper_enter makes the calling thread the only user of the wrapper, its replicas and its
 * plans, until ek_wrapper_leave (call_guard.h). A replica of a wrapper needs no guard, because one
 * worker alone uses it. */
int ek_wrapper_enter(ek_wrapper *wrapper);
void ek_wrapper_leave(ek_wrapper *wrapper);
/* Does a wrapper's forward: enters the guard, calls `forward`, leaves the guard. */
ek_value ek_wrapper_call_alone(ek_wrapper *wrapper, const ek_args *args,
                               ek_value (*forward)(ek_module *module, const ek_args *args));

/* Returns true if the wrapper makes plain calls. */
bool ek_wrapper_is_plain(const ek_wrapper *wrapper);

/* Makes a plain call: calls `function` for the child, with inputs moved to its device and joined.
 */
ek_value ek_wrapper_call_plain(ek_wrapper *wrapper, const ek_args *args, ek_part_function *function,
                               void *user);

/* Begins a call of several devices. Looks the devices up, because idle ones may have been closed
 * and opened again since the last call, and checks that the child is on the first. */
int ek_wrapper_begin(ek_wrapper *wrapper);

/* The devices that take part in a call and, if `sized`, the sizes of their chunks along `dim`:
 * sizes[i] is for the device ranks.at[i]. Otherwise scatter chooses the sizes, and may leave out
 * the last ranks. */
typedef struct ek_wrapper_cut {
    ek_rank_list ranks;
    bool sized;
    int64_t sizes[EK_MAX_DEVICES];
} ek_wrapper_cut;

/* Cuts the arguments of a call by `cut`. If cut is NULL, chooses the devices that take part; a call
 * without arguments takes the first device. */
int ek_wrapper_scatter(ek_wrapper *wrapper, const ek_wrapper_cut *cut, const ek_args *args,
                       ek_wrapper_call *call);

/* Runs `function` concurrently on replicas, each with its part of the call. Then copies the buffers
 * that the replicas wrote to the module. Writes one output per part, in the caller's scope. */
int ek_wrapper_run(ek_wrapper *wrapper, const ek_wrapper_call *call, ek_part_function *function,
                   void *user, ek_value *outputs);

/* Scatters and runs a forward of several devices. Writes one output per part and returns the number
 * of parts. */
int ek_wrapper_apply(ek_wrapper *wrapper, const ek_args *args, ek_value *outputs);

/* Writes the output device of an ek_data_parallel; does nothing for other modules. */
void ek_data_parallel_output(const ek_module *module, ek_device *device);

#endif
