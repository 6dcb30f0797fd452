/* Errors per thread, their sentences, and the grammar of device lists. */
#include <pthread.h>

#include "core/device.h"
#include "core/device_spec.h"
#include "core/thread.h"
#include "unit.h"

TEST(names_and_messages)
{
    ck_assert_str_eq(ek_status_name(EK_E_SHAPE), "EK_E_SHAPE");
    ck_assert_str_eq(ek_status_message(EK_E_SHAPE), "shapes do not fit");
    ck_assert_str_eq(ek_status_name(-999), "EK_E_UNKNOWN");
    ck_assert_str_eq(ek_status_message(EK_OK), "success");
}

TEST(the_first_error_stays)
{
    ck_assert_int_eq(ek_error(EK_E_SHAPE, "first %d", 1), EK_E_SHAPE);
    ck_assert_int_eq(ek_error(EK_E_DTYPE, "second"), EK_E_DTYPE);
    ck_assert_int_eq(ek_error_status(), EK_E_SHAPE);
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "first 1 [test_status.c:"));
    ek_error_record record;
    ck_assert_int_eq(ek_error_take(&record), EK_E_SHAPE);
    ck_assert_int_eq(ek_error_status(), 0);
    ck_assert_str_eq(ek_error_message(), "");
    ek_error_raise(&record);
    ek_error_prefix(0, "in replica %d", 3);
    int before = ek_error_status();
    ek_error_prefix(before, "somewhere else");
    ck_assert_int_eq(strncmp(ek_error_message(), "in replica 3: first 1", 21), 0);
    assert_error(EK_E_SHAPE, "in replica 3: first 1");
}

TEST(a_long_sentence_is_cut_not_spilled)
{
    char text[3000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    ek_error(EK_E_INVALID, "%s", text);
    ck_assert_uint_eq(strlen(ek_error_message()), sizeof((ek_error_record *)0)->message - 1);
    ek_error_prefix(0, "%s", text);
    ck_assert_uint_eq(strlen(ek_error_message()), sizeof((ek_error_record *)0)->message - 1);
}

static void *other_thread(void *user)
{
    *(int *)user = ek_error_status();
    ek_error(EK_E_IO, "of the other thread");
    return NULL;
}

TEST(prefixes_are_not_repeated)
{
    ek_error(EK_E_SHAPE, "linear: x is odd");
    ek_error_prefix(0, "%s", "linear");
    ck_assert_int_eq(strncmp(ek_error_message(), "linear: x is odd [", 18), 0);
    ek_error_prefix(0, "%s", "line");
    ek_error_prefix(0, "sample %d", 3);
    ek_error_prefix(0, "sample %d", 3);
    ck_assert_int_eq(strncmp(ek_error_message(), "sample 3: line: linear: x is odd [", 34), 0);
    ek_error_clear();
    ek_error(EK_E_SHAPE, "linear takes 1 input");
    ek_error_prefix(0, "linear");
    ck_assert_int_eq(strncmp(ek_error_message(), "linear takes 1 input [", 22), 0);
    ek_error_clear();
    ek_error_prefix(0, "nothing");
    ck_assert_int_eq(ek_error_status(), 0);
    char filler[2000];
    memset(filler, 'x', sizeof filler - 1);
    filler[sizeof filler - 1] = '\0';
    ek_error(EK_E_SHAPE, "cut");
    ek_error_prefix(0, "%s", filler);
    ck_assert_uint_eq(strlen(ek_error_message()), sizeof((ek_error_record *)NULL)->message - 1);
    ek_error_clear();
}

TEST(threads_have_errors_of_their_own)
{
    ek_error(EK_E_SHAPE, "mine");
    pthread_t thread;
    int seen = -1;
    ck_assert_int_eq(pthread_create(&thread, NULL, other_thread, &seen), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(seen, 0);
    assert_error(EK_E_SHAPE, "mine");
}

TEST(sizes_in_bytes)
{
    uint64_t nbytes;
    assert_ok(ek_parse_bytes("4096", &nbytes));
    ck_assert_uint_eq(nbytes, 4096);
    assert_ok(ek_parse_bytes(" 512M ", &nbytes));
    ck_assert_uint_eq(nbytes, 512u << 20);
    assert_ok(ek_parse_bytes("1.5g", &nbytes));
    ck_assert_uint_eq(nbytes, 3u << 29);
    assert_ok(ek_parse_bytes("2KiB", &nbytes));
    ck_assert_uint_eq(nbytes, 2048);
    static const char *const bad[] = {"", "M", "-1", "12Q", "1e400", "nan", "1 2", "0x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_refused(ek_parse_bytes(bad[i], &nbytes), EK_E_INVALID, "is not a number of bytes");
    }
}

TEST(device_lists)
{
    ek_device_spec spec;
    assert_ok(ek_device_spec_parse("4", &spec));
    ck_assert_int_eq(spec.count, 4);
    ck_assert_uint_eq(spec.devices[3].capacity, 0);
    ck_assert(spec.devices[3].speed == 1.0);

    assert_ok(ek_device_spec_parse("2x512M,2 x 256M@0.5", &spec));
    ck_assert_int_eq(spec.count, 4);
    ck_assert_uint_eq(spec.devices[1].capacity, 512u << 20);
    ck_assert_uint_eq(spec.devices[2].capacity, 256u << 20);
    ck_assert(spec.devices[1].speed == 1.0 && spec.devices[3].speed == 0.5);

    assert_ok(ek_device_spec_parse("512M@1,256M@0.5", &spec));
    ck_assert_int_eq(spec.count, 2);
    ck_assert_uint_eq(spec.devices[0].capacity, 512u << 20);

    assert_ok(ek_device_spec_parse("1M@0.001", &spec));
    ck_assert(spec.devices[0].speed == 0.001);

    static const char *const bad[] = {"",          "0",         "-1",
                                      "x",         "4x",        "4x,",
                                      "512M@",     "512M@0",    "512M@1.5",
                                      "512M@x",    "65",        "2x512M;1",
                                      "65x1M",     "0x1M",      "1M,,1M",
                                      "1M,",       "512Z",      "999999999999999999999",
                                      "1M@1e-300", "1M@0.0009", "1M@nan"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        spec.count = 7;
        ck_assert_msg(ek_device_spec_parse(bad[i], &spec) == EK_E_INVALID, "\"%s\"", bad[i]);
        assert_error(EK_E_INVALID, "device list");
        ck_assert_int_eq(spec.count, 7);
    }
    assert_refused(ek_device_spec_parse("1M,9223372036854775807x1M", &spec), EK_E_INVALID,
                   "9223372036854775807 devices after 1");
}

TEST(the_environment_names_host_devices)
{
    setenv("EVENKEEL_HOST_DEVICES", "2x64M,32M@0.25", 1);
    ck_assert_int_eq(ek_device_count(EK_HOST), 3);
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_host(2), &stats));
    ck_assert_uint_eq(stats.capacity, 32u << 20);
    assert_refused(ek_memory_get_stats(ek_host(3), &stats), EK_E_DEVICE,
                   "there is no device host:3; this process has 3");
}

TEST(a_bad_environment_is_an_error)
{
    setenv("EVENKEEL_HOST_DEVICES", "4y", 1);
    ek_memory_stats stats;
    ck_assert_int_lt(ek_device_count(EK_HOST), 0);
    ck_assert_int_lt(ek_memory_get_stats(ek_host(0), &stats), 0);
    /* The second call's own error is dropped, and leaves the first as it was. */
    const char *name = strstr(ek_error_message(), "EVENKEEL_HOST_DEVICES: ");
    ck_assert_ptr_eq(name, ek_error_message());
    assert_refused(strstr(name + 1, "EVENKEEL_HOST_DEVICES: "), EK_E_INVALID,
                   "EVENKEEL_HOST_DEVICES: device list \"4y\"");
}

TEST(want_of_memory_names_the_place)
{
    char place[64];
    const size_t much = SIZE_MAX / 2;
    void *volatile kept = ek_calloc(1, 8);
    ck_assert_ptr_null(ek_calloc(much, 1));
    snprintf(place, sizeof place, "[test_status.c:%d]", __LINE__ - 1);
    assert_error(EK_E_NO_MEMORY, place);
    ck_assert_ptr_null(ek_realloc(kept, much));
    snprintf(place, sizeof place, "[test_status.c:%d]", __LINE__ - 1);
    assert_error(EK_E_NO_MEMORY, place);
    free(kept);
}

/* None is no error, but a list of all of none is not the empty one that stands for others. */
TEST(there_is_no_list_of_what_there_is_not)
{
    ck_assert_int_eq(ek_device_count(EK_CUDA), 0);
    ck_assert_int_eq(ek_error_status(), 0);
    ek_device_list list = ek_devices(EK_CUDA, 0);
    ck_assert_int_eq(list.count, -1);
    assert_refused(ek_device_list_check("here", &list), EK_E_DEVICE,
                   "all cuda devices wanted, but there is none (this build has no CUDA");
    assert_refused(ek_device_list_check("here", &list), EK_E_INVALID,
                   "here: the list of devices could not be made");
    list = ek_devices(EK_HOST, EK_MAX_DEVICES + 1);
    ck_assert_int_eq(list.count, -1);
    assert_error(EK_E_DEVICE, "65 host devices wanted, but there are");
    list = ek_devices(EK_HOST, EK_MAX_DEVICES);
    ck_assert_int_eq(list.count, -1);
    assert_error(EK_E_DEVICE, " (EVENKEEL_HOST_DEVICES=64 or ek_host_devices_configure(\"64\") ");
    list = ek_device_list_of(NULL, 3);
    ck_assert_int_eq(list.count, -1);
    assert_error(EK_E_INVALID, "a list of 3 devices, which are NULL");
    list = ek_devices(EK_HOST, 0);
    assert_ok(ek_device_list_check("here", &list));
}

TEST(device_names)
{
    ek_device device;
    char text[16];
    assert_ok(ek_device_parse("host:2", &device));
    ck_assert(ek_device_equal(device, ek_host(2)));
    ck_assert_str_eq(ek_device_name(ek_cuda(1), text), "cuda:1");
    assert_ok(ek_device_parse("cpu", &device));
    ck_assert(ek_device_equal(device, ek_cpu()));
    static const char *const bad[] = {"", "host", "host:", "host:x", "host:-1", "gpu:0", "host:99"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_refused(ek_device_parse(bad[i], &device), EK_E_DEVICE, "is no device");
    }
}
