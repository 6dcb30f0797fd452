/* tilt.h: the plans of the first forwards: a guess, and the same a little otherwise, so that fixed
 * and growing parts can be told apart. */
#ifndef EK_PLAN_TILT_H
#define EK_PLAN_TILT_H

#include "evenkeel/plan.h"

enum { EK_TILTS = 3 };

/* Moves part of the samples between neighbours, one way with tilt 0, the other way with tilt 1, not
 * at all with tilt 2. No device loses its last sample or gets above room[i]. `part` of the smaller
 * one's samples are moved, 1 at least. */
void ek_tilt(int tilt, double part, int devices, const int64_t *room, int64_t *sizes);

#endif
