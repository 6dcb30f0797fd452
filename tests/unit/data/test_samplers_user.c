/* test_samplers_user.c: samplers of users', and arguments that samplers refuse. */
#include "user_samplers.h"

TEST(user_samplers)
{
    ek_sampler *sampler = make_user(&backwards_type, 100, NO_FAULT);
    int64_t index, count;
    const int64_t *batch;
    int freed = 0;
    ck_assert_int_eq(ek_sampler_length(sampler), 100);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 100; i-- > 0;) {
            ck_assert_int_eq(ek_sampler_next(sampler, &index), 1);
            ck_assert_int_eq(index, i);
        }
        ck_assert_int_eq(ek_sampler_next(sampler, &index), 0);
    }
    ((backwards *)sampler)->freed = &freed;
    sampler = ek_batch_sampler(sampler, 30, false);
    ck_assert_int_eq(ek_sampler_length(sampler), 4);
    for (int b = 0; b < 4; b++) {
        ck_assert_int_eq(ek_sampler_next_batch(sampler, &batch, &count), 1);
        ck_assert_int_eq(count, b < 3 ? 30 : 10);
        ck_assert_int_eq(batch[0], 99 - 30 * b);
    }
    ek_sampler_free(sampler);
    ck_assert_int_eq(freed, 1);

    sampler = make_user(&pairs_type, 5, NO_FAULT);
    ck_assert_int_eq(ek_sampler_length(sampler), 3);
    for (int b = 0; b < 3; b++) {
        ck_assert_int_eq(ek_sampler_next_batch(sampler, &batch, &count), 1);
        ck_assert_int_eq(count, b ? 2 : 1);
        ck_assert_int_eq(batch[count - 1], 4 - 2 * b);
    }
    ck_assert_int_eq(ek_sampler_next_batch(sampler, &batch, &count), 0);
    ek_sampler_free(sampler);
}

TEST(user_faults)
{
    static const struct {
        const ek_sampler_type *type;
        int fault, status;
        const char *part;
    } faults[] = {
        {&backwards_type, FAILS, EK_E_USER, "no samples today"},
        {&backwards_type, FAILS_SILENTLY, EK_E_USER, "\"backwards\" failed with EK_E_USER"},
        {&pairs_type, EMPTY_BATCH, EK_E_INVALID, "batch 0 of sampler \"pairs\" is empty"},
        {&pairs_type, OPEN_BATCH, EK_E_INVALID, "its last batch, of 2 samples, without an end"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        ek_sampler *sampler = make_user(faults[i].type, 5, faults[i].fault);
        ek_pass pass = {0};
        assert_refused(ek_sampler_draw(sampler, &pass), faults[i].status, faults[i].part);
        ck_assert_int_eq(pass.count, 0);
        ck_assert_int_eq(pass.batches, 0);
        ((backwards *)sampler)->fault = NO_FAULT; /* it may go on */
        assert_ok(ek_sampler_draw(sampler, &pass));
        ck_assert_int_eq(pass.count, 5);
        ek_pass_free(&pass);
        ek_sampler_free(sampler);
    }
    static const ek_sampler_type unsaid = {.name = "unsaid",
                                           .size = sizeof(backwards),
                                           .length = pairs_length,
                                           .draw = pairs_draw};
    ek_sampler *sampler = make_user(&unsaid, 5, NO_FAULT);
    int64_t index;
    ck_assert_int_lt(ek_sampler_next(sampler, &index), 0);
    assert_error(EK_E_INVALID, "makes_batches");
    ((backwards *)sampler)->count = -10;
    ck_assert_int_lt(ek_sampler_length(sampler), 0);
    assert_error(EK_E_INVALID, "\"unsaid\" gives -4");
    ek_sampler_free(sampler);
}

TEST(broken_types)
{
    const ek_sampler_type types[] = {
        {.size = sizeof(backwards), .length = backwards_length, .draw = backwards_draw},
        {.name = "x", .size = sizeof(backwards), .draw = backwards_draw},
        {.name = "x", .size = sizeof(backwards), .length = backwards_length},
        {.name = "x",
         .size = sizeof(ek_sampler) - 1,
         .length = backwards_length,
         .draw = backwards_draw}};
    static const char *const parts[] = {"no name", "no length", "no draw", "size is too small"};
    assert_refused(ek_sampler_new(NULL), EK_E_INVALID, "type is NULL");
    for (int i = 0; i < 4; i++) {
        assert_refused(ek_sampler_new(&types[i]), EK_E_INVALID, parts[i]);
    }
}

/* ---- wrong arguments ---- */

static const int64_t identities[] = {5, 5, 7, 5, 7, 9, 9, 9, 9, 9, 2, 5};
enum { PEOPLE = sizeof identities / sizeof *identities };

/* A chain that begins with an error ends with it. */
TEST(null_samplers)
{
    const int64_t *batch;
    int64_t index;
    ek_pass pass = {0};
    ek_sampler_free(NULL);
    ek_pass_free(NULL);
    ck_assert_int_lt(ek_pass_add(NULL, 0), 0);
    assert_error(EK_E_INVALID, "the pass is NULL");
    ck_assert_int_lt(ek_pass_end_batch(NULL), 0);
    assert_error(EK_E_INVALID, "the pass is NULL");
    for (int pending = 0; pending < 2; pending++)
        for (int call = 0; call < 8; call++) {
            if (pending)
                ek_error(EK_E_USER, "earlier");
            switch (call) {
            case 0:
                ck_assert_int_lt(ek_sampler_length(NULL), 0);
                break;
            case 1:
                ck_assert_int_lt(ek_sampler_set_epoch(NULL, 1), 0);
                break;
            case 2:
                ck_assert_int_lt(ek_sampler_draw(NULL, &pass), 0);
                break;
            case 3:
                ck_assert_int_lt(ek_sampler_next(NULL, &index), 0);
                break;
            case 4:
                ck_assert_int_lt(ek_sampler_next_batch(NULL, &batch, &index), 0);
                break;
            case 5:
                ck_assert_int_eq(ek_sampler_state(NULL).kind, EK_VALUE_ERROR);
                break;
            case 6:
                ck_assert_int_lt(ek_sampler_load_state(NULL, ek_value_none()), 0);
                break;
            default:
                ck_assert_ptr_null(ek_batch_sampler(NULL, 3, false));
            }
            assert_error(pending ? EK_E_USER : EK_E_INVALID, pending ? "earlier" : "NULL");
        }
}

TEST(wrong_calls)
{
    ek_sampler *sampler = ek_sequential_sampler(3);
    ek_sampler *batches = ek_batch_sampler(ek_sequential_sampler(3), 2, true);
    const int64_t *batch;
    int64_t index;
    ck_assert_int_lt(ek_sampler_next_batch(sampler, &batch, &index), 0);
    assert_error(EK_E_INVALID, "\"sequential\" makes no batches");
    ck_assert_int_lt(ek_sampler_next(batches, &index), 0);
    assert_error(EK_E_INVALID, "\"batch\" makes batches");
    ck_assert_int_lt(ek_sampler_next(sampler, NULL), 0);
    assert_error(EK_E_INVALID, "index is NULL");
    ck_assert_int_lt(ek_sampler_next_batch(batches, NULL, &index), 0);
    assert_error(EK_E_INVALID, "indices is NULL");
    ck_assert_int_lt(ek_sampler_next_batch(batches, &batch, NULL), 0);
    assert_error(EK_E_INVALID, "count is NULL");
    ck_assert_int_lt(ek_sampler_draw(sampler, NULL), 0);
    assert_error(EK_E_INVALID, "pass is NULL");
    ck_assert_ptr_null(ek_batch_sampler(batches, 2, false)); /* frees it */
    assert_error(EK_E_INVALID, "makes batches already");
    assert_refused(ek_batch_sampler(sampler, 0, false), EK_E_INVALID, "batch_size is 0");
}

TEST(wrong_arguments)
{
    static const double negative[] = {1, -1}, zeros[] = {0, 0}, huge[] = {1e308, 1e308};
    const double nan[] = {1, strtod("nan", NULL)}, infinite[] = {strtod("inf", NULL), 1};
    assert_refused(ek_sequential_sampler(-1), EK_E_INVALID, "count is -1");
    assert_refused(ek_random_sampler(0), EK_E_INVALID, "count is 0");
    assert_refused(ek_random_sampler(-5), EK_E_INVALID, "count is -5");
    assert_refused(ek_random_sampler(5, .num_samples = -2), EK_E_INVALID, "num_samples is -2");
    assert_refused(ek_random_sampler(5, .num_samples = 0), EK_E_INVALID, "num_samples is 0");
    assert_refused(ek_subset_random_sampler(NULL, 2, NULL), EK_E_INVALID,
                   "array of indices is NULL");
    assert_refused(ek_subset_random_sampler(identities, -1, NULL), EK_E_INVALID, "count is -");
    assert_refused(ek_weighted_random_sampler(negative, 2, 3, NULL), EK_E_INVALID,
                   "weight 1 is -1");
    assert_refused(ek_weighted_random_sampler(nan, 2, 3, NULL), EK_E_INVALID, "weight 1 is");
    assert_refused(ek_weighted_random_sampler(infinite, 2, 3, NULL), EK_E_INVALID,
                   "weight 0 is inf");
    assert_refused(ek_weighted_random_sampler(zeros, 2, 3, NULL), EK_E_INVALID, "add up to 0");
    assert_refused(ek_weighted_random_sampler(huge, 2, 3, NULL), EK_E_INVALID, "add up to inf");
    assert_refused(ek_weighted_random_sampler(huge, 0, 3, NULL), EK_E_INVALID,
                   "count is 0; it must be 1 or more");
    assert_refused(ek_weighted_random_sampler(NULL, 2, 3, NULL), EK_E_INVALID,
                   "array of weights is NULL");
    assert_refused(ek_weighted_random_sampler(huge, 1, 0, NULL), EK_E_INVALID,
                   "num_samples is 0; it must be 1 or more");
    assert_refused(ek_distributed_sampler(10, 2, 2), EK_E_INVALID,
                   "Invalid rank 2, rank should be in the interval [0, 1]");
    assert_refused(ek_distributed_sampler(10, 2, -1), EK_E_INVALID, "Invalid rank -1");
    assert_refused(ek_distributed_sampler(10, -2), EK_E_INVALID, "num_replicas is -2");
    assert_refused(ek_distributed_sampler(-10), EK_E_INVALID, "count is -10");
    assert_refused(ek_distributed_inference_sampler(10, 0, 0, true), EK_E_INVALID,
                   "num_replicas is 0");
    assert_refused(ek_distributed_inference_sampler(10, 3, 3, true), EK_E_INVALID,
                   "interval [0, 2]");
    assert_refused(ek_distributed_inference_sampler(-1, 3, 0, true), EK_E_INVALID, "count is -1");
    assert_refused(ek_random_identity_sampler(NULL, 3), EK_E_INVALID,
                   "array of identities is NULL");
    assert_refused(ek_random_identity_sampler(identities, -3), EK_E_INVALID, "count is -");
    assert_refused(ek_random_identity_sampler(identities, PEOPLE, 0), EK_E_INVALID,
                   "num_instances is 0");
    assert_refused(ek_random_identity_sampler(identities, PEOPLE, INT64_MAX), EK_E_INVALID,
                   "any memory");
    assert_refused(ek_distributed_random_identity_sampler(identities, PEOPLE, 4, 2, 2),
                   EK_E_INVALID, "Invalid rank 2, rank should be in the interval [0, 1]");
}

/* Nothing to sample from is no error if PyTorch has none. */
TEST(empty_sets)
{
    ek_sampler *samplers[] = {
        ek_sequential_sampler(0),
        ek_subset_random_sampler(NULL, 0, NULL),
        ek_distributed_sampler(0, 3, 1),
        ek_distributed_sampler(2, 3, 1, .drop_last = true),
        ek_distributed_inference_sampler(0, 3, 1, true),
        ek_random_identity_sampler(NULL, 0),
        ek_distributed_random_identity_sampler(identities, 2, 2, 3, 1),
    };
    int64_t index;
    for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++) {
        assert_made(samplers[i]);
        ck_assert_int_eq(ek_sampler_length(samplers[i]), 0);
        ck_assert_int_eq(ek_sampler_next(samplers[i], &index), 0);
        ck_assert_int_eq(ek_sampler_next(samplers[i], &index), 0);
        assert_ok(ek_sampler_load_state(samplers[i], ek_sampler_state(samplers[i])));
        ek_sampler_free(samplers[i]);
    }
}
