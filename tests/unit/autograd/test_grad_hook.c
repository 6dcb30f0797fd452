/* Who is told that leaves have their gradients: when, on which thread, and what happens on errors.
 */
#include "autograd/grad_hook.h"

#include <pthread.h>

#include "kit/devices.h"
#include "kit/shards.h"
#include "toy.h"

enum { DEVICES = 4, LEAVES = 32 };
static ek_dev *devs[DEVICES];

static void setup(void)
{
    assert_ok(test_devices_configure("4"));
    for (int i = 0; i < DEVICES; i++) {
        devs[i] = ek_dev_get(test_device(i));
        assert_made(devs[i]);
        devs[i]->threads = 1;
    }
}

FIXTURE(setup, NULL)

/* ---- a hook that writes down what it is told ---- */

typedef struct recorder {
    ek_grad_hook hook;
    pthread_mutex_t lock;
    ek_tensor *leaves[LEAVES]; /* borrowed, by index */

    int begins, finishes, arrivals; /* of the last pass: arrivals */
    int listed[LEAVES], list_count;
    bool create_graph;
    int times[LEAVES]; /* how often the leaf arrived in the last pass */
    bool some[LEAVES];
    double value[LEAVES];   /* the last element of its gradient then, or 0 */
    ek_dev *worker[LEAVES]; /* whose worker told */
    int status;             /* what finish was told */
    int pending;            /* the error that was pending in finish */
    int grad_modes;         /* calls in gradient mode */
    int outside;            /* begins and finishes that came on another thread than this one */
    pthread_t caller;

    int fails_in_begin, fails_for, fails_in_finish; /* statuses; fails_for: leaf + 1 */
    ek_tensor *drops; /* a leaf from which the hook is taken away in `begin` */
} recorder;

static atomic_int recorders, calls; /* in all */

static void recorder_destroy(ek_object *object)
{
    pthread_mutex_destroy(&((recorder *)object)->lock);
    atomic_fetch_sub(&recorders, 1);
    free(object);
}

static int recorder_begin(ek_grad_hook *hook, const int *leaves, int count, bool create_graph,
                          bool meets)
{
    recorder *self = (recorder *)hook;
    self->begins++;
    atomic_fetch_add(&calls, 1);
    self->list_count = count;
    for (int i = 0; i < count && i < LEAVES; i++)
        self->listed[i] = leaves[i];
    self->create_graph = create_graph;
    ck_assert(!meets);
    self->arrivals = 0;
    memset(self->times, 0, sizeof self->times);
    self->grad_modes += ek_grad_enabled();
    self->outside += !pthread_equal(self->caller, pthread_self());
    if (self->drops)
        ek_leaf_set_grad_hook(self->drops, NULL, 0);
    toy_full(1, EK_SHAPE(3), test_device(0)); /* ends with the call */
    return self->fails_in_begin ? ek_error(self->fails_in_begin, "no beginning") : 0;
}

static int recorder_arrived(ek_grad_hook *hook, int leaf, bool some)
{
    recorder *self = (recorder *)hook;
    const ek_tensor *gradient = self->leaves[leaf] ? ek_tensor_grad(self->leaves[leaf]) : NULL;
    double value = gradient ? element(gradient, ek_count(gradient) - 1) : 0;
    atomic_fetch_add(&calls, 1);
    pthread_mutex_lock(&self->lock);
    self->arrivals++;
    self->times[leaf]++;
    self->some[leaf] = some;
    self->value[leaf] = value;
    self->worker[leaf] = ek_thread_self()->own_device;
    self->grad_modes += ek_grad_enabled();
    pthread_mutex_unlock(&self->lock);
    return self->fails_for == leaf + 1 ? ek_error(EK_E_USER, "not this one") : 0;
}

static int recorder_finish(ek_grad_hook *hook, int status)
{
    recorder *self = (recorder *)hook;
    self->finishes++;
    atomic_fetch_add(&calls, 1);
    self->status = status;
    self->pending = ek_error_status();
    self->grad_modes += ek_grad_enabled();
    self->outside += !pthread_equal(self->caller, pthread_self());
    return self->fails_in_finish ? ek_error(self->fails_in_finish, "no end") : 0;
}

/* One reference. */
static recorder *new_recorder(void)
{
    recorder *self = calloc(1, sizeof *self);
    ck_assert_ptr_nonnull(self);
    ek_object_init(&self->hook.object, recorder_destroy);
    self->hook.begin = recorder_begin;
    self->hook.arrived = recorder_arrived;
    self->hook.finish = recorder_finish;
    pthread_mutex_init(&self->lock, NULL);
    self->caller = pthread_self();
    atomic_fetch_add(&recorders, 1);
    return self;
}

static void watch(recorder *self, ek_tensor *leaf, int index)
{
    self->leaves[index] = leaf;
    assert_ok(ek_leaf_set_grad_hook(leaf, &self->hook, index));
}

/* A leaf of 1, 2 that is watched. */
static ek_tensor *watched(recorder *self, int device, int index)
{
    ek_tensor *leaf = toy_leaf((double[]){1, 2}, 2, test_device(device));
    watch(self, leaf, index);
    return leaf;
}

static void assert_pass(const recorder *self, int passes, const int *leaves, int count)
{
    ck_assert_int_eq(self->begins, passes);
    ck_assert_int_eq(self->finishes, passes);
    ck_assert_int_eq(self->status, 0);
    ck_assert_int_eq(self->outside, 0);
    ck_assert_int_eq(self->list_count, count);
    ck_assert_int_eq(self->arrivals, count);
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(self->listed[i], leaves[i]);
        ck_assert_int_eq(self->times[leaves[i]], 1);
    }
}

static void end(recorder *self)
{
    ek_object_release(self);
}

/* ---- x, whose gradient is lost ---- */

static int lose_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    return 0;
}

static ek_tensor *lose(ek_tensor *x)
{
    static const ek_operation operation = {.name = "lose", .backward = lose_backward};
    return EK_RECORD(ek_fold_copy(ek_detach(x), x), &operation, EK_INPUTS(x));
}

/* ---- tests ---- */

TEST(leaves_that_take_part_are_listed_and_arrive)
{
    recorder *self = new_recorder();
    ek_tensor *a = watched(self, 0, 7), *b = watched(self, 0, 2), *c = watched(self, 0, 4);
    ek_tensor *lost = watched(self, 0, 5), *frozen = watched(self, 0, 1);
    ek_tensor *unwatched = toy_leaf((double[]){1, 2}, 2, test_device(0));
    watched(self, 0, 3);                                          /* is not used */
    ek_tensor *y = toy_mul(toy_mul(a, a), toy_mul(b, unwatched)); /* a twice */
    y = toy_mul(y, ek_fold_add(lose(lost), frozen));
    assert_ok(ek_tensor_set_requires_grad(frozen, false));
    y = ek_fold_add(toy_sum(y), toy_sum(ek_fold_add(c, a))); /* and a once more */
    assert_ok(ek_backward(y, .retain_graph = true));
    assert_pass(self, 1, (const int[]){2, 4, 5, 7}, 4);
    ck_assert(!self->create_graph);
    ck_assert_int_eq(self->grad_modes, 0);
    ck_assert(self->some[2] && self->some[4] && self->some[7] && !self->some[5]);
    /* a^2 b u (l + f): what has arrived is the whole sum. */
    ck_assert_double_eq(self->value[7], 2 * 2 * 2 * 2 * 4 + 1);
    ck_assert_double_eq(self->value[2], 2 * 2 * 2 * 4);
    ck_assert_double_eq(self->value[4], 1);
    ck_assert_ptr_null(ek_tensor_grad(lost));
    ck_assert_ptr_null(self->worker[7]); /* one device: the caller's own thread */
    ck_assert(ek_grad_enabled());

    assert_ok(ek_backward(y));
    assert_pass(self, 2, (const int[]){2, 4, 5, 7}, 4);
    ck_assert_double_eq(self->value[4], 2);
    end(self);
}

TEST(a_leaf_that_is_the_loss)
{
    recorder *self = new_recorder();
    ek_tensor *leaf = toy_leaf((double[]){3}, 1, test_device(1));
    watch(self, leaf, 0);
    assert_ok(ek_backward(leaf));
    assert_pass(self, 1, (const int[]){0}, 1);
    ck_assert_double_eq(self->value[0], 1);
    end(self);
}

TEST(ek_grad_tells_nobody)
{
    recorder *self = new_recorder();
    ek_tensor *a = watched(self, 0, 0), *b = watched(self, 1, 1);
    ek_tensor *y = toy_sum(toy_mul(toy_exp(a), toy_to(b, devs[0], 0)));
    ek_tensor *gradient = toy_grad(y, a, true);
    toy_grad(toy_sum(gradient), b, false);
    ck_assert_int_eq(self->begins + self->arrivals + self->finishes, 0);
    assert_ok(ek_backward(y));
    assert_pass(self, 1, (const int[]){0, 1}, 2);
    end(self);
}

TEST(create_graph_is_passed_on)
{
    recorder *self = new_recorder();
    ek_tensor *a = watched(self, 0, 0);
    bool before = ek_set_grad_enabled(true);
    ek_tensor *y = toy_sum(toy_exp(a));
    ek_set_grad_enabled(false);
    assert_ok(ek_backward(y, .create_graph = true));
    ck_assert(!ek_grad_enabled());
    ek_set_grad_enabled(before);
    assert_pass(self, 1, (const int[]){0}, 1);
    ck_assert(self->create_graph);
    ck_assert_int_eq(self->grad_modes, 3);
    ck_assert(ek_tensor_grad(a)->requires_grad);
    assert_ok(ek_tensor_set_grad(a, NULL));
    end(self);
}

/* One leaf per device and one of cpu: all on the thread of their lane, and the same bits. */
TEST(leaves_arrive_on_their_lanes)
{
#ifdef EK_SANITIZED
    enum { ROUNDS = 20 };
#else
    enum { ROUNDS = 100 };
#endif
    double plain[DEVICES];
    for (int round = 0; round < ROUNDS; round++) {
        ek_scope scope = ek_scope_begin();
        recorder *self = new_recorder();
        ek_tensor *leaves[DEVICES], *sum = NULL;
        for (int i = 0; i < DEVICES; i++) {
            leaves[i] = toy_leaf((double[]){1, 1.0 / 3}, 2, test_device(i));
            if (round)
                watch(self, leaves[i], i);
        }
        for (int i = 0; i < 12; i++) {
            ek_tensor *x = toy_exp(toy_scale(leaves[i % DEVICES], 1.0 / (1 + i)));
            x = toy_to(toy_mul(toy_to(leaves[(i + 1) % DEVICES], devs[i % DEVICES], 0), x), devs[0],
                       round % 7 == i % 7 ? 300 : 0);
            sum = sum ? ek_fold_add(sum, x) : x;
        }
        assert_ok(ek_backward(toy_sum(sum)));
        for (int i = 0; i < DEVICES; i++) {
            double value = element(ek_tensor_grad(leaves[i]), 1);
            if (round) {
                ck_assert_ptr_eq(self->worker[i], devs[i]);
                ck_assert_mem_eq(&self->value[i], &value, sizeof value);
            } else {
                plain[i] = value;
            }
            ck_assert_mem_eq(&plain[i], &value, sizeof value);
        }
        if (round)
            assert_pass(self, 1, (const int[]){0, 1, 2, 3}, DEVICES);
        end(self);
        ek_scope_end(&scope);
    }
}

TEST(pieces_are_leaves)
{
    recorder *self = new_recorder();
    ek_scope scope = ek_scope_begin();
    ek_shards *shards = hand_shards(2);
    ck_assert_ptr_nonnull(shards);
    ek_tensor *leaf = toy_leaf((double[]){1, 2, 3, 4}, 4, test_device(0)), *sum = NULL;
    for (int i = 0; i < 2; i++) {
        ek_tensor *piece = watched(self, i, i);
        ek_shards_add(shards, 0, 2 * i, 2 * (i + 1), piece);
        ek_tensor *part = toy_to(toy_sum(toy_mul(piece, piece)), devs[0], 0);
        sum = sum ? ek_fold_add(sum, part) : part;
    }
    watch(self, leaf, 2);
    assert_ok(ek_leaf_set_shards(leaf, shards, 0));
    assert_ok(ek_backward(sum));
    assert_pass(self, 1, (const int[]){0, 1}, 2); /* the leaf itself has no part */
    ck_assert_double_eq(self->value[1], 4);
    assert_ok(ek_backward(toy_sum(toy_exp(leaf))));
    assert_pass(self, 2, (const int[]){2}, 1); /* used beside its pieces */
    assert_ok(ek_leaf_set_shards(leaf, NULL, 0));
    ek_object_release(shards);
    ek_scope_end(&scope);
    end(self);
}

/* ---- errors ---- */

/* The sentence has nothing before the hook's own. */
static void assert_message_begins(const char *sentence)
{
    ck_assert_ptr_eq(strstr(ek_error_message(), sentence), ek_error_message());
}

/* Two leaves of one hook and one of another, on `count` devices. */
static ek_tensor *loss_of_three(recorder *first, recorder *second, int count, ek_tensor **leaves)
{
    ek_tensor *sum = NULL;
    for (int i = 0; i < 3; i++) {
        leaves[i] = watched(i < 2 ? first : second, i % count, i);
        ek_tensor *part = toy_to(toy_sum(toy_exp(leaves[i])), devs[0], 0);
        sum = sum ? ek_fold_add(sum, part) : part;
    }
    return sum;
}

TEST_LOOP(a_begin_that_fails_lets_nothing_run, 1, 3)
{
    recorder *first = new_recorder(), *second = new_recorder();
    ek_tensor *leaves[3], *loss = loss_of_three(first, second, _i, leaves);
    second->fails_in_begin = EK_E_STATE;
    int runs = atomic_load(&toy_exp_runs);
    ck_assert_int_eq(ek_backward(loss), EK_E_STATE);
    assert_message_begins("no beginning");
    ek_error_clear();
    ck_assert_int_eq(atomic_load(&toy_exp_runs), runs);
    ck_assert_int_eq(first->finishes, 1); /* its begin came before, so it gets its end */
    ck_assert_int_eq(first->status, EK_E_STATE);
    ck_assert_int_eq(first->pending, EK_E_STATE);
    ck_assert_int_eq(first->arrivals, 0);
    ck_assert_int_eq(second->begins, 1);
    ck_assert_int_eq(second->finishes, 0);

    second->fails_in_begin = 0; /* the graph is still there */
    assert_ok(ek_backward(loss));
    ck_assert_int_eq(second->finishes, 1);
    assert_pass(first, 2, (const int[]){0, 1}, 2);
    end(first);
    end(second);
}

TEST_LOOP(errors_reach_every_finish, 1, 4)
{
    for (int who = 0; who < 4; who++) {
        ek_scope scope = ek_scope_begin();
        recorder *first = new_recorder(), *second = new_recorder();
        ek_tensor *leaves[3], *loss = loss_of_three(first, second, _i, leaves);
        if (who < 3)
            (who < 2 ? first : second)->fails_for = who + 1;
        else
            loss = ek_fold_add(loss,
                               toy_sum(toy_fail(toy_to(leaves[2], devs[0], 0), TOY_FAIL_STATUS)));
        ck_assert_int_eq(ek_backward(loss, .retain_graph = true), EK_E_USER);
        if (who < 3)
            assert_message_begins("not this one");
        ek_error_clear();
        recorder *const both[2] = {first, second};
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(both[i]->begins, 1);
            ck_assert_int_eq(both[i]->finishes, 1);
            ck_assert_int_eq(both[i]->status, EK_E_USER);
            ck_assert_int_eq(both[i]->pending, EK_E_USER);
            ck_assert_int_eq(both[i]->outside, 0);
        }
        if (who < 3) {
            first->fails_for = second->fails_for = 0;
            assert_ok(ek_backward(loss));
            assert_pass(first, 2, (const int[]){0, 1}, 2);
        }
        end(first);
        end(second);
        ek_scope_end(&scope);
    }
}

TEST(a_finish_that_fails_is_the_passes_error)
{
    recorder *first = new_recorder(), *second = new_recorder();
    ek_tensor *leaves[3], *loss = loss_of_three(first, second, 3, leaves);
    first->fails_in_finish = EK_E_ABORTED;
    assert_refused(ek_backward(loss), EK_E_ABORTED, "no end");
    ck_assert_int_eq(first->status, 0);
    ck_assert_int_eq(second->finishes, 1);
    ck_assert_int_eq(second->status, EK_E_ABORTED);
    ck_assert_ptr_nonnull(ek_tensor_grad(leaves[2]));
    end(first);
    end(second);
}

/* ---- who holds whom ---- */

TEST(a_leaf_has_one_hook_at_most)
{
    recorder *self = new_recorder(), *other = new_recorder();
    ek_scope scope = ek_scope_begin();
    ek_tensor *leaf = watched(self, 0, 0);
    assert_refused(ek_leaf_set_grad_hook(leaf, &other->hook, 1), EK_E_STATE,
                   "has a grad hook already");
    assert_refused(ek_leaf_set_grad_hook(leaf, &self->hook, 1), EK_E_STATE,
                   "has a grad hook already");
    assert_refused(ek_leaf_set_grad_hook(toy_exp(leaf), &other->hook, 1), EK_E_INVALID,
                   "only leaves");
    assert_ok(ek_leaf_set_grad_hook(leaf, NULL, 0));
    assert_ok(ek_leaf_set_grad_hook(leaf, NULL, 0));
    assert_ok(ek_backward(toy_sum(leaf)));
    ck_assert_int_eq(self->begins, 0);
    watch(other, leaf, 3);
    end(other);
    ck_assert_int_eq(atomic_load(&recorders), 2);
    assert_ok(ek_backward(toy_sum(leaf)));
    assert_pass(other, 1, (const int[]){3}, 1);
    ek_scope_end(&scope); /* the leaf's was the last reference */
    ck_assert_int_eq(atomic_load(&recorders), 1);
    end(self);
    ck_assert_int_eq(atomic_load(&recorders), 0);
}

TEST(a_pass_keeps_the_hooks_that_it_began_with)
{
    recorder *self = new_recorder();
    ek_tensor *leaf = watched(self, 0, 0);
    ek_tensor *loss = toy_sum(leaf);
    self->drops = leaf;
    end(self); /* the leaf's reference is left, and goes in begin */
    int before = atomic_load(&calls);
    assert_ok(ek_backward(loss));
    ck_assert_int_eq(atomic_load(&calls), before + 3);
    ck_assert_int_eq(atomic_load(&recorders), 0);
    assert_ok(ek_backward(toy_sum(leaf)));
    ck_assert_int_eq(atomic_load(&calls), before + 3);
}
