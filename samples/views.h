/* views.h: a task of re-identification: views of Fashion-MNIST's pictures (views.c), and how well
 * features find the other views of a picture (retrieval.c). */
#ifndef SAMPLES_VIEWS_H
#define SAMPLES_VIEWS_H

#include "networks.h"
#include "run.h"

/* ---- views ----
 *
 * An identity is one picture, a garment. Its views are warped at random, brighter or darker, partly
 * covered, and noisy. View v is of camera v % VIEW_CAMERAS; cameras differ in tilt and exposure. */

enum { VIEW_SIDE = 28, VIEW_CAMERAS = 4 };

/* Sample i is view i % views of identity i / views: (u8 (1, VIEW_SIDE, VIEW_SIDE), i64 identity).
 * Identities are the first `count` pictures for training, or of those for testing. The same seed
 * gives the same views. NULL on an error: EK_E_INVALID if there are fewer pictures. */
ek_dataset *views_make(const char *directory, bool train, int64_t count, int64_t views,
                       uint64_t seed);
/* Draws batches of identities with `group` views each side by side, by seed and epoch. NULL on an
 * error. */
ek_sampler *views_sampler(int64_t identities, int64_t views, int64_t group, int64_t seed);

/* ---- retrieval ----
 *
 * A query is the first view of an identity by a camera, the gallery are all other views. Gallery
 * pictures of the query's own identity and camera are junk: they count neither as right nor as
 * wrong. */

enum { RETRIEVAL_DRAWN = 8, RETRIEVAL_SHOWN = 5 };

typedef struct retrieval {
    int64_t queries; /* 0: nothing was searched */
    double map;      /* mean over queries of the average precision */
    double rank1;    /* part of the queries whose nearest picture is right */
    double rank5;    /* part of the queries with a right picture among the nearest five */
    /* Of the first queries: the nearest of the gallery without junk; -1: none */
    int64_t nearest[RETRIEVAL_DRAWN][RETRIEVAL_SHOWN];
} retrieval;

/* Whose picture it is. */
typedef struct sighting {
    int64_t identity, camera;
} sighting;

/* Judges distances (queries, gallery) on cpu. Of equal distances the earlier is nearer. A query
 * without a right picture does not count. Returns 0 or a negative status. */
int retrieval_judge(ek_tensor *distances, const sighting *queries, const sighting *gallery,
                    retrieval *found);
/* Judges features (identities * views, F), a row per view in the order of views_make, by the
 * Euclidean distances of rows that are divided by their norms. Returns 0 or a negative status. */
int retrieval_of_features(ek_tensor *features, int64_t views, retrieval *found);
/* Judges the pixels of the views as features. */
int retrieval_of_pixels(ek_dataset *set, int64_t views, retrieval *found);
/* Return the row of the data set of a query and of a gallery picture. */
int64_t retrieval_query_row(int64_t query, int64_t views);
int64_t retrieval_gallery_row(int64_t index, int64_t views);
/* Returns the first queries, each before the nearest of the gallery, in rows of RETRIEVAL_SHOWN + 1
 * u8 pictures with a border, which is green for right pictures. NULL on an error. */
ek_tensor *retrieval_draw(const retrieval *found, ek_dataset *set, int64_t views);

#endif
