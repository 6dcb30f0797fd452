/* picture.h: pictures from the generator, as a PNG file. */
#ifndef GAN_PICTURE_H
#define GAN_PICTURE_H

#include "gan/job.h"
#include "gan/network.h"

enum { GRID = 8, GAP = 2, GRID_SIDE = GRID * SIDE + (GRID + 1) * GAP };

/* GRID x GRID pictures of the generator in evaluation mode, always from the same noise, on a dark
 * ground: brightness, GRID_SIDE x GRID_SIDE. Returns 0 or a negative status. */
int picture_grid(gan_job *job, uint8_t *pixels);

/* Writes `pixels`, height x width of brightness, to `path`. Returns 0 or EK_E_IO. */
int picture_write(const char *path, const uint8_t *pixels, int height, int width);

#endif
