/* test_shared_weights.c: devices transform the weights of twins once, and compute the bits that
 * each computes alone. */
#include "host/shared_weights.h"

#include "core/worker.h"
#include "host/conv.h"
#include "host/isa.h"
#include "host_cases.h"

enum { PLACES = 4 };

/* A convolution on each device, with equal weights. */
typedef struct replica {
    ek_tensor *x, *w, *y;   /* A convolution computes y, its input gradient x. */
    ek_tensor *alone;       /* the result with weights of its own */
    uint64_t alone_at_peak; /* bytes of workspace that this took */
} replica;

typedef struct replicas {
    replica at[PLACES];
    ek_dev *devs[PLACES];
    ek_conv_kind kind;
    ek_conv_params params;
} replicas;

static ek_tensor *result_of(const replicas *r, int d)
{
    return r->kind == EK_CONV_FORWARD ? r->at[d].y : r->at[d].x;
}

static ek_conv conv_of(const replicas *r, int d)
{
    const replica *own = &r->at[d];
    return (ek_conv){r->kind, own->x, own->w, NULL, own->y, &r->params};
}

static int compute(void *user, int d)
{
    const replicas *r = user;
    case_poison(result_of(r, d));
    const ek_conv conv = conv_of(r, d);
    return ek_conv_winograd(r->devs[d], &conv, 2);
}

static uint64_t workspace(ek_device device, bool at_peak)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(device, &stats));
    return at_peak ? stats.at_peak[EK_MEMORY_WORKSPACE] : stats.now[EK_MEMORY_WORKSPACE];
}

/* Computes by itself on one device. */
static void compute_alone(replicas *r, int d)
{
    replica *own = &r->at[d];
    assert_ok(ek_memory_reset_peak(r->devs[d]->id));
    assert_ok(compute(r, d));
    own->alone_at_peak = workspace(r->devs[d]->id, true);
    own->alone = ek_tensor_like(result_of(r, d));
    assert_made(own->alone);
    assert_ok(r->devs[d]->backend->kernels->copy(r->devs[d], own->alone, result_of(r, d)));
}

static replicas make_replicas(ek_conv_kind kind, int64_t window, int64_t stride)
{
    const int64_t x[] = {2, 32, 8, 8}, w[] = {40, 32, window, window};
    const int64_t size = (8 + 2 - window) / stride + 1, y[] = {2, 40, size, size};
    replicas r = {.kind = kind,
                  .params = {.dims = 2,
                             .stride = {stride, stride},
                             .padding = {1, 1},
                             .dilation = {1, 1},
                             .groups = 1}};
    assert_ok(ek_host_devices_configure("4"));
    for (int d = 0; d < PLACES; d++) {
        ek_dev *dev = r.devs[d] = ek_dev_get(ek_host(d));
        assert_made(dev);
        replica *own = &r.at[d];
        *own = (replica){.x = case_tensor(dev, EK_F32, 4, x, CASE_LAST),
                         .w = case_tensor(dev, EK_F32, 4, w, CASE_LAST),
                         .y = case_tensor(dev, EK_F32, 4, y, CASE_LAST)};
        case_fill(own->x, 1 + (unsigned)d);
        case_fill(own->w, 7);
        case_fill(own->y, 11 + (unsigned)d);
        compute_alone(&r, d);
    }
    return r;
}

static void make_twins(replicas *r)
{
    for (int d = 1; d < PLACES; d++)
        ek_tensor_make_twin(r->at[d].w, r->at[0].w, PLACES);
}

static void check(const replicas *r, int d)
{
    case_same(result_of(r, d), r->at[d].alone, "beside the result of a device alone");
}

/* Processors without AVX2 don't compute by Winograd's forms. */
static bool can(const replicas *r)
{
    const ek_conv conv = conv_of(r, 0);
    return ek_conv_winograd_can(&conv);
}

TEST_LOOP(devices_one_after_the_other, 0, 6)
{
    replicas r = make_replicas(_i % 2 ? EK_CONV_INPUT_GRADIENT : EK_CONV_FORWARD, _i < 4 ? 3 : 4,
                               _i < 2 ? 1 : 2);
    for (int turn = 0; turn < 2 && can(&r); turn++) {
        make_twins(&r);
        for (int d = 0; d < PLACES; d++) {
            assert_ok(ek_memory_reset_peak(r.devs[d]->id));
            assert_ok(compute(&r, d));
            check(&r, d);
            if (_i == 5) /* the values of four plans are too large together to be all shared */
                continue;
            ck_assert_uint_lt(workspace(r.devs[d]->id, true), r.at[d].alone_at_peak);
            ck_assert_int_eq(workspace(ek_cpu(), false) > 0, d < PLACES - 1);
        }
    }
}

TEST(devices_together)
{
    replicas r = make_replicas(EK_CONV_FORWARD, 3, 1);
    for (int i = 0; i < 20 && can(&r); i++) {
        make_twins(&r);
        assert_ok(ek_jobs_run(r.devs, PLACES, compute, &r, NULL));
        for (int d = 0; d < PLACES; d++)
            check(&r, d);
        ck_assert_uint_eq(workspace(ek_cpu(), false), 0);
    }
}

/* A copy that was written since has values of its own; the others still share theirs. */
TEST(writes)
{
    replicas r = make_replicas(EK_CONV_FORWARD, 3, 1);
    if (!can(&r))
        return;
    make_twins(&r);
    assert_ok(compute(&r, 0));
    case_fill(r.at[1].w, 8);
    ek_tensor_written(r.at[1].w, "a test");
    assert_ok(compute(&r, 1));
    ck_assert_double_ne(case_get(r.at[1].y, 0), case_get(r.at[1].alone, 0));
    case_fill(r.at[2].w, 8); /* without a word, so that the shared values are used */
    assert_ok(compute(&r, 2));
    check(&r, 2);
    ek_tensor_written(r.at[0].w, "a test");
    ek_tensor_make_twin(r.at[3].w, r.at[0].w, PLACES);
    assert_ok(compute(&r, 3));
    check(&r, 3);
}

/* Kernels with narrower panels don't take the values of wider ones. */
TEST(instruction_sets)
{
    static const char *const names[] = {"plain", "avx2", "avx512"};
    replicas r = make_replicas(EK_CONV_FORWARD, 3, 1);
    const ek_isa best = ek_host_isa();
    make_twins(&r);
    for (int isa = best; isa > EK_ISA_PLAIN; isa--) {
        setenv("EVENKEEL_HOST_ISA", names[isa], 1);
        assert_ok(ek_host_read_settings());
        assert_ok(compute(&r, best - isa));
        check(&r, best - isa);
    }
}

/* Values that some devices never use go with the last twin. */
TEST(unused_values)
{
    ek_scope scope = ek_scope_begin();
    replicas r = make_replicas(EK_CONV_FORWARD, 3, 1);
    make_twins(&r);
    if (can(&r)) {
        assert_ok(compute(&r, 0));
        ck_assert_uint_gt(workspace(ek_cpu(), false), 0);
    }
    ek_scope_end(&scope);
    ck_assert_uint_eq(workspace(ek_cpu(), false), 0);
}

/* A device that has no memory for the rest of its workspace fails alone. */
TEST(short_of_memory)
{
    replicas r = make_replicas(EK_CONV_FORWARD, 3, 1);
    if (!can(&r))
        return;
    ek_memory_stats stats;
    make_twins(&r);
    assert_ok(ek_memory_get_stats(r.devs[0]->id, &stats));
    assert_ok(ek_memory_set_capacity(r.devs[0]->id, stats.in_use + 64));
    assert_refused(compute(&r, 0), EK_E_OUT_OF_MEMORY, "memory");
    assert_ok(ek_memory_set_capacity(r.devs[0]->id, 0));
    for (int d = 1; d < PLACES; d++) {
        assert_ok(compute(&r, d));
        check(&r, d);
    }
    for (int d = 0; d < PLACES; d++)
        ck_assert_uint_eq(workspace(r.devs[d]->id, false), 0);
    ck_assert_uint_eq(workspace(ek_cpu(), false), 0);
}

/* Parts of a range are told apart, and keys; values that are too large aren't shared. */
TEST(keys)
{
    const ek_shared_key key = {&key, 0, {1}}, other = {&key, 0, {2}};
    replicas r = make_replicas(EK_CONV_FORWARD, 3, 1);
    ek_tensor rest = *r.at[1].w;
    rest.offset += 8;
    ck_assert_ptr_null(ek_shared_weights_take(r.at[1].w, key, 64, 64));
    make_twins(&r);
    ck_assert_ptr_null(ek_shared_weights_take(r.at[1].w, key, 64 * PLACES + 1, 64));
    ek_shared_weights *own = ek_shared_weights_take(r.at[1].w, key, 64, 64);
    ek_shared_weights *also = ek_shared_weights_take(r.at[0].w, key, 64, 64);
    ek_shared_weights *of_rest = ek_shared_weights_take(&rest, key, 64, 64);
    ek_shared_weights *of_other = ek_shared_weights_take(r.at[1].w, other, 64, 64);
    ck_assert_ptr_nonnull(own);
    ck_assert_ptr_eq(also, own);
    ck_assert_ptr_nonnull(of_rest);
    ck_assert_ptr_nonnull(of_other);
    ck_assert(of_rest != own && of_other != own && of_other != of_rest);
    ek_shared_weights *all[] = {own, also, of_rest, of_other};
    for (int i = 0; i < 4; i++)
        ek_object_release(all[i]);
}

/* A device for which there was no room counts as one that has used the values, so that the others'
 * go after the last use, and leave room for those of the next layer. */
TEST(a_device_without_room)
{
    const ek_shared_key key = {&key, 0, {1}};
    replicas r = make_replicas(EK_CONV_FORWARD, 3, 1);
    make_twins(&r);
    ck_assert_ptr_null(ek_shared_weights_take(r.at[0].w, key, 64, 1));
    for (int d = 1; d < PLACES; d++) {
        ek_shared_weights *shared = ek_shared_weights_take(r.at[d].w, key, 64, 64);
        ck_assert_ptr_nonnull(shared);
        ck_assert_uint_gt(workspace(ek_cpu(), false), 0);
        ek_object_release(shared);
    }
    ck_assert_uint_eq(workspace(ek_cpu(), false), 0);
}

/* Returns x's twins without a reference. */
static const ek_twins *twins_of(const ek_tensor *x, int64_t *offset)
{
    ek_twins *twins = ek_tensor_twins(x, offset);
    ek_object_release(twins);
    return twins;
}

/* Parts of one range, which have one version, are told apart in their copies, too. */
TEST(copies_of_parts)
{
    const int64_t both[] = {2, 8, 8, 3, 3}, one[] = {8, 8, 3, 3};
    ek_dev *dev = ek_dev_get(ek_host(0));
    ek_tensor *base = case_tensor(dev, EK_F32, 5, both, CASE_ROWS), *part[2], *copy[2];
    ek_tensor *other = case_tensor(dev, EK_F32, 4, one, CASE_LAST);
    int64_t offset[2][2];
    for (int i = 0; i < 2; i++) {
        part[i] =
            ek_tensor_view(base, 4, one, base->stride + 1, base->offset + i * base->stride[0]);
        copy[i] = case_tensor(dev, EK_F32, 4, one, CASE_ROWS);
        ek_tensor_make_twin(copy[i], part[i], PLACES);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_nonnull(twins_of(part[i], &offset[i][0]));
        ck_assert_ptr_eq(twins_of(copy[i], &offset[i][1]), twins_of(part[i], &offset[i][0]));
        ck_assert_int_eq(offset[i][1], offset[i][0]);
    }
    ck_assert_int_eq(offset[1][0] - offset[0][0], base->stride[0]);
    ek_tensor_make_twin(other, part[0], PLACES); /* has another layout */
    ck_assert_ptr_null(twins_of(other, &offset[0][0]));
}

static int copy_the_first(void *user, int d)
{
    const replicas *r = user;
    ek_tensor_make_twin(d == 0 ? r->at[0].y : r->at[d].w, r->at[0].w, PLACES);
    return 0;
}

/* Several threads may copy one source. */
TEST(copies_at_a_time)
{
    int64_t offset;
    replicas r = make_replicas(EK_CONV_FORWARD, 3, 1);
    for (int d = 0; d < PLACES; d++)
        r.at[d].y = ek_tensor_like(r.at[0].w);
    for (int i = 0; i < 1000; i++) {
        ek_tensor_written(r.at[0].w, "a test");
        assert_ok(ek_jobs_run(r.devs, PLACES, copy_the_first, &r, NULL));
        const ek_twins *twins = twins_of(r.at[0].w, &offset);
        ck_assert_ptr_nonnull(twins);
        ck_assert_ptr_eq(twins_of(r.at[0].y, &offset), twins);
        for (int d = 1; d < PLACES; d++)
            ck_assert_ptr_eq(twins_of(r.at[d].w, &offset), twins);
    }
}
