/** @file
 * dataset.h: data sets: samples that can be read by index.
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
 * A sample is a value: a tensor on cpu, an integer or float, none, or a list or dictionary of
 * these. An input and its target are a list of two. All samples of a data set have the same
 * structure.
 *
 * Data sets are reference counted. A constructor gives the caller one reference. A function that
 * makes something of a data set (a subset, a transformed set, a loader) takes one reference over,
 * also if it fails. To go on using the data set yourself, pass ek_dataset_keep(dataset). NULL in
 * place of a data set gives the pending error. */
#ifndef EVENKEEL_DATASET_H
#define EVENKEEL_DATASET_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/device.h"
#include "evenkeel/random.h"
#include "evenkeel/tensor.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_dataset ek_dataset;

typedef struct ek_dataset_type {
    const char *name;
    size_t size; /**< size of the struct that embeds ek_dataset */

    /** The number of samples, which must not change while a thread reads. */
    int64_t (*length)(ek_dataset *self);

    /** Sample `index`, in [0, length), in the caller's scope; EK_VALUE_ERROR on error. Called by
     * several threads at a time. In a loader's thread, draws from the default generator (NULL) use
     * the generator that the loader has set up (evenkeel/loader.h). */
    ek_value (*get)(ek_dataset *self, int64_t index);

    /** Optional: makes samples[0..count-1] into one batch, as ek_collate would. The batch's tensors
     * lie on `device`: cpu, or a device whose memory the CPU can write to. For data sets that can
     * copy rows straight into a batch, without an allocation or a call per sample. Called by
     * several threads at a time. */
    ek_value (*get_batch)(ek_dataset *self, const int64_t *samples, int64_t count,
                          ek_device device);

    /** Optional: frees what the struct owns, and drops its data sets with ek_dataset_free. */
    void (*destroy)(ek_dataset *self);

    /** A data set without a length has open, next and close in place of length, get and get_batch
     * (evenkeel/iterable.h). `open` returns a cursor before the first sample, or NULL on error;
     * `epoch` is the number of the pass. `next` returns 1 with a sample in the caller's scope, 0 at
     * the end, or a negative status. One thread at a time uses a cursor. */
    void *(*open)(ek_dataset *self, int64_t epoch);
    int (*next)(ek_dataset *self, void *cursor, ek_value *sample);
    /** Optional: skips `count` samples, faster than by `next`. Returns how many were skipped. */
    int64_t (*skip)(ek_dataset *self, void *cursor, int64_t count);
    void (*close)(ek_dataset *self, void *cursor);
    /** Optional: finishes a sample that `next` has read (decoding, transforms). Called by several
     * threads at a time. Returns the finished sample, in the caller's scope. Draw random numbers
     * here, not in `next`: a run that is resumed reads samples again, but converts each once. */
    ek_value (*convert)(ek_dataset *self, ek_value sample);
} ek_dataset_type;

struct ek_dataset {
    const ek_dataset_type *type;
};

/** Makes a zeroed struct of type->size bytes with one reference. EK_E_INVALID for a type without a
 * name, with a size that is too small, or with neither length and get nor open, next and close. */
EK_API ek_dataset *ek_dataset_new(const ek_dataset_type *type);
/** Adds a reference; NULL stays NULL. Returns its argument. Any thread. */
EK_API ek_dataset *ek_dataset_keep(ek_dataset *dataset);
/** Drops a reference; NULL is ignored. Any thread. */
EK_API void ek_dataset_free(ek_dataset *dataset);
#define ek_dataset_free(dataset) ek_dataset_free(EK_PLACED(dataset))

/** The number of samples, or a negative status: the error that the type's `length` has set
 * (EK_E_INVALID if it has set none), or EK_E_INVALID for a data set without a length. */
EK_API int64_t ek_dataset_length(ek_dataset *dataset);
/** Returns one sample, in the scope; a negative index counts from the end. EK_E_INVALID if the
 * index is out of range. Errors of the type's `get` name the data set and the sample. */
EK_API ek_value ek_dataset_get(ek_dataset *dataset, int64_t index);
/** Returns one or more samples, each index in [0, length), as one batch in the scope. The type's
 * get_batch makes it; without get_batch, `get` reads the samples in order and ek_collate joins
 * them. `device` is cpu or a device whose memory the CPU can write to, else EK_E_DEVICE. An error
 * that one sample has caused names the sample. */
EK_API ek_value ek_dataset_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                     ek_device device);

/* ---- samples to batches ----
 *
 * As PyTorch's default_collate. Tensors of equal shape and dtype are stacked along a new dimension
 * 0. Integers become i64 (N), floats f64 (N). Lists and dictionaries are collated element by
 * element, and none stays none. Errors name the first sample that differs, and how. Tensors are
 * made in the scope, on `device`: cpu, or one whose memory the CPU can write to. */
/** Makes one batch of `count` samples. */
EK_API ek_value ek_collate(const ek_value *samples, int64_t count, ek_device device);

/* ---- data sets of data sets ---- */

EK_API ek_dataset *ek_tensor_dataset_of(ek_tensor *const *tensors, int count);
/** Sample i is row i of each of the tensors, as a list, or as a bare tensor if there is one. The
 * tensors lie on cpu and have equal sizes along dimension 0. The data set keeps its own references.
 * Row-major tensors are shared, and single samples are views of them: a write to a tensor or a
 * sample is seen in later samples. Other tensors, and batches, are copies. */
#define ek_tensor_dataset(...) \
    ek_tensor_dataset_of(EK_ITEMS(ek_tensor *, __VA_ARGS__), EK_COUNT(ek_tensor *, __VA_ARGS__))

typedef struct ek_token_options {
    int begin;         /**< no option, see base.h */
    ek_tensor *tokens; /**< whole numbers (N) on cpu, shared if they are row-major */
    int64_t length;    /**< tokens of a sample */
    const char *path;  /**< instead of a tensor: a file of nothing but tokens, which is mapped */
    int64_t stride
        EK_IS(EK_UNSET); /**< tokens between the beginnings of two samples; EK_UNSET: length */
    const char *type;    /**< the file's tokens: u8, i8, u16 (NULL), i16, u32, i32 or i64 */
} ek_token_options;
#define EK_DEFAULTS_ek_token_options EK_DEFAULT(stride, EK_UNSET)
EK_API ek_dataset *ek_token_dataset_with(ek_token_options options);
/** ek_token_dataset(tokens, 128) or ek_token_dataset(.path = "train.bin", .length = 128): what a
 * language model is trained on. Sample i is a list of two i64 tensors (length): tokens [i * stride,
 * i * stride + length), and as targets the tokens one position later. EK_E_SHAPE if there are fewer
 * than length + 1 tokens, EK_E_FORMAT for a file that ends within a token, EK_E_INVALID for
 * `tokens` with `path`, or `type` without `path`. If another process truncates the file, readers
 * are killed (SIGBUS). */
#define ek_token_dataset(...) \
    EK_CALL_2(ek_token_dataset_with, ek_token_options, tokens, length, __VA_ARGS__)

/** Makes a data set of the samples indices[0..count-1] of `dataset`. Indices are copied and may
 * repeat. EK_E_INVALID names the first index that is out of range. */
EK_API ek_dataset *ek_subset(ek_dataset *dataset, const int64_t *indices, int64_t count);

EK_API ek_dataset *ek_concat_dataset_of(ek_dataset *const *datasets, int count);
/** ek_concat_dataset(a, b): all samples of the first set, then of the second, and so on. A data set
 * that is given twice needs two references. */
#define ek_concat_dataset(...) \
    ek_concat_dataset_of(EK_ITEMS(ek_dataset *, __VA_ARGS__), EK_COUNT(ek_dataset *, __VA_ARGS__))

/** Cuts a random permutation of `dataset` into subsets, written to parts[0..count-1], as
 * torch.utils.data.random_split with the same generator. EK_E_INVALID if lengths do not add up to
 * the length of the set, or fractions to 1 within 1e-9. Lengths from fractions are rounded down,
 * and the samples that remain go one each to the first parts. On an error no part is made. */
EK_API int ek_random_split(ek_dataset *dataset, const int64_t *lengths, int count,
                           ek_generator *generator, ek_dataset **parts);
EK_API int ek_random_split_fractions(ek_dataset *dataset, const double *fractions, int count,
                                     ek_generator *generator, ek_dataset **parts);

typedef struct ek_partition_options {
    int begin; /**< no option, see base.h */
    ek_dataset *dataset;
    const double *sizes; /**< fractions, at most 1 together; NULL: {0.7, 0.2, 0.1} */
    int count;           /**< length of `sizes` */
    int64_t seed EK_IS(1234);
} ek_partition_options;
#define EK_DEFAULTS_ek_partition_options EK_DEFAULT(seed, 1234)
EK_API ek_dataset *ek_partition_with(int part, ek_partition_options options);
/** The partitioner of PyTorch's distributed tutorial: samples are shuffled by Python's
 * random.Random(seed).shuffle and cut into parts of int(fraction * length); the rest is dropped. */
/** ek_partition(0, dataset, .seed = 1): part 0 as a subset. */
#define ek_partition(part, ...) \
    EK_CALL_AFTER_1(ek_partition_with, (part), ek_partition_options, dataset, __VA_ARGS__)

/* ---- data sets from files (readers of single files: evenkeel/data.h) ---- */

/* ek_mnist, ek_cifar10 and ek_cifar100 hold all samples in memory. Each of their files may also end
 * in .gz; if both exist, the plain one is read. EK_E_IO if a file is unreadable, or missing (the
 * sentence then lists what the directory must hold). EK_E_FORMAT if a file is damaged. Error
 * sentences name the file. */

/** The MNIST family: <directory>/train-images-idx3-ubyte and train-labels-idx1-ubyte, or t10k-...
 * if `train` is false. A sample is (u8 (1, H, W), i64 scalar). EK_E_FORMAT if counts differ. */
EK_API ek_dataset *ek_mnist(const char *directory, bool train);
/** CIFAR-10: data_batch_[1-5].bin or test_batch.bin. A sample is (u8 (3, 32, 32), i64 scalar). */
EK_API ek_dataset *ek_cifar10(const char *directory, bool train);
/** CIFAR-100: train.bin or test.bin; 100 fine labels or 20 coarse ones. Samples are as those of
 * ek_cifar10. */
EK_API ek_dataset *ek_cifar100(const char *directory, bool train, bool coarse);

typedef struct ek_image_folder_options {
    int begin; /**< no option, see base.h */
    const char *root;
    int64_t max_pixels EK_IS(1 << 28); /**< the most pixels of a picture, 2^28 or less */
} ek_image_folder_options;
#define EK_DEFAULTS_ek_image_folder_options EK_DEFAULT(max_pixels, 1 << 28)
EK_API ek_dataset *ek_image_folder_with(ek_image_folder_options options);
/** Pictures in one directory per class, as torchvision's ImageFolder: all regular files below
 * <root>/<class> whose names end in .png, .jpg or .jpeg (or capitals). Classes are sorted by the
 * bytes of their names, pictures by those of their directories, then of their names. Symbolic links
 * are followed; a directory is not entered again within itself. A sample is (u8 (3, H, W), class as
 * an integer); files are read when their samples are. EK_E_INVALID if there is no class, if a class
 * has no picture (the sentence names it), and if links lead to more than 2^14 directories of one
 * class. EK_E_IO if a directory cannot be listed. A picture of more than .max_pixels is EK_E_FORMAT
 * when it is read: one of 2^28 takes some seconds and 2 GB, and its file may be as small as 60 KB.
 */
#define ek_image_folder(...) \
    EK_CALL_1(ek_image_folder_with, ek_image_folder_options, root, __VA_ARGS__)
/** The name of a class, and the path of a sample; valid as long as the folder. NULL with
 * EK_E_INVALID for a number out of range, or for a data set of another type. */
EK_API const char *ek_image_folder_class(ek_dataset *folder, int64_t number);
EK_API const char *ek_image_folder_path(ek_dataset *folder, int64_t index);

EK_END_DECLARATIONS
#endif
