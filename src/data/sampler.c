/* sampler.c: passes, and what all samplers have: making, drawing, going on one by one. */

#include <stdlib.h>

#include "core/thread.h"
#include "data/samplers.h"

/* ---- passes ---- */

/* Grows *values to room for `count`, at least by half, so that adding one by one is linear. */
static int reserve(int64_t **values, int64_t *room, int64_t count)
{
    if (count <= *room)
        return 0;
    int64_t wanted = *room + *room / 2 < count ? count : *room + *room / 2;
    if (wanted > (int64_t)(PTRDIFF_MAX / sizeof **values))
        return EK_FAIL(EK_E_NO_MEMORY, "a pass of %lld samples does not fit into memory",
                       (long long)count);
    int64_t *grown = ek_realloc(*values, (size_t)(wanted < 16 ? 16 : wanted) * sizeof *grown);
    if (!grown)
        return EK_E_NO_MEMORY;
    *values = grown;
    *room = wanted < 16 ? 16 : wanted;
    return 0;
}

int ek_pass_reserve(ek_pass *pass, int64_t count)
{
    return reserve(&pass->indices, &pass->room, count);
}

int ek_pass_add(ek_pass *pass, int64_t index)
{
    if (!pass)
        return EK_FAIL(EK_E_INVALID, "pass_add: the pass is NULL");
    EK_TRY(reserve(&pass->indices, &pass->room, pass->count + 1));
    pass->indices[pass->count++] = index;
    return 0;
}

int ek_pass_end_batch(ek_pass *pass)
{
    if (!pass)
        return EK_FAIL(EK_E_INVALID, "pass_end_batch: the pass is NULL");
    EK_TRY(reserve(&pass->ends, &pass->ends_room, pass->batches + 1));
    pass->ends[pass->batches++] = pass->count;
    return 0;
}

void ek_pass_free(ek_pass *pass)
{
    if (!pass)
        return;
    free(pass->indices);
    free(pass->ends);
    *pass = (ek_pass){0};
}

/* ---- making ---- */

int ek_sampler_given(const ek_sampler *sampler, const char *function)
{
    if (sampler)
        return 0;
    return ek_error_status() ? ek_error_status()
                             : EK_FAIL(EK_E_INVALID, "%s: the sampler is NULL", function);
}

int ek_sampler_check_rank(int num_replicas, int rank, const char *function)
{
    if (num_replicas < 1)
        return EK_FAIL(EK_E_INVALID, "%s: num_replicas is %d; there has to be one at least",
                       function, num_replicas);
    if (rank < 0 || rank >= num_replicas)
        return EK_FAIL(EK_E_INVALID, "%s: Invalid rank %d, rank should be in the interval [0, %d]",
                       function, rank, num_replicas - 1);
    return 0;
}

ek_sampler *ek_sampler_new(const ek_sampler_type *type)
{
    if (!type || !type->name || !type->length || !type->draw || type->size < sizeof(ek_sampler)) {
        EK_FAIL(EK_E_INVALID,
                "sampler_new: %s; a type has a name, length, draw and the size of a struct that "
                "begins with an ek_sampler",
                !type           ? "the type is NULL"
                : !type->name   ? "the type has no name"
                : !type->length ? "the type has no length"
                : !type->draw   ? "the type has no draw"
                                : "the type's size is too small");
        return NULL;
    }
    ek_sampler *sampler = ek_calloc(1, type->size);
    if (!sampler)
        return NULL;
    sampler->type = type;
    sampler->position = -1;
    return sampler;
}

void ek_sampler_free(ek_sampler *sampler)
{
    if (!sampler)
        return;
    if (sampler->type->destroy)
        sampler->type->destroy(sampler);
    ek_sampler_free(sampler->inner);
    ek_pass_free(&sampler->pass);
    free(sampler);
}

int64_t ek_sampler_length(ek_sampler *sampler)
{
    EK_TRY(ek_sampler_given(sampler, "sampler_length"));
    int64_t length = sampler->type->length(sampler);
    if (length >= 0)
        return length;
    if (ek_error_status())
        return ek_error_status();
    return EK_FAIL(EK_E_INVALID, "sampler_length: sampler \"%s\" gives %lld", sampler->type->name,
                   (long long)length);
}

int ek_sampler_set_epoch(ek_sampler *sampler, int64_t epoch)
{
    EK_TRY(ek_sampler_given(sampler, "sampler_set_epoch"));
    for (; sampler; sampler = sampler->inner)
        sampler->epoch = epoch;
    return 0;
}

/* ---- drawing ---- */

/* What a type's draw has left: its batches hold all samples, none is empty. */
static int check_pass(const ek_sampler *sampler, const ek_pass *pass)
{
    const char *name = sampler->type->name;
    int64_t begin = 0;

    if (!sampler->type->makes_batches)
        return pass->batches == 0
                   ? 0
                   : EK_FAIL(EK_E_INVALID,
                             "sampler_draw: sampler \"%s\" ended a batch, but its type does not "
                             "say makes_batches",
                             name);
    for (int64_t b = 0; b < pass->batches; begin = pass->ends[b++])
        if (pass->ends[b] == begin)
            return EK_FAIL(EK_E_INVALID, "sampler_draw: batch %lld of sampler \"%s\" is empty",
                           (long long)b, name);
    if (begin != pass->count)
        return EK_FAIL(EK_E_INVALID,
                       "sampler_draw: sampler \"%s\" left its last batch, of %lld samples, without "
                       "an end; ek_pass_end_batch ends one",
                       name, (long long)(pass->count - begin));
    return 0;
}

int ek_sampler_draw(ek_sampler *sampler, ek_pass *pass)
{
    EK_TRY(ek_sampler_given(sampler, "sampler_draw"));
    if (!pass)
        return EK_FAIL(EK_E_INVALID, "sampler_draw: the pass is NULL");
    pass->count = pass->batches = 0;
    int rc = sampler->type->draw(sampler, pass);
    if (rc < 0 && !ek_error_status())
        EK_FAIL(rc, "sampler_draw: sampler \"%s\" failed with %s without saying why",
                sampler->type->name, ek_status_name(rc));
    rc = ek_error_status();
    if (rc == 0)
        rc = check_pass(sampler, pass);
    if (rc < 0) {
        pass->count = pass->batches = 0;
        return rc;
    }
    if (sampler->automatic_epochs)
        sampler->epoch = (int64_t)((uint64_t)sampler->epoch + 1);
    return 0;
}

/* 1 if there is a sample (batch) at the position, after beginning a pass if none is begun;
 * 0 at the end, which ends the pass. */
static int stand(ek_sampler *sampler)
{
    if (sampler->position < 0) {
        EK_TRY(ek_sampler_draw(sampler, &sampler->pass));
        sampler->position = 0;
    }
    const ek_pass *pass = &sampler->pass;
    if (sampler->position < (sampler->type->makes_batches ? pass->batches : pass->count))
        return 1;
    sampler->position = -1;
    return 0;
}

int ek_sampler_next(ek_sampler *sampler, int64_t *index)
{
    EK_TRY(ek_sampler_given(sampler, "sampler_next"));
    if (!index)
        return EK_FAIL(EK_E_INVALID, "sampler_next: the place for the index is NULL");
    if (sampler->type->makes_batches)
        return EK_FAIL(EK_E_INVALID,
                       "sampler_next: sampler \"%s\" makes batches; ek_sampler_next_batch gives "
                       "them",
                       sampler->type->name);
    int rc = stand(sampler);
    if (rc > 0)
        *index = sampler->pass.indices[sampler->position++];
    return rc;
}

int ek_sampler_next_batch(ek_sampler *sampler, const int64_t **indices, int64_t *count)
{
    EK_TRY(ek_sampler_given(sampler, "sampler_next_batch"));
    if (!indices || !count)
        return EK_FAIL(EK_E_INVALID, "sampler_next_batch: the place for the %s is NULL",
                       indices ? "count" : "indices");
    if (!sampler->type->makes_batches)
        return EK_FAIL(EK_E_INVALID,
                       "sampler_next_batch: sampler \"%s\" makes no batches; ek_batch_sampler "
                       "makes them of its samples",
                       sampler->type->name);
    int rc = stand(sampler);
    if (rc <= 0)
        return rc;
    const ek_pass *pass = &sampler->pass;
    int64_t batch = sampler->position++, begin = batch ? pass->ends[batch - 1] : 0;
    *indices = pass->indices + begin;
    *count = pass->ends[batch] - begin;
    return 1;
}

/* ---- batch_sampler: another sampler's samples in batches ---- */

typedef struct batch_sampler {
    ek_sampler sampler;
    int64_t batch_size;
    bool drop_last;
} batch_sampler;

static int64_t batch_length(ek_sampler *sampler)
{
    const batch_sampler *self = (batch_sampler *)sampler;
    int64_t samples = ek_sampler_length(sampler->inner);

    if (samples < 0)
        return samples;
    return samples / self->batch_size + (!self->drop_last && samples % self->batch_size != 0);
}

static int batch_draw(ek_sampler *sampler, ek_pass *pass)
{
    const batch_sampler *self = (batch_sampler *)sampler;

    EK_TRY(ek_sampler_draw(sampler->inner, pass));
    int64_t left = pass->count;
    if (self->drop_last)
        left -= left % self->batch_size;
    for (pass->count = 0; left > 0;) {
        int64_t size = left < self->batch_size ? left : self->batch_size;
        pass->count += size;
        left -= size;
        EK_TRY(ek_pass_end_batch(pass));
    }
    return 0;
}

static const ek_sampler_type batch_type = {.name = "batch",
                                           .size = sizeof(batch_sampler),
                                           .length = batch_length,
                                           .draw = batch_draw,
                                           .makes_batches = true};

ek_sampler *ek_batch_sampler(ek_sampler *sampler, int64_t batch_size, bool drop_last)
{
    batch_sampler *self = NULL;

    if (ek_sampler_given(sampler, "batch_sampler") < 0)
        return NULL;
    if (batch_size < 1)
        EK_FAIL(EK_E_INVALID, "batch_sampler: batch_size is %lld; it has to be 1 at least",
                (long long)batch_size);
    else if (sampler->type->makes_batches)
        EK_FAIL(EK_E_INVALID, "batch_sampler: sampler \"%s\" makes batches already",
                sampler->type->name);
    else
        self = (batch_sampler *)ek_sampler_new(&batch_type);
    if (!self) {
        ek_sampler_free(sampler);
        return NULL;
    }
    self->sampler.inner = sampler;
    self->batch_size = batch_size;
    self->drop_last = drop_last;
    return &self->sampler;
}
