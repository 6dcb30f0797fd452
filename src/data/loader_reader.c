/* loader_reader.c: reads a data set without a length for a loader.
 *
 * Workers read batch by batch: the maker of a batch reads its samples once those of the batch
 * before are read. So there is one iterator, and samples keep their order with any number of
 * workers. Converting, collating and copying a batch are concurrent with reading the next. This
 * rank takes every ek_world.size-th sample of the data set. */
#include "data/loader.h"

#include "core/world.h"
#include "data/dataset.h"

enum { FIRST_ROOM = 64 }; /* samples that a worker has room for at first */

/* ---- turns ---- */

/* Waits until the batch may be read. Returns false if the batch is no longer needed. */
static bool reader_await_turn(ek_loader *loader, int64_t number)
{
    if (loader->options.workers == 0)
        return true;
    ek_lock(&loader->lock);
    while (loader->reader.turn != number && !loader->stop)
        pthread_cond_wait(&loader->reader.turned, &loader->lock);
    bool mine = !loader->stop;
    ek_unlock(&loader->lock);
    return mine;
}

static void reader_pass_turn(ek_loader *loader, int64_t number)
{
    if (loader->options.workers == 0)
        return;
    ek_lock(&loader->lock);
    if (loader->reader.turn == number)
        loader->reader.turn++;
    ek_unlock(&loader->lock);
    pthread_cond_broadcast(&loader->reader.turned);
}

/* ---- this rank's samples ---- */

void ek_loader_reader_close(ek_loader_reader *reader)
{
    ek_iterator_free(reader->iterator);
    ek_value_release(reader->first);
    reader->iterator = NULL;
    reader->first = ek_value_none();
}

void ek_loader_reader_begin(ek_loader *loader, int64_t number, int64_t position)
{
    ek_loader_reader *reader = &loader->reader;
    ek_loader_reader_close(reader);
    reader->turn = number;
    reader->given = reader->position = position;
    reader->passed = 0;
    reader->ended = false;
}

/* Skips to a sample of the data set. Returns 1, 0 if the data set ends before this sample, or a
 * negative status. */
static int reader_skip_to(ek_loader_reader *reader, int64_t sample)
{
    int64_t skipped = ek_iterator_skip(reader->iterator, sample - reader->passed);
    if (skipped < 0)
        return (int)skipped;
    reader->passed += skipped;
    return reader->passed == sample;
}

static int reader_read(ek_loader_reader *reader, ek_value *sample)
{
    int rc = ek_iterator_read(reader->iterator, sample);
    if (rc != 0)
        reader->passed++;
    return rc;
}

/* Opens the data set. If there may be empty batches, keeps its first sample for them. */
static int reader_open(ek_loader *loader)
{
    ek_loader_reader *reader = &loader->reader;
    reader->passed = 0;
    reader->iterator = ek_iterate(ek_dataset_keep(loader->options.dataset), reader->epoch);
    if (!reader->iterator)
        return ek_error_pending();
    if (!loader->evens || ek_world.rank + reader->position == 0)
        return 0;
    int rc = reader_read(reader, &reader->first);
    if (rc > 0)
        ek_value_keep(reader->first);
    else
        ek_loader_reader_close(reader);
    reader->ended = rc == 0;
    return rc < 0 ? rc : 0;
}

/* Returns 1 with this rank's next sample, 0 at the end, or a negative status. At the end `passed`
 * is the data set's length. */
static int reader_next(ek_loader *loader, ek_value *sample)
{
    ek_loader_reader *reader = &loader->reader;
    if (!reader->ended && !reader->iterator)
        EK_TRY(reader_open(loader));
    if (reader->ended)
        return 0;
    int64_t wanted = reader->position * ek_world.size + ek_world.rank;
    int rc = reader_skip_to(reader, wanted);
    if (rc > 0)
        rc = reader_read(reader, sample);
    if (rc > 0 && wanted == 0 && loader->evens)
        reader->first = ek_value_keep(*sample);
    reader->ended = rc == 0;
    reader->position += rc != 0; /* a sample that failed is lost */
    return rc;
}

/* ---- batches ---- */

/* Returns the number of batches of the rank with the most. The data set has ended. */
static int64_t reader_longest(const ek_loader *loader)
{
    int64_t samples = loader->reader.passed, ranks = ek_world.size;
    return ek_loader_batches_of(loader, samples / ranks + (samples % ranks != 0));
}

/* Makes room for one more sample than `count`. The room grows with the samples read, because the
 * batch size may be far larger than the data set. */
static int reader_make_room(ek_loader_maker *worker, int64_t count)
{
    const int64_t full = worker->loader->batch_size;
    int64_t room = count < FIRST_ROOM ? FIRST_ROOM : 2 * count;
    if (count < worker->room)
        return 0;
    return ek_loader_room(worker, room < full ? room : full) ? 0 : EK_E_NO_MEMORY;
}

static int reader_fill(ek_loader_maker *worker, ek_loader_slot *slot)
{
    ek_loader *loader = worker->loader;
    int64_t count = 0, full = loader->batch_size;
    int rc = 1;
    while (count < full && rc > 0 && !ek_dataset_stopped()) {
        rc = reader_make_room(worker, count);
        if (rc == 0)
            rc = reader_next(loader, &worker->samples[count]);
        count += rc > 0;
    }
    slot->count = count < full && (rc < 0 || loader->options.drop_last) ? 0 : count;
    slot->position = loader->reader.position;
    slot->over =
        rc == 0 && slot->count == 0 && !(loader->evens && slot->number < reader_longest(loader));
    if (slot->count == 0 && rc == 0 && !slot->over)
        worker->samples[0] = loader->reader.first;
    return rc < 0 ? rc : 0;
}

int ek_loader_read(ek_loader_maker *worker, ek_loader_slot *slot)
{
    ek_loader *loader = worker->loader;
    slot->over = true; /* unless it is read */
    if (!reader_await_turn(loader, slot->number))
        return 0;
    int rc = reader_fill(worker, slot);
    slot->over = slot->over && rc == 0;
    reader_pass_turn(loader, slot->number);
    return rc;
}
