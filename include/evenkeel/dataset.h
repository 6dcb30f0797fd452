/* dataset.h: what there is to learn from: a number of samples, any of which can be asked for.
 *
 * A data set is a struct whose first member is an ek_dataset, with a type record, as modules are:
 *
 *     typedef struct { ek_dataset dataset; const float *rows; int64_t count; } table;
 *
 *     static int64_t table_length(ek_dataset *dataset)
 *     {
 *         return ((table *)dataset)->count;
 *     }
 *
 *     static ek_value table_get(ek_dataset *dataset, int64_t index)
 *     {
 *         const float *row = ((table *)dataset)->rows + 5 * index;
 *         return EK_LIST(ek_from_data(row, EK_SHAPE(5)), ek_value_of_int(index % 2));
 *     }
 *
 *     static const ek_dataset_type table_type = {
 *         .name = "table", .size = sizeof(table), .length = table_length, .get = table_get};
 *
 *     table *self = (table *)ek_dataset_new(&table_type);
 *
 * A sample is a value: a tensor on cpu, a whole or floating number, none, or a list or dictionary
 * of such; an input and its target are a list of two. All samples of a data set have the same
 * nesting.
 *
 * Data sets are counted. A constructor gives one reference to the caller. What is given data sets
 * (subsets, transformed sets, loaders) takes over one reference of each, also when it fails; who
 * wants to go on using one himself gives ek_dataset_keep(dataset). NULL in place of a data set
 * gives the pending error. */
#ifndef EVENKEEL_DATASET_H
#define EVENKEEL_DATASET_H

#include "evenkeel/device.h"
#include "evenkeel/random.h"
#include "evenkeel/tensor.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_dataset ek_dataset;

typedef struct ek_dataset_type {
    const char *name;
    size_t size; /* of the struct that embeds ek_dataset */

    /* How many samples there are; does not change while somebody reads. */
    int64_t (*length)(ek_dataset *self);

    /* Sample `index`, in [0, length), in the caller's scope; EK_VALUE_ERROR on error. Called by
     * several threads at a time. In a loader's thread, random numbers without a generator of their
     * own (NULL) are those that the loader has set up for it (evenkeel/loader.h). */
    ek_value (*get)(ek_dataset *self, int64_t index);

    /* Optional: the batch that samples[0..count-1] make (ek_collate), at once. Its tensors lie on
     * `device`, which is cpu or one whose memory the CPU can write to. For sets whose samples are
     * rows of something: nothing is then allocated, or called, per sample. Same threads as get. */
    ek_value (*get_batch)(ek_dataset *self, const int64_t *samples, int64_t count,
                          ek_device device);

    /* Optional: frees what the struct owns, data sets in it with ek_dataset_free. */
    void (*destroy)(ek_dataset *self);
} ek_dataset_type;

struct ek_dataset {
    const ek_dataset_type *type;
};

/* A zeroed struct of type->size bytes with one reference. EK_E_INVALID for a type without name,
 * length or get, or too small. */
EK_API ek_dataset *ek_dataset_new(const ek_dataset_type *type);
/* Adds a reference; NULL stays NULL. Returns its argument. Any thread. */
EK_API ek_dataset *ek_dataset_keep(ek_dataset *dataset);
/* Gives one back; NULL is ignored. Any thread. */
EK_API void ek_dataset_free(ek_dataset *dataset);

/* Negative status on error (the type's own, or EK_E_INVALID if it gives a negative number). */
EK_API int64_t ek_dataset_length(ek_dataset *dataset);
/* A sample; a negative index counts from the end. EK_E_INVALID out of range; errors of the type
 * name data set and sample. */
EK_API ek_value ek_dataset_get(ek_dataset *dataset, int64_t index);
/* Samples, at least one and each in [0, length), as one batch: the type's get_batch, or get for
 * each in order and ek_collate. `device` as there: EK_E_DEVICE for others. An error names the
 * sample if one sample is to blame. */
EK_API ek_value ek_dataset_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                     ek_device device);

/* ---- samples to batches ----
 *
 * As PyTorch's default_collate: tensors of equal shape and dtype are stacked along a new dimension
 * 0, whole numbers become i64 (N), floating ones f64 (N), lists and dictionaries are collated
 * element by element, none stays none. EK_E_SHAPE and others name the first sample that differs and
 * how. Tensors are made on `device`, cpu or one whose memory the CPU can write to. */
EK_API ek_value ek_collate(const ek_value *samples, int64_t count, ek_device device);

/* ---- data sets of data sets ---- */

/* Rows of tensors on cpu (sizes along dimension 0 equal): sample i is the list of each tensor's row
 * i, or the row itself if there is one tensor. Row-major tensors are shared, others copied: what
 * is written to them, or to a sample, which is a view of its row, is in later samples. Batches are
 * copies. Takes references to tensors, the caller keeps his own. */
EK_API ek_dataset *ek_tensor_dataset_of(ek_tensor *const *tensors, int count);
#define ek_tensor_dataset(...) \
    ek_tensor_dataset_of(EK_ITEMS(ek_tensor *, __VA_ARGS__), EK_COUNT(ek_tensor *, __VA_ARGS__))

/* Samples indices[0..count-1] (copied) of `dataset`: repeated ones are allowed. EK_E_INVALID names
 * the first that is out of range. */
EK_API ek_dataset *ek_subset(ek_dataset *dataset, const int64_t *indices, int64_t count);

/* All samples of the first, then of the second, and so on: ek_concat_dataset(a, b). One data set
 * given twice takes two references. */
EK_API ek_dataset *ek_concat_dataset_of(ek_dataset *const *datasets, int count);
#define ek_concat_dataset(...) \
    ek_concat_dataset_of(EK_ITEMS(ek_dataset *, __VA_ARGS__), EK_COUNT(ek_dataset *, __VA_ARGS__))

/* Cuts a random permutation of `dataset` into subsets, written to parts[0..count-1]: by `lengths`,
 * which add up to the set's, or by `fractions`, which add up to 1 within 1e-9 (each rounded down,
 * what is left dealt out one by one from the first), as torch.utils.data.random_split with the same
 * generator.
 * EK_E_INVALID otherwise. On an error no part is made. */
EK_API int ek_random_split(ek_dataset *dataset, const int64_t *lengths, int count,
                           ek_generator *generator, ek_dataset **parts);
EK_API int ek_random_split_fractions(ek_dataset *dataset, const double *fractions, int count,
                                     ek_generator *generator, ek_dataset **parts);

/* The partitioner of PyTorch's distributed tutorial: Python's random.Random(seed).shuffle of all
 * samples, cut in parts of int(fraction * length), the rest dropped. */
typedef struct ek_partition_options {
    const char *keywords;
    ek_dataset *dataset;
    const double *sizes; /* fractions, at most 1 together; default {0.7, 0.2, 0.1} */
    int count;           /* of sizes */
    int64_t seed;        /* default 1234 */
} ek_partition_options;
/* Part `part` as a subset. ek_partition(0, dataset, .seed = 1). */
EK_API ek_dataset *ek_partition_with(int part, ek_partition_options options);
#define ek_partition(part, ...) \
    ek_partition_with((part), EK_OPTIONS_1(ek_partition_options, dataset, __VA_ARGS__))

/* ---- data sets from files (readers of single files: evenkeel/data.h) ---- */

/* Whole in memory. Each file may also have .gz; if both are there, the plain one is read.
 * EK_E_IO for a file that is not there (with what the directory must hold) or cannot be read,
 * EK_E_FORMAT for one that is damaged; sentences name the file. */

/* The MNIST family: <directory>/train-images-idx3-ubyte and train-labels-idx1-ubyte, or t10k-...
 * for `train` false. Samples: u8 (1, H, W), i64 label. EK_E_FORMAT if the counts differ. */
EK_API ek_dataset *ek_mnist(const char *directory, bool train);
/* data_batch_1.bin to data_batch_5.bin, or test_batch.bin. Samples: u8 (3, 32, 32), i64 label. */
EK_API ek_dataset *ek_cifar10(const char *directory, bool train);
/* train.bin or test.bin. Labels: the 100 fine ones, or the 20 coarse ones. Samples as above. */
EK_API ek_dataset *ek_cifar100(const char *directory, bool train, bool coarse);

/* Pictures in one directory per class: regular files anywhere below <root>/<class> that end in
 * .png, .jpg or .jpeg (in any case). Classes in the order of their names' bytes, pictures in that
 * of their directories and names, as torchvision's ImageFolder. Symbolic links are followed; a
 * directory within itself is not entered again. Samples: u8 (3, H, W), read when they are asked
 * for; whole number: the class. EK_E_INVALID if there is no class, for classes without a picture
 * (named), and if links lead to more than 2^14 directories of one class; EK_E_IO if a
 * directory cannot be listed. */
EK_API ek_dataset *ek_image_folder(const char *root);
/* The name of a class and the path of a sample, as long as the folder is; NULL with EK_E_INVALID
 * out of range or for a data set of another type. */
EK_API const char *ek_image_folder_class(ek_dataset *folder, int64_t number);
EK_API const char *ek_image_folder_path(ek_dataset *folder, int64_t index);

EK_END_DECLARATIONS
#endif
