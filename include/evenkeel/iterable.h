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
 * A loader (evenkeel/loader.h) reads it in turns: whichever worker makes the next batch reads that
 * batch's samples, and goes on to convert and collate them while another worker reads. So each
 * sample comes once, in the same order for any number of workers. Of several ranks
 * (evenkeel/dist.h), rank r of R gets samples r, r + R, r + 2 R, ... With empty_batches all ranks
 * give equally many batches.
 *
 * ek_transformed and its relatives (evenkeel/transform.h) take these data sets too; they transform
 * outside the turn. */
#ifndef EVENKEEL_ITERABLE_H
#define EVENKEEL_ITERABLE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/dataset.h"

EK_BEGIN_DECLARATIONS

/* ---- reading without a loader ---- */

typedef struct ek_iterator ek_iterator;

/** An iterator before the first sample of a pass, owned by the caller. Any data set can be iterated
 * over; one with a length gives its samples by index. Takes over one reference of the data set,
 * also if it fails. `epoch` is the number of the pass, on which shuffled orders depend. */
EK_API ek_iterator *ek_iterate(ek_dataset *dataset, int64_t epoch);
EK_API void ek_iterator_free(ek_iterator *iterator); /**< NULL is ignored */
/** Returns 1 with the next sample, in the scope; 0 at the end, and from then on; or a negative
 * status. For one thread at a time. */
EK_API int ek_iterator_next(ek_iterator *iterator, ek_value *sample);
/** Skips `count` samples. Returns how many there were to skip: fewer only at the end; or a negative
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
 * or "\r\n". EK_E_IO if the file cannot be read, when it is opened; EK_E_FORMAT for a longer line
 * than .max_line: some kilobytes of gzip can hold gigabytes without an end. */
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
 * from beginning to end instead of mapped: two i64 tensors (length), the second one token later. A
 * last window that is not full is left out. EK_E_FORMAT for a file that ends within a token. */
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
/** ek_shuffled(dataset, 10000): the samples of any data set, read into a buffer, from which a
 * random one is given for each that is read, as by torch.utils.data's Shuffler. The order follows
 * from seed and epoch alone, so that ranks agree on it. What comes after it is ek_transformed, so
 * that the buffer holds samples before they are transformed. */
#define ek_shuffled(...) \
    EK_CALL_2(ek_shuffled_with, ek_shuffled_options, dataset, buffer, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
