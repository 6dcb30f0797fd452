/* frechet.h: the Frechet distance of features (Heusel et al. 2017) between made pictures and real
 * pictures. The features are those of a small classifier that is trained on the real pictures, and
 * not of a network for photographs. So distances can be compared between runs of one program, and
 * with the distances of noise and of training pictures, which are reported beside them. */
#ifndef SAMPLES_FRECHET_H
#define SAMPLES_FRECHET_H

#include "results.h"

/* Distances to as many test pictures. */
typedef struct frechet_result {
    int64_t pictures; /* 0: nothing was judged */
    double accuracy;  /* the classifier's, on these test pictures */
    double noise, generated, training;
} frechet_result;

/* Trains the classifier on cpu for `steps` steps from `seed`, then judges `made` (N, 1, 32, 32) by
 * the pictures in the directory of --data. If the directory has fewer than N pictures, fewer are
 * compared. Seeds the default generator. Does nothing if an error is pending. Returns 0 or a
 * negative status. */
int frechet_judge(ek_tensor *made, const char *directory, int64_t steps, uint64_t seed,
                  frechet_result *result);
/* Computes the distance of two normal distributions with the means and covariances of the rows of x
 * and y (N, F): |m_x - m_y|^2 + trace(C_x + C_y - 2 (C_x C_y)^(1/2)). Returns 0 or a negative
 * status. */
int frechet_distance(ek_tensor *x, ek_tensor *y, double *distance);

/* Checks the number of --judged. Returns 0, or -1 after a complaint. */
int frechet_check_count(int64_t judged);
/* Write and print the distances. Do nothing if no picture was judged. */
void frechet_json(json_writer *json, const frechet_result *result);
void frechet_print(const frechet_result *result);

#endif
