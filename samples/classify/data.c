#include "classify/data.h"

#include <stdlib.h>

#include "common/pictures.h"

/* Mean and deviation of the training pictures' channels, in [0, 1]. */
typedef struct source {
    picture_kind kind;
    ek_dataset *(*open)(const char *directory, bool train);
    double mean[3], deviation[3];
} source;

static const source sources[PICTURE_SETS] = {
    [FASHION_MNIST] = {{1, 10, 28}, ek_mnist, {0.2860}, {0.3530}},
    [CIFAR10] = {{3, 10, 32}, ek_cifar10, {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}},
};

const picture_kind *data_kind(picture_set set)
{
    return &sources[set].kind;
}

/* Of the size that the network is made for. */
static int check_pictures(const run_settings *settings, ek_dataset *dataset)
{
    const picture_kind *kind = data_kind(settings->set);
    ek_scope scope = ek_scope_begin();
    ek_tensor *first = ek_value_tensor(ek_value_at(ek_dataset_get(dataset, 0), 0));
    ek_shape wanted = EK_SHAPE(kind->channels, kind->side, kind->side);
    int rc = first ? 0 : ek_error_status();

    if (rc == 0) {
        ek_shape shape = ek_tensor_shape(first);
        char text[160], wanted_text[160];
        if (!ek_shape_equal(&shape, &wanted))
            rc = ek_error(EK_E_SHAPE, "%s: pictures are %s; those of %s are %s", settings->data,
                          ek_shape_text(&shape, text), set_names[settings->set],
                          ek_shape_text(&wanted, wanted_text));
    }
    ek_scope_end(&scope);
    return rc;
}

/* The first `count` samples; all for 0, or where there are no more. */
static ek_dataset *first_samples(ek_dataset *dataset, int64_t count)
{
    int64_t length = dataset ? ek_dataset_length(dataset) : 0;

    if (count == 0 || count >= length)
        return dataset;
    int64_t *indices = malloc((size_t)count * sizeof(*indices));
    for (int64_t i = 0; indices && i < count; i++)
        indices[i] = i;
    ek_dataset *subset = NULL;
    if (indices) {
        subset = ek_subset(dataset, indices, count);
    } else {
        ek_error(EK_E_NO_MEMORY, "no memory for %lld samples", (long long)count);
        ek_dataset_free(dataset);
    }
    free(indices);
    return subset;
}

ek_dataset *data_open(const run_settings *settings, bool train)
{
    const source *from = &sources[settings->set];
    const int channels = from->kind.channels;
    ek_dataset *pictures = from->open(settings->data, train);

    if (pictures && check_pictures(settings, pictures) < 0) {
        ek_dataset_free(pictures);
        return NULL;
    }
    pictures = first_samples(pictures, train ? settings->train_samples : settings->test_samples);
    if (!train || settings->plain)
        return ek_transformed(pictures, 0, ek_to_float(),
                              ek_normalize(from->mean, from->deviation, channels));
    /* Moved as bytes: a quarter of what floats are. */
    return ek_transformed(pictures, 0, ek_random_crop(from->kind.side, .padding = 2),
                          ek_random_horizontal_flip(0.5), ek_to_float(),
                          ek_normalize(from->mean, from->deviation, channels));
}

void data_explain(const char *program, const run_settings *settings)
{
    if (settings->set == FASHION_MNIST)
        pictures_explain(program, settings->data);
    else
        fprintf(stderr,
                "%s: --data %s must hold the six files of CIFAR-10's binary version: "
                "data_batch_1.bin to data_batch_5.bin and test_batch.bin\n",
                program, settings->data);
}

ek_loader *data_training(const run_settings *settings, ek_dataset *pictures,
                         const data_parts *parts)
{
    return ek_data_loader(.dataset = pictures, .shuffle = true, .batch_size = settings->batch,
                          .workers = (int)settings->workers, .device_ids = parts->devices,
                          .sizes = parts->sizes, .sizes_user = parts->user);
}

ek_loader *data_testing(const run_settings *settings, ek_dataset *pictures, ek_generator *random,
                        ek_device device)
{
    return ek_data_loader(.dataset = pictures, .batch_size = TESTED_AT_ONCE,
                          .workers = (int)settings->workers, .generator = random,
                          .device_ids = EK_DEVICES(device));
}
