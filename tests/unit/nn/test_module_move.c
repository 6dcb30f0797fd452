/* Moving modules between devices and dtypes, and the hash of their parameters. */
#include "core/tensor.h"
#include "nn/sha256.h"
#include "unit.h"

static ek_module *make_net(void)
{
    ek_manual_seed(3);
    ek_module *net = ek_sequential(ek_conv2d(3, 4, 3), ek_batch_norm2d(4), ek_relu());
    assert_made(net);
    return net;
}

TEST(handles_stay)
{
    assert_ok(test_devices_configure("2"));
    ek_module *net = make_net();
    ek_tensor *weight = ek_module_tensor(net, "0.weight");
    ek_tensor *tracked = ek_module_tensor(net, "1.num_batches_tracked");
    ek_tensor *before = ek_clone(ek_detach(weight));
    assert_ok(ek_backward(ek_sum(ek_apply(net, ek_ones(EK_SHAPE(2, 3, 5, 5))))));
    ck_assert_ptr_nonnull(ek_tensor_grad(weight));

    assert_ok(ek_module_to_device(net, test_device(1)));
    ck_assert_ptr_eq(ek_module_tensor(net, "0.weight"), weight);
    ck_assert(ek_device_equal(ek_tensor_device(weight), test_device(1)));
    ck_assert(ek_device_equal(ek_tensor_device(tracked), test_device(1)));
    ck_assert(ek_tensor_is_contiguous(weight, EK_CHANNELS_LAST));
    ck_assert(ek_tensor_requires_grad(weight));
    ck_assert_ptr_null(ek_tensor_grad(weight));
    assert_close(weight, before, 0, 0);
    assert_made(ek_apply(net, ek_ones(EK_SHAPE(2, 3, 5, 5), .device = test_device(1))));

    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(test_device(1), &stats));
    ck_assert_uint_ge(stats.now[EK_MEMORY_PARAMETER], 4 * 27 * 4);

    /* Staying keeps gradients. */
    assert_ok(ek_backward(
        ek_sum(ek_apply(net, ek_ones(EK_SHAPE(2, 3, 5, 5), .device = test_device(1))))));
    assert_ok(ek_module_to_device(net, test_device(1)));
    ck_assert_ptr_nonnull(ek_tensor_grad(weight));

    assert_ok(ek_module_to_dtype(net, EK_F64));
    ck_assert_int_eq(ek_tensor_dtype(weight), EK_F64);
    ck_assert_int_eq(ek_tensor_dtype(tracked), EK_I64);
    ck_assert(ek_tensor_is_contiguous(weight, EK_CHANNELS_LAST));
    assert_close(ek_to_dtype(weight, EK_F32), before, 0, 0);
    assert_refused(ek_module_to_dtype(net, EK_I64), EK_E_DTYPE, "i64");
    assert_refused(ek_module_to_device(net, test_device(7)), EK_E_DEVICE, "");
    ek_module_free(net);
}

/* The second parameter does not fit: the first stays where it was. */
TEST(nothing_moves_on_an_error)
{
    assert_ok(test_devices_configure("1K"));
    ek_module *net = ek_sequential(ek_linear(4, 4), ek_linear(64, 64));
    ek_tensor *first = ek_module_tensor(net, "0.weight");
    assert_refused(ek_module_to_device(net, test_device(0)), EK_E_OUT_OF_MEMORY, "host:0");
    ck_assert(ek_device_equal(ek_tensor_device(first), ek_cpu()));
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(test_device(0), &stats));
    ck_assert_uint_eq(stats.in_use, 0);
    ek_module_free(net);
}

TEST(sha256_of_fips)
{
    static const struct {
        const char *text, *digest;
    } cases[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char text[65];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ek_sha256 hash;
        ek_sha256_begin(&hash);
        ek_sha256_add(&hash, cases[i].text, strlen(cases[i].text));
        ek_sha256_end(&hash, text);
        ck_assert_str_eq(text, cases[i].digest);
    }
    /* A million times "a", in uneven pieces. */
    char piece[97];
    memset(piece, 'a', sizeof piece);
    ek_sha256 hash;
    ek_sha256_begin(&hash);
    for (size_t left = 1000000; left > 0;) {
        size_t n = left < sizeof piece ? left : sizeof piece;
        ek_sha256_add(&hash, piece, n);
        left -= n;
    }
    ek_sha256_end(&hash, text);
    ck_assert_str_eq(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Every length around a block's end, against one call for each byte. */
TEST(sha256_in_pieces)
{
    unsigned char data[200];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(7 * i + 3);
    for (size_t length = 0; length <= sizeof data; length++) {
        char whole[65], pieces[65];
        ek_sha256 a, b;
        ek_sha256_begin(&a);
        ek_sha256_add(&a, data, length);
        ek_sha256_end(&a, whole);
        ek_sha256_begin(&b);
        for (size_t i = 0; i < length; i++)
            ek_sha256_add(&b, data + i, 1);
        ek_sha256_end(&b, pieces);
        ck_assert_str_eq(whole, pieces);
    }
}

TEST(hash_sees_parameters_alone)
{
    char first[65], second[65], layout[65], changed[65];
    ek_module *net = make_net();
    assert_ok(ek_module_sha256(net, first));
    ek_module *same = make_net();
    assert_ok(ek_module_sha256(same, second));
    ck_assert_str_eq(first, second);
    assert_ok(ek_init_constant(ek_module_tensor(same, "1.running_mean"), 3));
    assert_ok(ek_module_sha256(same, second));
    ck_assert_str_eq(first, second);

    /* Order of memory and device don't matter, values do. */
    ek_tensor *weight = ek_module_tensor(same, "0.weight");
    ek_tensor_rebind(weight, ek_contiguous(ek_detach(weight), EK_CONTIGUOUS));
    ck_assert(ek_tensor_is_contiguous(weight, EK_CONTIGUOUS));
    assert_ok(ek_module_to_device(same, test_device(0)));
    assert_ok(ek_module_sha256(same, layout));
    ck_assert_str_eq(first, layout);
    assert_ok(ek_init_constant(ek_module_tensor(same, "1.bias"), 1e-30));
    assert_ok(ek_module_sha256(same, changed));
    ck_assert_str_ne(first, changed);
    ek_module_free(net);
    ek_module_free(same);
}
