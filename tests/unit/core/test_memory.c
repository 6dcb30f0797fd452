/* The allocator and its ledger; slabs; cells. */
#include "core/cells.h"
#include "core/slab.h"
#include "core/tensor.h"
#include "unit.h"

enum { MB = 1 << 20 };

/* Requests share segments, in builds too for which that isn't the default. */
static ek_dev *open_host(const char *specification)
{
    setenv("EVENKEEL_SEGMENTS", "1", 0);
    assert_ok(ek_host_devices_configure(specification));
    ek_dev *dev = ek_dev_get(ek_host(0));
    assert_made(dev);
    return dev;
}

static ek_memory_stats stats_of(int index)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_host(index), &stats));
    return stats;
}

TEST(the_ledger_counts_by_category)
{
    ek_dev *dev = open_host("1");
    void *a, *b;
    assert_ok(ek_dev_alloc(dev, 1000, EK_MEMORY_PARAMETER, &a));
    assert_ok(ek_dev_alloc(dev, 1, EK_MEMORY_WORKSPACE, &b));
    ck_assert_uint_eq((uintptr_t)a % 64, 0);
    ek_memory_stats stats = stats_of(0);
    ck_assert_uint_eq(stats.now[EK_MEMORY_PARAMETER], 1024);
    ck_assert_uint_eq(stats.now[EK_MEMORY_WORKSPACE], 64);
    ck_assert_uint_eq(stats.in_use, 1088);
    ck_assert_uint_eq(stats.peak, 1088);
    ek_dev_free(dev, b, 1, EK_MEMORY_WORKSPACE);
    ek_dev_free(dev, a, 1000, EK_MEMORY_PARAMETER);
    stats = stats_of(0);
    ck_assert_uint_eq(stats.in_use, 0);
    ck_assert_uint_eq(stats.reserved, 2 * MB);
    ck_assert_uint_eq(stats.system_allocations, 1);
    ck_assert_uint_eq(stats.at_peak[EK_MEMORY_PARAMETER], 1024);
    assert_ok(ek_memory_reset_peak(ek_host(0)));
    ck_assert_uint_eq(stats_of(0).peak, 0);
    assert_ok(ek_memory_trim(ek_host(0)));
    ck_assert_uint_eq(stats_of(0).reserved, 0);
}

TEST(blocks_are_given_out_again)
{
    ek_dev *dev = open_host("1");
    void *a, *b, *c;
    assert_ok(ek_dev_alloc(dev, 4096, EK_MEMORY_ACTIVATION, &a));
    ek_dev_free(dev, a, 4096, EK_MEMORY_ACTIVATION);
    assert_ok(ek_dev_alloc(dev, 4090, EK_MEMORY_ACTIVATION, &b));
    ck_assert_ptr_eq(a, b);
    assert_ok(ek_dev_alloc(dev, 4096, EK_MEMORY_ACTIVATION, &c));
    ck_assert_ptr_ne(b, c);
    ck_assert(ek_dev_takes_from_others(dev));
    ek_dev_free(dev, b, 4090, EK_MEMORY_ACTIVATION);
    ck_assert(!ek_dev_takes_from_others(dev));
    ek_dev_free(dev, c, 4096, EK_MEMORY_ACTIVATION);
    ck_assert_uint_eq(stats_of(0).reserved, 2 * MB);
}

/* What large requests have used serves others of any size, and what small ones have used too. */
TEST_LOOP(requests_of_any_size_share_memory, 0, 2)
{
    enum { COUNT = 16 };
    const size_t whole = _i ? 64 * MB : 512 << 10, small = _i ? MB : 4096;
    ek_dev *dev = open_host("1");
    void *blocks[COUNT], *all;
    uint64_t reserved = 0;
    for (int round = 0; round < 3; round++) {
        assert_ok(ek_dev_alloc(dev, whole, EK_MEMORY_ACTIVATION, &all));
        ek_dev_free(dev, all, whole, EK_MEMORY_ACTIVATION);
        for (size_t i = 0; i < COUNT; i++)
            assert_ok(
                ek_dev_alloc(dev, (COUNT - i) * small + 64, EK_MEMORY_ACTIVATION, &blocks[i]));
        for (size_t i = 0; i < COUNT; i++) /* not in the order in which they lie */
            ek_dev_free(dev, blocks[i * 7 % COUNT], (COUNT - i * 7 % COUNT) * small + 64,
                        EK_MEMORY_ACTIVATION);
        reserved = round ? reserved : stats_of(0).reserved;
        ck_assert_uint_eq(stats_of(0).reserved_peak, reserved);
        ck_assert_uint_eq(stats_of(0).dropped, 0);
    }
    ck_assert_uint_ge(stats_of(0).largest_free, _i ? 64 * MB : MB / 2);
}

TEST(requests_have_segments_of_their_own_if_asked)
{
    setenv("EVENKEEL_SEGMENTS", "0", 1);
    ek_dev *dev = open_host("1");
    void *a, *b;
    assert_ok(ek_dev_alloc(dev, 1000, EK_MEMORY_PARAMETER, &a));
    assert_ok(ek_dev_alloc(dev, 3 * MB, EK_MEMORY_PARAMETER, &b));
    ck_assert_uint_eq(stats_of(0).reserved, 1024 + 3 * MB);
    ek_dev_free(dev, a, 1000, EK_MEMORY_PARAMETER);
    ek_dev_free(dev, b, 3 * MB, EK_MEMORY_PARAMETER);
    assert_ok(ek_dev_alloc(dev, 512, EK_MEMORY_PARAMETER, &a));
    ck_assert_uint_eq(stats_of(0).reserved, 1024 + 3 * MB + 512);
    ek_dev_free(dev, a, 512, EK_MEMORY_PARAMETER);
    /* Much more than was ever in use isn't kept, but 64 MiB are. */
    for (size_t i = 60; i < 70; i++) {
        assert_ok(ek_dev_alloc(dev, i * MB, EK_MEMORY_ACTIVATION, &a));
        ek_dev_free(dev, a, i * MB, EK_MEMORY_ACTIVATION);
        ck_assert_uint_le(stats_of(0).reserved, (69 + 69 / 4) * MB);
    }
}

TEST(segments_are_shared_or_not)
{
    ek_memory_stats stats;
    static const char *const bad[] = {"x", "2", "yes", "01", " 1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char sentence[80];
        snprintf(sentence, sizeof sentence, "EVENKEEL_SEGMENTS is \"%s\"; it can be 0 or 1",
                 bad[i]);
        setenv("EVENKEEL_SEGMENTS", bad[i], 1);
        assert_refused(ek_memory_get_stats(ek_host(0), &stats), EK_E_INVALID, sentence);
    }
    setenv("EVENKEEL_SEGMENTS", "", 1); /* as if it were not set */
    assert_ok(ek_memory_get_stats(ek_host(0), &stats));
}

TEST(capacity_is_honoured_and_survived)
{
    ek_dev *dev = open_host("2x64K");
    void *a, *b, *c;
    assert_ok(ek_dev_alloc(dev, 40 << 10, EK_MEMORY_PARAMETER, &a));
    ck_assert_int_eq(ek_dev_alloc(dev, (24 << 10) + 1, EK_MEMORY_ACTIVATION, &b),
                     EK_E_OUT_OF_MEMORY);
    ck_assert_ptr_null(b);
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "24.06 KiB requested for activation"));
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "parameter 40.00 KiB"));
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "capacity 64.00 KiB: 64 bytes lack"));
    assert_error(EK_E_OUT_OF_MEMORY, "host:0 is out of memory");
    /* To the byte, and cached memory serves another size. */
    assert_ok(ek_dev_alloc(dev, 24 << 10, EK_MEMORY_ACTIVATION, &b));
    ek_dev_free(dev, b, 24 << 10, EK_MEMORY_ACTIVATION);
    assert_ok(ek_dev_alloc(dev, 20 << 10, EK_MEMORY_ACTIVATION, &c));
    ck_assert_uint_le(stats_of(0).reserved, 64 << 10);
    ck_assert_uint_eq(stats_of(0).failures, 1);
    ck_assert_uint_eq(stats_of(1).in_use, 0);
    assert_refused(ek_memory_set_capacity(ek_host(0), 1 << 10), EK_E_STATE,
                   "its capacity cannot become 1024");
    ek_dev_free(dev, a, 40 << 10, EK_MEMORY_PARAMETER);
    ek_dev_free(dev, c, 20 << 10, EK_MEMORY_ACTIVATION);
    assert_ok(ek_memory_set_capacity(ek_host(0), 1 << 10));
    ck_assert_int_eq(ek_dev_alloc(dev, SIZE_MAX - 10, EK_MEMORY_ACTIVATION, &b),
                     EK_E_OUT_OF_MEMORY);
    ek_error_clear();
}

/* ---- holders ---- */

static void *take_for(ek_dev *dev, const char *name, size_t nbytes, ek_memory_category category)
{
    void *pointer;
    ek_thread_self()->modes.path = ek_path_join(ek_path_root, name);
    assert_ok(ek_dev_alloc(dev, nbytes, category, &pointer));
    ek_thread_self()->modes.path = ek_path_root;
    return pointer;
}

static void assert_holder(const ek_memory_holder *holder, const char *path,
                          ek_memory_category category, uint64_t nbytes)
{
    ck_assert_str_eq(holder->path, path);
    ck_assert_int_eq(holder->category, category);
    ck_assert_uint_eq(holder->nbytes, nbytes);
}

TEST(holders_are_told_by_module_and_category)
{
    ek_dev *dev = open_host("1");
    ek_memory_holder holders[8];
    ck_assert_int_eq(ek_memory_get_holders(ek_host(0), holders, 8), 0);
    void *a = take_for(dev, "a", 1000, EK_MEMORY_PARAMETER);
    void *b = take_for(dev, "b", 3 * MB, EK_MEMORY_ACTIVATION);
    void *more = take_for(dev, "a", 64, EK_MEMORY_PARAMETER);
    void *none = take_for(dev, "", 500, EK_MEMORY_WORKSPACE);
    ck_assert_int_eq(ek_memory_get_holders(ek_host(0), holders, 8), 3);
    assert_holder(&holders[0], "b", EK_MEMORY_ACTIVATION, 3 * MB);
    assert_holder(&holders[1], "a", EK_MEMORY_PARAMETER, 1024 + 64);
    assert_holder(&holders[2], "", EK_MEMORY_WORKSPACE, 512);
    ck_assert_int_eq(ek_memory_get_holders(ek_host(0), holders, 1), 1);
    ck_assert_int_eq(ek_memory_get_holders(ek_host(0), NULL, 0), 0);
    ek_dev_assign(dev, a, 1000, EK_MEMORY_PARAMETER, EK_MEMORY_GRADIENT,
                  ek_path_join(ek_path_root, "b"));
    ek_dev_free(dev, b, 3 * MB, EK_MEMORY_ACTIVATION);
    ek_dev_free(dev, none, 500, EK_MEMORY_WORKSPACE);
    ck_assert_int_eq(ek_memory_get_holders(ek_host(0), holders, 8), 2);
    assert_holder(&holders[0], "b", EK_MEMORY_GRADIENT, 1024);
    assert_holder(&holders[1], "a", EK_MEMORY_PARAMETER, 64);
    ek_dev_free(dev, a, 1000, EK_MEMORY_GRADIENT);
    ek_dev_free(dev, more, 64, EK_MEMORY_PARAMETER);
    ck_assert_int_eq(ek_memory_get_holders(ek_host(0), holders, 8), 0);
}

/* Of a thousand holders the largest are found, in order. */
TEST(the_largest_holders_come_first)
{
    enum { COUNT = 1000, LARGEST = 10 };
    static void *blocks[COUNT];
    ek_dev *dev = open_host("1");
    ek_memory_holder holders[LARGEST];
    char name[16];
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "%d", i);
        blocks[i] = take_for(dev, name, (size_t)(1 + i * 7 % COUNT) * 64, EK_MEMORY_ACTIVATION);
    }
    ck_assert_int_eq(ek_memory_get_holders(ek_host(0), holders, LARGEST), LARGEST);
    for (int i = 0; i < LARGEST; i++)
        ck_assert_uint_eq(holders[i].nbytes, (uint64_t)(COUNT - i) * 64);
    for (int i = 0; i < COUNT; i++)
        ek_dev_free(dev, blocks[i], (size_t)(1 + i * 7 % COUNT) * 64, EK_MEMORY_ACTIVATION);
}

TEST(a_lack_of_memory_names_the_largest_holders)
{
    ek_dev *dev = open_host("1x64K");
    void *e = take_for(dev, "encoder", 24 << 10, EK_MEMORY_ACTIVATION), *none = NULL;
    void *d = take_for(dev, "decoder", 16 << 10, EK_MEMORY_PARAMETER);
    void *o = take_for(dev, "", 8 << 10, EK_MEMORY_OPTIMIZER);
    void *g = take_for(dev, "encoder", 4 << 10, EK_MEMORY_GRADIENT);
    ek_thread_self()->modes.path = ek_path_join(ek_path_root, "decoder");
    ck_assert_int_eq(ek_dev_alloc(dev, 16 << 10, EK_MEMORY_ACTIVATION, &none), EK_E_OUT_OF_MEMORY);
    ek_thread_self()->modes.path = ek_path_root;
    const char *const sentence =
        "host:0 is out of memory: 16.00 KiB requested for activation of decoder, 52.00 KiB in use "
        "(parameter 16.00 KiB, gradient 4.00 KiB, optimizer 8.00 KiB, activation 24.00 KiB), 12.00 "
        "KiB free between them (12.00 KiB together at most), capacity 64.00 KiB: 4096 bytes lack; "
        "largest holders: encoder (activation) 24.00 KiB, decoder (parameter) 16.00 KiB, no module "
        "(optimizer) 8.00 KiB [ledger.c:";
    ck_assert_msg(strncmp(ek_error_message(), sentence, strlen(sentence)) == 0, "%s",
                  ek_error_message());
    ek_error_clear();
    ek_dev_free(dev, e, 24 << 10, EK_MEMORY_ACTIVATION);
    ek_dev_free(dev, d, 16 << 10, EK_MEMORY_PARAMETER);
    ek_dev_free(dev, o, 8 << 10, EK_MEMORY_OPTIMIZER);
    ek_dev_free(dev, g, 4 << 10, EK_MEMORY_GRADIENT);
}

/* ---- segments ---- */

/* Gaps that no request fits make a device reserve more than its capacity, but only 20 MiB more. */
TEST(gaps_are_bounded)
{
    enum { COUNT = 30, LARGE = 4 };
    ek_dev *dev = open_host("1x64M");
    void *blocks[COUNT], *large[COUNT];
    int made = 0, rc = 0;
    for (int i = 0; i < COUNT; i++)
        assert_ok(ek_dev_alloc(dev, 2 * MB, EK_MEMORY_ACTIVATION, &blocks[i]));
    for (int i = 0; i < COUNT; i += 2)
        ek_dev_free(dev, blocks[i], 2 * MB, EK_MEMORY_ACTIVATION);
    while (made < COUNT && rc == 0) {
        rc = ek_dev_alloc(dev, LARGE * MB, EK_MEMORY_ACTIVATION, &large[made]);
        made += rc == 0;
    }
    ck_assert_int_eq(rc, EK_E_OUT_OF_MEMORY);
    assert_error(EK_E_OUT_OF_MEMORY, "free between them (2.00 MiB together at most)");
    ck_assert_int_gt(made, 0);
    ck_assert_uint_gt(stats_of(0).reserved, 64 * MB);
    ck_assert_uint_le(stats_of(0).reserved, (64 + 20) * MB);
    ck_assert_uint_lt(stats_of(0).in_use + LARGE * MB, 64 * MB);
    for (int i = 1; i < COUNT; i += 2)
        ek_dev_free(dev, blocks[i], 2 * MB, EK_MEMORY_ACTIVATION);
    assert_ok(ek_dev_alloc(dev, LARGE * MB, EK_MEMORY_ACTIVATION, &large[made++]));
    while (made > 0)
        ek_dev_free(dev, large[--made], LARGE * MB, EK_MEMORY_ACTIVATION);
}

/* Refuses all but what is known already. */
static int refuse_memory(ek_dev *dev, size_t nbytes, void **pointer)
{
    *pointer = NULL;
    return 0;
}

TEST(what_is_short_is_named)
{
    ek_dev *dev = open_host("1x64M");
    const ek_backend *original = dev->backend;
    ek_backend backend = *original;
    void *block;
    backend.memory_alloc = refuse_memory;
    dev->backend = &backend;
    ck_assert_int_eq(ek_dev_alloc(dev, MB, EK_MEMORY_ACTIVATION, &block), EK_E_OUT_OF_MEMORY);
    assert_error(EK_E_OUT_OF_MEMORY, "capacity 64.00 MiB, of which the system has no more left");
    ck_assert_int_eq(ek_dev_alloc(dev, 65 * MB, EK_MEMORY_ACTIVATION, &block), EK_E_OUT_OF_MEMORY);
    ck_assert_ptr_null(strstr(ek_error_message(), "the system"));
    ek_error_clear();
    dev->backend = original;
    assert_ok(ek_dev_alloc(dev, MB, EK_MEMORY_ACTIVATION, &block));
    ek_dev_free(dev, block, MB, EK_MEMORY_ACTIVATION);
}

/* An optional request that finds no memory changes nothing, though cached memory would do for a
 * request that must be met. */
TEST(optional_requests_leave_no_trace)
{
    ek_dev *dev = open_host("1x64M");
    const ek_backend *original = dev->backend;
    ek_backend backend = *original;
    ek_event *none;
    void *a, *b;
    assert_ok(ek_dev_alloc(dev, 30 * MB, EK_MEMORY_ACTIVATION, &a));
    assert_ok(ek_dev_alloc(dev, 30 * MB, EK_MEMORY_ACTIVATION, &b));
    ek_dev_free(dev, b, 30 * MB, EK_MEMORY_ACTIVATION);
    const ek_memory_stats before = stats_of(0);
    for (size_t nbytes = 34; nbytes <= 35; nbytes++) {
        ck_assert_int_eq(ek_dev_try_alloc_for(dev, EK_STREAM_COMPUTE, nbytes * MB,
                                              EK_MEMORY_WORKSPACE, &b, &none),
                         0);
        ck_assert_ptr_null(b);
    }
    ck_assert_int_eq(ek_dev_try_alloc_for(dev, EK_STREAM_COMPUTE, SIZE_MAX - 10,
                                          EK_MEMORY_WORKSPACE, &b, &none),
                     0);
    backend.memory_alloc = refuse_memory;
    dev->backend = &backend;
    ck_assert_int_eq(ek_dev_try_alloc_for(dev, EK_STREAM_COMPUTE, 4096, EK_MEMORY_WORKSPACE, &b,
                                          &none),
                     0);
    dev->backend = original;
    const ek_memory_stats after = stats_of(0);
    ck_assert_int_eq(ek_error_status(), 0);
    ck_assert_mem_eq(&before, &after, sizeof before);
    ck_assert_int_eq(ek_dev_try_alloc_for(dev, EK_STREAM_COMPUTE, 30 * MB, EK_MEMORY_WORKSPACE, &b,
                                          &none),
                     1);
    ek_dev_free(dev, b, 30 * MB, EK_MEMORY_WORKSPACE);
    assert_ok(ek_dev_alloc(dev, 34 * MB, EK_MEMORY_ACTIVATION, &b));
    ck_assert_uint_eq(stats_of(0).dropped, 1);
    ek_dev_free(dev, b, 34 * MB, EK_MEMORY_ACTIVATION);
    ek_dev_free(dev, a, 30 * MB, EK_MEMORY_ACTIVATION);
}

TEST(what_is_kept_is_named_at_shutdown)
{
    open_host("1");
    ek_tensor *kept = ek_keep(ek_empty(EK_SHAPE(16), .device = ek_host(0)));
    assert_made(kept);
    assert_refused(ek_shutdown(), EK_E_STATE, "host:0 still has 64 bytes in use");
    ck_assert_int_eq(ek_host_devices_configure("2"), EK_E_STATE);
    ek_error_clear();
    ek_release(kept);
    assert_ok(ek_host_devices_configure("2"));
    ck_assert_int_eq(ek_device_count(EK_HOST), 2);
}

TEST(a_refused_configuration_changes_nothing)
{
    open_host("3");
    ek_tensor *kept = ek_keep(ek_empty(EK_SHAPE(16), .device = ek_host(1)));
    assert_made(kept);
    for (int i = 0; i < 3; i++)
        assert_ok(ek_memory_set_capacity(ek_host(i), 1000));
    assert_refused(ek_host_devices_configure("2"), EK_E_STATE, "host:1 still has 64 bytes in use");
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(stats_of(i).capacity, 1000);
    ek_release(kept);
}

TEST(scopes_release_and_hand_over)
{
    open_host("1");
    ek_scope outer = ek_scope_begin();
    ek_tensor *a = ek_empty(EK_SHAPE(16), .device = ek_host(0));
    ek_scope inner = ek_scope_begin();
    ek_tensor *b = ek_empty(EK_SHAPE(16), .device = ek_host(0));
    ek_empty(EK_SHAPE(16), .device = ek_host(0));
    ck_assert_uint_eq(stats_of(0).in_use, 3 * 64);
    ck_assert_ptr_eq(ek_scope_return(&inner, b), b);
    ck_assert_uint_eq(stats_of(0).in_use, 2 * 64);
    ek_keep(a);
    ek_scope_begin(); /* left open: ends with the outer one */
    ek_empty(EK_SHAPE(16), .device = ek_host(0));
    ek_scope_end(&outer);
    ck_assert_uint_eq(stats_of(0).in_use, 64);
    ek_release(a);
    ck_assert_uint_eq(stats_of(0).in_use, 0);
}

TEST(slab_members_have_versions_of_their_own)
{
    ek_dev *dev = open_host("1");
    ek_tensor *like[3] = {ek_empty(EK_SHAPE(3)),
                          ek_empty(EK_SHAPE(2, 3, 4, 5), .format = EK_CHANNELS_LAST),
                          ek_empty(EK_SHAPE(0, 4))};
    ek_slab *slab = ek_slab_new(dev, like, 3);
    assert_made(slab);
    ck_assert_int_eq(slab->elements, 16 + 128);
    ck_assert_int_eq(slab->members[1]->offset, 16);
    ck_assert(ek_tensor_is_contiguous(slab->members[1], EK_CHANNELS_LAST));
    uint64_t before = ek_tensor_version(slab->members[1]);
    ek_tensor_written(slab->members[0], "test");
    ck_assert_uint_eq(ek_tensor_version(slab->members[1]), before);
    ek_tensor_written(slab->members[1], "test");
    ck_assert_uint_eq(ek_tensor_version(slab->members[1]), before + 1);
    ek_tensor *range = ek_slab_range(slab, 16, 144);
    for (int i = 0; i < 128; i++)
        ck_assert(element(range, i) == 0);
    assert_refused(ek_slab_range(slab, 16, 145), EK_E_INVALID, "range 16 to 145");
    /* A parameter moves in and keeps its handle. */
    ek_tensor_rebind(like[0], slab->members[0]);
    ck_assert_ptr_eq(ek_tensor_address(like[0]), ek_tensor_address(slab->members[0]));
    ek_object_release(slab);
}

TEST(watches_have_peaks_of_their_own)
{
    ek_dev *dev = open_host("1");
    ek_memory_watch early, late;
    void *a, *b, *c;
    assert_ok(ek_dev_alloc(dev, 1024, EK_MEMORY_PARAMETER, &a));
    ek_memory_watch_begin(dev, &early);
    ck_assert_uint_eq(early.peak, 1024);
    assert_ok(ek_dev_alloc(dev, 2048, EK_MEMORY_ACTIVATION, &b));
    ek_dev_free(dev, b, 2048, EK_MEMORY_ACTIVATION);
    ek_memory_watch_begin(dev, &late);
    assert_ok(ek_memory_reset_peak(ek_host(0)));
    assert_ok(ek_dev_alloc(dev, 512, EK_MEMORY_ACTIVATION, &b));
    assert_ok(ek_dev_alloc(dev, 2048, EK_MEMORY_ACTIVATION, &c)); /* a cached block */
    ek_dev_free(dev, c, 2048, EK_MEMORY_ACTIVATION);
    ck_assert_uint_eq(ek_memory_watch_restart(&early), 3584);
    ck_assert_uint_eq(early.peak, 1536);
    ck_assert_uint_eq(late.peak, 3584);
    ek_memory_watch_end(&early);
    assert_ok(ek_dev_alloc(dev, 8192, EK_MEMORY_ACTIVATION, &c));
    ck_assert_uint_eq(ek_memory_watch_restart(&early), 1536); /* has ended */
    ck_assert_uint_eq(ek_memory_watch_restart(&late), 9728);
    ek_dev_free(dev, a, 1024, EK_MEMORY_PARAMETER);
    ek_dev_free(dev, b, 512, EK_MEMORY_ACTIVATION);
    ek_dev_free(dev, c, 8192, EK_MEMORY_ACTIVATION);
    assert_ok(ek_shutdown());
    ck_assert_uint_eq(ek_memory_watch_restart(&late), 9728); /* ended with the device */
    ek_memory_watch_end(&late);
}

static void assert_cell_is_zero(size_t nbytes)
{
    unsigned char *cell = ek_cell_new(nbytes);
    ck_assert_ptr_nonnull(cell);
    for (size_t i = 0; i < nbytes; i++)
        ck_assert_uint_eq(cell[i], 0);
    memset(cell, 0xff, nbytes);
    ek_cell_free(cell, nbytes);
}

static void *free_cell(void *cell)
{
    ek_cell_free(cell, 100);
    return NULL;
}

TEST(cells_are_zero_however_often_they_are_used)
{
    /* Sizes of one list, of two neighbours, and one that is not kept. */
    static const size_t sizes[] = {65, 128, 100, 129, 64, 1024, 1025, 5000};
    for (int turn = 0; turn < 3; turn++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            assert_cell_is_zero(sizes[i]);
    pthread_t other;
    ck_assert_int_eq(pthread_create(&other, NULL, free_cell, ek_cell_new(100)), 0);
    pthread_join(other, NULL);
    ek_cells_clear();
    assert_cell_is_zero(100);
}
