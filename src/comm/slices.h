/* slices.h: sums on one of several devices, of which each device adds a slice.
 *
 * If the other N - 1 devices sent their terms to the device of the sum, that device's link would
 * carry N - 1 times the data while all other links are idle. Instead each device gets its slice of
 * all terms, adds them in the fixed order, and sends the result to the device of the sum. No link
 * carries twice the data (the reduce-scatter and gather of Thakur, Rabenseifner and Gropp, 2005).
 */
#ifndef EK_COMM_SLICES_H
#define EK_COMM_SLICES_H

#include "comm/exchange.h"

/* Returns true if the devices can add slices of the sums: if all sums have one floating dtype and
 * lie on one device, each sum's tensors are alike, and every sum has a term of each device, all in
 * one order. */
bool ek_slices_can_add(const ek_addition *sums, int count);

/* Adds such sums by `collective`, which the devices offer, within a section of the devices. At most
 * two buckets of gradients (ek_lane_bucket) are added at once. A device needs twice their bytes,
 * and the device of the sums of two devices three times (EK_MEMORY_COMMUNICATION). If a device has
 * less memory left, EK_COMM_BUFFER_BYTES are enough. */
int ek_slices_add(const ek_addition *sums, int count, ek_collective collective);

#endif
