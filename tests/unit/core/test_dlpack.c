/* Memory that is lent and borrowed by DLPack. */
#include <pthread.h>

#include "core/tensor.h"
#include "dlpack_abi.h"
#include "unit.h"

/* DLPack's type codes and bits, by dtype. */
static const DLDataType types[EK_DTYPES] = {{2, 32, 1}, {2, 64, 1}, {4, 16, 1}, {0, 64, 1},
                                            {1, 8, 1},  {2, 16, 1}, {0, 32, 1}, {6, 8, 1}};

static uint32_t state = 1;

static int drawn(int below)
{
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (uint32_t)below);
}

static uint64_t in_use(void)
{
    uint64_t sum = 0;
    ek_memory_stats stats;
    for (int i = -1; i < 2; i++) {
        assert_ok(ek_memory_get_stats(i < 0 ? ek_cpu() : ek_host(i), &stats));
        sum += stats.in_use;
    }
    return sum;
}

static ek_device any_host(void)
{
    int i = drawn(3);
    return i == 2 ? ek_cpu() : ek_host(i);
}

/* A view of random bytes: dimensions in any order, some expanded, gaps, an offset. */
static ek_tensor *random_tensor(void)
{
    int64_t shape[EK_MAX_DIMS], stride[EK_MAX_DIMS], step = 1, offset = drawn(4);
    int ndim = drawn(EK_MAX_DIMS + 1);
    ek_dtype dtype = (ek_dtype)drawn(EK_DTYPES);
    for (int i = 0; i < ndim; i++) {
        shape[i] = drawn(20) ? 1 + drawn(3) : 0;
        stride[i] = drawn(8) ? step : 0;
        step *= (shape[i] ? shape[i] : 1) * (1 + drawn(8) / 7);
    }
    for (int i = 0; i + 1 < ndim; i++) {
        int k = i + drawn(ndim - i);
        int64_t size = shape[i], gap = stride[i];
        shape[i] = shape[k];
        stride[i] = stride[k];
        shape[k] = size;
        stride[k] = gap;
    }
    ek_tensor *base = ek_empty(EK_SHAPE(step + offset), dtype, .device = any_host());
    assert_made(base);
    unsigned char *bytes = ek_tensor_data(base);
    for (size_t i = 0; i < (size_t)(step + offset) * ek_dtype_size(dtype); i++)
        bytes[i] = (unsigned char)drawn(dtype == EK_BOOL ? 2 : 256);
    return ek_tensor_view(base, ndim, shape, stride, offset);
}

static void assert_described(const DLTensor *t, const ek_tensor *x)
{
    ck_assert_int_eq(t->device.device_type, 1);
    ck_assert_int_eq(t->device.device_id, 0);
    ck_assert_int_eq(memcmp(&t->dtype, &types[x->dtype], sizeof t->dtype), 0);
    ck_assert_int_eq(t->ndim, x->ndim);
    ck_assert_ptr_eq((char *)t->data + t->byte_offset, ek_tensor_data(x));
    for (int i = 0; i < t->ndim; i++) {
        ck_assert_int_eq(t->shape[i], x->shape[i]);
        ck_assert_int_eq(t->strides[i], x->shape[i] == 1 ? 1 : x->stride[i]);
    }
}

/* Lent and borrowed again, without a copy. */
static ek_tensor *there_and_back(ek_tensor *x)
{
    ek_device device = any_host();
    if (drawn(2)) {
        DLManagedTensorVersioned *lent = ek_to_dlpack(x, NULL);
        assert_made(lent);
        ck_assert_uint_eq(lent->version.major, 1);
        ck_assert_uint_eq(lent->flags, 0);
        assert_described(&lent->dl_tensor, x);
        return ek_from_dlpack(lent, device, NULL);
    }
    DLManagedTensor *lent = ek_to_dlpack_unversioned(x, EK_NO_STREAM);
    assert_made(lent);
    assert_described(&lent->dl_tensor, x);
    return ek_from_dlpack_unversioned(lent, device, EK_NO_STREAM);
}

TEST(ten_thousand_tensors_go_there_and_back)
{
    enum { TENSORS = 10000 };
    static unsigned char there[1 << 17], back[1 << 17];
    assert_ok(ek_host_devices_configure("2"));
    ek_tensor *kept[16] = {NULL};
    const uint64_t before = in_use();
    for (int i = 0; i < TENSORS; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = random_tensor(), *y = there_and_back(x);
        assert_made(y);
        size_t nbytes = (size_t)ek_tensor_count(x) * ek_dtype_size(x->dtype);
        ck_assert_uint_le(nbytes, sizeof there);
        assert_ok(ek_to_data(x, there, nbytes));
        assert_ok(ek_to_data(y, back, nbytes));
        ck_assert(y->dtype == x->dtype && ek_same_shape(x, y));
        ck_assert_int_eq(memcmp(there, back, nbytes), 0);
        ck_assert(nbytes == 0 || ek_tensor_data(x) == ek_tensor_data(y));
        /* The memory outlives the scope of the lender as long as a borrower is kept. */
        ek_tensor **place = &kept[drawn(16)];
        ek_release(*place);
        *place = ek_keep(y);
        ek_scope_end(&scope);
    }
    for (int i = 0; i < 16; i++)
        ek_release(kept[i]);
    ck_assert_uint_eq(in_use(), before);
}

/* ---- memory of a stranger ---- */

static float numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
static _Atomic int deleted;

static void count_deletion(DLManagedTensorVersioned *self)
{
    deleted++;
    self->dl_tensor.data = NULL;
}

static void count_unversioned(DLManagedTensor *self)
{
    deleted++;
    self->dl_tensor.data = NULL;
}

/* The eight numbers as a matrix (2, 3) of rows of four. */
static DLManagedTensorVersioned *strangers(void)
{
    static DLManagedTensorVersioned lent;
    static int64_t shape[9], strides[9];
    memcpy(shape, (int64_t[9]){2, 3, 1, 1, 1, 1, 1, 1, 1}, sizeof shape);
    memcpy(strides, (int64_t[9]){4, 1, 1, 1, 1, 1, 1, 1, 1}, sizeof strides);
    lent = (DLManagedTensorVersioned){
        {1, 0},
        NULL,
        count_deletion,
        0,
        {numbers, {1, 0}, 2, types[EK_F32], shape, strides, sizeof(float)}};
    deleted = 0;
    return &lent;
}

TEST(the_deleter_is_called_once_after_the_last_handle)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_from_dlpack(strangers(), ek_cpu(), NULL);
    assert_made(x);
    ck_assert(element(x, 0) == 1 && element(x, 5) == 7);
    ek_tensor *row = ek_keep(ek_tensor_view(x, 1, (int64_t[]){3}, (int64_t[]){1}, 4));
    ek_scope_end(&scope);
    ck_assert_int_eq(deleted, 0);
    numbers[6] = 60;
    ck_assert(element(row, 1) == 60); /* one memory */
    numbers[6] = 6;
    ek_release(row);
    ck_assert_int_eq(deleted, 1);
    /* Without a deleter, and without strides. */
    DLManagedTensorVersioned *lent = strangers();
    lent->deleter = NULL;
    lent->dl_tensor.strides = NULL;
    x = ek_from_dlpack(lent, ek_host(0), NULL);
    assert_on(x, ek_host(0));
    ck_assert(element(x, 3) == 4 && element(x, 5) == 6);
}

static void *release(void *tensor)
{
    ek_release(tensor);
    return NULL;
}

TEST(any_thread_releases)
{
    pthread_t thread;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_keep(ek_from_dlpack(strangers(), ek_cpu(), NULL));
    DLManagedTensorVersioned *lent = ek_to_dlpack(x, NULL);
    ek_scope_end(&scope);
    ck_assert_int_eq(pthread_create(&thread, NULL, release, x), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(deleted, 0);
    lent->deleter(lent);
    ck_assert_int_eq(deleted, 1);
}

TEST(borrowed_memory_is_on_the_ledger)
{
    ek_memory_stats stats;
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_memory_set_capacity(ek_host(0), 64));
    assert_made(ek_from_dlpack(strangers(), ek_host(0), NULL));
    assert_ok(ek_memory_get_stats(ek_host(0), &stats));
    ck_assert_uint_eq(stats.now[EK_MEMORY_ACTIVATION], 64);
    assert_refused(ek_empty(EK_SHAPE(1), .device = ek_host(0)), EK_E_OUT_OF_MEMORY, "host:0");
    ek_scope_end(&scope);
    assert_ok(ek_memory_get_stats(ek_host(0), &stats));
    ck_assert_uint_eq(stats.in_use, 0);
}

/* The lender has its memory back when the call returns. */
TEST(read_only_memory_is_copied)
{
    DLManagedTensorVersioned *lent = strangers();
    lent->flags = 1;
    ek_tensor *x = ek_from_dlpack(lent, ek_cpu(), NULL);
    assert_made(x);
    ck_assert_int_eq(deleted, 1);
    ck_assert(ek_tensor_is_contiguous(x, EK_CONTIGUOUS));
    ck_assert(element(x, 2) == 3 && element(x, 3) == 5);
    assert_ok(ek_set_data(x, (float[6]){0}, 6 * sizeof(float)));
    ck_assert(numbers[1] == 1);
}

/* ---- refusals ---- */

/* A number at an offset of DLTensor, or of the versioned struct, and what follows from it. */
static const struct {
    size_t offset, size;
    int64_t value;
    int status;
    const char *sentence;
} wrong[] = {
#define OF(member) \
    offsetof(DLManagedTensorVersioned, member), sizeof((DLManagedTensorVersioned *)0)->member
    {OF(version.major), 2, EK_E_INVALID, "version 2.0 of DLPack; 1 is taken"},
    {OF(version.major), 0, EK_E_INVALID, "version 0.0"},
    {OF(dl_tensor.device.device_type), 4, EK_E_DEVICE, "DLPack's kind 4; the host's (1)"},
    {OF(dl_tensor.device.device_type), 2, EK_E_DEVICE, "GPU 0, where no device lies"},
    {OF(dl_tensor.ndim), 9, EK_E_SHAPE, "9 dimensions; 0 to 8"},
    {OF(dl_tensor.ndim), -1, EK_E_SHAPE, "-1 dimensions"},
    {OF(dl_tensor.shape), 0, EK_E_SHAPE, "2 dimensions"},
    {OF(dl_tensor.data), 0, EK_E_INVALID, "the memory is NULL"},
    {OF(dl_tensor.byte_offset), 6, EK_E_INVALID, "f32 at an address that is no multiple of 4"},
    {OF(dl_tensor.dtype.code), 5, EK_E_DTYPE, "type code 5 with 32 bits"},
    {OF(dl_tensor.dtype.code), 255, EK_E_DTYPE, "type code 255"},
    {OF(dl_tensor.dtype.bits), 8, EK_E_DTYPE, "with 8 bits, 1 at a time"},
    {OF(dl_tensor.dtype.lanes), 4, EK_E_DTYPE, "4 at a time; those of f32"},
#undef OF
};

TEST_LOOP(wrong_members, 0, sizeof wrong / sizeof *wrong)
{
    DLManagedTensorVersioned *lent = strangers();
    memcpy((char *)lent + wrong[_i].offset, &wrong[_i].value, wrong[_i].size);
    assert_refused(ek_from_dlpack(lent, ek_cpu(), NULL), wrong[_i].status, wrong[_i].sentence);
    ck_assert_int_eq(deleted, 1);
}

static const struct {
    int64_t shape[2], strides[2];
    const char *sentence;
} layouts[] = {
    {{-1, 3}, {4, 1}, "dimension 0 has size -1"},
    {{2, 3}, {4, -1}, "dimension 1 has size 3 and stride -1"},
    {{INT64_MAX, 1}, {INT64_MAX, 1}, "more than 2^63 bytes"},
    {{INT64_MAX / 2, 4}, {1, INT64_MAX / 2}, "more than 2^63 bytes"},
    {{INT64_MAX / 2, 4}, {0, 0}, "too large"},
};

TEST_LOOP(wrong_layouts, 0, sizeof layouts / sizeof *layouts)
{
    DLManagedTensorVersioned *lent = strangers();
    memcpy(lent->dl_tensor.shape, layouts[_i].shape, sizeof layouts[_i].shape);
    memcpy(lent->dl_tensor.strides, layouts[_i].strides, sizeof layouts[_i].strides);
    assert_refused(ek_from_dlpack(lent, ek_cpu(), NULL), EK_E_SHAPE, layouts[_i].sentence);
    ck_assert_int_eq(deleted, 1);
}

TEST(wrong_devices_and_nothing)
{
    assert_refused(ek_from_dlpack(strangers(), ek_cuda(0), NULL), EK_E_DEVICE,
                   "the memory is the host's, and cuda:0 cannot use it");
    ck_assert_int_eq(deleted, 1);
    assert_refused(ek_from_dlpack(strangers(), ek_host(99), NULL), EK_E_DEVICE, "host:99");
    ck_assert_int_eq(deleted, 1);
    assert_refused(ek_from_dlpack(NULL, ek_cpu(), NULL), EK_E_INVALID, "lent tensor is NULL");
    assert_refused(ek_from_dlpack_unversioned(NULL, ek_cpu(), NULL), EK_E_INVALID, "is NULL");
    DLManagedTensor old = {strangers()->dl_tensor, NULL, count_unversioned};
    assert_refused(ek_from_dlpack_unversioned(&old, ek_cuda(0), NULL), EK_E_DEVICE, "host's");
    ck_assert_int_eq(deleted, 1);
}

static int hold(ek_residence *self)
{
    return 0;
}

TEST(what_is_not_lent)
{
    ek_tensor *x = ek_empty(EK_SHAPE(2), .requires_grad = true);
    assert_refused(ek_to_dlpack(x, NULL), EK_E_INVALID, "f32[2] on cpu requires a gradient");
    assert_refused(ek_to_dlpack_unversioned(x, NULL), EK_E_INVALID, "ek_detach it");
    assert_refused(ek_to_dlpack(NULL, NULL), EK_E_INVALID, "the tensor is NULL");
    ek_residence residence = {.hold = hold};
    ek_object_init(&residence.object, NULL);
    ek_storage *absent = ek_storage_new_absent(ek_dev_get(ek_cpu()), 8, EK_MEMORY_PARAMETER,
                                               ek_object_retain(&residence));
    x = ek_tensor_member(absent, EK_F32, &EK_SHAPE(2), (int64_t[]){1}, 0);
    ek_object_release(absent);
    assert_refused(ek_to_dlpack(x, NULL), EK_E_INVALID, "is a sharded parameter");
}
