/* records.h: what each epoch measured. */
#ifndef CLASSIFY_RECORDS_H
#define CLASSIFY_RECORDS_H

#include <stdint.h>

typedef struct epoch_record {
    double train_loss; /* mean over the samples as they were trained on */
    double test_loss, test_accuracy;
    double seconds; /* of training: batches and steps */
    double waited;  /* of these for batches */
} epoch_record;

/* The epoch under way: sums over its steps so far. */
typedef struct epoch_sums {
    double loss, samples, seconds, waited;
} epoch_sums;

enum {
    RECORD_NUMBERS = sizeof(epoch_record) / sizeof(double),
    SUMS_NUMBERS = sizeof(epoch_sums) / sizeof(double)
};

typedef struct run_records {
    epoch_record *epochs; /* owned */
    int64_t count, room;  /* finished, and of the run */
    epoch_sums now;
} run_records;

/* Room for so many epochs. Returns 0 or a negative status; close it anyway. */
int records_open(run_records *records, int64_t epochs);
void records_close(run_records *records);

/* A step's mean loss over its samples, its seconds and those of them that it waited. */
void records_add(run_records *records, double loss, int64_t samples, double seconds, double waited);
/* Ends the epoch under way. */
void records_end_epoch(run_records *records, double test_loss, double test_accuracy);

/* The finished epoch with the best accuracy, the first of equals; -1 where there is none. */
int64_t records_best(const run_records *records);
/* Over all finished epochs and the one under way. */
epoch_sums records_total(const run_records *records);

#endif
