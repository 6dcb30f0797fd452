/* checkpoint.h: all that a run needs to go on as if it had not been stopped.
 *
 * An archive (evenkeel/archive.h): the network, the optimizer, the schedule, the training loader,
 * the random numbers, step, records and best accuracy, the plan of balanced-auto, and as texts
 * ("settings.lr") the settings that decide the numbers. */
#ifndef CLASSIFY_CHECKPOINT_H
#define CLASSIFY_CHECKPOINT_H

#include "classify/train.h"

/* Returns 0 or a negative status; an older file stays then. */
int checkpoint_save(const char *path, const train_run *run);

/* settings->resume, once its settings are found to be those asked for: EK_E_INVALID names the first
 * that differs. Mode, devices, loader workers and what is written where may be others. NULL on an
 * error; free it with ek_archive_free. */
ek_archive *checkpoint_open(const run_settings *settings);

/* The plan that the run followed, as long as the archive is open; NULL, without an error, where
 * there is none for so many devices, or no archive. */
const char *checkpoint_plan(const ek_archive *archive, int devices);

/* Brings a run that was opened with the archive's plan to where the file left it. */
int checkpoint_load(const ek_archive *archive, train_run *run);

#endif
