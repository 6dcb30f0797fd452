/* test_mnist.c: the MNIST family as data sets; Fashion-MNIST if it is installed. */
#include "files.h"

FIXTURE(make_directory, empty_directory)

/* Pictures of 2 x 3 pixels, which count from 0 on. */
static const uint8_t pictures[] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0,  0,  2,  0,  0,  0,  3,  0,
                                   1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 255, 0};

static void write_train(void)
{
    write_file("train-images-idx3-ubyte", pictures, sizeof pictures);
    write_gzip("train-labels-idx1-ubyte.gz", labels, sizeof labels);
}

static void assert_sample(ek_dataset *dataset, int64_t index, const uint8_t *pixels,
                          ek_shape wanted, int64_t label)
{
    int64_t found;
    ek_scope scope = ek_scope_begin();
    ek_value sample = ek_dataset_get(dataset, index);
    ck_assert_int_eq(ek_value_length(sample), 2);
    ek_tensor *picture = ek_value_tensor(ek_value_at(sample, 0));
    ek_tensor *target = ek_value_tensor(ek_value_at(sample, 1));
    assert_made(picture);
    assert_made(target);
    ek_shape shape = ek_tensor_shape(picture);
    ck_assert(ek_shape_equal(&shape, &wanted));
    ck_assert_int_eq(ek_tensor_dtype(picture), EK_U8);
    if (pixels)
        ck_assert_mem_eq(ek_tensor_data(picture), pixels, (size_t)ek_tensor_count(picture));
    ck_assert_int_eq(ek_tensor_dtype(target), EK_I64);
    ck_assert_int_eq(ek_tensor_ndim(target), 0);
    assert_ok(ek_to_data(target, &found, sizeof found));
    ck_assert_int_eq(found, label);
    ek_scope_end(&scope);
}

TEST(train_and_test)
{
    write_train();
    write_gzip("t10k-images-idx3-ubyte.gz", pictures, sizeof pictures);
    write_file("t10k-labels-idx1-ubyte", labels, sizeof labels);
    for (int part = 0; part < 2; part++) {
        ek_dataset *dataset = ek_mnist(directory, part == 0);
        assert_made(dataset);
        ck_assert_int_eq(ek_dataset_length(dataset), 3);
        for (int i = 0; i < 3; i++)
            assert_sample(dataset, i, pictures + 16 + 6 * i, EK_SHAPE(1, 2, 3), labels[8 + i]);
        ek_dataset_free(dataset);
    }
}

/* The plain file is read if both are there; a part's files are not taken for the other's. */
TEST(plain_before_gzip)
{
    write_train();
    write_file("train-images-idx3-ubyte.gz", "rubbish", 7);
    write_file("t10k-images-idx3-ubyte", "rubbish", 7);
    ek_dataset *dataset = ek_mnist(directory, true);
    assert_made(dataset);
    ek_dataset_free(dataset);
    unlink(path_of("train-images-idx3-ubyte"));
    assert_refused(ek_mnist(directory, true), EK_E_FORMAT,
                   "train-images-idx3-ubyte.gz: not an IDX file");
}

TEST(files_that_do_not_fit)
{
    uint8_t four[] = {0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4};
    assert_refused(ek_mnist(directory, true), EK_E_IO,
                   "has neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz; it "
                   "must hold train-images-idx3-ubyte, train-labels-idx1-ubyte");
    write_file("train-images-idx3-ubyte", pictures, sizeof pictures);
    assert_refused(ek_mnist(directory, true), EK_E_IO, "has neither train-labels-idx1-ubyte nor");
    write_file("train-labels-idx1-ubyte", four, sizeof four);
    assert_refused(ek_mnist(directory, true), EK_E_FORMAT,
                   "train-images-idx3-ubyte has 3 pictures, but ");
    assert_refused(ek_mnist(directory, true), EK_E_FORMAT, "train-labels-idx1-ubyte has 4 labels");
    write_file("train-labels-idx1-ubyte", pictures, sizeof pictures);
    assert_refused(ek_mnist(directory, true), EK_E_FORMAT,
                   "train-labels-idx1-ubyte is of shape [3, 2, 3]; labels are [N]");
    write_file("train-images-idx3-ubyte", labels, sizeof labels);
    assert_refused(ek_mnist(directory, true), EK_E_FORMAT,
                   "train-images-idx3-ubyte is of shape [3]; pictures are [N, H, W]");
    write_file("train-images-idx3-ubyte", pictures, sizeof pictures - 1);
    assert_refused(ek_mnist(directory, true), EK_E_FORMAT, "train-images-idx3-ubyte: truncated");
    assert_refused(ek_mnist("/dev/null", true), EK_E_IO,
                   "mnist: read_idx: cannot open /dev/null/train-images-idx3-ubyte: Not a "
                   "directory");
    assert_refused(ek_mnist(NULL, true), EK_E_INVALID, "mnist: the directory is NULL");
}

TEST(fashion_mnist)
{
    static const int64_t train_labels[] = {9, 0, 0, 3, 0}, test_labels[] = {9, 2, 1, 1, 6};
    const char *given = getenv("EVENKEEL_FASHION_MNIST");
    const char *fashion = given && *given ? given : "/usr/share/datasets/fashion-mnist";
    if (access(fashion, F_OK) != 0)
        return;
    for (int part = 0; part < 2; part++) {
        const int64_t *first = part == 0 ? train_labels : test_labels;
        ek_dataset *dataset = ek_mnist(fashion, part == 0);
        assert_made(dataset);
        if (part == 1 || !given) /* a folder that was named may have fewer for training */
            ck_assert_int_eq(ek_dataset_length(dataset), part == 0 ? 60000 : 10000);
        for (int i = 0; i < 5; i++)
            assert_sample(dataset, i, NULL, EK_SHAPE(1, 28, 28), first[i]);
        ek_dataset_free(dataset);
    }
}
