/* unit_reads.h: units that are read from other ranks by messages, ahead of their use.
 *
 * The devices of a rank gather the same units, in an order that repeats with every step. So what
 * was read for one device is kept for the others, and while a device computes with a unit, the unit
 * that followed it the last time is on its way. A few units have memory of the host meanwhile. */
#ifndef EK_TRAIN_UNIT_READS_H
#define EK_TRAIN_UNIT_READS_H

#include "train/rank_sharding.h"

typedef struct ek_unit_reads ek_unit_reads;

/* Makes room for reading the units of a sharding whose memory is served. NULL with an error. */
ek_unit_reads *ek_unit_reads_new(const ek_rank_sharding *sharding);
/* ek_unit_reads_drop must have come before. NULL is ignored. */
void ek_unit_reads_free(ek_unit_reads *reads);

/* Reads a unit, if it is not here. (*parts)[r] becomes rank r's range, in the host's memory; NULL
 * for this rank, and for empty ranges. The parts stay until ek_unit_reads_give. Any thread. */
int ek_unit_reads_take(ek_unit_reads *reads, int unit, ek_tensor *const **parts);
void ek_unit_reads_give(ek_unit_reads *reads, int unit);

/* Makes later takings read units anew, because a program has written to parameters. */
void ek_unit_reads_outdate(ek_unit_reads *reads);
/* Drops all units, because shards have changed or will. Waits for those that are on their way.
 * Nobody may have taken one. */
int ek_unit_reads_drop(ek_unit_reads *reads);

#endif
