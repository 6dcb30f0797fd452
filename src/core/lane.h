/* lane.h: communication between devices of this process, beside what they compute.
 *
 * A section is the stretch in which a thread issues a communication among some devices. Their
 * EK_STREAM_EXCHANGE first waits for what their EK_STREAM_COMPUTE has been given so far. All that
 * the thread issues in the section, and the memory that it allocates there, belongs to
 * EK_STREAM_EXCHANGE (ek_thread_modes). At the end the compute streams wait for the exchange, or,
 * if the section is deferred, the next ek_lane_join makes them wait.
 *
 * Note [Sections have one order]. A section draws a ticket of each of its devices, all at once, and
 * begins when its turn has come on all of them. So any two sections have one order on all devices
 * that they share, and neither threads nor streams wait for each other in a circle. Nothing is
 * issued while the lock of the tickets is held, and sections of disjoint devices run side by side.
 *
 * Note [Deferred sections]. Backward sums a bucket of gradients while its kernels go on: the next
 * kernel does not wait for the sum, nor the sum for kernels that have been issued since its terms
 * were computed. Two things keep that safe. Only the sum's own stream writes and
 * reads its result until the join, which the engine makes before a result is used and at the end of
 * the pass. And the terms are parked: the lane holds them until the compute stream, to which their
 * memory goes back, comes after the sum. A sum that is added to a gradient lies in memory of
 * EK_STREAM_EXCHANGE, and the addition is a deferred section, too. What a lane may hold is bounded,
 * so that backward frees memory as it goes; the compute stream then waits for the oldest sum. The
 * bound counts bytes and doesn't look at the clock, so a pass needs the same memory every time. */
#ifndef EK_CORE_LANE_H
#define EK_CORE_LANE_H

#include "core/tensor.h"

/* A set of devices, in the order in which they were added. Starts as {0}. */
typedef struct ek_dev_set {
    int count;
    ek_dev *devs[EK_MOST_DEVICES];
} ek_dev_set;

/* Returns the device's index; set->count if the set doesn't have it. */
int ek_dev_set_find(const ek_dev_set *set, const ek_dev *dev);
/* Adds the device if the set doesn't have it. Returns its index. */
int ek_dev_set_add(ek_dev_set *set, ek_dev *dev);
/* Sorts by ek_dev_compare. */
void ek_dev_set_sort(ek_dev_set *set);

/* Opens and closes the lane of a device that has streams; others have none. For the registry,
 * core/device.c. The device is idle when its lane closes. */
int ek_lane_open(ek_dev *dev);
void ek_lane_close(ek_dev *dev);

typedef struct ek_section {
    ek_dev *const *devs; /* borrowed */
    int count;           /* 0: the section does nothing */
    bool deferred;       /* even if the thread's aren't */
} ek_section;

/* Begins a section among different devices. It does nothing within a section, which has to be one
 * of these devices too, for a single device, or if a device has no streams. Neither call fails. No
 * other lock may be held, and the thread must not wait for other threads before the end. */
void ek_section_begin(ek_section *section, ek_dev *const *devs, int count);
void ek_section_end(ek_section *section);

/* A deferred section of one device, which has streams, if `needed`: for what follows a deferred
 * section there. ek_section_end ends it. */
void ek_section_go_on(ek_section *section, ek_dev *const *dev, bool needed);

/* True within a section. */
static inline bool ek_section_is_open(void)
{
    return ek_thread_self()->modes.stream == EK_STREAM_EXCHANGE;
}

/* Why and after what sections are deferred. computed[i] was recorded in the compute stream of
 * devs[i] when it had got the kernels that write the section's terms: a section begins after these,
 * rather than after all that the compute stream has been given since. NULL entries: after all. */
typedef struct ek_deferral {
    ek_dev *const *devs;
    ek_event *const *computed;
    int count;
} ek_deferral;

/* Defers the sections of this thread (Note [Deferred sections]); NULL: no longer. Returns what held
 * before. */
const ek_deferral *ek_section_defer(const ek_deferral *deferral);

/* The stream for a result of the coming section among these devices: EK_STREAM_EXCHANGE if the
 * section is deferred. The result is then used in deferred sections only, or after the join, and
 * given back by them. */
ek_stream ek_section_stream(ek_dev *const *devs, int count);

/* Keeps terms of the deferred sections so far, which lie on `dev`, until its compute stream comes
 * after these. Retains them. NULL tensors are skipped. */
void ek_lane_park(ek_dev *dev, ek_tensor *const *tensors, int count);

/* Makes the device's compute stream wait for all sections so far, and releases what is parked. The
 * second form does so for all devices. Any thread. */
void ek_lane_join(ek_dev *dev);
void ek_lane_join_all(void);

#endif
