/* unit_reads.c: see unit_reads.h. */
#include "train/unit_reads.h"

#include <stdlib.h>

#include "link/staging.h"

enum { READS_ROOM = 3 }; /* units: one in use by each of two devices, and the next */

/* A unit that is read. `first` ends once somebody has taken the unit. */
typedef struct unit_read {
    enum { READ_NONE, READ_COMING, READ_AWAITED, READ_THERE } state;
    int unit;
    int takers;           /* how many have taken it and not given it back */
    bool first, stale;    /* stale: shards may have changed since it was started */
    uint32_t failures;    /* how many failures of the job there were when it was started */
    uint64_t used;        /* the time of the last taking */
    ek_tensor **parts;    /* per rank: its range; one reference each */
    ek_dist_work **works; /* per rank, while it is coming */
} unit_read;

struct ek_unit_reads {
    const ek_rank_sharding *sharding;
    int ranks;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    unit_read reads[READS_ROOM];
    uint64_t time;
    /* The unit that was taken first last; -1: none. followers[2 * u + way] is the unit that
     * followed unit u; way 0: when a unit with a smaller number had come before u; 1: with a larger
     * one. */
    int last, way;
    int *followers;
};

static void read_clear(const ek_unit_reads *reads, unit_read *read)
{
    for (int r = 0; r < reads->ranks; r++) {
        ek_object_release(read->parts[r]);
        read->parts[r] = NULL;
    }
    read->state = READ_NONE;
}

/* Returns true if this rank has returned the error of a failure that came after the unit was
 * started.
 */
static bool read_has_failed_before(const ek_unit_reads *reads, const unit_read *read)
{
    ek_communication *communication = reads->sharding->reducer->group->communication;
    pthread_mutex_lock(&communication->lock);
    bool known = communication->failures != read->failures && !communication->unreported;
    pthread_mutex_unlock(&communication->lock);
    return known;
}

/* Waits for all works of the unit, also after an error. An error that this rank has returned to its
 * program already is none here, but *stale becomes true. */
static int read_wait(const ek_unit_reads *reads, unit_read *read, bool *stale)
{
    const int pending = ek_error_status();
    const bool ended = !reads->sharding->reducer->group->communication;
    int rc = 0;
    *stale = ended || read_has_failed_before(reads, read);
    for (int r = 0; r < reads->ranks; r++) {
        ek_dist_work *work = read->works[r];
        read->works[r] = NULL;
        if (work && ended && !work->abandoned) /* the end of the world has waited for the work */
            ek_dist_work_free(work);
        int done = work && !ended ? ek_dist_wait(work) : 0;
        rc = rc < 0 ? rc : done;
    }
    if (rc >= 0 || !*stale)
        return rc;
    if (pending == 0)
        ek_error_clear();
    return 0;
}

/* Starts to read a unit from all other ranks. */
static int read_start(const ek_unit_reads *reads, unit_read *read, int unit)
{
    const ek_rank_sharding *s = reads->sharding;
    const int own = s->sharding.shards.ranks->rank;
    int rc = 0;
    read_clear(reads, read);
    read->stale = false;
    read->failures = s->reducer->group->communication->failures;
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    for (int r = 0; r < reads->ranks && rc >= 0; r++) {
        ek_shape shape = EK_SHAPE((int64_t)ek_rank_units_nbytes(s, unit, r));
        if (r == own || shape.dims[0] == 0)
            continue;
        read->parts[r] = ek_object_retain(ek_stage_memory(s->sharding.devs[0], EK_U8, &shape));
        read->works[r] =
            read->parts[r]
                ? ek_group_read(s->reducer->group, r, ek_rank_units_at(s, unit, r), read->parts[r])
                : NULL;
        rc = read->works[r] ? 0 : ek_error_pending();
    }
    ek_memory_set_category(before);
    ek_scope_end(&scope);
    if (rc < 0) {
        bool stale;
        read_wait(reads, read, &stale);
        read_clear(reads, read);
        return rc;
    }
    read->state = READ_COMING;
    read->unit = unit;
    read->takers = 0;
    read->first = true;
    return 0;
}

static unit_read *reads_find(ek_unit_reads *reads, int unit)
{
    for (int i = 0; i < READS_ROOM; i++)
        if (reads->reads[i].state != READ_NONE && reads->reads[i].unit == unit)
            return &reads->reads[i];
    return NULL;
}

/* Returns room for another unit: the one that was used least recently among those that nobody has
 * taken. NULL: there is none. */
static unit_read *reads_room(ek_unit_reads *reads)
{
    unit_read *oldest = NULL;
    for (int i = 0; i < READS_ROOM; i++) {
        unit_read *read = &reads->reads[i];
        if (read->state == READ_NONE)
            return read;
        if (read->state == READ_THERE && read->takers == 0 &&
            (!oldest || read->used < oldest->used))
            oldest = read;
    }
    return oldest;
}

/* Waits for a unit that is coming. The lock is given up meanwhile. */
static int reads_await(ek_unit_reads *reads, unit_read *read)
{
    read->state = READ_AWAITED;
    pthread_mutex_unlock(&reads->lock);
    bool stale;
    int rc = read_wait(reads, read, &stale);
    pthread_mutex_lock(&reads->lock);
    read->state = READ_THERE;
    read->stale = read->stale || stale;
    if (rc < 0)
        read_clear(reads, read);
    pthread_cond_broadcast(&reads->changed);
    return rc;
}

/* Returns the unit once it is there; NULL with an error. */
static unit_read *reads_get(ek_unit_reads *reads, int unit)
{
    for (;;) {
        unit_read *read = reads_find(reads, unit), *room;
        if (read && read->state == READ_THERE && !read->stale)
            return read;
        if (read && read->state == READ_THERE && read->takers == 0) {
            read_clear(reads, read);
            continue;
        }
        if (read && read->state == READ_COMING) {
            if (reads_await(reads, read) < 0)
                return NULL;
        } else if (!read && (room = reads_room(reads))) {
            if (read_start(reads, room, unit) < 0)
                return NULL;
        } else if (!read) { /* what was expected in vain may have the room */
            for (int i = 0; i < READS_ROOM && !room; i++)
                room = reads->reads[i].state == READ_COMING ? &reads->reads[i] : NULL;
            if (room && reads_await(reads, room) < 0)
                return NULL;
            if (!room)
                pthread_cond_wait(&reads->changed, &reads->lock);
        } else { /* another thread waits for it, or has a stale one */
            pthread_cond_wait(&reads->changed, &reads->lock);
        }
    }
}

/* Notes that the unit follows the last one, and starts to read what followed it before. */
static int reads_expect(ek_unit_reads *reads, int unit)
{
    const int last = reads->last;
    if (last >= 0)
        reads->followers[2 * last + reads->way] = unit;
    reads->way = last > unit;
    reads->last = unit;
    const int next = reads->followers[2 * unit + reads->way];
    unit_read *room = next >= 0 && !reads_find(reads, next) ? reads_room(reads) : NULL;
    const int pending = ek_error_status();
    int rc = room ? read_start(reads, room, next) : 0;
    if (rc != EK_E_OUT_OF_MEMORY && rc != EK_E_NO_MEMORY)
        return rc;
    if (pending == 0) /* without memory nothing is read ahead */
        ek_error_clear();
    return 0;
}

int ek_unit_reads_take(ek_unit_reads *reads, int unit, ek_tensor *const **parts)
{
    pthread_mutex_lock(&reads->lock);
    unit_read *read = reads_get(reads, unit);
    int rc = read ? 0 : ek_error_pending();
    if (read) {
        read->takers++;
        read->used = ++reads->time;
        *parts = read->parts;
        if (read->first)
            rc = reads_expect(reads, unit);
        read->first = false;
        read->takers -= rc < 0;
    }
    pthread_mutex_unlock(&reads->lock);
    return rc;
}

void ek_unit_reads_give(ek_unit_reads *reads, int unit)
{
    pthread_mutex_lock(&reads->lock);
    reads_find(reads, unit)->takers--;
    pthread_cond_broadcast(&reads->changed);
    pthread_mutex_unlock(&reads->lock);
}

void ek_unit_reads_outdate(ek_unit_reads *reads)
{
    pthread_mutex_lock(&reads->lock);
    for (int i = 0; i < READS_ROOM; i++)
        reads->reads[i].stale = true;
    pthread_mutex_unlock(&reads->lock);
}

int ek_unit_reads_drop(ek_unit_reads *reads)
{
    int rc = 0;
    pthread_mutex_lock(&reads->lock);
    for (int i = 0; i < READS_ROOM; i++) {
        bool stale;
        int done =
            reads->reads[i].state == READ_COMING ? read_wait(reads, &reads->reads[i], &stale) : 0;
        read_clear(reads, &reads->reads[i]);
        rc = rc < 0 ? rc : done;
    }
    reads->last = -1;
    pthread_mutex_unlock(&reads->lock);
    return rc;
}

ek_unit_reads *ek_unit_reads_new(const ek_rank_sharding *sharding)
{
    ek_unit_reads *reads = ek_calloc(1, sizeof *reads);
    if (!reads)
        return NULL;
    const int units = sharding->sharding.bucket_count;
    reads->sharding = sharding;
    reads->ranks = sharding->sharding.shards.ranks->size;
    reads->last = -1;
    pthread_mutex_init(&reads->lock, NULL);
    pthread_cond_init(&reads->changed, NULL);
    reads->followers = ek_calloc(2 * (size_t)units + 1, sizeof *reads->followers);
    bool made = reads->followers;
    for (int i = 0; i < READS_ROOM; i++) {
        unit_read *read = &reads->reads[i];
        read->parts = ek_calloc((size_t)reads->ranks, sizeof(ek_tensor *));
        read->works = ek_calloc((size_t)reads->ranks, sizeof(ek_dist_work *));
        made = made && read->parts && read->works;
    }
    for (int u = 0; u < 2 * units && made; u++)
        reads->followers[u] = -1;
    if (made)
        return reads;
    ek_unit_reads_free(reads);
    return NULL;
}

void ek_unit_reads_free(ek_unit_reads *reads)
{
    if (!reads)
        return;
    for (int i = 0; i < READS_ROOM; i++) {
        if (reads->reads[i].parts)
            read_clear(reads, &reads->reads[i]);
        free(reads->reads[i].parts);
        free(reads->reads[i].works);
    }
    pthread_cond_destroy(&reads->changed);
    pthread_mutex_destroy(&reads->lock);
    free(reads->followers);
    free(reads);
}
