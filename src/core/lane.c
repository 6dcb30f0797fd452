/* lane.c: see lane.h. */
#include "core/lane.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "core/worker.h"

/* The terms that a sum reads, and an event that was recorded after the sum. */
typedef struct lane_terms {
    struct lane_terms *next;
    ek_event *summed;
    size_t nbytes;
    int count;
    ek_tensor *tensors[];
} lane_terms;

typedef struct ek_lane {
    uint64_t drawn, turn; /* tickets; guarded by lane_order */
    ek_event *computed;   /* a section begins after this event; used by the section with the turn */
    bool fetches;         /* the section with the turn has fetched a block to the host */

    pthread_mutex_t lock; /* guards the members below */
    ek_event *exchanged;  /* recorded after the last section */
    bool ahead;           /* the compute stream has yet to wait for `exchanged` */
    bool fetched;         /* the host has yet to wait for blocks that are fetched */
    size_t nbytes;        /* bytes of all parked terms */
    lane_terms *first, **last;
} ek_lane;

/* Guards the tickets and the list of devices with lanes. */
static pthread_mutex_t lane_order = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t lane_turns = PTHREAD_COND_INITIALIZER;
static ek_dev_set lane_devs;
static atomic_int lanes_ahead; /* lanes that are `ahead` */

static _Thread_local const ek_deferral *deferral; /* of this thread's sections; NULL: none */

/* ---- sets of devices ---- */

int ek_dev_set_find(const ek_dev_set *set, const ek_dev *dev)
{
    int at = 0;
    while (at < set->count && set->devs[at] != dev)
        at++;
    return at;
}

int ek_dev_set_add(ek_dev_set *set, ek_dev *dev)
{
    int at = ek_dev_set_find(set, dev);
    if (at == set->count)
        set->devs[set->count++] = dev;
    return at;
}

void ek_dev_set_sort(ek_dev_set *set)
{
    for (int i = 1; i < set->count; i++) {
        ek_dev *dev = set->devs[i];
        int at = i;
        for (; at > 0 && ek_dev_compare(set->devs[at - 1], dev) > 0; at--)
            set->devs[at] = set->devs[at - 1];
        set->devs[at] = dev;
    }
}

/* ---- lanes ---- */

uint64_t ek_lane_bucket(ek_dev *dev)
{
    ek_memory_stats stats;
    if (!dev->lane)
        return 4 << 20;
    ek_ledger_read(dev, &stats);
    const uint64_t most = 25 << 20, share = stats.capacity / 32;
    return stats.capacity && share < most ? share : most;
}

int ek_lane_open(ek_dev *dev)
{
    if (!ek_dev_has_streams(dev))
        return 0;
    ek_lane *lane = ek_calloc(1, sizeof *lane);
    if (!lane)
        return ek_error_pending();
    pthread_mutex_init(&lane->lock, NULL);
    lane->last = &lane->first;
    dev->lane = lane;
    pthread_mutex_lock(&lane_order);
    ek_dev_set_add(&lane_devs, dev);
    pthread_mutex_unlock(&lane_order);
    return 0;
}

void ek_lane_close(ek_dev *dev)
{
    ek_lane *lane = dev->lane;
    if (!lane)
        return;
    ek_lane_join(dev);
    pthread_mutex_lock(&lane_order);
    lane_devs.devs[ek_dev_set_find(&lane_devs, dev)] = lane_devs.devs[lane_devs.count - 1];
    lane_devs.count--;
    pthread_mutex_unlock(&lane_order);
    ek_dev_free_event(dev, lane->computed);
    ek_dev_free_event(dev, lane->exchanged);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
    dev->lane = NULL;
}

/* ---- sections ---- */

static void section_take_turns(const ek_section *section)
{
    uint64_t tickets[EK_MOST_DEVICES];
    pthread_mutex_lock(&lane_order);
    for (int d = 0; d < section->count; d++)
        tickets[d] = section->devs[d]->lane->drawn++;
    for (int d = 0; d < section->count; d++)
        while (section->devs[d]->lane->turn != tickets[d])
            ek_work_wait(&lane_turns, &lane_order);
    pthread_mutex_unlock(&lane_order);
}

static void section_give_turns(const ek_section *section)
{
    pthread_mutex_lock(&lane_order);
    for (int d = 0; d < section->count; d++)
        section->devs[d]->lane->turn++;
    pthread_cond_broadcast(&lane_turns);
    pthread_mutex_unlock(&lane_order);
}

/* Returns the event after which a section begins on the device. */
static ek_event *section_computed(ek_dev *dev)
{
    for (int i = 0; deferral && i < deferral->count; i++)
        if (deferral->devs[i] == dev && deferral->computed[i])
            return deferral->computed[i];
    ek_dev_record_event(dev, EK_STREAM_COMPUTE, &dev->lane->computed);
    return dev->lane->computed;
}

static bool section_is_possible(ek_dev *const *devs, int count)
{
    bool possible = !ek_section_is_open() && !ek_forked();
    for (int d = 0; d < count; d++)
        possible = possible && devs[d]->lane;
    return possible;
}

static void section_begin(ek_section *section, ek_dev *const *devs, int count)
{
    *section = (ek_section){devs, count, false};
    if (count == 0)
        return;
    section_take_turns(section);
    for (int d = 0; d < count; d++)
        ek_dev_wait_event(devs[d], EK_STREAM_EXCHANGE, section_computed(devs[d]));
    ek_thread_self()->modes.stream = EK_STREAM_EXCHANGE;
}

void ek_section_begin(ek_section *section, ek_dev *const *devs, int count, bool fetches)
{
    bool needed = count > 1 || (count == 1 && fetches);
    section_begin(section, devs, needed && section_is_possible(devs, count) ? count : 0);
}

void ek_section_go_on(ek_section *section, ek_dev *const *dev, bool needed)
{
    section_begin(section, dev, needed && section_is_possible(dev, 1));
    section->deferred = true;
}

ek_stream ek_section_stream(ek_dev *const *devs, int count)
{
    return deferral && count > 1 && section_is_possible(devs, count) ? EK_STREAM_EXCHANGE
                                                                     : EK_STREAM_COMPUTE;
}

void ek_section_end(ek_section *section)
{
    ek_thread_modes *modes = &ek_thread_self()->modes;
    if (section->count == 0)
        return;
    modes->stream = EK_STREAM_COMPUTE;
    for (int d = 0; d < section->count; d++) {
        ek_lane *lane = section->devs[d]->lane;
        pthread_mutex_lock(&lane->lock);
        ek_dev_record_event(section->devs[d], EK_STREAM_EXCHANGE, &lane->exchanged);
        atomic_fetch_add(&lanes_ahead, !lane->ahead);
        lane->ahead = true;
        lane->fetched = lane->fetched || lane->fetches;
        lane->fetches = false;
        pthread_mutex_unlock(&lane->lock);
    }
    section_give_turns(section);
    for (int d = 0; d < section->count && !section->deferred && !deferral; d++)
        ek_lane_join(section->devs[d]);
}

int ek_lane_fetch(const ek_block_move *block)
{
    ek_dev *dev = block->from;
    ek_event *event = NULL;
    ek_dev_record_event(dev, EK_STREAM_EXCHANGE, &event);
    ek_dev_wait_event(dev, EK_STREAM_COMMUNICATE, event);
    int rc = ek_dev_download(dev, block->to, block->target, block->source, block->nbytes);
    ek_dev_record_event(dev, EK_STREAM_COMMUNICATE, &event); /* also after an error */
    ek_dev_wait_event(dev, EK_STREAM_EXCHANGE, event);
    ek_dev_free_event(dev, event);
    dev->lane->fetches = true;
    return rc;
}

const ek_deferral *ek_section_defer(const ek_deferral *next)
{
    const ek_deferral *before = deferral;
    deferral = next;
    return before;
}

/* ---- terms ---- */

static void terms_release(ek_dev *dev, lane_terms *terms)
{
    for (lane_terms *next; terms; terms = next) {
        next = terms->next;
        for (int i = 0; i < terms->count; i++)
            ek_release(terms->tensors[i]);
        ek_dev_free_event(dev, terms->summed);
        free(terms);
    }
}

/* Removes the lane's oldest terms while the lane holds more than `most` bytes, and returns these
 * terms as a list. The compute stream then waits for their sums. lane->lock is held. */
static lane_terms *terms_take(ek_dev *dev, uint64_t most)
{
    ek_lane *lane = dev->lane;
    lane_terms *taken = lane->first, **end = &taken;
    ek_event *summed = NULL;
    for (; *end && lane->nbytes > most; end = &(*end)->next) {
        lane->nbytes -= (*end)->nbytes;
        summed = (*end)->summed;
    }
    lane->first = *end;
    if (!lane->first)
        lane->last = &lane->first;
    *end = NULL;
    ek_dev_wait_event(dev, EK_STREAM_COMPUTE, summed); /* `summed` comes after all older sums */
    return taken;
}

void ek_lane_park(ek_dev *dev, ek_tensor *const *tensors, int count)
{
    ek_lane *lane = dev->lane;
    if (!lane || ek_forked())
        return;
    lane_terms *terms = calloc(1, sizeof *terms + (size_t)count * sizeof(ek_tensor *));
    if (!terms) { /* after a join nothing has to be kept */
        ek_lane_join(dev);
        return;
    }
    for (int i = 0; i < count; i++) {
        if (!tensors[i])
            continue;
        terms->tensors[terms->count++] = ek_keep(tensors[i]);
        terms->nbytes += (size_t)ek_count(tensors[i]) * ek_dtype_size(tensors[i]->dtype);
    }
    uint64_t most = 2 * ek_lane_bucket(dev);
    pthread_mutex_lock(&lane->lock);
    if (lane->ahead) {
        ek_dev_record_event(dev, EK_STREAM_EXCHANGE, &terms->summed);
        *lane->last = terms;
        lane->last = &terms->next;
        lane->nbytes += terms->nbytes;
        terms = terms_take(dev, most);
    }
    pthread_mutex_unlock(&lane->lock);
    terms_release(dev, terms);
}

void ek_lane_join(ek_dev *dev)
{
    ek_lane *lane = dev->lane;
    if (!lane || ek_forked())
        return;
    pthread_mutex_lock(&lane->lock);
    lane_terms *terms = lane->first;
    if (lane->ahead) {
        ek_dev_wait_event(dev, EK_STREAM_COMPUTE, lane->exchanged);
        atomic_fetch_sub(&lanes_ahead, 1);
    }
    const bool waits = lane->fetched;
    lane->ahead = lane->fetched = false;
    lane->first = NULL;
    lane->last = &lane->first;
    lane->nbytes = 0;
    pthread_mutex_unlock(&lane->lock);
    terms_release(dev, terms);
    ek_dev *host = waits ? ek_dev_get(ek_cpu()) : NULL;
    if (host)
        ek_dev_wait(host, dev);
}

void ek_lane_join_all(void)
{
    if (atomic_load(&lanes_ahead) == 0)
        return;
    pthread_mutex_lock(&lane_order);
    ek_dev_set devs = lane_devs;
    pthread_mutex_unlock(&lane_order);
    for (int d = 0; d < devs.count; d++)
        ek_lane_join(devs.devs[d]);
}
