/** @file
 * iterable.h: data sets without a length, which are read from beginning to end: PyTorch's
 * IterableDataset. Lines of a text, a file of tokens, a connection.
 *
 * Such a data set has `open` and `next` in place of length and get (evenkeel/dataset.h):
 *
 *     typedef struct { ek_dataset dataset; int64_t end; } counter;
 *
 *     static void *counter_open(ek_dataset *dataset, int64_t epoch)
 *     {
 *         (void)dataset, (void)epoch;
 *         return calloc(1, sizeof(int64_t));
 *     }
 *
 *     static int counter_next(ek_dataset *dataset, void *cursor, ek_value *sample)
 *     {
 *         int64_t *at = cursor;
 *         if (*at == ((counter *)dataset)->end)
 *             return 0;
 *         *sample = ek_value_of_int((*at)++);
 *         return 1;
 *     }
 *
 *     static void counter_close(ek_dataset *dataset, void *cursor)
 *     {
 *         (void)dataset;
 *         free(cursor);
 *     }
 *
 * One worker of a loader (evenkeel/loader.h) reads at a time: it reads the samples of the next
 * batch, then converts and collates them while another worker reads. So each sample comes once, and
 * the order is the same for any number of workers. With several ranks (evenkeel/dist.h), rank r of
 * R gets samples r, r + R, r + 2 R, ... With empty_batches all ranks return equally many batches.
 *
 * ek_transformed and its relatives (evenkeel/transform.h) take these data sets too; several workers
 * transform at a time. */
#ifndef EVENKEEL_ITERABLE_H
#define EVENKEEL_ITERABLE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/dataset.h"

EK_BEGIN_DECLARATIONS

/* ---- reading without a loader ---- */

typedef struct ek_iterator ek_iterator;

/** Makes an iterator before the first sample of a pass, owned by the caller. Any data set can be
 * iterated over; samples of one with a length come in the order of their indices. Takes over one
 * reference of the data set, also if it fails. `epoch` is the number of the pass, on which shuffled
 * orders depend. */
EK_API ek_iterator *ek_iterate(ek_dataset *dataset, int64_t epoch);
EK_API void ek_iterator_free(ek_iterator *iterator); /**< NULL is ignored */
#define ek_iterator_free(iterator) ek_iterator_free(EK_PLACED(iterator))
/** Returns 1 with the next sample, in the scope; 0 at the end, and from then on; or a negative
 * status. For one thread at a time. */
EK_API int ek_iterator_next(ek_iterator *iterator, ek_value *sample);
/** Skips `count` samples. Returns how many were skipped (fewer only at the end), or a negative
 * status. */
EK_API int64_t ek_iterator_skip(ek_iterator *iterator, int64_t count);

/* ---- the library's ---- */

typedef struct ek_text_lines_options {
    int begin; /**< no option, see base.h */
    const char *path;
    int64_t max_line EK_IS(1 << 26); /**< the most bytes of a line */
} ek_text_lines_options;
#define EK_DEFAULTS_ek_text_lines_options EK_DEFAULT(max_line, 1 << 26)
EK_API ek_dataset *ek_text_lines_with(ek_text_lines_options options);
/** ek_text_lines("corpus.txt.gz"): the lines of a text file, plain or gzip: u8 (bytes) without "\n"
 * or "\r\n". If the file cannot be read, opening it is EK_E_IO. A line longer than .max_line is
 * EK_E_FORMAT: some kilobytes of gzip can hold a line of gigabytes. */
#define ek_text_lines(...) EK_CALL_1(ek_text_lines_with, ek_text_lines_options, path, __VA_ARGS__)

typedef struct ek_token_stream_options {
    int begin;        /**< no option, see base.h */
    const char *path; /**< a file of nothing but tokens, plain or gzip */
    int64_t length;   /**< tokens of a sample */
    const char *type; /**< u8, i8, u16 (NULL), i16, u32, i32 or i64 */
} ek_token_stream_options;
#define EK_DEFAULTS_ek_token_stream_options EK_NO_DEFAULTS
EK_API ek_dataset *ek_token_stream_with(ek_token_stream_options options);
/** ek_token_stream("train.bin.gz", 128): ek_token_dataset's samples with a stride of `length`, read
 * from beginning to end instead of mapped: two i64 tensors (length), the second one token later. An
 * incomplete last sample is left out. EK_E_FORMAT for a file that ends within a token. */
#define ek_token_stream(...) \
    EK_CALL_2(ek_token_stream_with, ek_token_stream_options, path, length, __VA_ARGS__)

typedef struct ek_shuffled_options {
    int begin;                  /**< no option, see base.h */
    ek_dataset *dataset;        /**< one reference is taken over, also if it fails */
    int64_t buffer EK_IS(1000); /**< samples in the buffer */
    int64_t seed;
} ek_shuffled_options;
#define EK_DEFAULTS_ek_shuffled_options EK_DEFAULT(buffer, 1000)
EK_API ek_dataset *ek_shuffled_with(ek_shuffled_options options);
/** ek_shuffled(dataset, 10000): the samples of any data set, shuffled as by torch.utils.data's
 * Shuffler: samples are read into a buffer, and for each that is read a random one leaves the
 * buffer. The order depends on seed and epoch alone, so that ranks agree on it. Apply
 * ek_transformed after ek_shuffled: the buffer then holds samples that are not yet transformed. */
#define ek_shuffled(...) \
    EK_CALL_2(ek_shuffled_with, ek_shuffled_options, dataset, buffer, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
