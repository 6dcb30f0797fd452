/* gathering.h: sharded parameters that lie whole on a device only while somebody uses them.
 *
 * With EK_SHARD_PARAMETERS a bucket of a sharding (parallel/sharding.h) is a unit: parameters of
 * one dtype that are used together. On every device a unit has a storage with a residence
 * (core/tensor.h). The leaves, and their copies on the other devices, are members of these
 * storages. If an operation, a backward or a copy reads a member, ek_tensor_hold lets the residence
 * gather the unit: it makes memory and copies the owners' shards there. The memory stays until the
 * device needs it for another unit. Each device gathers when it needs to: nothing has to be agreed,
 * because shards change between a forward and its backward only if somebody writes to a parameter.
 * (On GPUs each copy orders the streams of both devices, see ek_dev_copy.)
 *
 * Note [Memory of units]
 *
 * A device keeps units until they would need more memory than the two largest together, so that the
 * unit whose forward comes last is there for its backward. It takes the memory of the unit that was
 * used least recently. It never takes the memory of a held unit, so that held units may need more.
 *
 * Note [Writes to leaves]
 *
 * A step writes the shards (ek_gathering_forget). Everybody else writes to a leaf, on the first
 * device: a loader of checkpoints, a user. The written elements go to the shards before the unit's
 * memory is taken, before the next forward and before the next step (ek_gathering_settle). */
#ifndef EK_PARALLEL_GATHERING_H
#define EK_PARALLEL_GATHERING_H

#include "core/tensor.h"
#include "evenkeel/module.h"

typedef struct ek_sharding ek_sharding;
typedef struct ek_gathering ek_gathering;

/* Lists the shards of each unit, for a sharding whose shards are made. NULL with an error. */
ek_gathering *ek_gathering_new(ek_sharding *sharding);
/* Frees it; its storages must be gone. NULL does nothing. */
void ek_gathering_free(ek_gathering *gathering);

/* Makes leaf i's member on device d, in the scope; the first member of a unit makes the unit's
 * storage, without memory. NULL with an error. */
ek_tensor *ek_gathering_member(ek_gathering *gathering, int d, int i);
/* Binds all leaves to their members on the first device, in the scope. On an error nothing has
 * changed. */
int ek_gathering_bind(ek_gathering *gathering);

/* With ranks. ek_gathering_is_written returns true if elements were written to leaves since
 * ek_gathering_shared, which is called when all ranks have written them to their shards. */
bool ek_gathering_is_written(const ek_gathering *gathering);
void ek_gathering_shared(ek_gathering *gathering);
/* Copies elements that were written to leaves to their shards (Note [Writes to leaves]). */
int ek_gathering_settle(ek_gathering *gathering);
/* Called after shards were written. Takes the memory of units that are not held, and copies the
 * shards to the units that are. After an error some units have old elements. */
int ek_gathering_forget(ek_gathering *gathering);
/* Notes that leaf i equals its shards. */
void ek_gathering_note(ek_gathering *gathering, int i);
/* Takes the memory of leaf i's unit on device d, whose elements a replica has changed. */
int ek_gathering_drop(ek_gathering *gathering, int d, int i);

/* Makes the leaves whole on the first device, after ek_gathering_settle: their storages have memory
 * from now on, and no residence. On an error (no memory) nothing has changed. */
int ek_gathering_end(ek_gathering *gathering);

/* Returns how many bytes were gathered so far, over all devices. */
uint64_t ek_gathering_nbytes(const ek_gathering *gathering);

/* ---- units.c ---- */

/* Writes the unit of each of the module's `count` parameters, which are in order of registration.
 * Returns how many units there are, or a negative status.
 *
 * A module that ek_shard_unit has marked is a unit, without the units inside of it. Other modules
 * are cut by size: neighbouring modules are one unit if together they have at most 1/16 of the
 * parameters' bytes. A larger module is cut into its children. A parameter of several modules is in
 * the unit of the first. */
int ek_units_assign(ek_module *module, ek_tensor *const *parameters, int count, int *units);

#endif
