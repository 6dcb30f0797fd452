/* data.h: the pictures, as batches for training and for testing. */
#ifndef CLASSIFY_DATA_H
#define CLASSIFY_DATA_H

#include "classify/settings.h"

/* What a network needs to know of a data set. */
typedef struct picture_kind {
    int channels, classes, side; /* pictures are `side` pixels high and wide */
} picture_kind;

const picture_kind *data_kind(picture_set set);

/* The pictures of training, changed a little each time they are asked for (unless --plain), or
 * those of the test, as they are: samples are (f32 picture, i64 class). NULL on error. */
ek_dataset *data_open(const run_settings *settings, bool train);
/* The line after such an error: what the directory must hold and where it comes from. */
void data_explain(const char *program, const run_settings *settings);

/* Where a batch goes: on one device whole, on several a part to each. */
typedef struct data_parts {
    ek_device_list devices;
    ek_sizes_function *sizes;
    void *user;
} data_parts;

/* Both take the data set over. Shuffled, by the default generator; */
ek_loader *data_training(const run_settings *settings, ek_dataset *pictures,
                         const data_parts *parts);
/* each sample once, in order, on one device. `random` is for the loader's use alone, so that
 * testing changes nothing in training. */
enum { TESTED_AT_ONCE = 64 }; /* few, so that a capacity which fits training fits this */
ek_loader *data_testing(const run_settings *settings, ek_dataset *pictures, ek_generator *random,
                        ek_device device);

#endif
