/* identity_samplers.c: samplers for re-identification, which learns from several pictures of one
 * person at a time. A pass consists of groups of num_instances samples of one identity, in a random
 * order. Numbers are drawn in the order of the Python classes RandomIdentitySampler and
 * DistributedRandomIdentitySampler, by generators like Python's `random` and NumPy's legacy
 * generator. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/python_random.h"
#include "data/sampler.h"

typedef struct identity_sampler {
    ek_index_sampler base; /* its samples lie in [0, count) */
    int64_t *members;      /* samples by identity; identities in the order of their first sample */
    int64_t *ends; /* identity i's members end before members[ends[i]]; freed with `members` */
    int64_t identities;
    int64_t most;      /* the most members of any identity */
    int64_t instances; /* samples in a group */
    int64_t groups;    /* groups of all ranks together */
    int num_replicas, rank;
    int64_t seed;
} identity_sampler;

/* ---- the samples of each identity ---- */

typedef struct sighting {
    int64_t identity, sample, first; /* first: the identity's first sample */
} sighting;

static int identity_order(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

static int identity_by_value(const void *left, const void *right)
{
    const sighting *a = left, *b = right;
    int order = identity_order(a->identity, b->identity);
    return order ? order : identity_order(a->sample, b->sample);
}

static int identity_by_first(const void *left, const void *right)
{
    const sighting *a = left, *b = right;
    int order = identity_order(a->first, b->first);
    return order ? order : identity_order(a->sample, b->sample);
}

/* Sorts by identity, identities in the order of their first sample, and samples of one identity in
 * ascending order. */
static void identity_sort(sighting *seen, const int64_t *identities, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        seen[i] = (sighting){identities[i], i, 0};
    qsort(seen, (size_t)count, sizeof *seen, identity_by_value);
    for (int64_t i = 0; i < count; i++)
        seen[i].first =
            i > 0 && seen[i].identity == seen[i - 1].identity ? seen[i - 1].first : seen[i].sample;
    qsort(seen, (size_t)count, sizeof *seen, identity_by_first);
}

static void identity_note(identity_sampler *self, const sighting *seen, int64_t count)
{
    for (int64_t i = 0, size = 0; i < count; i++) {
        self->members[i] = seen[i].sample;
        self->most = ++size > self->most ? size : self->most;
        if (i + 1 < count && seen[i + 1].first == seen[i].first)
            continue;
        self->ends[self->identities++] = i + 1;
        self->groups += size < self->instances ? 1 : size / self->instances;
        size = 0;
    }
}

static int identity_group(identity_sampler *self, const int64_t *identities, int64_t count)
{
    const int64_t limit = INT64_MAX / (int64_t)(2 * sizeof(int64_t));
    sighting *seen = ek_calloc((size_t)count + 1, sizeof *seen);
    self->members = self->base.owned = ek_calloc((size_t)count + 1, 2 * sizeof *self->members);
    if (!seen || !self->members) {
        free(seen);
        return EK_E_NO_MEMORY;
    }
    self->ends = self->members + count;
    identity_sort(seen, identities, count);
    identity_note(self, seen, count);
    free(seen);
    if (self->groups > 0 && self->instances > limit / self->groups)
        return EK_FAIL(EK_E_INVALID,
                       "identity samplers: %lld groups of num_instances %lld are more than any "
                       "memory holds",
                       (long long)self->groups, (long long)self->instances);
    /* The last groups are dropped if they don't suffice for all ranks. */
    self->base.length = self->groups / self->num_replicas * self->instances;
    self->base.room = self->groups * self->instances;
    return 0;
}

/* ---- drawing ---- */

/* Draws the samples of one identity, shuffled, and returns their number: all of them, or
 * num_instances drawn with replacement if there are fewer. */
static int64_t identity_draw(const identity_sampler *self, int64_t identity, int64_t *drawn)
{
    int64_t begin = identity ? self->ends[identity - 1] : 0;
    const int64_t *members = self->members + begin;
    int64_t size = self->ends[identity] - begin;
    if (size >= self->instances) {
        memcpy(drawn, members, (size_t)size * sizeof *drawn);
    } else {
        for (int64_t i = 0; i < self->instances; i++)
            drawn[i] = members[ek_numpy_below(NULL, size)];
        size = self->instances;
    }
    ek_python_shuffle(NULL, drawn, size, sizeof *drawn);
    return size;
}

/* Draws the groups of all ranks. */
static int identity_draw_groups(const identity_sampler *self, int64_t *indices)
{
    int64_t most = self->most > self->instances ? self->most : self->instances, drawn_count = 0;
    size_t group_nbytes = (size_t)self->instances * sizeof *indices;
    if (self->groups == 0)
        return 0;
    int64_t *drawn = ek_calloc((size_t)most, sizeof *drawn);
    if (!drawn)
        return EK_E_NO_MEMORY;
    for (int64_t i = 0; i < self->identities; i++) {
        int64_t size = identity_draw(self, i, drawn);
        size -= size % self->instances;
        memcpy(indices + drawn_count, drawn, (size_t)size * sizeof *drawn);
        drawn_count += size;
    }
    free(drawn);
    ek_python_shuffle(NULL, indices, self->groups, group_nbytes);
    return 0;
}

static int identity_fill(ek_index_sampler *self, int64_t *indices)
{
    return identity_draw_groups((identity_sampler *)self, indices);
}

static int identity_fill_rank(ek_index_sampler *base, int64_t *indices)
{
    const identity_sampler *self = (identity_sampler *)base;
    int64_t seed = (int64_t)((uint64_t)self->seed + (uint64_t)base->sampler.epoch);
    int64_t size = self->instances, from = self->rank * size, step = self->num_replicas * size;
    ek_python_seed(NULL, seed);
    ek_numpy_seed(NULL, (uint32_t)seed);
    EK_TRY(identity_draw_groups(self, indices));
    for (int64_t to = 0; to < base->length; to += size, from += step)
        memmove(indices + to, indices + from, (size_t)size * sizeof *indices);
    return 0;
}

static const ek_index_sampler_type random_identity_type =
    EK_INDEX_SAMPLER_TYPE("random_identity", identity_sampler, identity_fill);
static const ek_index_sampler_type distributed_identity_type =
    EK_INDEX_SAMPLER_TYPE("distributed_random_identity", identity_sampler, identity_fill_rank);

/* ---- making ---- */

/* num_replicas and rank are resolved already. */
static ek_sampler *identity_new(const ek_index_sampler_type *type, const char *function,
                                const ek_distributed_identity_options *options)
{
    int64_t instances = options->num_instances, count = options->count;
    if (ek_sampler_check_array(function, "the array of identities", options->identities, count) <
            0 ||
        ek_sampler_check_least(function, "num_instances", instances, 1) < 0)
        return NULL;
    identity_sampler *self = ek_index_sampler_new(type, count, 0);
    if (!self)
        return NULL;
    self->base.sampler.automatic_epochs = options->automatic_epochs;
    self->instances = instances;
    self->num_replicas = options->num_replicas;
    self->rank = options->rank;
    self->seed = options->seed;
    if (identity_group(self, options->identities, count) < 0) {
        ek_sampler_free(&self->base.sampler);
        return NULL;
    }
    return &self->base.sampler;
}

ek_sampler *ek_random_identity_sampler_with(ek_identity_sampler_options options)
{
    const ek_distributed_identity_options alone = {.identities = options.identities,
                                                   .count = options.count,
                                                   .num_instances = options.num_instances,
                                                   .num_replicas = 1};
    return identity_new(&random_identity_type, "random_identity_sampler", &alone);
}

ek_sampler *ek_distributed_random_identity_sampler_with(ek_distributed_identity_options options)
{
    static const char function[] = "distributed_random_identity_sampler";
    if (ek_sampler_find_rank(function, &options.num_replicas, &options.rank) < 0)
        return NULL;
    return identity_new(&distributed_identity_type, function, &options);
}
