/* sampler.c: passes, and the common functions of samplers: making, drawing, stepping through a
 * pass, states. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/world.h"
#include "data/sampler.h"

/* ---- passes ---- */

/* Grows *values to `count`, at least by half, so that appending one by one is linear. */
static int pass_reserve(int64_t **values, int64_t *room, int64_t count)
{
    int64_t wanted = *room + *room / 2 < count ? count : *room + *room / 2;
    if (count <= *room)
        return 0;
    if (wanted > (int64_t)(PTRDIFF_MAX / sizeof **values))
        return EK_FAIL(EK_E_NO_MEMORY, "a pass of %lld samples does not fit into memory",
                       (long long)count);
    wanted = wanted < 16 ? 16 : wanted;
    int64_t *grown = ek_realloc(*values, (size_t)wanted * sizeof *grown);
    if (!grown)
        return EK_E_NO_MEMORY;
    *values = grown;
    *room = wanted;
    return 0;
}

int ek_pass_add(ek_pass *pass, int64_t index)
{
    EK_TRY(ek_check_pointer("pass_add", "the pass", pass));
    EK_TRY(pass_reserve(&pass->indices, &pass->room, pass->count + 1));
    pass->indices[pass->count++] = index;
    return 0;
}

int ek_pass_end_batch(ek_pass *pass)
{
    EK_TRY(ek_check_pointer("pass_end_batch", "the pass", pass));
    EK_TRY(pass_reserve(&pass->ends, &pass->ends_room, pass->batches + 1));
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

int ek_sampler_check_least(const char *function, const char *what, int64_t value, int64_t least)
{
    if (value >= least)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: %s is %lld; it must be %lld or more", function, what,
                   (long long)value, (long long)least);
}

int ek_sampler_check_array(const char *function, const char *what, const void *array, int64_t count)
{
    EK_TRY(ek_sampler_check_least(function, "the count", count, 0));
    return count > 0 ? ek_check_pointer(function, what, array) : 0;
}

int ek_sampler_find_rank(const char *function, int *num_replicas, int *rank)
{
    *num_replicas = *num_replicas == EK_UNSET ? ek_world.size : *num_replicas;
    *rank = *rank == EK_UNSET ? ek_world.rank : *rank;
    EK_TRY(ek_sampler_check_least(function, "num_replicas", *num_replicas, 1));
    if (*rank < 0 || *rank >= *num_replicas)
        return EK_FAIL(EK_E_INVALID, "%s: Invalid rank %d, rank should be in the interval [0, %d]",
                       function, *rank, *num_replicas - 1);
    return 0;
}

ek_sampler *ek_sampler_new(const ek_sampler_type *type)
{
    if (!type || !type->name || !type->length || !type->draw || type->size < sizeof(ek_sampler))
        return EK_FAIL_NULL(EK_E_INVALID,
                            "sampler_new: %s; a type has a name, length, draw and the size of a "
                            "struct that begins with an ek_sampler",
                            !type           ? "the type is NULL"
                            : !type->name   ? "the type has no name"
                            : !type->length ? "the type has no length"
                            : !type->draw   ? "the type has no draw"
                                            : "the type's size is too small");
    ek_sampler *sampler = ek_calloc(1, EK_RETIRABLE(type->size));
    if (!sampler)
        return NULL;
    sampler->type = type;
    sampler->position = -1;
    return sampler;
}

void ek_sampler_free(ek_sampler *sampler)
{
    EK_RELEASES("ek_sampler_free", sampler);
    if (sampler->type->destroy)
        sampler->type->destroy(sampler);
    ek_sampler_free(sampler->inner);
    ek_pass_free(&sampler->pass);
    ek_retire(sampler, EK_RETIRABLE(sampler->type->size), "sampler", sampler);
}

/* Returns the checked result of a type's `length` or `longest`. */
static int64_t sampler_check_length(const char *function, const ek_sampler *sampler, int64_t length)
{
    if (length >= 0 || ek_error_status())
        return length >= 0 ? length : ek_error_status();
    return EK_FAIL(EK_E_INVALID, "%s: sampler \"%s\" gives %lld", function, sampler->type->name,
                   (long long)length);
}

int64_t ek_sampler_length(ek_sampler *sampler)
{
    EK_TRY(ek_check_handle("sampler_length", "the sampler", sampler));
    return sampler_check_length("sampler_length", sampler, sampler->type->length(sampler));
}

int64_t ek_sampler_longest(ek_sampler *sampler)
{
    EK_TRY(ek_check_handle("sampler_longest", "the sampler", sampler));
    if (!sampler->type->longest)
        return ek_sampler_length(sampler);
    return sampler_check_length("sampler_longest", sampler, sampler->type->longest(sampler));
}

int ek_sampler_set_epoch(ek_sampler *sampler, int64_t epoch)
{
    EK_TRY(ek_check_handle("sampler_set_epoch", "the sampler", sampler));
    for (; sampler; sampler = sampler->inner)
        sampler->epoch = epoch;
    return 0;
}

/* ---- drawing ---- */

/* Checks the pass that a type's `draw` has made: no batch is empty, and the batches hold all
 * samples. */
static int sampler_check_pass(const ek_sampler *sampler, const ek_pass *pass)
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
    EK_TRY(ek_check_handle("sampler_draw", "the sampler", sampler));
    EK_TRY(ek_check_pointer("sampler_draw", "the pass", pass));
    pass->count = pass->batches = 0;
    int rc = sampler->type->draw(sampler, pass);
    if (rc < 0 && !ek_error_status())
        EK_FAIL(rc, "sampler_draw: sampler \"%s\" failed with %s without saying why",
                sampler->type->name, ek_status_name(rc));
    rc = ek_error_status();
    if (rc == 0)
        rc = sampler_check_pass(sampler, pass);
    if (rc < 0) {
        pass->count = pass->batches = 0;
        return rc;
    }
    if (sampler->automatic_epochs)
        sampler->epoch = (int64_t)((uint64_t)sampler->epoch + 1);
    return 0;
}

/* Begins a pass if none has begun. Returns 1 if there is a sample (or a batch) at the position;
 * otherwise ends the pass and returns 0. */
static int sampler_stand(ek_sampler *sampler)
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
    EK_TRY(ek_check_handle("sampler_next", "the sampler", sampler));
    EK_TRY(ek_check_pointer("sampler_next", "the place for the index", index));
    if (sampler->type->makes_batches)
        return EK_FAIL(EK_E_INVALID,
                       "sampler_next: sampler \"%s\" makes batches; ek_sampler_next_batch gives "
                       "them",
                       sampler->type->name);
    int rc = sampler_stand(sampler);
    if (rc > 0)
        *index = sampler->pass.indices[sampler->position++];
    return rc;
}

int ek_sampler_next_batch(ek_sampler *sampler, const int64_t **indices, int64_t *count)
{
    EK_TRY(ek_check_handle("sampler_next_batch", "the sampler", sampler));
    EK_TRY(ek_check_pointer("sampler_next_batch", "the place for the indices", indices));
    EK_TRY(ek_check_pointer("sampler_next_batch", "the place for the count", count));
    if (!sampler->type->makes_batches)
        return EK_FAIL(EK_E_INVALID,
                       "sampler_next_batch: sampler \"%s\" makes no batches; ek_batch_sampler "
                       "makes them of its samples",
                       sampler->type->name);
    int rc = sampler_stand(sampler);
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

/* Returns how many batches `samples` samples make. If `samples` is a negative status, returns
 * `samples`. */
static int64_t batch_count(const ek_sampler *sampler, int64_t samples)
{
    const batch_sampler *self = (const batch_sampler *)sampler;
    if (samples < 0)
        return samples;
    return samples / self->batch_size + (!self->drop_last && samples % self->batch_size != 0);
}

static int64_t batch_length(ek_sampler *sampler)
{
    return batch_count(sampler, ek_sampler_length(sampler->inner));
}

static int64_t batch_longest(ek_sampler *sampler)
{
    return batch_count(sampler, ek_sampler_longest(sampler->inner));
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
                                           .longest = batch_longest,
                                           .makes_batches = true};

ek_sampler *ek_batch_sampler(ek_sampler *sampler, int64_t batch_size, bool drop_last)
{
    batch_sampler *self = NULL;
    if (ek_check_handle("batch_sampler", "the sampler", sampler) < 0)
        return NULL;
    if (sampler->type->makes_batches)
        EK_FAIL(EK_E_INVALID, "batch_sampler: sampler \"%s\" makes batches already",
                sampler->type->name);
    else if (ek_sampler_check_least("batch_sampler", "batch_size", batch_size, 1) == 0)
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

/* ---- samplers of the library that give samples, not batches ---- */

ek_index_sampler *ek_sampler_share(ek_sampler *sampler)
{
    while (sampler && sampler->type == &batch_type)
        sampler = sampler->inner;
    if (!sampler || sampler->type->draw != ek_index_sampler_draw)
        return NULL;
    ek_index_sampler *share = (ek_index_sampler *)sampler;
    return share->ranks > 0 ? share : NULL;
}

int64_t ek_index_sampler_length(ek_sampler *sampler)
{
    return ((ek_index_sampler *)sampler)->length;
}

int64_t ek_index_sampler_longest(ek_sampler *sampler)
{
    const ek_index_sampler *self = (ek_index_sampler *)sampler;
    return self->length + self->lacks;
}

int ek_index_sampler_draw(ek_sampler *sampler, ek_pass *pass)
{
    ek_index_sampler *self = (ek_index_sampler *)sampler;
    EK_TRY(pass_reserve(&pass->indices, &pass->room, self->room));
    pass->count = self->length;
    return ((const ek_index_sampler_type *)sampler->type)->fill(self, pass->indices);
}

void ek_index_sampler_destroy(ek_sampler *sampler)
{
    free(((ek_index_sampler *)sampler)->owned);
}

void *ek_index_sampler_new(const ek_index_sampler_type *type, int64_t high, int64_t length)
{
    ek_index_sampler *self = (ek_index_sampler *)ek_sampler_new(&type->type);
    if (!self)
        return NULL;
    self->high = high;
    self->length = self->room = length;
    return self;
}

/* ---- states: dictionaries ----
 *
 *     kind       u8: the bytes of the type's name
 *     epoch      i64
 *     begun      i64: 1 within a pass of ek_sampler_next, else 0
 *     indices    i64: the rest of that pass
 *     ends       i64: where its batches end, if the sampler makes batches
 *     generator  u8: the state of the caller's generator, if the sampler has one
 *     inner      the state of the sampler whose samples are put in batches */

ek_value ek_sampler_state(ek_sampler *sampler)
{
    ek_state_writer writer = {.count = 0};
    if (ek_check_handle("sampler_state", "the sampler", sampler) < 0)
        return ek_value_error();
    const ek_pass *pass = &sampler->pass;
    int64_t position = sampler->position;
    const char *name = sampler->type->name;
    ek_state_put_bytes(&writer, "kind", name, (int64_t)strlen(name));
    ek_state_put_int(&writer, "epoch", sampler->epoch);
    ek_state_put_int(&writer, "begun", position >= 0);
    if (position >= 0) {
        bool batches = sampler->type->makes_batches;
        int64_t begin = !batches ? position : position ? pass->ends[position - 1] : 0;
        ek_state_put_pass(&writer, pass, begin, batches, position);
    }
    ek_state_put_generator(&writer, sampler->generator);
    if (sampler->inner)
        ek_state_put(&writer, "inner", ek_sampler_state(sampler->inner));
    return ek_value_dict(writer.entries, writer.count);
}

/* A state that was read. All of it is read and checked before the sampler is changed. */
typedef struct sampler_loaded {
    int64_t epoch, begun;
    ek_pass pass;
    ek_generator generator;
    struct sampler_loaded *inner;
} sampler_loaded;

static void sampler_free_loaded(sampler_loaded *from)
{
    if (!from)
        return;
    sampler_free_loaded(from->inner);
    ek_pass_free(&from->pass);
    free(from);
}

static int sampler_read_pass(const ek_sampler *sampler, const ek_state *state, ek_pass *pass)
{
    int64_t low = INT64_MIN, high = INT64_MAX;
    const ek_sampler *of_samples = sampler;
    while (of_samples->inner)
        of_samples = of_samples->inner;
    if (of_samples->type->draw == ek_index_sampler_draw) { /* a user's sampler may give any index */
        low = ((const ek_index_sampler *)of_samples)->low;
        high = ((const ek_index_sampler *)of_samples)->high - 1;
    }
    return ek_state_pass(state, sampler->type->makes_batches, low, high, pass);
}

static int sampler_read(const ek_sampler *sampler, const ek_state *state, sampler_loaded **loaded)
{
    const int before = ek_error_status();
    sampler_loaded *into = *loaded = ek_calloc(1, sizeof *into);
    if (!into)
        return EK_E_NO_MEMORY;
    EK_TRY(ek_state_check(state));
    EK_TRY(ek_state_is_text(state, "kind", sampler->type->name, "sampler"));
    EK_TRY(ek_state_int(state, "epoch", INT64_MIN, INT64_MAX, &into->epoch));
    EK_TRY(ek_state_int(state, "begun", 0, 1, &into->begun));
    if (into->begun)
        EK_TRY(sampler_read_pass(sampler, state, &into->pass));
    EK_TRY(ek_state_generator(state, sampler->generator, "sampler", &into->generator));
    if (!sampler->inner)
        return 0;
    ek_state inner = {state->function, ek_value_get(state->value, "inner")};
    int rc = ek_state_check(&inner);
    if (rc < 0)
        ek_error_prefix(before, "\"inner\"");
    return rc < 0 ? rc : sampler_read(sampler->inner, &inner, &into->inner);
}

static void sampler_take(ek_sampler *sampler, sampler_loaded *from)
{
    sampler->epoch = from->epoch;
    sampler->position = from->begun ? 0 : -1;
    ek_pass_free(&sampler->pass);
    sampler->pass = from->pass;
    from->pass = (ek_pass){0};
    if (sampler->generator)
        *sampler->generator = from->generator;
    if (sampler->inner)
        sampler_take(sampler->inner, from->inner);
}

int ek_sampler_load_state(ek_sampler *sampler, ek_value value)
{
    const ek_state state = {"sampler_load_state", value};
    sampler_loaded *from = NULL;
    EK_TRY(ek_check_handle(state.function, "the sampler", sampler));
    int rc = sampler_read(sampler, &state, &from);
    if (rc == 0)
        sampler_take(sampler, from);
    sampler_free_loaded(from);
    return rc;
}
