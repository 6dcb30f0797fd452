/* stage_loader.c: dataset.h, transform.h, loader.h: a pass, its middle, its state. */
#include "fault.h"

enum { SAMPLES = 7 };

typedef struct loader_row {
    const char *name;
    int workers;
    bool parts;       /* per device */
    bool transforms;  /* drawing random numbers */
    bool stopped;     /* freed in the middle of a pass */
    bool resumed;     /* the state of the middle, in another loader */
    bool own;         /* a data set of one's own, collated by one's own function */
    bool worker_seed; /* PyTorch's seeds */
    bool empty;       /* a rank whose last batch is empty */
} loader_row;

static const loader_row rows[] = {
    {"plain", 0, false, false, false, false, false, false, false},
    {"transforms", 0, .transforms = true},
    {"workers", 2, .transforms = true},
    {"workers-parts", 2, .parts = true, .transforms = true},
    {"parts", 0, .parts = true},
    {"own", 1, .own = true, .worker_seed = true},
    {"stopped", 2, .parts = true, .stopped = true},
    {"resumed", 1, .transforms = true, .resumed = true},
    {"empty", 0, .transforms = true, .resumed = true, .empty = true},
    {"empty-parts", 2, .parts = true, .empty = true},
};

/* ---- a data set of one's own ---- */

typedef struct table {
    ek_dataset dataset;
} table;

static int64_t table_length(ek_dataset *dataset)
{
    return SAMPLES;
}

static ek_value table_get(ek_dataset *dataset, int64_t index)
{
    ek_value_entry entries[] = {{"x", EK_VALUE(ek_full((double)index, EK_SHAPE(1, 3, 3)))},
                                {"y", ek_value_of_float((double)index / 2)}};
    return ek_value_dict(entries, 2);
}

static const ek_dataset_type table_type = {.name = "table",
                                           .size = sizeof(table),
                                           .length = table_length,
                                           .get = table_get};

static ek_value collate(const ek_value *samples, int64_t count, void *user)
{
    return ek_collate(samples, count, ek_cpu());
}

static int sizes_even(int64_t batch, int64_t *sizes, void *user)
{
    sizes[0] = batch - batch / 2;
    sizes[2] = batch / 2;
    return 0;
}

static int worker_start(int worker, void *user)
{
    return worker < 0 ? -1 : 0;
}

/* ---- data ---- */

static ek_dataset *tensors(void)
{
    ek_tensor *x = ek_keep(ek_randn(EK_SHAPE(SAMPLES, 1, 3, 3)));
    ek_tensor *y = ek_keep(ek_randint(0, 3, EK_SHAPE(SAMPLES)));
    ek_dataset *dataset = ek_tensor_dataset(x, y);
    ek_release(x);
    ek_release(y);
    return dataset;
}

static ek_dataset *data(const loader_row *row)
{
    if (row->own)
        return ek_transformed_key(ek_dataset_new(&table_type), "x", ek_to_float());
    if (!row->transforms)
        return tensors();
    return ek_transformed(tensors(), 0, ek_random_crop(3, .padding = 1),
                          ek_random_horizontal_flip(0.5), ek_random_vertical_flip(0.5));
}

static ek_loader *make(const loader_row *row)
{
    ek_loader_options options =
        EK_OPTIONS(ek_loader_options, .dataset = data(row), .batch_size = 3, .shuffle = true,
                   .workers = row->workers,
                   .seeding = row->worker_seed ? EK_SEED_WORKER : EK_SEED_BATCH);
    if (row->empty) {
        options.shuffle = false;
        options.sampler = ek_distributed_sampler(SAMPLES, 2, 1, .padding = false);
        options.empty_batches = true;
    }
    if (row->own) {
        options.collate = collate;
        options.worker_start = worker_start;
    }
    if (row->parts) {
        options.device_ids = fault_devices();
        options.sizes = row->stopped ? sizes_even : NULL;
    }
    return ek_data_loader_with(options);
}

static int next(ek_loader *loader, ek_batch *batch)
{
    int status = ek_loader_next(loader, batch);
    if (status <= 0)
        return status;
    fault_note_bytes(batch->indices, (size_t)batch->count * sizeof *batch->indices);
    int noted = fault_note_value(batch->data);
    return noted < 0 ? noted : status;
}

/* The rest of the pass by another loader. */
static int resume(const loader_row *row, ek_loader *loader)
{
    ek_loader *other = make(row);
    ek_value state = ek_loader_state(loader);
    ek_batch batch;
    int status = other && state.kind != EK_VALUE_ERROR ? ek_loader_load_state(other, state)
                                                       : ek_error_status();
    while (status >= 0 && (status = next(other, &batch)) > 0)
        ;
    ek_loader_free(other);
    return status;
}

static int loader_attempt(int row)
{
    ek_batch batch;
    ek_loader *loader = make(&rows[row]);
    int64_t length = loader ? ek_loader_length(loader) : ek_error_status();
    int status = length < 0 ? (int)length : next(loader, &batch);
    if (status > 0 && rows[row].resumed)
        status = resume(&rows[row], loader);
    else
        while (status > 0 && !rows[row].stopped)
            status = next(loader, &batch);
    if (status >= 0 && rows[row].stopped)
        status = ek_loader_reset(loader);
    fault_note((double)length);
    ek_loader_free(loader);
    return status;
}

FAULT_STAGE(loader, FAULT_ROWS(rows), .attempt = loader_attempt);

/* ---- data sets of data sets, transforms ---- */

static ek_dataset *make_subset(void)
{
    return ek_subset(tensors(), (const int64_t[]){5, 1, 1}, 3);
}

static ek_dataset *make_concat(void)
{
    return ek_concat_dataset(tensors(), tensors());
}

static ek_dataset *make_split(void)
{
    ek_dataset *whole = tensors(), *parts[2] = {NULL};
    ek_random_split(whole, (const int64_t[]){3, 4}, 2, NULL, parts);
    ek_dataset_free(parts[0]);
    return parts[1];
}

static ek_dataset *make_fractions(void)
{
    ek_dataset *whole = tensors(), *parts[2] = {NULL};
    ek_random_split_fractions(whole, (const double[]){0.5, 0.5}, 2, NULL, parts);
    ek_dataset_free(parts[1]);
    return parts[0];
}

static ek_dataset *make_partition(void)
{
    return ek_partition(0, tensors(), .seed = 5);
}

static ek_dataset *make_pixels(void)
{
    const double mean = 0.5, std = 2;
    return ek_transformed(tensors(), 0, ek_normalize(&mean, &std, 1), ek_resize(5, 4),
                          ek_center_crop(4, 6, .fill = 1));
}

static ek_dataset *make_alike(void)
{
    ek_tensor *x = ek_ones(EK_SHAPE(3, 1, 2, 2)), *y = ek_zeros(EK_SHAPE(3, 1, 2, 2));
    return ek_transformed_alike(ek_tensor_dataset(x, y),
                                EK_FIELD(0, ek_random_crop(2, .padding = 1)),
                                EK_FIELD(1, ek_random_crop(2, .padding = 1, .fill = 2)));
}

static ek_dataset *make_augmented(void)
{
    const double values[] = {1};
    return ek_transformed(tensors(), 0, ek_pad_picture(1, EK_BORDER_REFLECT),
                          ek_random_erasing(1, .values = values, .channels = 1,
                                            .scale = {0.1, 0.3}),
                          ek_random_erasing(1, .random = true, .scale = {0.1, 0.3}),
                          ek_random_resized_crop(6, 7, .antialias = true),
                          ek_random_rotation(20, .bilinear = true), ek_random_affine(9),
                          ek_random_perspective(0.5, 1), ek_gaussian_blur(3), ek_color_jitter(0.4),
                          ek_random_grayscale(0.5), ek_random_invert(0.5),
                          ek_random_solarize(0.5, 0.5), ek_random_adjust_sharpness(2, 0.5),
                          ek_random_autocontrast(0.5),
                          ek_random_apply(1, ek_random_vertical_flip(0.5), ek_random_invert(1)),
                          ek_random_choice(ek_random_invert(0.5), ek_random_horizontal_flip(1)),
                          ek_random_order(ek_random_invert(0.5), ek_random_horizontal_flip(1)));
}

static ek_dataset *make_policies(void)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(3, 3, 6, 5), EK_U8);
    return ek_transformed(ek_tensor_dataset(x), 0, ek_auto_augment(EK_POLICY_SVHN),
                          ek_rand_augment(4), ek_trivial_augment_wide(),
                          ek_random_posterize(4, 0.5), ek_random_equalize(0.5), ek_grayscale(1));
}

static ek_dataset *make_one_hot(void)
{
    return ek_transformed(tensors(), 1, ek_one_hot(3));
}

static const struct {
    const char *name;
    ek_dataset *(*make)(void);
} sets[] = {
    {"tensors", tensors},          {"subset", make_subset},       {"concat", make_concat},
    {"split", make_split},         {"fractions", make_fractions}, {"partition", make_partition},
    {"pixels", make_pixels},       {"one-hot", make_one_hot},     {"alike", make_alike},
    {"augmented", make_augmented}, {"policies", make_policies},
};

static int datasets_attempt(int row)
{
    ek_dataset *dataset = sets[row].make();
    int64_t length = dataset ? ek_dataset_length(dataset) : ek_error_status();
    int status = length < 0 ? (int)length : 0;
    if (status >= 0)
        status = fault_note_value(ek_dataset_get(dataset, -1));
    if (status >= 0)
        status =
            fault_note_value(ek_dataset_get_batch(dataset, (const int64_t[]){1, 0}, 2, ek_host(0)));
    ek_dataset_free(dataset);
    return status;
}

FAULT_STAGE(datasets, FAULT_ROWS(sets), .attempt = datasets_attempt);
