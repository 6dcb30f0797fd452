/* epochs.h: what a run keeps of its epochs: records of the finished ones, and sums over the steps
 * of the one under way. */
#ifndef SAMPLES_EPOCHS_H
#define SAMPLES_EPOCHS_H

#include "run.h"

typedef struct epoch_record {
    double train_loss; /* mean over the samples as they were trained on */
    double test_loss, test_accuracy;
    double seconds; /* the training's length */
    double waited;  /* seconds of these in which a step waited for its batch */
} epoch_record;

typedef struct epoch_sums {
    double loss, samples, seconds, waited;
} epoch_sums;

typedef struct epoch_list {
    epoch_record *records; /* owned */
    int64_t count;         /* finished epochs */
    epoch_sums now;
} epoch_list;

/* Makes room for `most` records, to be freed. 0 or EK_E_NO_MEMORY. */
int epochs_open(epoch_list *epochs, int64_t most);
/* Makes a record of the epoch under way, and begins the next. */
void epochs_end(epoch_list *epochs, double test_loss, double test_accuracy);
/* Lists records and sums in a checkpoint, `count` of the records when it is read. */
void epochs_checkpoint(epoch_list *epochs, const checkpoint *file);

/* The finished epoch with the best accuracy, the first of equals; -1 if there is none. */
int64_t epochs_best(const epoch_list *epochs);
/* Seconds of training and of waiting, over all finished epochs and the one under way. */
epoch_sums epochs_total(const epoch_list *epochs);
/* 0 of nothing. */
double share_of(double part, double whole);

/* A table; and an array "epochs" with the best accuracy behind it. */
void epochs_print(const epoch_list *epochs);
void epochs_json(json_writer *json, const epoch_list *epochs);
/* Seconds of training, of waiting, and the latter's share. */
void epochs_json_times(json_writer *json, double seconds, double waited);

#endif
