/* test_transformed_alike.c: pictures and their masks, cropped and flipped alike. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

enum { COUNT = 9, SIDE = 6, PIXELS = SIDE * SIDE };

/* Pixels of sample n are n * PIXELS + 1, + 2, ..., of pictures in u8, of masks in i64. */
static ek_tensor *numbered(ek_dtype dtype)
{
    double values[COUNT * PIXELS];
    for (int i = 0; i < COUNT * PIXELS; i++)
        values[i] = i % 250 + 1;
    return tensor_of(values, EK_SHAPE(COUNT, 1, SIDE, SIDE), dtype, ek_cpu());
}

static ek_dataset *pictures_and_masks(void)
{
    return ek_tensor_dataset(numbered(EK_U8), numbered(EK_I64));
}

static ek_dataset *alike(ek_dataset *dataset)
{
    return ek_transformed_alike(dataset,
                                EK_FIELD(0, ek_random_crop(SIDE, .padding = 3),
                                         ek_random_horizontal_flip(0.5), ek_to_float()),
                                EK_FIELD(1, ek_random_crop(SIDE, .padding = 3, .fill = 255),
                                         ek_random_horizontal_flip(0.5)));
}

/* Of a sample or of a batch: the mask has the picture's pixels, and 255 for what it is padded by.
 */
static void assert_alike(ek_tensor *picture, ek_tensor *mask)
{
    assert_made(picture);
    assert_made(mask);
    ck_assert_int_eq(ek_tensor_dtype(picture), EK_F32);
    ck_assert_int_eq(ek_tensor_dtype(mask), EK_I64);
    ck_assert_int_eq(ek_tensor_count(picture), ek_tensor_count(mask));
    for (int64_t i = 0; i < ek_tensor_count(mask); i++) {
        double pixel = element(picture, i) * 255, wanted = pixel > 0.5 ? pixel : 255;
        if (!(element(mask, i) > wanted - 0.01 && element(mask, i) < wanted + 0.01))
            ck_abort_msg("pixel %d: %g, and %g in the mask", (int)i, pixel, element(mask, i));
    }
}

static void assert_value_alike(ek_value value)
{
    ck_assert_msg(value.kind == EK_VALUE_LIST, "%s", ek_error_message());
    assert_alike(ek_value_tensor(ek_value_at(value, 0)), ek_value_tensor(ek_value_at(value, 1)));
}

static const int64_t all[COUNT] = {0, 1, 2, 3, 4, 5, 6, 7, 8};

TEST(samples_and_batches)
{
    ek_dataset *set = alike(pictures_and_masks());
    assert_made(set);
    ek_manual_seed(3);
    ek_value batch = ek_dataset_get_batch(set, all, COUNT, ek_cpu());
    assert_value_alike(batch);
    ek_manual_seed(3);
    for (int field = 0; field < 2; field++) {
        ek_tensor *rows = ek_value_tensor(ek_value_at(batch, field));
        size_t nbytes = PIXELS * ek_dtype_size(ek_tensor_dtype(rows));
        ek_manual_seed(3);
        for (int i = 0; i < COUNT; i++) {
            ek_value sample = ek_dataset_get(set, i);
            assert_value_alike(sample);
            ek_tensor *one = ek_value_tensor(ek_value_at(sample, field));
            ck_assert_mem_eq(ek_tensor_data(one), (char *)ek_tensor_data(rows) + (size_t)i * nbytes,
                             nbytes);
        }
    }
    ek_dataset_free(set);
}

/* The picture, and the numbers that are drawn after it, are those of a picture alone. */
TEST(as_if_alone)
{
    ek_dataset *set = alike(pictures_and_masks());
    ek_dataset *alone = ek_transformed(pictures_and_masks(), 0, ek_random_crop(SIDE, .padding = 3),
                                       ek_random_horizontal_flip(0.5), ek_to_float());
    ek_tensor *pictures[2];
    uint32_t next[2];
    for (int i = 0; i < 2; i++) {
        ek_manual_seed(4);
        ek_value batch = ek_dataset_get_batch(i ? alone : set, all, COUNT, ek_cpu());
        pictures[i] = ek_value_tensor(ek_value_at(batch, 0));
        assert_made(pictures[i]);
        next[i] = ek_random_u32(NULL);
    }
    assert_close(pictures[0], pictures[1], 0, 0);
    ck_assert_uint_eq(next[0], next[1]);
    ek_dataset_free(set);
    ek_dataset_free(alone);
}

/* Around another one, on a device, by a loader's threads. */
TEST(loaded)
{
    assert_ok(ek_host_devices_configure("1"));
    ek_dataset *resized =
        ek_transformed_alike(pictures_and_masks(), EK_FIELD(1, ek_resize(SIDE, .nearest = true)),
                             EK_FIELD(0, ek_resize(SIDE)));
    ek_dataset *set = alike(resized);
    assert_made(set);
    assert_value_alike(ek_dataset_get_batch(set, all, COUNT, ek_host(0)));
    ek_loader *loader = ek_data_loader(set, .batch_size = 2, .shuffle = true, .workers = 2);
    assert_made(loader);
    ek_batch batch;
    int batches = 0, rc;
    while ((rc = ek_loader_next(loader, &batch)) > 0) {
        assert_alike(ek_value_tensor(batch.input), ek_value_tensor(batch.target));
        batches++;
    }
    assert_ok(rc);
    ck_assert_int_eq(batches, (COUNT + 1) / 2);
    ek_loader_free(loader);
}

/* ---- samples of dictionaries, which are read one by one ---- */

static int64_t named_length(ek_dataset *dataset)
{
    return COUNT;
}

static ek_value named_get(ek_dataset *dataset, int64_t index)
{
    ek_shape shape = EK_SHAPE(1, SIDE, SIDE);
    uint8_t *pixels = ek_tensor_data(numbered(EK_U8));
    int64_t *mask = ek_tensor_data(numbered(EK_I64));
    ek_value picture = ek_value_of_tensor(ek_from_data(pixels + index * PIXELS, shape, EK_U8));
    return ek_value_dict((ek_value_entry[]){{"image", picture},
                                            {"mask",
                                             ek_value_of_tensor(ek_from_data(mask + index * PIXELS,
                                                                             shape, EK_I64))},
                                            {"number", ek_value_of_int(index)}},
                         3);
}

static const ek_dataset_type named_type = {.name = "named",
                                           .size = sizeof(ek_dataset),
                                           .length = named_length,
                                           .get = named_get};

TEST(keys)
{
    ek_dataset *set =
        ek_transformed_alike(ek_dataset_new(&named_type),
                             EK_KEY("mask", ek_random_crop(SIDE, .padding = 3, .fill = 255),
                                    ek_random_vertical_flip(0.5)),
                             EK_KEY("image", ek_random_crop(SIDE, .padding = 3),
                                    ek_random_vertical_flip(0.5), ek_to_float()));
    assert_made(set);
    for (int i = 0; i < 2 * COUNT; i++) {
        ek_value value = i < COUNT ? ek_dataset_get(set, i)
                                   : ek_dataset_get_batch(set, all, i - COUNT + 1, ek_cpu());
        ck_assert_msg(value.kind == EK_VALUE_DICT, "%s", ek_error_message());
        assert_alike(ek_value_tensor(ek_value_get(value, "image")),
                     ek_value_tensor(ek_value_get(value, "mask")));
    }
    ek_dataset_free(set);
}

/* ---- threads that share the default generator ---- */

enum { THREADS = 3 };

static void *read_all(void *user)
{
    for (int i = 0; i < 20 * COUNT; i++) {
        ek_scope scope = ek_scope_begin();
        ek_value sample = ek_dataset_get(user, i % COUNT);
        ck_assert_int_eq(sample.kind, EK_VALUE_LIST);
        assert_value_alike(sample);
        ek_scope_end(&scope);
    }
    return NULL;
}

TEST(several_threads)
{
    pthread_t threads[THREADS];
    ek_dataset *set = alike(pictures_and_masks());
    assert_made(set);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_all, set), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ek_dataset_free(set);
}

/* ---- what a user's transform does while it is applied ---- */

enum { NOTES = THREADS * 20 * COUNT };

/* Numbers that were drawn: by the first field's transforms, and by threads that those started. */
static uint32_t drawn[NOTES];
static atomic_int drawn_count;

static void note_draw(void)
{
    int at = atomic_fetch_add(&drawn_count, 1);
    ck_assert_int_lt(at, NOTES);
    drawn[at] = ek_random_u32(NULL);
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void assert_drawn_once(int count)
{
    ck_assert_int_eq(drawn_count, count);
    qsort(drawn, (size_t)count, sizeof *drawn, by_value);
    for (int i = 1; i < count; i++)
        ck_assert_uint_ne(drawn[i], drawn[i - 1]);
    drawn_count = 0;
}

typedef struct busy {
    ek_transform transform;
    void (*work)(void);
} busy;

static int busy_describe(const ek_transform *self, ek_array *array)
{
    array->dtype = EK_I64;
    array->shape = EK_SHAPE(2);
    return 0;
}

/* The first of two numbers is drawn before the work, the second after. */
static int busy_apply(const ek_transform *self, const ek_array *in, ek_array *out,
                      ek_generator *generator)
{
    int64_t *numbers = out->data;
    numbers[0] = ek_random_u32(generator);
    ((const busy *)self)->work();
    numbers[1] = ek_random_u32(generator);
    return 0;
}

static ek_transform *busy_with(void (*work)(void))
{
    static const ek_transform_type type = {.name = "busy",
                                           .size = sizeof(busy),
                                           .describe = busy_describe,
                                           .apply = busy_apply};
    ek_transform *transform = ek_transform_new(&type);
    ((busy *)transform)->work = work;
    return transform;
}

static ek_dataset *busy_set(void (*first)(void), void (*second)(void))
{
    ek_dataset *set = ek_transformed_alike(pictures_and_masks(), EK_FIELD(0, busy_with(first)),
                                           EK_FIELD(1, busy_with(second)));
    assert_made(set);
    return set;
}

static void assert_same_numbers(ek_value value)
{
    ck_assert_msg(value.kind == EK_VALUE_LIST, "%s", ek_error_message());
    assert_close(ek_value_tensor(ek_value_at(value, 0)), ek_value_tensor(ek_value_at(value, 1)), 0,
                 0);
}

static void forks(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

static void *draws(void *user)
{
    note_draw();
    note_draw();
    return NULL;
}

static void has_a_thread_draw(void)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, draws, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    note_draw(); /* its own */
}

static void draws_one(void)
{
    ek_random_u32(NULL);
}

TEST(fork_while_applied)
{
    ek_dataset *set = busy_set(forks, forks);
    assert_same_numbers(ek_dataset_get_batch(set, all, COUNT, ek_cpu()));
    assert_same_numbers(ek_dataset_get(set, 1));
    ek_dataset_free(set);
}

/* They draw numbers of their own: neither the transform's, nor those of later samples. */
TEST(threads_that_draw_while_applied)
{
    ek_dataset *set = busy_set(has_a_thread_draw, draws_one);
    assert_same_numbers(ek_dataset_get_batch(set, all, COUNT, ek_cpu()));
    for (int i = 0; i < COUNT; i++)
        assert_same_numbers(ek_dataset_get(set, i));
    note_draw();
    assert_drawn_once(2 * COUNT * 3 + 1);
    ek_dataset_free(set);
}

/* A seed that another thread gives meanwhile is what the generator goes on from. */
static void *seeds(void *user)
{
    ek_manual_seed(6);
    return user;
}

static void has_a_thread_seed(void)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, seeds, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ek_random_u32(NULL);
}

TEST(threads_that_seed_while_applied)
{
    ek_dataset *set = busy_set(draws_one, has_a_thread_seed);
    assert_same_numbers(ek_dataset_get(set, 1));
    uint32_t next = ek_random_u32(NULL);
    ek_manual_seed(6);
    ck_assert_uint_eq(ek_random_u32(NULL), next);
    ek_dataset_free(set);
}

static pthread_barrier_t meeting;

/* All threads are between their samples' first numbers and second ones. */
static void meets(void)
{
    pthread_barrier_wait(&meeting);
    note_draw();
}

static void *read_busy(void *user)
{
    for (int i = 0; i < 20 * COUNT; i++) {
        ek_scope scope = ek_scope_begin();
        assert_same_numbers(ek_dataset_get(user, i % COUNT));
        ek_scope_end(&scope);
    }
    return NULL;
}

/* No two threads transform their samples by the same numbers. */
TEST(several_threads_draw_apart)
{
    pthread_t threads[THREADS];
    ek_dataset *set = busy_set(meets, draws_one);
    ck_assert_int_eq(pthread_barrier_init(&meeting, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_busy, set), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    assert_drawn_once(THREADS * 20 * COUNT);
    pthread_barrier_destroy(&meeting);
    ek_dataset_free(set);
}

/* ---- what is refused ---- */

TEST(refused)
{
    assert_refused(ek_transformed_alike(pictures_and_masks(), EK_FIELD(1, ek_to_float()),
                                        EK_FIELD(0, ek_to_float()), EK_FIELD(1, ek_one_hot(3))),
                   EK_E_INVALID, "transformed: field 1 is named twice");
    assert_refused(ek_transformed_alike(pictures_and_masks(), EK_KEY("a", ek_to_float()),
                                        EK_KEY("a", ek_to_float())),
                   EK_E_INVALID, "transformed: \"a\" is named twice");
    assert_refused(ek_transformed_alike(pictures_and_masks(), EK_FIELD(0, ek_to_float()),
                                        EK_FIELD(-1, ek_to_float())),
                   EK_E_INVALID, "field -1; fields count from 0");
    assert_refused(ek_transformed_alike(pictures_and_masks(), EK_FIELD(0, ek_to_float()),
                                        EK_FIELD(1, ek_to_float(), NULL)),
                   EK_E_INVALID, "transform 1 of 2 is NULL");
    assert_refused(ek_transformed_alike_of(pictures_and_masks(), NULL, 0), EK_E_INVALID,
                   "0 fields at NULL");
    assert_refused(ek_transformed_alike_of(pictures_and_masks(), NULL, 2), EK_E_INVALID,
                   "2 fields at NULL");
}

/* What fails for the second element leaves the generator usable. */
TEST(errors_of_the_second)
{
    ek_dataset *set =
        ek_transformed_alike(pictures_and_masks(), EK_FIELD(0, ek_random_horizontal_flip(0.5)),
                             EK_FIELD(1, ek_one_hot(100)));
    ek_dataset *further = ek_transformed_alike(pictures_and_masks(), EK_FIELD(0, ek_to_float()),
                                               EK_FIELD(2, ek_to_float()));
    assert_made(set);
    assert_refused(ek_dataset_get_batch(set, all, 4, ek_cpu()), EK_E_INVALID, "sample 2: ");
    assert_refused(ek_dataset_get(set, 5), EK_E_INVALID, "one_hot");
    assert_refused(ek_dataset_get(further, 5), EK_E_INVALID,
                   "field 2 is transformed, and the sample is a list of 2");
    assert_refused(ek_dataset_get_batch(further, all, 4, ek_cpu()), EK_E_INVALID,
                   "field 2 is transformed");
    ek_manual_seed(5);
    uint32_t first = ek_random_u32(NULL);
    ek_manual_seed(5);
    ck_assert_uint_eq(ek_random_u32(NULL), first);
    ek_dataset_free(set);
    ek_dataset_free(further);
}
