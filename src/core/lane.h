/* lane.h: communication between devices of this process, concurrent with what they compute.
 *
 * A section is the stretch of code in which a thread issues a communication among some devices. The
 * EK_STREAM_EXCHANGE of each device first waits for the work issued to its EK_STREAM_COMPUTE so far
 * or, if the section is deferred, for the event in ek_deferral. All work that the thread issues in
 * the section, and all memory that it allocates there, belongs to EK_STREAM_EXCHANGE
 * (ek_thread_modes). At the end the compute streams wait for the exchange. If the section is
 * deferred, the compute streams wait at the next ek_lane_join instead.
 *
 * Note [Sections have one order]. A section draws a ticket from each of its devices, all under one
 * lock, and begins when its tickets are the next ones on all of these devices. So any two sections
 * have one order on all devices that they share, and neither threads nor streams wait for each
 * other in a circle. No work is issued while the lock of the tickets is held, and sections of
 * disjoint devices run concurrently.
 *
 * Note [Deferred sections]. Backward sums a bucket of gradients while its kernels run: the next
 * kernel does not wait for the sum, and the sum does not wait for kernels that were issued after
 * its terms were computed. Two rules make this safe. First, only EK_STREAM_EXCHANGE writes and
 * reads a sum's result until the join; the engine joins before a result is used and at the end of
 * backward. Second, the lane holds the terms (parks them) until the compute stream, to which the
 * terms' memory is given back, comes after the sum. A sum that is added to a gradient lies in
 * memory of EK_STREAM_EXCHANGE, and the addition is a deferred section, too. The bytes that a lane
 * holds are bounded, so that backward frees memory while it runs; at the bound the compute stream
 * waits for the oldest sum. The bound doesn't depend on time, so that backward needs equal memory
 * every time. */
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
/* Sorts the set by ek_dev_compare. */
void ek_dev_set_sort(ek_dev_set *set);

/* Returns how many bytes of gradients devices like this one sum at once: 25 MiB on a device with a
 * lane, as in PyTorch, or 1/32 of its capacity if that is less; 4 MiB on other devices. Parked
 * terms and what a device may be ahead in backward are bounded by two buckets. */
uint64_t ek_lane_bucket(ek_dev *dev);

/* Open and close the lane of a device that has streams; for other devices they do nothing. For the
 * registry, core/device.c. The device is idle when its lane closes. */
int ek_lane_open(ek_dev *dev);
void ek_lane_close(ek_dev *dev);

typedef struct ek_section {
    ek_dev *const *devs; /* borrowed */
    int count;           /* 0: the section does nothing */
    bool deferred;       /* deferred even if the thread's sections aren't (ek_section_defer) */
} ek_section;

/* Begin and end a section among different devices. Both do nothing for a single device, unless it
 * `fetches` blocks to the host, if a device has no streams, or within another section, which must
 * have all these devices. Neither fails. No lock may be held, and the thread must not wait for
 * other threads before the section ends. */
void ek_section_begin(ek_section *section, ek_dev *const *devs, int count, bool fetches);
void ek_section_end(ek_section *section);

/* If `needed`, begins a deferred section of one device, for work that follows a deferred section of
 * this device. Does nothing within another section, or if the device has no streams. ek_section_end
 * ends the section. */
void ek_section_go_on(ek_section *section, ek_dev *const *dev, bool needed);

/* Returns true within a section. */
static inline bool ek_section_is_open(void)
{
    return ek_thread_self()->modes.stream == EK_STREAM_EXCHANGE;
}

/* What deferred sections wait for. computed[i] was recorded in the compute stream of devs[i] after
 * the kernels that write the section's terms: a section waits for this event, and not for kernels
 * issued later. If the entry is NULL, or the device isn't listed, the section waits for all work
 * issued to the compute stream so far. */
typedef struct ek_deferral {
    ek_dev *const *devs;
    ek_event *const *computed;
    int count;
} ek_deferral;

/* Defers the sections of the calling thread (Note [Deferred sections]); NULL ends this. Returns the
 * deferral that was set before. */
const ek_deferral *ek_section_defer(const ek_deferral *deferral);

/* Returns the stream in which a result of the next section among these devices is allocated:
 * EK_STREAM_EXCHANGE if the section will be deferred, else EK_STREAM_COMPUTE. A result in
 * EK_STREAM_EXCHANGE may be used and released only in deferred sections or after the join. */
ek_stream ek_section_stream(ek_dev *const *devs, int count);

/* Within a section: copies a block to memory of the host, after what the section has issued to the
 * sending device and before what is issued to the section's streams later. Returns at once if the
 * memory is pinned for the device. The host has the block when the device's lane was joined. */
int ek_lane_fetch(const ek_block_move *block);

/* Retains tensors on `dev` that earlier deferred sections read, until the device's compute stream
 * comes after these sections. NULL tensors are skipped. */
void ek_lane_park(ek_dev *dev, ek_tensor *const *tensors, int count);

/* Makes the device's compute stream wait for all earlier sections, and releases the parked tensors.
 * If these sections have fetched blocks, the caller waits for them. ek_lane_join_all does this for
 * all devices. Any thread. */
void ek_lane_join(ek_dev *dev);
void ek_lane_join_all(void);

#endif
