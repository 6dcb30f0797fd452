/* job.h: generator and critic on their devices, and one step of each.
 *
 * Everything random is drawn on the CPU, for the whole batch, from the job's own generator: noise
 * first, then the penalty's numbers. So any number of devices, in either mode, sees the same ones.
 *
 * In balanced mode nothing meets on a device: pictures stay where the generator made them and go to
 * the critic as they are, and losses and norms are computed there. The one thing that needs whole
 * batches is the penalty's choice of points between real and made pictures: for it the made ones
 * are copied to plain memory (cpu), where the real ones are, so that it costs no device anything.
 */
#ifndef GAN_JOB_H
#define GAN_JOB_H

#include "gan/settings.h"

typedef struct gan_job {
    run_settings settings;
    ek_device_list devices;
    ek_module *generator, *critic;             /* the networks; owned by the models */
    ek_module *generator_model, *critic_model; /* their wrappers */
    ek_module *on_real, *on_fake, *on_made;    /* criteria; on_made is the generator's */
    ek_optimizer *generator_optimizer, *critic_optimizer;
    ek_generator *random;
} gan_job;

typedef struct critic_record {
    double loss, on_real, on_fake, penalty; /* the first is the sum of the others */
    double wasserstein, gradient_norm;
} critic_record;

/* Makes the networks from the seed. Returns 0 or a negative status; close it anyway. */
int job_open(gan_job *job, const run_settings *settings, const ek_device_list *devices);
void job_close(gan_job *job);

/* Noise for `count` pictures, on cpu. */
ek_tensor *job_noise(gan_job *job, int64_t count);
/* Pictures without history, by the generator in the mode that it is in: one tensor per device in
 * balanced mode on several devices, else one tensor. */
ek_value job_make(gan_job *job, ek_tensor *noise);

/* Leaves the gradients of the critic's loss on `real` (on cpu) and `made` (as job_make gives them,
 * or on cpu) in the critic's parameters. Three backwards, one per term, so that the activations of
 * one are gone before the next needs memory. */
int job_critic_gradient(gan_job *job, ek_tensor *real, ek_value made, critic_record *record);
/* The same for the generator; the critic's gradients are as before. */
int job_generator_gradient(gan_job *job, ek_tensor *noise, double *loss);

/* Draws, leaves gradients and steps. */
int job_critic_step(gan_job *job, ek_tensor *real, critic_record *record);
int job_generator_step(gan_job *job, int64_t count, double *loss);

#endif
