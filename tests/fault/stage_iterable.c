/* stage_iterable.c: iterable.h: files read from beginning to end, by iterators and loaders. */
#include <stdio.h>
#include <string.h>

#include "fault.h"

static int iterable_set_up(int row)
{
    static const char text[] = "one\ntwo\n\nfour, which is longer\nfive";
    FILE *file = fopen(fault_path("lines.txt"), "wb");
    if (!file)
        return -1;
    fwrite(text, 1, sizeof text - 1, file);
    return fclose(file);
}

/* The rest of a pass. */
static int rest(ek_dataset *dataset)
{
    ek_iterator *iterator = ek_iterate(dataset, 1);
    ek_value sample;
    int status = iterator ? (int)ek_iterator_skip(iterator, 1) : ek_error_status();
    while (status >= 0 && (status = ek_iterator_next(iterator, &sample)) > 0)
        status = fault_note_value(sample);
    ek_iterator_free(iterator);
    return status;
}

static int read_lines(void)
{
    return rest(ek_text_lines(fault_path("lines.txt")));
}

static ek_dataset *tokens(void)
{
    return ek_token_stream(fault_path("lines.txt"), 4, .type = "u8");
}

static int read_tokens(void)
{
    return rest(tokens());
}

static int read_shuffled(void)
{
    return rest(ek_transformed(ek_shuffled(tokens(), 3), 0, ek_one_hot(256)));
}

static ek_loader *loader_of(int workers)
{
    return ek_data_loader(ek_transformed(ek_shuffled(tokens(), 3), 0, ek_to_float()),
                          .batch_size = 3, .workers = workers, .empty_batches = true);
}

/* A batch by one loader, and the rest by another. */
static int load(int workers)
{
    ek_loader *first = loader_of(workers), *second = first ? loader_of(workers) : NULL;
    ek_batch batch;
    int status = second ? ek_loader_next(first, &batch) : ek_error_status();
    if (status > 0)
        status = fault_note_value(batch.data);
    if (status >= 0)
        status = ek_loader_load_state(second, ek_loader_state(first));
    while (status >= 0 && (status = ek_loader_next(second, &batch)) > 0)
        status = fault_note_value(batch.data);
    ek_loader_free(first);
    ek_loader_free(second);
    return status;
}

static int load_here(void)
{
    return load(0);
}

static int load_by_worker(void)
{
    return load(1);
}

static const struct {
    const char *name;
    int (*read)(void);
} rows[] = {
    {"lines", read_lines}, {"tokens", read_tokens},    {"shuffled", read_shuffled},
    {"loader", load_here}, {"worker", load_by_worker},
};

static int iterable_attempt(int row)
{
    return rows[row].read();
}

FAULT_STAGE(iterable, FAULT_ROWS(rows), .set_up = iterable_set_up, .attempt = iterable_attempt,
            .files = true);
