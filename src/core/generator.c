/* generator.c: the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998), which is seeded, drawn
 * from and stored as in PyTorch; the counters of Philox; the default generator with its lock. */
#include "core/generator.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/draw.h"
#include "core/tensor.h"
#include "core/thread.h"
#include "core/world.h"

enum { SHIFTED_WORDS = 397 };

/* PyTorch's default seed. */
static const uint64_t default_seed = 67280421310721u;

static ek_generator default_generator; /* guarded by default_lock; left is 0 until it is seeded */
static pthread_mutex_t default_lock = PTHREAD_MUTEX_INITIALIZER;
EK_FORK_SAFE(default_lock);
static uint64_t seedings = 1; /* default_generator's seedings + 1; guarded by default_lock */

/* The default generator of a device's worker. Every worker has a separate generator, because
 * replicas that took turns with a single generator would get numbers in an order that differs from
 * run to run. No lock is needed: the generator is used by its device's worker, or by the thread
 * that draws in the worker's place. */
typedef struct device_generator {
    ek_generator generator;
    uint64_t seeding; /* the value of `seedings` when the generator was seeded; 0: not yet */
    bool continues;   /* the device's next worker continues from this state, because the state was
                         restored or a thread drew in its place; false: the worker seeds anew */
} device_generator;

enum { DEVICE_KINDS = EK_CUDA + 1, DEVICE_GENERATORS = DEVICE_KINDS * EK_MAX_DEVICES };
static device_generator of_device[DEVICE_GENERATORS];
static _Thread_local device_generator *of_worker; /* this worker's; NULL until the worker draws */

static device_generator *generator_of_device_at(ek_device device)
{
    return &of_device[(int)device.kind * EK_MAX_DEVICES + device.index];
}

static _Thread_local ek_generator *stand_in; /* the thread's stand-in; NULL: none */

/* ---- engines ---- */

/* Seeds the generator. A Mersenne Twister uses the low half of the seed only, as in PyTorch. */
static void generator_seed_words(ek_generator *generator, uint64_t seed)
{
    uint32_t *state = generator->state;
    state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < EK_TWISTER_WORDS && generator->engine == EK_RANDOM_TWISTER; i++)
        state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
    generator->call = generator->drawn = 0;
    generator->left = 1;
    generator->next = 0;
    generator->seed = seed;
    generator->has_cached_normal = false;
    generator->cached_normal = 0;
}

static uint32_t generator_twist(uint32_t high, uint32_t low)
{
    uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (mixed >> 1) ^ (low & 1 ? 0x9908b0dfu : 0);
}

static void generator_twist_all(ek_generator *generator)
{
    uint32_t *state = generator->state;
    int i = 0;
    for (; i < EK_TWISTER_WORDS - SHIFTED_WORDS; i++)
        state[i] = state[i + SHIFTED_WORDS] ^ generator_twist(state[i], state[i + 1]);
    for (; i < EK_TWISTER_WORDS - 1; i++)
        state[i] =
            state[i + SHIFTED_WORDS - EK_TWISTER_WORDS] ^ generator_twist(state[i], state[i + 1]);
    state[i] = state[SHIFTED_WORDS - 1] ^ generator_twist(state[i], state[0]);
    generator->left = EK_TWISTER_WORDS;
    generator->next = 0;
}

/* Computes the block that contains single word number `drawn`. Single words are the words of call
 * UINT64_MAX, a number that no tensor's call gets. */
static void generator_count_block(ek_generator *generator)
{
    ek_philox_words_of(generator->seed, UINT64_MAX, generator->drawn / EK_PHILOX_BLOCK,
                       generator->block);
}

__attribute__((noinline)) static uint32_t generator_count_word(ek_generator *generator)
{
    unsigned at = generator->drawn % EK_PHILOX_BLOCK;
    if (at == 0)
        generator_count_block(generator);
    generator->drawn++;
    generator->left = 1;
    return generator->block[at];
}

uint32_t ek_generator_u32(ek_generator *generator)
{
    if (--generator->left == 0) {
        if (generator->engine == EK_RANDOM_PHILOX)
            return generator_count_word(generator);
        generator_twist_all(generator);
    }
    uint32_t y = generator->state[generator->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint64_t ek_generator_u64(ek_generator *generator)
{
    uint64_t high = ek_generator_u32(generator);
    return high << 32 | ek_generator_u32(generator);
}

/* ---- generators ---- */

/* Seeds a device's generator once after each seeding of the shared generator. */
static void generator_seed_device(device_generator *own, ek_device device, ek_random_engine engine,
                                  uint64_t seed, uint64_t seeding)
{
    if (own->seeding == seeding)
        return;
    uint64_t number = (uint64_t)(ek_world.first_device[device.kind] + device.index + 1);
    memset(&own->generator, 0, sizeof own->generator);
    own->generator.engine = engine;
    generator_seed_words(&own->generator, seed + number * UINT64_C(0x9E3779B97F4A7C15));
    own->seeding = seeding;
}

ek_generator *ek_generator_lock(ek_generator *generator)
{
    if (generator && ek_check_alive("generator", "the generator", generator) == 0)
        return generator;
    if (stand_in) {
        if (stand_in->left == 0)
            generator_seed_words(stand_in, stand_in->seed);
        return stand_in;
    }
    pthread_mutex_lock(&default_lock);
    if (default_generator.left == 0)
        generator_seed_words(&default_generator, default_seed);
    const ek_thread *self = ek_thread_self();
    if (self->rng_device) {
        device_generator *own = generator_of_device_at(self->rng_device->id);
        generator_seed_device(own, self->rng_device->id, default_generator.engine,
                              default_generator.seed, seedings);
        own->continues = true;
        return &own->generator;
    }
    const ek_dev *dev = self->own_device;
    if (!dev)
        return &default_generator;
    ek_random_engine engine = default_generator.engine;
    uint64_t seed = default_generator.seed, seeding = seedings;
    pthread_mutex_unlock(&default_lock);
    if (!of_worker) { /* an earlier worker of the device may have left a generator */
        of_worker = generator_of_device_at(dev->id);
        of_worker->seeding = of_worker->continues ? of_worker->seeding : 0;
    }
    of_worker->continues = false;
    generator_seed_device(of_worker, dev->id, engine, seed, seeding);
    return &of_worker->generator;
}

/* Returns the generator of the device for which the thread draws (ek_generator_draw_for); NULL if
 * there is no such device. */
static const ek_generator *generator_drawn_for(void)
{
    const ek_dev *dev = ek_thread_self()->rng_device;
    return dev ? &generator_of_device_at(dev->id)->generator : NULL;
}

void ek_generator_unlock(ek_generator *generator)
{
    if (generator == &default_generator || generator == generator_drawn_for())
        pthread_mutex_unlock(&default_lock);
}

ek_dev *ek_generator_draw_for(ek_dev *dev)
{
    ek_thread *self = ek_thread_self();
    ek_dev *before = self->rng_device;
    if (!self->own_device)
        self->rng_device = ek_world.size > 1 ? dev : NULL;
    return before;
}

ek_generator *ek_generator_stand_in(ek_generator *generator)
{
    ek_generator *before = stand_in;
    stand_in = generator;
    return before;
}

/* Reseeds a Mersenne Twister with a number that it draws; `seed` stays, because workers' generators
 * are seeded from it. A Philox generator jumps to a distant counter instead. */
static void generator_reseed(ek_generator *generator)
{
    if (generator->engine == EK_RANDOM_PHILOX) {
        generator->call += UINT64_C(1) << 32;
        generator->drawn += UINT64_C(1) << 32;
        generator_count_block(generator);
        return;
    }
    const uint64_t seed = generator->seed;
    generator_seed_words(generator, ek_generator_u32(generator));
    generator->seed = seed;
}

static bool generator_draw_alike(const ek_generator *a, const ek_generator *b)
{
    if (a->engine != b->engine || a->seed != b->seed || a->call != b->call || a->drawn != b->drawn)
        return false;
    if (a->engine == EK_RANDOM_PHILOX)
        return true;
    return a->left == b->left && a->next == b->next &&
           a->has_cached_normal == b->has_cached_normal &&
           memcmp(a->state, b->state, sizeof a->state) == 0;
}

void ek_generator_borrow(ek_generator *begin, ek_generator *meanwhile)
{
    ek_generator *own = ek_generator_lock(NULL);
    *begin = *own;
    if (own == &default_generator) { /* no other thread draws from a worker's generator */
        generator_reseed(own);
        *meanwhile = *own;
    }
    ek_generator_unlock(own);
}

void ek_generator_give_back(const ek_generator *end, const ek_generator *meanwhile)
{
    ek_generator *own = ek_generator_lock(NULL);
    if (own != &default_generator || generator_draw_alike(own, meanwhile))
        *own = *end;
    ek_generator_unlock(own);
}

ek_generator *ek_generator_new(uint64_t seed)
{
    ek_generator *generator = ek_calloc(1, sizeof(*generator));
    if (generator)
        generator_seed_words(generator, seed);
    return generator;
}

void ek_generator_free(ek_generator *generator)
{
    EK_RELEASES("ek_generator_free", generator);
    ek_retire(generator, sizeof *generator, "generator", generator);
}

void ek_generator_seed(ek_generator *generator, uint64_t seed)
{
    generator = ek_generator_lock(generator);
    generator_seed_words(generator, seed);
    if (generator == &default_generator) /* default_lock is held, and guards `seedings` */
        seedings++;
    ek_generator_unlock(generator);
}

int ek_generator_set_engine(ek_generator *generator, ek_random_engine engine)
{
    if (engine != EK_RANDOM_TWISTER && engine != EK_RANDOM_PHILOX)
        return EK_FAIL(EK_E_INVALID,
                       "generator_set_engine: %d is no engine; EK_RANDOM_TWISTER and "
                       "EK_RANDOM_PHILOX are",
                       (int)engine);
    generator = ek_generator_lock(generator);
    generator->engine = engine;
    generator_seed_words(generator, generator->seed);
    if (generator == &default_generator) /* default_lock is held, and guards `seedings` */
        seedings++;
    ek_generator_unlock(generator);
    return 0;
}

ek_random_engine ek_generator_engine(ek_generator *generator)
{
    generator = ek_generator_lock(generator);
    ek_random_engine engine = generator->engine;
    ek_generator_unlock(generator);
    return engine;
}

void ek_manual_seed(uint64_t seed)
{
    ek_generator_seed(NULL, seed);
}

uint32_t ek_random_u32(ek_generator *generator)
{
    generator = ek_generator_lock(generator);
    uint32_t value = ek_generator_u32(generator);
    ek_generator_unlock(generator);
    return value;
}

uint64_t ek_random_u64(ek_generator *generator)
{
    generator = ek_generator_lock(generator);
    uint64_t value = ek_generator_u64(generator);
    ek_generator_unlock(generator);
    return value;
}

/* ---- calls of Philox ---- */

/* Numbers the elements of a tensor as in the whole batch, of which the generator draws a share. */
static void generator_number(const ek_generator_share *share, const ek_tensor *tensor,
                             ek_draw *draw)
{
    int64_t count = ek_count(tensor);
    draw->first = draw->gap = 0;
    draw->row = count > 0 ? count : 1;
    if (share->samples == 0 || count == 0 || tensor->ndim <= share->dim ||
        tensor->shape[share->dim] % share->samples != 0)
        return;
    int64_t each = tensor->shape[share->dim] / share->samples; /* a sample's elements in a row */
    for (int d = share->dim + 1; d < tensor->ndim; d++)
        each *= tensor->shape[d];
    draw->first = share->first * each;
    if (share->dim > 0) {
        draw->row = share->samples * each;
        draw->gap = (share->total - share->samples) * each;
    } else if (share->step > 1) {
        draw->row = each;
        draw->gap = (share->step - 1) * each;
    }
}

bool ek_draw_begin(ek_draw *draw, ek_generator *generator, const ek_tensor *tensor)
{
    generator = ek_generator_lock(generator);
    bool counts = generator->engine == EK_RANDOM_PHILOX;
    if (counts) {
        draw->seed = generator->seed;
        draw->call = generator->call++;
        generator_number(&generator->share, tensor, draw);
    }
    ek_generator_unlock(generator);
    return counts;
}

/* ---- state ---- */

/* The bytes of torch.get_rng_state: the layout of an early generator of PyTorch. A Philox generator
 * is marked by left 0, which no Mersenne Twister has; the first words of `state` hold its engine
 * and counters. */
typedef struct state_blob {
    uint64_t seed;
    int32_t left, seeded;
    uint64_t next;
    uint64_t state[EK_TWISTER_WORDS];
    double normal_x, normal_y, normal_rho; /* only normal_y is used, for the cached normal number */
    int32_t normal_is_valid, padding;
    float next_float_normal;
    uint8_t is_next_float_normal_valid, end_padding[3];
} state_blob;

_Static_assert(sizeof(state_blob) == EK_GENERATOR_STATE_BYTES, "the blob has PyTorch's layout");

enum { BLOB_ENGINE, BLOB_CALL, BLOB_DRAWN }; /* words of the state that hold Philox's numbers */

int ek_generator_get_state(ek_generator *generator, void *state, size_t nbytes)
{
    state_blob blob = {.seeded = 1};
    if (!state || nbytes != EK_GENERATOR_STATE_BYTES)
        return EK_FAIL(EK_E_INVALID, "generator_get_state: room for %zu bytes%s; a state has %d",
                       nbytes, state ? "" : " at NULL", EK_GENERATOR_STATE_BYTES);
    generator = ek_generator_lock(generator);
    blob.seed = generator->seed;
    if (generator->engine == EK_RANDOM_PHILOX) {
        blob.state[BLOB_ENGINE] = EK_RANDOM_PHILOX;
        blob.state[BLOB_CALL] = generator->call;
        blob.state[BLOB_DRAWN] = generator->drawn;
    } else {
        blob.left = (int32_t)generator->left;
        blob.next = generator->next;
        for (int i = 0; i < EK_TWISTER_WORDS; i++)
            blob.state[i] = generator->state[i];
        blob.normal_is_valid = generator->has_cached_normal;
        blob.normal_y = generator->has_cached_normal ? generator->cached_normal : 0;
    }
    ek_generator_unlock(generator);
    memcpy(state, &blob, sizeof(blob));
    return 0;
}

int ek_generator_set_state(ek_generator *generator, const void *state, size_t nbytes)
{
    state_blob blob;
    if (!state || nbytes != EK_GENERATOR_STATE_BYTES)
        return EK_FAIL(EK_E_INVALID, "generator_set_state: %zu bytes%s; a state has %d", nbytes,
                       state ? "" : " at NULL", EK_GENERATOR_STATE_BYTES);
    memcpy(&blob, state, sizeof(blob));
    bool counts = blob.left == 0 && blob.next == 0 && blob.state[BLOB_ENGINE] == EK_RANDOM_PHILOX;
    if (!blob.seeded || (!counts && (blob.left < 1 || blob.left > EK_TWISTER_WORDS)) ||
        blob.next > EK_TWISTER_WORDS ||
        (blob.left > 1 && (uint64_t)blob.left + blob.next != EK_TWISTER_WORDS + 1))
        return EK_FAIL(EK_E_FORMAT,
                       "generator_set_state: not a generator's state (left %d, next %llu)",
                       blob.left, (unsigned long long)blob.next);
    generator = ek_generator_lock(generator);
    if (generator == &default_generator) /* default_lock is held, and guards `seedings` */
        seedings++;
    generator->engine = counts ? EK_RANDOM_PHILOX : EK_RANDOM_TWISTER;
    generator->seed = blob.seed;
    generator->call = counts ? blob.state[BLOB_CALL] : 0;
    generator->drawn = counts ? blob.state[BLOB_DRAWN] : 0;
    generator->left = counts ? 1 : (uint32_t)blob.left;
    generator->next = (uint32_t)blob.next;
    for (int i = 0; i < EK_TWISTER_WORDS; i++)
        generator->state[i] = (uint32_t)blob.state[i];
    generator->has_cached_normal = blob.normal_is_valid != 0;
    generator->cached_normal = blob.normal_y;
    if (counts)
        generator_count_block(generator);
    ek_generator_unlock(generator);
    return 0;
}

/* ---- all generators ---- */

struct ek_generators {
    ek_generator shared;
    uint64_t seedings;
    int count;
    int place[DEVICE_GENERATORS];
    device_generator
        of_device[]; /* the seeded generators; entry i was copied from of_device[place[i]] */
};

ek_generators *ek_generators_save(void)
{
    int count = 0;
    for (int i = 0; i < DEVICE_GENERATORS; i++)
        count += of_device[i].seeding != 0;
    ek_generators *saved = ek_calloc(1, sizeof *saved + (size_t)count * sizeof of_device[0]);
    if (!saved)
        return NULL;
    for (int i = 0; i < DEVICE_GENERATORS && saved->count < count; i++) {
        if (of_device[i].seeding == 0)
            continue;
        saved->place[saved->count] = i;
        saved->of_device[saved->count++] = of_device[i];
    }
    pthread_mutex_lock(&default_lock);
    saved->shared = default_generator;
    saved->seedings = seedings;
    pthread_mutex_unlock(&default_lock);
    return saved;
}

void ek_generators_restore(const ek_generators *saved)
{
    pthread_mutex_lock(&default_lock);
    default_generator = saved->shared;
    seedings = saved->seedings;
    pthread_mutex_unlock(&default_lock);
    for (int i = 0; i < DEVICE_GENERATORS; i++)
        of_device[i].seeding = 0;
    for (int i = 0; i < saved->count; i++)
        of_device[saved->place[i]] = saved->of_device[i];
}

ek_generator *ek_device_generator(ek_device device)
{
    device_generator *own = generator_of_device_at(device);
    pthread_mutex_lock(&default_lock);
    uint64_t current = seedings;
    pthread_mutex_unlock(&default_lock);
    return own->seeding == current ? &own->generator : NULL;
}

void ek_generators_load(const ek_generator *shared, const ek_device *devices,
                        const ek_generator *own, int count)
{
    pthread_mutex_lock(&default_lock);
    default_generator = *shared;
    uint64_t current = ++seedings;
    pthread_mutex_unlock(&default_lock);
    for (int i = 0; i < count; i++)
        *generator_of_device_at(devices[i]) =
            (device_generator){.generator = own[i], .seeding = current, .continues = true};
}
