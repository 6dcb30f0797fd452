/* checkpoint.h: all that a run needs to go on as if it had not been stopped.
 *
 * An archive (evenkeel/archive.h): both networks' parameters and buffers ("critic.0.0.weight"),
 * both optimizers' states and step counts ("critic_optimizer.0.0.weight.exp_avg", ".steps"), the
 * state of the random numbers, the records of the steps so far, and as texts the step and the
 * settings that decide the numbers. The pictures' order follows from seed and step. Measured plans
 * are there too. */
#ifndef GAN_CHECKPOINT_H
#define GAN_CHECKPOINT_H

#include "gan/job.h"
#include "gan/records.h"

/* `step` generator steps are finished. Returns 0 or a negative status; an older file stays then. */
int checkpoint_save(const char *path, gan_job *job, const run_records *records, int64_t step);

/* Brings job and records to where the file left them. Mode and devices may be others than then;
 * EK_E_INVALID names the first other setting that differs. */
int checkpoint_load(const char *path, gan_job *job, run_records *records, int64_t *step);

/* The plans of "generator_plan" or "critic_plan" as text, to be freed; NULL, without an error,
 * where the file has none. */
char *checkpoint_plan(const char *path, const char *which);

#endif
