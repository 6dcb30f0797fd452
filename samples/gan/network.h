/* network.h: a DCGAN for pictures of 32 x 32 (Radford et al. 2016). */
#ifndef GAN_NETWORK_H
#define GAN_NETWORK_H

#include "gan/settings.h"

enum { NOISE = 128, SIDE = 32 }; /* numbers of noise per picture; height and width */

/* Noise (N, NOISE, 1, 1) to pictures (N, 1, SIDE, SIDE) in (-1, 1). Its batch normalisation is
 * synchronised, so that several devices make the pictures that one would make. */
ek_module *generator_network(int width);

/* Pictures (N, 1, SIDE, SIDE) to scores (N, 1, 1, 1). */
ek_module *critic_network(int width, critic_norm norm);

#endif
