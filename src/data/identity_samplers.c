/* identity_samplers.c: samplers of re-identification, which learns from several pictures of the
 * same person at a time: groups of num_instances samples of one identity, in a random order. Drawn
 * as programs in Python do, with its `random` and NumPy's legacy generator. */
#include <stdlib.h>
#include <string.h>

#include "core/keywords.h"
#include "core/python_random.h"
#include "core/thread.h"
#include "data/samplers.h"

typedef struct identity_sampler {
    ek_ranged_sampler ranged; /* [0, count) */
    int64_t *members;         /* samples by identity, identities in the order of their first one */
    int64_t *ends;            /* identity i's members end before members[ends[i]] */
    int64_t identities;
    int64_t most;      /* members of an identity */
    int64_t instances; /* in a group */
    int64_t groups;    /* of all ranks */
    int num_replicas, rank;
    int64_t seed;
} identity_sampler;

/* ---- who belongs to whom ---- */

typedef struct sighting {
    int64_t identity, sample, first; /* sample of the identity */
} sighting;

static int order(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_identity(const void *left, const void *right)
{
    const sighting *a = left, *b = right;

    return a->identity == b->identity ? order(a->sample, b->sample)
                                      : order(a->identity, b->identity);
}

static int by_first(const void *left, const void *right)
{
    const sighting *a = left, *b = right;

    return a->first == b->first ? order(a->sample, b->sample) : order(a->first, b->first);
}

/* Sorted so that an identity's samples stand side by side in their order, and identities in that of
 * their first samples. */
static void sort(sighting *seen, const int64_t *identities, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        seen[i] = (sighting){identities[i], i, 0};
    qsort(seen, (size_t)count, sizeof *seen, by_identity);
    for (int64_t i = 0; i < count; i++)
        seen[i].first =
            i > 0 && seen[i].identity == seen[i - 1].identity ? seen[i - 1].first : seen[i].sample;
    qsort(seen, (size_t)count, sizeof *seen, by_first);
}

static void note(identity_sampler *self, const sighting *seen, int64_t count)
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

static int group(identity_sampler *self, const int64_t *identities, int64_t count)
{
    sighting *seen = ek_calloc((size_t)count + 1, sizeof *seen);

    self->members = ek_calloc((size_t)count + 1, sizeof *self->members);
    self->ends = ek_calloc((size_t)count + 1, sizeof *self->ends);
    if (!seen || !self->members || !self->ends) {
        free(seen);
        return EK_E_NO_MEMORY;
    }
    sort(seen, identities, count);
    note(self, seen, count);
    free(seen);
    const int64_t limit = INT64_MAX / (int64_t)(2 * sizeof(int64_t));
    if (self->groups > 0 && self->instances > limit / self->groups)
        return EK_FAIL(EK_E_INVALID,
                       "identity samplers: %lld groups of num_instances %lld are more than any "
                       "memory holds",
                       (long long)self->groups, (long long)self->instances);
    return 0;
}

/* ---- drawing ---- */

/* Of one identity: all its samples, or with replacement where there are too few, shuffled. Returns
 * how many `drawn` has. */
static int64_t draw_identity(const identity_sampler *self, int64_t identity, int64_t *drawn)
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

/* The groups of all ranks. */
static int draw_groups(const identity_sampler *self, ek_pass *pass)
{
    int64_t most = self->most > self->instances ? self->most : self->instances;
    size_t group_bytes = (size_t)self->instances * sizeof *pass->indices;

    EK_TRY(ek_pass_reserve(pass, self->groups * self->instances));
    if (self->groups == 0)
        return 0;
    int64_t *drawn = ek_calloc((size_t)most, sizeof *drawn);
    if (!drawn)
        return EK_E_NO_MEMORY;
    for (int64_t i = 0; i < self->identities; i++) {
        int64_t size = draw_identity(self, i, drawn);
        size -= size % self->instances;
        memcpy(pass->indices + pass->count, drawn, (size_t)size * sizeof *drawn);
        pass->count += size;
    }
    free(drawn);
    ek_python_shuffle(NULL, pass->indices, self->groups, group_bytes);
    return 0;
}

/* What is over when groups are dealt out evenly is dropped. */
static int64_t groups_of_rank(const identity_sampler *self)
{
    return self->groups / self->num_replicas;
}

static int64_t identity_length(ek_sampler *sampler)
{
    const identity_sampler *self = (identity_sampler *)sampler;

    return groups_of_rank(self) * self->instances;
}

static int random_identity_draw(ek_sampler *sampler, ek_pass *pass)
{
    return draw_groups((identity_sampler *)sampler, pass);
}

static int distributed_identity_draw(ek_sampler *sampler, ek_pass *pass)
{
    const identity_sampler *self = (identity_sampler *)sampler;
    int64_t seed = (int64_t)((uint64_t)self->seed + (uint64_t)sampler->epoch);
    int64_t size = self->instances;

    ek_python_seed(NULL, seed);
    ek_numpy_seed(NULL, (uint32_t)seed);
    EK_TRY(draw_groups(self, pass));
    pass->count = 0;
    for (int64_t i = 0; i < groups_of_rank(self); i++, pass->count += size)
        memmove(pass->indices + pass->count,
                pass->indices + (self->rank + i * self->num_replicas) * size,
                (size_t)size * sizeof *pass->indices);
    return 0;
}

static void identity_destroy(ek_sampler *sampler)
{
    free(((identity_sampler *)sampler)->members);
    free(((identity_sampler *)sampler)->ends);
}

const ek_sampler_type ek_random_identity_type = {.name = "random_identity",
                                                 .size = sizeof(identity_sampler),
                                                 .length = identity_length,
                                                 .draw = random_identity_draw,
                                                 .destroy = identity_destroy};

const ek_sampler_type ek_distributed_random_identity_type = {.name = "distributed_random_identity",
                                                             .size = sizeof(identity_sampler),
                                                             .length = identity_length,
                                                             .draw = distributed_identity_draw,
                                                             .destroy = identity_destroy};

/* ---- making ---- */

static ek_sampler *make(const ek_sampler_type *type, const char *function,
                        const ek_identity_sampler_options *options)
{
    int64_t instances = ek_integer_or(EK_GIVEN(options, num_instances, 2), 4);
    int num_replicas = (int)ek_integer_or(EK_GIVEN(options, num_replicas, 3), 1);

    if (options->count < 0 || (options->count > 0 && !options->identities)) {
        EK_FAIL(EK_E_INVALID, "%s: %s", function,
                options->count < 0 ? "the count is negative" : "the identities are NULL");
        return NULL;
    }
    if (instances < 1) {
        EK_FAIL(EK_E_INVALID, "%s: num_instances is %lld; it must be 1 or more", function,
                (long long)instances);
        return NULL;
    }
    if (ek_sampler_check_rank(num_replicas, options->rank, function) < 0)
        return NULL;
    identity_sampler *self = (identity_sampler *)ek_sampler_new(type);
    if (!self)
        return NULL;
    self->ranged.high = options->count;
    self->ranged.sampler.automatic_epochs = options->automatic_epochs;
    self->instances = instances;
    self->num_replicas = num_replicas;
    self->rank = options->rank;
    self->seed = options->seed;
    if (group(self, options->identities, options->count) < 0) {
        ek_sampler_free(&self->ranged.sampler);
        return NULL;
    }
    return &self->ranged.sampler;
}

ek_sampler *ek_random_identity_sampler_with(ek_identity_sampler_options options)
{
    if (options.num_replicas > 1 || options.rank || options.seed) {
        EK_FAIL(EK_E_INVALID,
                "random_identity_sampler: it has no ranks, and draws from the process' generators "
                "(ek_set_seed); num_replicas, rank and seed are "
                "ek_distributed_random_identity_sampler's");
        return NULL;
    }
    return make(&ek_random_identity_type, "random_identity_sampler", &options);
}

ek_sampler *ek_distributed_random_identity_sampler_with(ek_identity_sampler_options options)
{
    return make(&ek_distributed_random_identity_type, "distributed_random_identity_sampler",
                &options);
}
