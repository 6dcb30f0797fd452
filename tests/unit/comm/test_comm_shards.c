/* all_gather and reduce_scatter of sharded tensors. */
#include "comm/collectives.h"

#include "comm/exchange.h"
#include "comm_setup.h"
#include "kit/remote.h"

enum { COUNT = 4, PIECES = 7 };

/* Four tensors on three devices: five elements on three owners, channels last on two, nothing, and
 * one element. */
typedef struct setting {
    ek_dev *devs[DEVICES];
    ek_tensor *like[COUNT];
    ek_comm_slice slices[PIECES];
    ek_placement placement;
} setting;

static ek_tensor *channels_last(ek_tensor *x)
{
    ek_tensor *y = ek_contiguous(x, EK_CHANNELS_LAST);
    assert_made(y);
    return y;
}

static setting *set_up(int devices, ek_dtype dtype)
{
    static setting s;
    ek_device home = test_device(0);
    for (int d = 0; d < devices; d++)
        s.devs[d] = ek_dev_get(test_device(d));
    s.like[0] = ek_zeros(EK_SHAPE(5), .dtype = dtype, .device = home);
    s.like[1] = channels_last(ek_zeros(EK_SHAPE(3, 2, 2, 1), .dtype = dtype, .device = home));
    s.like[2] = ek_zeros(EK_SHAPE(0, 3), .dtype = dtype, .device = home);
    s.like[3] = ek_zeros((ek_shape){0}, .dtype = dtype, .device = home);
    ek_dev *second = ek_dev_get(test_device(1)), *third = ek_dev_get(test_device(2));
    const ek_comm_slice slices[PIECES] = {{0, 0, 1, s.devs[0], NULL},  {0, 1, 3, second, NULL},
                                          {0, 3, 5, third, NULL},      {1, 0, 7, third, NULL},
                                          {1, 7, 12, s.devs[0], NULL}, {2, 0, 0, second, NULL},
                                          {3, 0, 1, second, NULL}};
    memcpy(s.slices, slices, sizeof slices);
    s.placement = (ek_placement){s.devs, devices, s.like, COUNT, s.slices, PIECES, s.devs[0]};
    return &s;
}

/* Elements in order of memory, on cpu. */
static ek_tensor *in_memory(const ek_tensor *tensor)
{
    ek_shape shape = {1, {ek_tensor_count(tensor)}};
    int64_t stride = 1;
    return ek_to_device(ek_tensor_member(tensor->storage, tensor->dtype, &shape, &stride,
                                         tensor->offset),
                        ek_cpu());
}

/* Tensor i as device d has it: element k in memory is first + k. */
static ek_tensor *whole_of(const setting *s, int i, int d, double first)
{
    ek_tensor *whole = ek_comm_like(s->like[i], s->devs[d]);
    ek_shape shape = {1, {ek_tensor_count(whole)}};
    int64_t stride = 1;
    ek_tensor *flat = ek_tensor_member(whole->storage, whole->dtype, &shape, &stride, 0);
    assert_ok(ek_comm_copy(flat, ramp(first, 1, shape, whole->dtype, ek_cpu())));
    return whole;
}

static void make_wholes(const setting *s, ek_tensor **whole)
{
    for (int d = 0; d < s->placement.devices; d++)
        for (int i = 0; i < COUNT; i++)
            whole[d * COUNT + i] = whole_of(s, i, d, 100 * d + 20 * i);
}

/* Piece p: element k is first + 20 * tensor + its place in the tensor. */
static ek_tensor *slice_of(const setting *s, int p, double first)
{
    const ek_comm_slice *slice = &s->slices[p];
    return ramp(first + 20 * slice->tensor + (double)slice->begin, 1,
                EK_SHAPE(slice->end - slice->begin), s->like[slice->tensor]->dtype, slice->dev->id);
}

/* They are added there or, in case 1, on another device, with the gradients laid out as they are.
 */
TEST_LOOP(sums_go_to_owners, 0, 2)
{
    setting *s = set_up(3, EK_F32);
    ek_tensor *whole[3 * COUNT], *slices[PIECES];
    make_wholes(s, whole);
    for (int p = 0; p < PIECES && _i; p++)
        s->slices[p].adder = s->devs[p % 3];
    assert_ok(ek_comm_reduce_scatter(&s->placement, whole, NULL, NULL, slices));
    for (int p = 0; p < PIECES; p++) {
        const ek_comm_slice *slice = &s->slices[p];
        assert_on(slices[p], slice->dev->id);
        ck_assert_int_eq(ek_tensor_count(slices[p]), slice->end - slice->begin);
        assert_ramp(slices[p], 300 + 3 * (20 * slice->tensor + (double)slice->begin), 3);
    }
}

TEST(missing_parts_count_as_zeros)
{
    const setting *s = set_up(3, EK_F32);
    ek_tensor *whole[3 * COUNT], *slices[PIECES];
    make_wholes(s, whole);
    whole[0 * COUNT + 0] = NULL;
    whole[0 * COUNT + 1] = whole[2 * COUNT + 1] = NULL;
    for (int d = 0; d < 3; d++)
        whole[d * COUNT + 3] = NULL;
    assert_ok(ek_comm_reduce_scatter(&s->placement, whole, NULL, NULL, slices));
    assert_ramp(slices[1], 300 + 2, 2);
    assert_ramp(slices[3], 120, 1);
    assert_ramp(slices[4], 127, 1);
    assert_made(slices[5]);
    ck_assert_ptr_null(slices[6]);
}

TEST(only_wanted_sums_are_made)
{
    const setting *s = set_up(3, EK_F32);
    ek_tensor *whole[3 * COUNT], *slices[PIECES];
    bool wanted[PIECES] = {[1] = true, [4] = true};
    make_wholes(s, whole);
    assert_ok(ek_comm_reduce_scatter(&s->placement, whole, wanted, NULL, slices));
    for (int p = 0; p < PIECES; p++)
        ck_assert(wanted[p] == (slices[p] != NULL));
    assert_ramp(slices[1], 303, 3);
    assert_ramp(slices[4], 300 + 81, 3);
}

TEST(sums_go_into_given_memory)
{
    const setting *s = set_up(2, EK_F64);
    ek_tensor *whole[2 * COUNT], *slices[PIECES], *into[PIECES] = {0};
    make_wholes(s, whole);
    into[2] = ek_zeros(EK_SHAPE(2), .dtype = EK_F64, .device = test_device(2));
    into[4] = ek_zeros(EK_SHAPE(5), .dtype = EK_F64, .device = test_device(0));
    assert_ok(ek_comm_reduce_scatter(&s->placement, whole, NULL, into, slices));
    ck_assert_ptr_eq(slices[2], into[2]);
    ck_assert_ptr_eq(slices[4], into[4]);
    assert_ramp(slices[2], 106, 2);
    assert_ramp(slices[3], 140, 2);
    assert_ramp(slices[4], 154, 2);
}

/* In f64, 1 beside 1e17 is nothing. values[d] lies on device d. */
TEST_LOOP(the_root_is_added_first_then_the_others_ascending, 0, 3)
{
    setting *s = set_up(3, EK_F64);
    static const struct {
        int root;
        double values[3], sum;
    } cases[] = {{0, {1e17, -1e17, 1}, 1}, {1, {1e17, -1e17, 1}, 1}, {2, {1e17, -1e17, 1}, 0}};
    ek_tensor *whole[3], *slices[3];
    s->placement.root = ek_dev_get(test_device(cases[_i].root));
    s->placement.count = 1;
    s->placement.slice_count = 3;
    for (int turn = 0; turn < 3; turn++) {
        for (int k = 0; k < 3; k++) {
            int d = (k + turn) % 3;
            s->devs[k] = ek_dev_get(test_device(d));
            whole[k] = ek_full(cases[_i].values[d], EK_SHAPE(5), .dtype = EK_F64,
                               .device = test_device(d));
        }
        assert_ok(ek_comm_reduce_scatter(&s->placement, whole, NULL, NULL, slices));
        for (int p = 0; p < 3; p++)
            ck_assert_double_eq(element(slices[p], 0), cases[_i].sum);
    }
}

TEST(gradients_may_be_laid_out_otherwise)
{
    const setting *s = set_up(3, EK_F32);
    ek_tensor *whole[3 * COUNT], *slices[PIECES];
    make_wholes(s, whole);
    ek_tensor *first = ek_full(2, EK_SHAPE(1), .device = test_device(0));
    whole[0] = ek_expand(first, EK_SHAPE(5));
    whole[COUNT + 1] = ek_contiguous(whole[COUNT + 1], EK_CONTIGUOUS);
    ck_assert(!ek_same_layout(whole[COUNT + 1], whole[1]));
    whole[2 * COUNT + 1] =
        ek_permute(ek_contiguous(ek_permute(whole[2 * COUNT + 1], EK_SHAPE(1, 2, 3, 0)),
                                 EK_CONTIGUOUS),
                   EK_SHAPE(3, 0, 1, 2));
    ck_assert(!ek_same_layout(whole[2 * COUNT + 1], whole[1]));
    assert_ok(ek_comm_reduce_scatter(&s->placement, whole, NULL, NULL, slices));
    assert_ramp(slices[1], 302 + 2, 2);
    assert_ramp(slices[3], 300 + 60, 3);
    assert_ramp(slices[4], 300 + 81, 3);
}

TEST(slices_are_joined_on_every_device)
{
    const setting *s = set_up(4, EK_F32);
    ek_tensor *whole[4 * COUNT], *slices[PIECES];
    for (int p = 0; p < PIECES; p++)
        slices[p] = slice_of(s, p, 1);
    assert_ok(ek_comm_all_gather(&s->placement, slices, NULL, whole));
    for (int d = 0; d < 4; d++) {
        for (int i = 0; i < COUNT; i++) {
            assert_on(whole[d * COUNT + i], test_device(d));
            ck_assert(i == 2 || ek_same_layout(whole[d * COUNT + i], s->like[i]));
            assert_ramp(in_memory(whole[d * COUNT + i]), 1 + 20 * i, 1);
        }
    }
}

TEST(missing_pieces_are_zeros)
{
    const setting *s = set_up(2, EK_F64);
    ek_tensor *whole[2 * COUNT], *slices[PIECES] = {0};
    /* Memory that will be used again is not zero. */
    ek_scope scope = ek_scope_begin();
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < COUNT; i++)
            assert_made(ek_add_scalar(whole_of(s, i, d, 1), 1));
    ek_scope_end(&scope);
    slices[1] = slice_of(s, 1, 1);
    slices[4] =
        ek_expand(ek_full(3, EK_SHAPE(1), .dtype = EK_F64, .device = test_device(0)), EK_SHAPE(5));
    bool wanted[2 * COUNT] = {true, true, true, true, false, true, true, true};
    assert_ok(ek_comm_all_gather(&s->placement, slices, wanted, whole));
    const double expected[] = {0, 2, 3, 0, 0};
    for (int k = 0; k < 5; k++)
        ck_assert_double_eq(element(whole[0], k), expected[k]);
    ck_assert_ptr_null(whole[COUNT]);
    for (int d = 0; d < 2; d++) {
        ek_tensor *memory = in_memory(whole[d * COUNT + 1]);
        for (int k = 0; k < 12; k++)
            ck_assert_double_eq(element(memory, k), k < 7 ? 0 : 3);
        ck_assert_ptr_null(whole[d * COUNT + 2]);
        ck_assert_ptr_null(whole[d * COUNT + 3]);
    }
}

/* ---- gradients ---- */

static ek_tensor *random_leaf(uint64_t seed, ek_tensor *x)
{
    ek_generator *generator = ek_generator_new(seed);
    assert_made(x);
    assert_ok(ek_normal_(x, 0, 1, generator));
    ek_generator_free(generator);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

static ek_tensor *curve(ek_tensor *x, int k)
{
    return ek_mul(ek_mul_scalar(ek_square(x), k + 1), x);
}

/* The sum of different cubes of all tensors, on cpu. */
static ek_tensor *total(ek_tensor *const *tensors, int count)
{
    ek_tensor *sum = ek_zeros((ek_shape){0}, .dtype = EK_F64);
    for (int i = 0; i < count; i++)
        if (tensors[i])
            sum = ek_add(sum, ek_to_device(ek_sum(curve(tensors[i], i)), ek_cpu()));
    return sum;
}

static ek_tensor *gathered(ek_tensor *const *inputs, int count, void *user)
{
    const setting *s = user;
    ek_tensor *whole[DEVICES * COUNT], *slices[PIECES] = {0};
    for (int i = 0; i < count; i++)
        slices[i] = i % 2 ? inputs[i] : curve(inputs[i], i);
    if (ek_comm_all_gather(&s->placement, slices, NULL, whole) < 0)
        return NULL;
    whole[1] = NULL; /* nobody uses it there */
    return total(whole, s->placement.devices * COUNT);
}

static ek_tensor *scattered(ek_tensor *const *inputs, int count, void *user)
{
    const setting *s = user;
    ek_tensor *whole[DEVICES * COUNT] = {0}, *slices[PIECES];
    for (int i = 0; i < count; i++)
        whole[i] = i % 2 ? inputs[i] : curve(inputs[i], i);
    whole[COUNT] = NULL;
    if (ek_comm_reduce_scatter(&s->placement, whole, NULL, NULL, slices) < 0)
        return NULL;
    slices[3] = NULL;
    return total(slices, PIECES);
}

static void check(ek_check_function *function, ek_tensor *const *inputs, int count, void *user)
{
    assert_ok(
        ek_gradcheck(.function = function, .inputs = inputs, .input_count = count, .user = user));
    assert_ok(ek_gradgradcheck(.function = function, .inputs = inputs, .input_count = count,
                               .user = user));
}

TEST(gathers_differentiate_to_any_order)
{
    setting *s = set_up(3, EK_F64);
    ek_tensor *slices[PIECES];
    for (int p = 0; p < PIECES; p++)
        slices[p] = random_leaf(1 + (uint64_t)p, slice_of(s, p, 0));
    check(gathered, slices, PIECES, s);
    check(gathered, slices, 4, s);
}

TEST(sums_differentiate_to_any_order)
{
    setting *s = set_up(2, EK_F64);
    ek_tensor *whole[2 * COUNT];
    make_wholes(s, whole);
    for (int i = 0; i < 2 * COUNT; i++)
        random_leaf(11 + (uint64_t)i, whole[i]);
    check(scattered, whole, COUNT, s);
    whole[COUNT] = whole[COUNT + 1]; /* is left out */
    check(scattered, whole, 2 * COUNT, s);
}

/* Replicas whose memory is there already: gradients come to the slices' slots. */
TEST(recorded_gathers_fill_slots)
{
    const setting *s = set_up(3, EK_F32);
    ek_tensor *whole[3 * COUNT], *slices[PIECES], *slots[PIECES];
    make_wholes(s, whole);
    for (int p = 0; p < PIECES; p++) {
        slices[p] = slice_of(s, p, 0);
        slots[p] = ek_tensor_like(slices[p]);
        assert_ok(ek_tensor_set_requires_grad(slices[p], p < 3 || p == 6));
        assert_ok(ek_leaf_set_grad_buffer(slices[p], slots[p]));
    }
    assert_ok(ek_comm_record_all_gather(&s->placement, slices, whole));
    ck_assert(ek_tensor_requires_grad(whole[COUNT]));
    ck_assert(!ek_tensor_requires_grad(whole[COUNT + 1]));
    ek_tensor *loss = ek_zeros((ek_shape){0});
    for (int d = 0; d < 3; d++) {
        ek_tensor *term = ek_sum(ek_mul_scalar(whole[d * COUNT], d + 1));
        loss = ek_add(loss, ek_to_device(term, ek_cpu()));
    }
    assert_ok(ek_backward(loss));
    for (int p = 0; p < 3; p++) {
        ck_assert_ptr_eq(ek_tensor_grad(slices[p]), slots[p]);
        assert_ramp(slots[p], 6, 0);
    }
    ck_assert_ptr_null(ek_tensor_grad(slices[6]));
}

/* ---- bounded buffers ---- */

/* All that is fetched at a time is one exchange. */
TEST_LOOP(slices_are_exchanged_where_devices_can, 0, test_kind() == EK_HOST ? 1 : 0)
{
    const setting *s = set_up(3, EK_F32);
    ek_tensor *whole[3 * COUNT], *slices[PIECES];
    make_wholes(s, whole);
    make_remote(3, EK_COLLECTIVE_MOVES);
    assert_ok(ek_comm_reduce_scatter(&s->placement, whole, NULL, NULL, slices));
    ck_assert_int_eq(copies, 0);
    ck_assert_int_eq(exchanges, 1);
    for (int p = 0; p < PIECES; p++) {
        const ek_comm_slice *slice = &s->slices[p];
        assert_ramp(slices[p], 300 + 3 * (20 * slice->tensor + (double)slice->begin), 3);
    }
}

TEST(small_pieces_of_one_owner_come_in_one_copy_a_device)
{
    const setting *s = set_up(3, EK_F32);
    ek_tensor *whole[3 * COUNT], *slices[PIECES];
    make_wholes(s, whole);
    if (test_kind() == EK_HOST)
        make_remote(3, EK_COLLECTIVE_NONE);
    assert_ok(ek_comm_reduce_scatter(&s->placement, whole, NULL, NULL, slices));
    if (test_kind() == EK_HOST)
        ck_assert_int_eq(copies, 6); /* to three owners, from two devices each */
    for (int p = 0; p < PIECES; p++) {
        const ek_comm_slice *slice = &s->slices[p];
        assert_ramp(slices[p], 300 + 3 * (20 * slice->tensor + (double)slice->begin), 3);
    }
}

enum { ROWS = 1024, COLUMNS = 3000 }; /* 12 MB of f32 */

/* Elements of `whole` are its row plus 4096 d. */
static ek_tensor *large(int d, bool turned)
{
    ek_tensor *rows = ek_add_scalar(ek_arange(ROWS, EK_F32, test_device(d)), 4096 * d);
    ek_tensor *column = ek_reshape(rows, EK_SHAPE(ROWS, 1));
    ek_tensor *x = ek_contiguous(ek_expand(column, EK_SHAPE(ROWS, COLUMNS)), EK_CONTIGUOUS);
    return turned ? ek_permute(ek_contiguous(ek_permute(x, EK_SHAPE(1, 0)), EK_CONTIGUOUS),
                               EK_SHAPE(1, 0))
                  : x;
}

static void sum_large(bool apart, bool turned, bool elsewhere)
{
    ek_dev *devs[3];
    ek_tensor *whole[3], *slices[3], *into[3];
    for (int d = 0; d < 3; d++) {
        devs[d] = ek_dev_get(test_device(d));
        ek_scope scope = ek_scope_begin();
        whole[d] = ek_scope_return(&scope, large(d, turned));
        into[d] = ek_zeros(EK_SHAPE(ROWS / 4 * (d == 2 ? 2 : 1) * COLUMNS), .device = devs[d]->id);
    }
    int64_t quarter = ROWS / 4 * COLUMNS;
    ek_tensor *like = large(0, false);
    const ek_comm_slice parts[3] = {{0, 0, quarter, devs[0], elsewhere ? devs[1] : NULL},
                                    {0, quarter, 2 * quarter, devs[1], elsewhere ? devs[2] : NULL},
                                    {0, 2 * quarter, 4 * quarter, devs[2],
                                     elsewhere ? devs[1] : NULL}};
    ek_placement placement = {devs, 3, &like, 1, parts, 3, devs[0]};
    if (apart)
        make_remote(3, EK_COLLECTIVE_NONE);
    uint64_t before[3];
    for (int d = 0; d < 3; d++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_reset_peak(devs[d]->id));
        assert_ok(ek_memory_get_stats(devs[d]->id, &stats));
        before[d] = stats.in_use;
    }
    assert_ok(ek_comm_reduce_scatter(&placement, whole, NULL, into, slices));
    for (int d = 0; d < 3; d++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(devs[d]->id, &stats));
        uint64_t extra = stats.peak - before[d];
        if (!apart && !turned && !elsewhere && test_kind() == EK_HOST)
            ck_assert_uint_eq(extra, 0);
        ck_assert_uint_le(extra, EK_COMM_BUFFER_BYTES);
        ck_assert_uint_eq(stats.in_use, before[d]);
        for (int64_t row = 0; row < ROWS / 4; row += 17)
            ck_assert_double_eq(element(slices[d], row * COLUMNS + 5),
                                3 * 4096 + 3 * ((double)row + ROWS / 4 * d));
    }
}

TEST_LOOP(buffers_are_bounded, 0, 8)
{
    sum_large(_i & 1 && test_kind() == EK_HOST, _i & 2, _i & 4);
}
