/** @file
 * log.h: runs that can be followed: numbers, pictures, texts and histograms by step, written while
 * the run goes on, and a line of progress.
 *
 *     ek_run_log *log = ek_log_open("runs/a");
 *     ek_progress *progress = ek_progress_begin(steps, .name = "train");
 *     for (int64_t step = 1; step <= steps; step++) {
 *         ... one training step ...
 *         ek_log_scalar(log, "loss/train", step, loss);
 *         ek_progress_step(progress, 1, "loss %.4f", loss);
 *     }
 *     ek_progress_end(progress);
 *     int rc = ek_log_close(log);
 *
 * A log is a directory, which `tensorboard --logdir runs` shows beside others:
 *
 *     events.out.tfevents.*  all entries, for TensorBoard; each opening begins a new file
 *     scalars.csv            numbers, in the columns step, wall_time, tag and value
 *     log.jsonl              all entries, one JSON object per line
 *     pictures/              the pictures that log.jsonl names
 *
 * The objects of log.jsonl are those of four functions; a value that is not finite is null there:
 *
 *     {"step", "wall_time", "tag", "value": 0.5}
 *     {"step", "wall_time", "tag", "text": "..."}
 *     {"step", "wall_time", "tag", "picture": "pictures/samples-000012.png"}
 *     {"step", "wall_time", "tag", "histogram": {"count", "min", "max", "sum", "sum_squares",
 *         "limits", "counts"}}
 *
 * counts[i] elements lie in [limits[i - 1], limits[i]).
 *
 * Crashes. Each entry is written by one system call and is in its file when the function returns:
 * readers see the entry at once, and a process that is killed loses none. ek_log_open removes a
 * last line that a crash has cut off. TensorBoard skips an entry that is cut off.
 *
 * Errors. Each function returns 0 or a negative status: EK_E_INVALID for a tag that is empty,
 * longer than 200 bytes, not UTF-8 or has control characters; EK_E_IO if a file cannot be written.
 * What was written of such an entry is removed from the file, and later entries are written.
 * ek_log_close returns the first error of all calls.
 *
 * Ranks. All ranks may call all functions, which are not collective: rank 0 of the job writes, and
 * calls of other ranks do nothing. Open logs after ek_dist_init_process_group.
 *
 * If the log is NULL, a function does nothing and returns the pending error's status, or 0. So
 * programs whose log is optional need no conditions. A log and a line of progress are each for one
 * thread at a time. */
#ifndef EVENKEEL_LOG_H
#define EVENKEEL_LOG_H
#pragma GCC system_header /* see base.h */

#include <stdio.h>

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_run_log ek_run_log;

typedef struct ek_run_log_options {
    int begin;             /**< no option, see base.h */
    const char *directory; /**< made with its parents if it is missing */
    /** Which files are written. */
    bool csv EK_IS(true), jsonl EK_IS(true), tensorboard EK_IS(true);
    /** For a run that is resumed from a checkpoint: the checkpoint's step. Entries of later steps
     * are removed, because the run makes them again; -1 removes all. EK_UNSET: entries are added to
     * those that are there. */
    int64_t resume_step EK_IS(EK_UNSET);
    int rank; /**< which rank writes; -1: each rank, to a directory of its own */
} ek_run_log_options;
#define EK_DEFAULTS_ek_run_log_options                                             \
    EK_DEFAULT(csv, true), EK_DEFAULT(jsonl, true), EK_DEFAULT(tensorboard, true), \
        EK_DEFAULT(resume_step, EK_UNSET)

EK_API ek_run_log *ek_log_open_with(ek_run_log_options options);
/** Opens a log, which ek_log_close frees. NULL with EK_E_IO if the directory cannot be made or
 * written. */
#define ek_log_open(...) EK_CALL_1(ek_log_open_with, ek_run_log_options, directory, __VA_ARGS__)

/** Writes a number, also NaN and infinities. TensorBoard shows numbers in f32. */
EK_API int ek_log_scalar(ek_run_log *log, const char *tag, int64_t step, double value);
/** Writes a grid of pictures, as ek_save_image does: (N, C, H, W), (C, H, W) or (H, W) on any
 * device; floating, in [0, 1], or u8. For another grid, pass ek_make_grid(pictures, .columns = 4).
 */
EK_API int ek_log_image(ek_run_log *log, const char *tag, int64_t step, ek_tensor *pictures);
/** Writes a text in UTF-8. TensorBoard reads Markdown. */
EK_API int ek_log_text(ek_run_log *log, const char *tag, int64_t step, const char *text);
/** Writes how the elements of a tensor of any dtype and on any device are distributed, in
 * TensorBoard's buckets, each a tenth wider than the one before. Elements that are not finite are
 * left out. */
EK_API int ek_log_histogram(ek_run_log *log, const char *tag, int64_t step,
                            const ek_tensor *tensor);
/** Waits until all is on the disk, and frees the log. Returns the first error of all calls, with
 * its sentence, or 0. */
EK_API int ek_log_close(ek_run_log *log);

/* ---- progress ---- */

/** A line of progress: on a terminal a bar, drawn at most ten times a second within the terminal's
 * width; in a file a line after the first step, every ten seconds and at the end:
 *
 *     train     step 24 of 96, 44 samples/s, 1:08 left, loss 0.4479
 */
typedef struct ek_progress ek_progress;

typedef struct ek_progress_options {
    int begin;                       /**< no option, see base.h */
    int64_t total;                   /**< steps until the end; 0: not known */
    const char *name;                /**< begins the line; copied; NULL: none */
    const char *unit EK_IS("steps"); /**< what the rate counts: "samples"; copied */
    double per_step EK_IS(1);        /**< how many units a step has */
    int64_t done;                    /**< steps before the line began, as in a resumed run */
    FILE *stream EK_IS(stderr);      /**< NULL: nothing is shown */
} ek_progress_options;
#define EK_DEFAULTS_ek_progress_options \
    EK_DEFAULT(unit, "steps"), EK_DEFAULT(per_step, 1), EK_DEFAULT(stream, stderr)

EK_API ek_progress *ek_progress_begin_with(ek_progress_options options);
/** Begins a line of progress, which ek_progress_end frees. Only rank 0 of the job shows it. */
#define ek_progress_begin(...) \
    EK_CALL_1(ek_progress_begin_with, ek_progress_options, total, __VA_ARGS__)
/** Counts `n` finished steps and sets the end of the line. If `format` is NULL, the end of the line
 * stays. Rate and time left follow the last half minute. While an error is pending, the call does
 * nothing, so that a failed step does not count. */
EK_API void ek_progress_step(ek_progress *progress, int64_t n, const char *format, ...)
    EK_PRINTF(3, 4);
/** Prints a line that stays, above the bar. Does nothing while an error is pending. */
EK_API void ek_progress_print(ek_progress *progress, const char *format, ...) EK_PRINTF(2, 3);
/** Shows the line for the last time, ends it and frees it. NULL is ignored, as by all of these. */
EK_API void ek_progress_end(ek_progress *progress);

EK_END_DECLARATIONS
#endif
