/* shards.h: shards that tests make by hand, with functions that do nothing. */
#ifndef EK_TESTS_KIT_SHARDS_H
#define EK_TESTS_KIT_SHARDS_H

#include <stdlib.h>

#include "autograd/shards.h"

static atomic_int shards_alive; /* the shards of this file that exist */

static inline void hand_shards_destroy(ek_object *object)
{
    atomic_fetch_sub(&shards_alive, 1);
    ek_shards_clear((ek_shards *)object);
    free(object);
}

static inline int hand_shards_refresh(ek_shards *shards)
{
    (void)shards;
    return 0;
}

static inline int hand_shards_publish(ek_shards *shards, int status)
{
    (void)shards;
    return status < 0 ? status : 0;
}

/* Makes the shards of one leaf, with one reference. NULL with an error. */
static inline ek_shards *hand_shards(int most)
{
    ek_shards *shards = calloc(1, sizeof *shards);
    if (!shards || ek_shards_init(shards, 1, most) < 0)
        return NULL;
    ek_object_init(&shards->object, hand_shards_destroy);
    shards->refresh = hand_shards_refresh;
    shards->publish = hand_shards_publish;
    atomic_fetch_add(&shards_alive, 1);
    return shards;
}

#endif
