/* test_recurrent_balance.c: outputs of recurrent networks and of attention, whose tensors have
 * their batch in different dimensions, under both wrappers. */
#include "balance_setup.h"
#include "kit/models.h"
#include "kit/tensors.h"

enum { KINDS = 3, STEPS = 4, SAMPLES = 7, INPUT = 3, HIDDEN = 5, LAYERS = 2 };

#define NETWORK(constructor)                                                     \
    constructor(INPUT, HIDDEN, .num_layers = LAYERS, .batch_first = batch_first, \
                .bidirectional = true)

static ek_module *make_network(int kind, bool batch_first)
{
    ek_manual_seed(7);
    ek_module *net = kind == 0 ? NETWORK(ek_rnn) : kind == 1 ? NETWORK(ek_gru) : NETWORK(ek_lstm);
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    return net;
}

static ek_tensor *make_sequences(uint64_t seed, bool batch_first)
{
    return normal(seed,
                  batch_first ? EK_SHAPE(SAMPLES, STEPS, INPUT) : EK_SHAPE(STEPS, SAMPLES, INPUT),
                  EK_F64, ek_cpu());
}

static ek_module *wrap(ek_module *net, bool balanced, int devices, int dim)
{
    ek_device_list ids = ek_devices(test_kind(), devices);
    ek_module *model = balanced ? ek_data_parallel_model(net, ids, .dim = dim)
                                : ek_data_parallel(net, ids, .dim = dim);
    assert_made(model);
    return model;
}

/* The output, h_n and c_n of a result (c_n is NULL except of an LSTM), on cpu. */
static void take_apart(ek_value result, ek_tensor *parts[3])
{
    result = ek_value_to_device(result, ek_cpu(), 0);
    ek_value state = ek_value_at(result, 1);
    const bool has_c = state.kind == EK_VALUE_LIST;
    parts[0] = ek_value_tensor(ek_value_at(result, 0));
    parts[1] = ek_value_tensor(has_c ? ek_value_at(state, 0) : state);
    parts[2] = has_c ? ek_value_tensor(ek_value_at(state, 1)) : NULL;
    assert_made(parts[0]);
    assert_made(parts[1]);
}

/* The sum of the means of the parts' squares. */
static ek_tensor *loss_of(ek_tensor *const parts[3])
{
    ek_tensor *loss = NULL;
    for (int i = 0; i < 3; i++)
        if (parts[i]) {
            ek_tensor *own = ek_mean(ek_square(parts[i]));
            loss = loss ? ek_add(loss, own) : own;
        }
    return loss;
}

static void assert_parts(ek_tensor *const parts[3], ek_tensor *const wanted[3])
{
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(parts[i] == NULL, wanted[i] == NULL);
        if (parts[i])
            assert_close(parts[i], wanted[i], 1e-14, 1e-15);
    }
}

static int compare_gradient(const char *path, ek_tensor *tensor, void *user)
{
    ek_tensor *other = ek_tensor_grad(ek_module_tensor(user, path));
    assert_made(other);
    assert_close_norm(ek_to_device(other, ek_cpu()), ek_to_device(ek_tensor_grad(tensor), ek_cpu()),
                      1e-13);
    return 0;
}

/* A state joined from several devices goes into the next call: truncated backpropagation. */
static void compare(int kind, bool batch_first, bool balanced, int devices)
{
    ek_module *net = make_network(kind, batch_first),
              *model = wrap(make_network(kind, batch_first), balanced, devices, !batch_first);
    ek_value of_net = ek_value_none(), of_model = ek_value_none();
    for (int call = 0; call < 2; call++) {
        ek_tensor *wanted[3], *parts[3], *x = make_sequences(3 + (uint64_t)call, batch_first);
        of_net = ek_forward(net, x, of_net);
        of_model = ek_forward(model, x, of_model);
        ck_assert_int_eq(of_model.per_device, balanced);
        take_apart(of_net, wanted);
        take_apart(of_model, parts);
        assert_parts(parts, wanted);
        of_net = ek_value_at(of_net, 1);
        of_model = ek_value_at(ek_value_to_device(of_model, test_device(0), 0), 1);
        if (call == 1) {
            assert_ok(ek_backward(loss_of(wanted)));
            assert_ok(ek_backward(loss_of(parts)));
        }
    }
    assert_ok(ek_module_parameters(net, compare_gradient, model));
    ek_module_free(net);
    ek_module_free(model);
}

TEST(states_join_along_their_batch)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int which = 0; which < 8; which++)
            compare(kind, which & 1, which & 2, which & 4 ? 3 : 2);
}

/* New states and lengths are marked where they differ from the wrapper's dimension. */
TEST(new_states_and_lengths_are_marked)
{
    static const int64_t steps[SAMPLES] = {4, 2, 1, 4, 3, 2, 4};
    for (int which = 0; which < 4; which++) {
        const bool batch_first = which & 1, balanced = which & 2;
        ek_module *net = make_network(2, batch_first),
                  *model = wrap(make_network(2, batch_first), balanced, 3, !batch_first);
        const ek_shape shape = EK_SHAPE(2 * LAYERS, SAMPLES, HIDDEN);
        ek_value state = EK_LIST(normal(5, shape, EK_F64, ek_cpu()),
                                 normal(6, shape, EK_F64, ek_cpu())),
                 lengths = EK_VALUE(ek_from_data(steps, EK_SHAPE(SAMPLES), EK_I64));
        ek_tensor *wanted[3], *parts[3], *x = make_sequences(3, batch_first);
        take_apart(ek_forward(net, x, state, lengths), wanted);
        take_apart(ek_forward(model, x, ek_value_batched(state, 1), ek_value_batched(lengths, 0)),
                   parts);
        assert_parts(parts, wanted);
        ek_module_free(net);
        ek_module_free(model);
    }
}

TEST(what_is_cut_along_another_dimension_is_refused)
{
    for (int balanced = 0; balanced < 2; balanced++) {
        ek_module *model = wrap(make_network(2, false), balanced, 2, 0);
        assert_refused(ek_forward(model, make_sequences(3, false)), EK_E_SHAPE,
                       "the batch of the input is dimension 1, but it was cut along dimension 0");
        assert_refused(ek_forward(model, normal(3, EK_SHAPE(STEPS, INPUT), EK_F64, ek_cpu())),
                       EK_E_SHAPE, "the input is of one sample, without a batch");
        ek_module_free(model);
        model = wrap(make_network(1, true), balanced, 2, 0);
        ek_tensor *h = normal(5, EK_SHAPE(2 * LAYERS, 2 * LAYERS, HIDDEN), EK_F64, ek_cpu());
        assert_refused(ek_forward(model, ek_narrow(make_sequences(3, true), 0, 0, 2 * LAYERS), h),
                       EK_E_SHAPE,
                       "the batch of the state is dimension 1, but it was cut along dimension 0");
        ek_module_free(model);
    }
}

/* A network that gives its output alone. */
typedef struct output_alone {
    ek_module module;
    ek_module *net;
} output_alone;

static ek_value output_alone_forward(ek_module *module, const ek_args *args)
{
    ek_value result = ek_module_forward(((output_alone *)module)->net, args);
    return result.kind == EK_VALUE_ERROR ? result : ek_value_at(result, 0);
}

MODULE_TYPE(output_alone, output_alone)

TEST(micro_batches_are_cut_along_the_batch)
{
    ek_tensor *x = make_sequences(3, true),
              *target = normal(4, EK_SHAPE(SAMPLES, STEPS, 2 * HIDDEN), EK_F64, ek_cpu());
    ek_value state = ek_value_batched(EK_VALUE(normal(5, EK_SHAPE(2 * LAYERS, SAMPLES, HIDDEN),
                                                      EK_F64, ek_cpu())),
                                      1);
    ek_module *models[2];
    for (int i = 0; i < 2; i++) {
        double loss;
        output_alone *alone = (output_alone *)ek_module_new(&output_alone_type);
        assert_made(alone);
        assert_ok(ek_register_module(&alone->module, "net", &alone->net, make_network(1, true)));
        models[i] = i ? wrap(&alone->module, true, 2, 0) : &alone->module;
        ek_module *criterion = ek_mse_loss();
        if (i)
            criterion = ek_data_parallel_criterion(criterion, ek_devices(test_kind(), 2));
        ek_optimizer *optimizer = ek_sgd(models[i], .lr = 0.1);
        assert_ok(ek_train_step(&loss, .model = models[i], .criterion = criterion,
                                .optimizer = optimizer, .input = EK_LIST(x, state),
                                .target = EK_VALUE(target), .micro_batches = i ? 3 : 1));
        ek_optimizer_free(optimizer);
        ek_module_free(criterion);
    }
    assert_ok(ek_module_parameters(models[0], compare_gradient, models[1]));
    ek_module_free(models[0]);
    ek_module_free(models[1]);
}

TEST(micro_batches_along_another_dimension_are_refused)
{
    output_alone *alone = new_module(&output_alone_type);
    assert_ok(ek_register_module(&alone->module, "net", &alone->net, make_network(2, false)));
    ek_module *criterion = ek_mse_loss();
    ek_optimizer *optimizer = ek_sgd(&alone->module, .lr = 0.1);
    ek_tensor *target = normal(4, EK_SHAPE(STEPS, SAMPLES, 2 * HIDDEN), EK_F64, ek_cpu());
    assert_refused(ek_train_step(NULL, .model = &alone->module, .criterion = criterion,
                                 .optimizer = optimizer, .micro_batches = 2,
                                 .input = EK_VALUE(make_sequences(3, false)),
                                 .target = EK_VALUE(target)),
                   EK_E_SHAPE,
                   "the batch of the input is dimension 1, but it was cut along dimension 0");
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_module_free(&alone->module);
}

static ek_value keep_gradients(ek_value inputs, ek_value outputs, void *user)
{
    return ek_value_none();
}

TEST(checkpoints_and_hooks_keep_marks)
{
    for (int which = 0; which < 4; which++) {
        const bool checkpoint = which & 1, balanced = which & 2;
        ek_module *net = make_network(1, true), *inner = make_network(1, true);
        if (checkpoint)
            inner = ek_checkpoint(inner);
        else
            ck_assert(ek_module_register_full_backward_hook(inner, keep_gradients, NULL) > 0);
        ek_module *model = wrap(inner, balanced, 2, 0);
        ek_tensor *wanted[3], *parts[3], *x = make_sequences(3, true);
        take_apart(ek_forward(net, x), wanted);
        take_apart(ek_forward(model, x), parts);
        assert_parts(parts, wanted);
        ek_module_free(net);
        ek_module_free(model);
    }
}

TEST(attention_marks_what_it_gives)
{
    for (int which = 0; which < 4; which++) {
        const bool batch_first = which & 1, balanced = which & 2;
        ek_module *nets[2];
        for (int i = 0; i < 2; i++) {
            ek_manual_seed(7);
            nets[i] = ek_multihead_attention(6, 2, .batch_first = batch_first);
            assert_made(nets[i]);
            assert_ok(ek_module_to_dtype(nets[i], EK_F64));
        }
        nets[1] = wrap(nets[1], balanced, 3, !batch_first);
        ek_tensor *x =
            normal(3, batch_first ? EK_SHAPE(SAMPLES, STEPS, 6) : EK_SHAPE(STEPS, SAMPLES, 6),
                   EK_F64, ek_cpu());
        ek_value results[2],
            keywords =
                ek_value_dict((const ek_value_entry[]){{"need_weights", ek_value_of_int(1)}}, 1);
        for (int i = 0; i < 2; i++)
            results[i] = ek_value_to_device(ek_forward_kw(nets[i], keywords, x, x, x), ek_cpu(), 0);
        for (int i = 0; i < 2; i++)
            assert_close(ek_value_tensor(ek_value_at(results[1], i)),
                         ek_value_tensor(ek_value_at(results[0], i)), 1e-14, 1e-15);
        ek_module_free(nets[0]);
        ek_module_free(nets[1]);
    }
    ek_module *model = held(wrap(ek_multihead_attention(6, 2), false, 2, 0));
    ek_tensor *x = normal(3, EK_SHAPE(STEPS, SAMPLES, 6), EK_F32, ek_cpu());
    assert_refused(ek_forward(model, x, x, x), EK_E_SHAPE, "the batch of query is dimension 1");
}
