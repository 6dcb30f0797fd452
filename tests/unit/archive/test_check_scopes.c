/* EVENKEEL_CHECK: mistakes with scopes, members and errors, which C defines and the library says
 * nothing of without the check; programs that are right; operations that make NaN. */
#include <pthread.h>

#include "check_setup.h"

NAMES_DEVICES
OWN_PROCESSES

/* A module that calls a part of its child through a plain member. */
typedef struct caller {
    ek_module module;
    ek_module *body, *first;
} caller;

static ek_value caller_forward(ek_module *module, const ek_args *args)
{
    return EK_VALUE(ek_apply(((caller *)module)->first, ek_arg_tensor(args, 0)));
}

static void member_of_replica(void)
{
    static const ek_module_type type = {.name = "caller",
                                        .size = sizeof(caller),
                                        .forward = caller_forward};
    caller *self = (caller *)ek_module_new(&type);
    ek_register_module(&self->module, "body", &self->body, ek_sequential(ek_linear(2, 2)));
    self->first = ek_module_at(self->body, "0");
    ek_module *wrapper = ek_data_parallel_model(&self->module);
    ek_forward(wrapper, a_tensor());
    ek_error_clear();
    ek_module_free(wrapper);
}

static void scope_ended_twice(void)
{
    HERE;
    ek_scope scope = ek_scope_begin(), other;
    line++;
    ek_scope_end(&scope);
    other = ek_scope_begin();
    ek_tensor *x = a_tensor();
    ek_scope_end(&scope);
    assert_made(ek_neg(x));
    ek_scope_end(&other);
}

static void scope_left_open(void)
{
    ek_scope outer = ek_scope_begin();
    HERE, ek_scope_begin();
    ek_scope_end(&outer);
}

static void *end_scope(void *scope)
{
    ek_scope_end(scope);
    return NULL;
}

static void run_thread(void *(*function)(void *), void *user)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, function, user), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

static void scope_of_other_thread(void)
{
    ek_scope scope;
    HERE, scope = ek_scope_begin();
    run_thread(end_scope, &scope);
    ek_scope_end(&scope);
}

static void *leave_open(void *user)
{
    HERE, ek_scope_begin();
    return user;
}

static void scope_of_thread(void)
{
    run_thread(leave_open, NULL);
}

static void *leave_error(void *user)
{
    ek_error(EK_E_USER, "nobody reads this");
    return user;
}

static void unread_error(void)
{
    run_thread(leave_error, NULL);
}

static void steps(int count, bool scoped)
{
    ek_module *module = ek_linear(4, 4);
    ek_optimizer *optimizer = ek_sgd(module, .lr = 0.1);
    for (int i = 0; i < count; i++) {
        ek_scope scope = {0};
        if (scoped)
            scope = ek_scope_begin();
        assert_ok(ek_minimize(optimizer, ek_sum(ek_apply(module, ek_ones(EK_SHAPE(8, 4))))));
        ek_scope_end(&scope);
    }
    ek_optimizer_free(optimizer);
    ek_module_free(module);
}

static void root_scope_grows(void)
{
    steps(150, false);
}

static void scope_grows(void)
{
    HERE;
    EK_SCOPE(all);
    line++;
    steps(150, false);
}

static const check_mistake mistakes[] = {
    {member_of_replica, "caller: the member at byte 32 of its struct isn't registered and points "
                        "to \"body.0\""},
    {scope_ended_twice, "the scope that began at @ has ended, and is ended again at"},
    {scope_left_open, "the scope that began at @ was not ended before the scope around it"},
    {scope_of_other_thread, "the scope that began at @ belongs to another thread"},
    {scope_of_thread, "the scope that began at @ was not ended before its thread ended"},
    {unread_error, "a thread ended with an error that nobody read: nobody reads this"},
    {root_scope_grows, "sgd: the root scope has grown at each of the last 100 steps, by"},
    {scope_grows, "sgd: the scope that began at @ has grown at each of the last 100 steps"},
};

enum { MISTAKES = sizeof mistakes / sizeof *mistakes };

TEST_LOOP(mistakes_are_named_with_their_line, 0, MISTAKES)
{
    assert_named(&mistakes[_i], "test_check_scopes.c");
}

TEST_LOOP(they_say_nothing_without_the_check, 0, MISTAKES)
{
    check_with("0");
    mistakes[_i].make();
    ck_assert_str_eq(sentences(), "");
}

/* ---- what is right ---- */

TEST(right_programs_hear_nothing)
{
    check_with("1,anomaly");
    steps(150, true);
    EK_SCOPE(scope);
    ek_scope inner = ek_scope_begin();
    ek_tensor *x = ek_keep(a_tensor());
    ek_value list = ek_value_keep(EK_LIST(x, x));
    ek_scope_end(&inner);
    assert_made(ek_add(x, ek_value_tensor(ek_value_at(list, 1))));
    ek_release(x);
    ek_value_release(list);
    ek_tensor *masked =
        ek_masked_fill(a_tensor(), ek_gt(a_tensor(), ek_zeros(EK_SHAPE(2, 2))), -INFINITY);
    assert_made(ek_f_softmax(masked, 1));
    assert_made(ek_full(INFINITY, EK_SHAPE(2)));
    assert_made(ek_add_scalar(a_tensor(), INFINITY));
    ck_assert_str_eq(sentences(), "");
}

TEST(a_scope_of_a_block_ends_by_break_return_and_goto)
{
    uint64_t before, after;
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    before = stats.in_use;
    for (int i = 0; i < 3; i++) {
        EK_SCOPE(outer);
        {
            EK_SCOPE(inner);
            assert_made(a_tensor());
            if (i == 1)
                break;
            if (i == 0)
                goto next;
            ck_assert_ptr_nonnull(ek_scope_return(&inner, a_tensor()));
        }
    next:;
    }
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    after = stats.in_use;
    ck_assert_uint_eq(after, before);
}

TEST(an_unknown_word_is_an_error)
{
    setenv("EVENKEEL_CHECK", "yes", 1);
    ck_assert_ptr_null(a_tensor());
    assert_error(EK_E_INVALID, "EVENKEEL_CHECK names \"yes\", which is not 0, 1 or anomaly");
}

/* ---- anomalies ---- */

static ek_value log_forward(ek_module *module, const ek_args *args)
{
    return EK_VALUE(ek_log(ek_arg_tensor(args, 0)));
}

static const ek_module_type log_type = {.name = "logarithm",
                                        .size = sizeof(ek_module),
                                        .forward = log_forward};

TEST(the_operation_that_makes_an_infinity_is_named)
{
    check_with("anomaly");
    ek_module *net = ek_sequential(ek_linear(2, 2), ek_module_new(&log_type));
    ek_init_constant(ek_module_tensor(net, "0.weight"), 0);
    ek_init_constant(ek_module_tensor(net, "0.bias"), 0);
    for (int i = 0; i < 2; i++)
        assert_made(ek_exp(ek_apply(net, a_tensor())));
    ck_assert_str_eq(sentences(), "log has made an infinity of finite operands: f32[2, 2] on cpu, "
                                  "in 1\n");
    ek_module_free(net);
}

TEST(the_module_without_a_parent_is_named)
{
    check_with("anomaly");
    ek_module *log = ek_module_new(&log_type);
    assert_made(ek_apply(log, ek_zeros(EK_SHAPE(2))));
    ck_assert_str_eq(sentences(), "log has made an infinity of finite operands: f32[2] on cpu, "
                                  "in logarithm\n");
    ek_module_free(log);
}

TEST(operations_in_place_that_broadcast_are_named)
{
    check_with("anomaly");
    assert_made(ek_div_(ek_ones(EK_SHAPE(2)), ek_zeros(EK_SHAPE(1))));
    ck_assert_ptr_nonnull(strstr(sentences(), "has made an infinity of finite operands: f32[2]"));
}

TEST(the_operation_that_makes_a_nan_is_named)
{
    check_with("anomaly");
    ek_tensor *minus = ek_neg(a_tensor());
    assert_made(ek_add(ek_sqrt(minus), a_tensor()));
    assert_made(ek_mul_(ek_log(minus), minus));
    ck_assert_str_eq(sentences(), "sqrt has made a NaN of finite operands: f32[2, 2] on cpu\n");
}

TEST(an_operation_in_place_is_judged_by_what_it_found)
{
    check_with("anomaly");
    ek_tensor *x = ek_full(INFINITY, EK_SHAPE(2)), *zero = ek_zeros(EK_SHAPE(2));
    assert_made(ek_mul_(x, zero));
    ck_assert_str_eq(sentences(), "");
    assert_made(ek_div_(zero, ek_zeros(EK_SHAPE(2))));
    ck_assert_ptr_nonnull(strstr(sentences(), "div_ has made a NaN of finite operands"));
}

TEST(the_backward_that_makes_an_infinity_is_named)
{
    check_with("anomaly");
    ek_tensor *x = ek_zeros(EK_SHAPE(2), .requires_grad = true);
    assert_ok(ek_backward(ek_sum(ek_sqrt(x))));
    ck_assert_ptr_nonnull(strstr(sentences(), "the backward of sqrt has made an infinity of finite "
                                              "gradients: f32[2] on cpu"));
}
