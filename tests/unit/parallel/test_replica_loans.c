/* Copies of parameters that use the module's memory on the host: when they do, and what ends it. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/tensor.h"
#include "core/worker.h"
#include "dlpack_abi.h"
#include "kit/models.h"
#include "parallel/replica_copies.h"
#include "parallel_setup.h"

static const char *const names[2] = {"0.weight", "0.bias"};

/* A module on device 0 and a set of its replicas on devices 0 and 1. */
typedef struct lent {
    ek_module *net;
    ek_replica_set *set;
    ek_tensor *weight, *bias;
    ek_module *replicas[2];
    ek_tensor *copies[2]; /* The copies of weight and bias on device 1. */
    ek_dev *devs[2];
} lent;

static ek_module *make_norm_net(void)
{
    ek_manual_seed(7);
    return ek_sequential(ek_linear(3, 4), ek_batch_norm1d(4));
}

static void lent_begin(lent *l)
{
    ek_module *net = held(make_norm_net());
    assert_ok(ek_module_to_device(net, test_device(0)));
    assert_ok(ek_flatten_parameters(net, false));
    *l = (lent){.net = net,
                .set = ek_replica_set_new(net, 2, true),
                .weight = ek_module_tensor(net, names[0]),
                .bias = ek_module_tensor(net, names[1]),
                .devs = {ek_dev_get(test_device(0)), ek_dev_get(test_device(1))}};
}

/* Makes new replicas in place of the last ones. The first have memory of their own. */
static void lent_make(lent *l)
{
    const ek_rank_list ranks = {2, {0, 1}};
    for (int d = 0; d < 2; d++)
        ek_module_free(l->replicas[d]);
    assert_ok(ek_replica_set_make(l->set, l->devs, &ranks, l->replicas));
    for (int i = 0; i < 2; i++)
        l->copies[i] = ek_module_tensor(l->replicas[1], names[i]);
}

static bool lent_shows(const lent *l)
{
    const bool weight = ek_tensor_address(l->copies[0]) == ek_tensor_address(l->weight);
    ck_assert_int_eq(ek_tensor_address(l->copies[1]) == ek_tensor_address(l->bias), weight);
    return weight;
}

static void lent_end(lent *l)
{
    for (int d = 0; d < 2; d++)
        ek_module_free(l->replicas[d]);
    ek_replica_set_free(l->set);
}

static uint64_t in_use(int d)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(test_device(d), &stats));
    return stats.in_use;
}

TEST(copies_show_parameters_until_they_are_written)
{
    const bool shows = test_kind() == EK_HOST, before = ek_set_grad_enabled(false);
    lent l;
    lent_begin(&l);
    for (int round = 0; round < 6; round++) {
        const double value = 3 + round;
        assert_made(ek_fill_(l.bias, value));
        lent_make(&l);
        const bool lends = shows && round > 0 && round < 5;
        ck_assert_int_eq(lent_shows(&l), lends);
        ck_assert_double_eq(element(l.copies[1], 2), value);
        const uint64_t writes = ek_version_writes(l.copies[1]->version);
        ek_tensor_touch(l.bias);
        ck_assert_int_eq(ek_version_writes(l.copies[1]->version) > writes, lends);
        ck_assert_uint_eq(ek_version_writes(l.copies[0]->version), 1);
        if (round < 4)
            continue;
        assert_made(ek_fill_(l.copies[1], value + 10));
        ck_assert(!lent_shows(&l));
        ck_assert_double_eq(element(l.bias, 2), value);
        ck_assert_double_eq(element(l.copies[1], 2), value + 10);
        assert_close(ek_to_device(l.copies[0], ek_cpu()), ek_to_device(l.weight, ek_cpu()), 0, 0);
    }
    ek_set_grad_enabled(before);
    lent_end(&l);
}

TEST(replicas_that_outlive_the_set_have_memory_of_their_own)
{
    ek_module *net = held(make_norm_net()), *replicas[2];
    ek_device_list devices = ek_devices(test_kind(), 2);
    assert_ok(ek_module_to_device(net, test_device(0)));
    assert_ok(ek_flatten_parameters(net, false));
    assert_ok(ek_replicate(net, &devices, replicas));
    ck_assert_ptr_ne(ek_tensor_address(ek_module_tensor(replicas[1], names[0])),
                     ek_tensor_address(ek_module_tensor(net, names[0])));
    ek_module_free(replicas[0]);
    ek_module_free(replicas[1]);
}

/* Ways to write to a tensor, or to get an address to write to. */
enum { BY_DATA, BY_RANDOM, BY_COPY, BY_STATISTICS, BY_ADDRESS, BY_DLPACK, WAYS };

static void write_by(int way, ek_tensor *to)
{
    static const float values[4] = {1, 2, 3, 4};
    ek_tensor *x = ek_to_device(normal(3, EK_SHAPE(6, 4), EK_F32, ek_cpu()), ek_tensor_device(to));
    if (way == BY_DATA)
        assert_ok(ek_set_data(to, values, sizeof values));
    else if (way == BY_RANDOM)
        assert_ok(ek_uniform_(to, 5, 6, NULL));
    else if (way == BY_COPY)
        assert_made(ek_copy_(to, ek_select(x, 0, 0)));
    else if (way == BY_STATISTICS)
        assert_made(ek_f_batch_norm(x, .running_mean = to, .running_var = ek_ones_like(to),
                                    .training = true));
    else if (way == BY_ADDRESS && ek_tensor_device(to).kind == EK_HOST) {
        *(float *)ek_tensor_data(to) = 7;
        ek_tensor_touch(to);
    } else if (way == BY_DLPACK) {
        DLManagedTensorVersioned *taken = ek_to_dlpack(ek_detach(to), NULL);
        ck_assert_ptr_nonnull(taken);
        taken->deleter(taken);
    }
}

TEST_LOOP(a_borrower_has_its_own_memory_before_a_write, 0, WAYS)
{
    const bool before = ek_set_grad_enabled(false);
    lent l;
    lent_begin(&l);
    lent_make(&l);
    lent_make(&l);
    ck_assert_int_eq(lent_shows(&l), test_kind() == EK_HOST);
    const double first = element(l.bias, 0), second = element(l.copies[0], 1);
    write_by(_i, l.copies[1]);
    ck_assert(!lent_shows(&l));
    ck_assert_double_eq(element(l.bias, 0), first);
    ck_assert_double_eq(element(l.copies[0], 1), second);
    lent_make(&l);
    ck_assert(!lent_shows(&l));
    ek_set_grad_enabled(before);
    lent_end(&l);
}

typedef struct lent_write {
    lent *l;
    int way;
} lent_write;

static int write_in_job(void *user, int index)
{
    const lent_write *write = user;
    ek_scope scope = ek_scope_begin();
    ek_set_grad_enabled(false);
    if (index == 0)
        write_by(write->way, write->l->bias);
    ek_scope_end(&scope);
    return 0;
}

/* A write by device 0 in a job reaches no other device before the next forward. */
TEST_LOOP(a_lender_leaves_its_memory_before_a_write_in_a_job, 0, WAYS)
{
    const bool before = ek_set_grad_enabled(false), shows = test_kind() == EK_HOST;
    lent l;
    lent_begin(&l);
    lent_make(&l);
    lent_make(&l);
    ck_assert_int_eq(lent_shows(&l), shows);
    const uint64_t used[2] = {in_use(0), in_use(1)};
    const uint64_t writes = ek_version_writes(l.copies[1]->version);
    const double first = element(l.copies[1], 0), second = element(l.weight, 1);
    assert_ok(ek_jobs_run(l.devs, 2, write_in_job, &(lent_write){&l, _i}, NULL));
    ck_assert_ptr_ne(ek_tensor_address(l.copies[1]), ek_tensor_address(l.bias));
    ck_assert_double_eq(element(l.copies[1], 0), first);
    ck_assert_double_eq(element(l.weight, 1), second);
    ck_assert_uint_eq(ek_version_writes(l.copies[1]->version), writes);
    ck_assert_uint_eq(in_use(1), used[1]);
    ek_tensor_touch(l.bias);
    lent_make(&l);
    ck_assert(!lent_shows(&l));
    ck_assert_double_eq(element(l.copies[1], 0), element(l.bias, 0));
    ck_assert_double_eq(element(l.copies[0], 1), second);
    ck_assert_uint_eq(in_use(0), used[0]);
    ck_assert_uint_eq(in_use(1), used[1]);
    ek_set_grad_enabled(before);
    lent_end(&l);
}

/* Nothing is lent if the first forward does what would part the memory. */
TEST_LOOP(nothing_is_lent_after_a_forward_that_writes, 0, WAYS)
{
    const bool before = ek_set_grad_enabled(false);
    lent l;
    lent_begin(&l);
    lent_make(&l);
    write_by(_i, l.copies[1]);
    lent_make(&l);
    ck_assert(!lent_shows(&l));
    ck_assert_double_eq(element(l.copies[1], 0), element(l.bias, 0));
    ek_set_grad_enabled(before);
    lent_end(&l);
}

static void *address_of(void *user)
{
    return ek_tensor_data(user);
}

/* A program may keep an address of the module's, which several threads may ask for. */
TEST(an_address_stays_valid)
{
    const bool before = ek_set_grad_enabled(false);
    lent l;
    lent_begin(&l);
    lent_make(&l);
    lent_make(&l);
    pthread_t threads[3];
    void *addresses[3];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, address_of, l.bias), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_join(threads[i], &addresses[i]), 0);
    float *address = ek_tensor_data(l.bias);
    ck_assert_int_eq(address != NULL, test_kind() == EK_HOST);
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_eq(addresses[i], address);
    ck_assert(!lent_shows(&l));
    assert_ok(ek_jobs_run(l.devs, 2, write_in_job, &(lent_write){&l, BY_DATA}, NULL));
    ck_assert(!address || address[2] == 3);
    lent_make(&l);
    ck_assert(!lent_shows(&l));
    ck_assert_ptr_eq(ek_tensor_data(l.bias), address);
    ek_set_grad_enabled(before);
    lent_end(&l);
}

TEST(a_forked_child_reads_what_is_lent)
{
    if (test_kind() != EK_HOST)
        return;
    lent l;
    lent_begin(&l);
    lent_make(&l);
    lent_make(&l);
    ck_assert(lent_shows(&l));
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(ek_tensor_data(l.weight) && ek_tensor_data(l.copies[0]) ? 0 : 1);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    lent_end(&l);
}

/* The lender's memory stays until no copy shows it. */
TEST(a_lender_may_move)
{
    lent l;
    const uint64_t used = in_use(0);
    lent_begin(&l);
    ek_scope scope = ek_scope_begin();
    lent_make(&l);
    lent_make(&l);
    ek_tensor *weight = ek_clone(ek_to_device(ek_detach(l.weight), ek_cpu()));
    assert_ok(ek_module_to_device(l.net, test_device(2)));
    assert_close(ek_to_device(ek_detach(l.copies[0]), ek_cpu()), weight, 0, 0);
    lent_end(&l);
    ek_scope_end(&scope);
    ck_assert_uint_eq(in_use(0), used);
}
