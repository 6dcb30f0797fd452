/* world.c: see world.h. */
#include "core/world.h"

ek_world_place ek_world = {.rank = 0, .size = 1, .local_rank = 0, .local_size = 1};
