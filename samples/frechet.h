/* frechet.h: how far made pictures are from real ones, as the Frechet distance of features (Heusel
 * et al. 2017). The features are those of a small classifier of the same pictures, trained for it,
 * not of a network for photographs: distances of one program's runs can be compared with each
 * other, and with those of noise and of training pictures, which are reported beside them. */
#ifndef SAMPLES_FRECHET_H
#define SAMPLES_FRECHET_H

#include "results.h"

/* Distances to as many test pictures. */
typedef struct frechet_result {
    int64_t pictures; /* 0: nothing was judged */
    double accuracy;  /* the classifier's, on these test pictures */
    double noise, generated, training;
} frechet_result;

/* Trains the classifier on cpu for `steps` steps from `seed`, then judges `made` (N, 1, 32, 32).
 * The data sets' samples are (f32 picture, i64 class of 10); they have at least N pictures, else
 * fewer are compared. Seeds the default generator. 0 or a negative status. */
int frechet_judge(ek_tensor *made, ek_dataset *training, ek_dataset *testing, int64_t steps,
                  uint64_t seed, frechet_result *result);
/* The distance of two normal distributions with the means and covariances of the rows of x and y
 * (N, F): |m_x - m_y|^2 + trace(C_x + C_y - 2 (C_x C_y)^(1/2)). 0 or a negative status. */
int frechet_distance(ek_tensor *x, ek_tensor *y, double *distance);

/* Whether so many pictures (--judged) can be judged: 0, or -1 after a complaint. */
int frechet_check_count(int64_t judged);
/* An object "frechet", and what to say of it; nothing if nothing was judged. */
void frechet_json(json_writer *json, const frechet_result *result);
void frechet_print(const frechet_result *result);

#endif
