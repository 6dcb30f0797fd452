/* The list of CUDA devices: its grammar and where it comes from. Needs no GPU. */
#include "cuda/devices.h"
#include "unit.h"

OWN_PROCESSES /* the environment is read once */

    enum {
        GPUS = 4
    };

typedef struct accepted {
    const char *text;
    int count;
    int physical[4]; /* of the first devices */
    uint64_t capacity[4];
} accepted;

TEST(lists_are_read)
{
    static const accepted cases[] = {
        {"0", 1, {0}, {0}},
        {"0,1", 2, {0, 1}, {0, 0}},
        {" 3 ,\t2,3\n", 3, {3, 2, 3}, {0, 0, 0}},
        {"0,0,0,0", 4, {0, 0, 0, 0}, {0, 0, 0, 0}},
        {"4x0:8G", 4, {0, 0, 0, 0}, {8ull << 30, 8ull << 30, 8ull << 30, 8ull << 30}},
        {"2x1:512M,0", 3, {1, 1, 0}, {512 << 20, 512 << 20, 0}},
        {"2 X 1 : 1.5 , 0: 64KiB", 3, {1, 1, 0}, {1, 1, 64 << 10}},
        {"64x3", 64, {3, 3, 3, 3}, {0}},
        {"00", 1, {0}, {0}},
        {"1:0", 1, {1}, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ek_cuda_spec spec;
        if (ek_cuda_spec_parse(cases[i].text, GPUS, &spec) < 0)
            ck_abort_msg("\"%s\": %s", cases[i].text, ek_error_message());
        ck_assert_int_eq(spec.count, cases[i].count);
        for (int d = 0; d < spec.count && d < 4; d++) {
            ck_assert_int_eq(spec.devices[d].physical, cases[i].physical[d]);
            ck_assert_uint_eq(spec.devices[d].capacity, cases[i].capacity[d]);
        }
    }
}

typedef struct refused {
    const char *text;
    int status;
    const char *part;
} refused;

TEST(faults_are_named)
{
    static const refused cases[] = {
        {"", EK_E_INVALID, "the number of a GPU wanted at position 1"},
        {"  ", EK_E_INVALID, "the number of a GPU wanted at position 3"},
        {",", EK_E_INVALID, "position 1 (\",\")"},
        {"0,", EK_E_INVALID, "the number of a GPU wanted at position 3"},
        {",0", EK_E_INVALID, "position 1"},
        {"0,,1", EK_E_INVALID, "position 3"},
        {"x0", EK_E_INVALID, "position 1"},
        {"0x", EK_E_INVALID, "position 3"},
        {"2x2x0", EK_E_INVALID, "a comma wanted at position 4"},
        {"-1", EK_E_INVALID, "position 1"},
        {"+1", EK_E_INVALID, "position 1"},
        {"0;1", EK_E_INVALID, "a comma wanted at position 2"},
        {"0 1", EK_E_INVALID, "a comma wanted at position 3"},
        {"0.5", EK_E_INVALID, "a comma wanted at position 2"},
        {"1e0", EK_E_INVALID, "a comma wanted at position 2"},
        {"cuda:0", EK_E_INVALID, "such as 0,1 or 4x0:8G"},
        {"0:", EK_E_INVALID, "a capacity wanted at position 3"},
        {"0:,1", EK_E_INVALID, "a capacity wanted at position 3"},
        {"0:x", EK_E_INVALID, "a capacity wanted at position 3"},
        {"0:-1", EK_E_INVALID, "a capacity wanted at position 3"},
        {"0:nan", EK_E_INVALID, "a capacity wanted at position 3"},
        {"0:1e300", EK_E_INVALID, "a capacity wanted at position 3"},
        {"0:8Q", EK_E_INVALID, "a comma wanted at position 4"},
        {"0:8G:1", EK_E_INVALID, "a comma wanted at position 5"},
        {"4x0:1G@0.5", EK_E_INVALID, "a comma wanted at position 7"},
        {"0x0", EK_E_INVALID, "0 devices after 0 at position 1"},
        {"65x0", EK_E_INVALID, "65 devices after 0"},
        {"64x0,1", EK_E_INVALID, "1 devices after 64 at position 6"},
        {"99999999999999999999x0", EK_E_INVALID, "at position 1"},
        {"4", EK_E_DEVICE, "there is no GPU 4 (position 1); the CUDA runtime finds 4"},
        {"0,2x17:1G", EK_E_DEVICE, "there is no GPU 17 (position 5)"},
        {"99999999999999999999", EK_E_DEVICE, "there is no GPU 99999999999999999999"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ek_cuda_spec spec = {.count = 7};
        int rc = ek_cuda_spec_parse(cases[i].text, GPUS, &spec);
        if (rc != cases[i].status)
            ck_abort_msg("\"%s\": %d, %s", cases[i].text, rc, ek_error_message());
        ck_assert_int_eq(spec.count, 7);
        assert_error(cases[i].status, cases[i].part);
    }
}

TEST(a_long_list_is_refused_within_bounds)
{
    enum { LENGTH = 1 << 20 };
    char *text = malloc(LENGTH + 1);
    ck_assert_ptr_nonnull(text);
    for (int i = 0; i < LENGTH; i++)
        text[i] = i % 2 ? ',' : '0';
    text[LENGTH] = '\0';
    ek_cuda_spec spec;
    ck_assert_int_eq(ek_cuda_spec_parse(text, GPUS, &spec), EK_E_INVALID);
    ek_error_clear();
    memset(text, '9', LENGTH);
    assert_refused(ek_cuda_spec_parse(text, GPUS, &spec), EK_E_DEVICE, "device list");
    free(text);
}

TEST(the_environment_decides_until_a_list_is_set)
{
    ek_cuda_spec spec;
    setenv("EVENKEEL_CUDA_DEVICES", "0,x", 1);
    assert_refused(ek_cuda_spec_now(GPUS, &spec), EK_E_INVALID,
                   "EVENKEEL_CUDA_DEVICES: device list \"0,x\"");
    setenv("EVENKEEL_CUDA_DEVICES", "2x5", 1);
    assert_refused(ek_cuda_spec_now(GPUS, &spec), EK_E_DEVICE,
                   "EVENKEEL_CUDA_DEVICES: device list \"2x5\": there is no GPU 5");
    setenv("EVENKEEL_CUDA_DEVICES", "2x3:1G", 1);
    assert_ok(ek_cuda_spec_now(GPUS, &spec));
    ck_assert_int_eq(spec.count, 2);
    setenv("EVENKEEL_CUDA_DEVICES", "0", 1); /* read once */
    assert_ok(ek_cuda_spec_now(GPUS, &spec));
    ck_assert_int_eq(spec.count, 2);
    ck_assert_int_eq(spec.devices[1].physical, 3);
    assert_ok(ek_cuda_spec_parse("3x1", GPUS, &spec));
    ek_cuda_spec_set(&spec);
    memset(&spec, 0, sizeof spec);
    assert_ok(ek_cuda_spec_now(GPUS, &spec));
    ck_assert_int_eq(spec.count, 3);
}

TEST(by_default_there_is_one_device_for_each_gpu)
{
    ek_cuda_spec spec;
    setenv("EVENKEEL_CUDA_DEVICES", "", 1);
    assert_ok(ek_cuda_spec_now(3, &spec));
    ck_assert_int_eq(spec.count, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(spec.devices[i].physical, i);
        ck_assert_uint_eq(spec.devices[i].capacity, 0);
    }
}

TEST(without_gpus_there_are_no_devices)
{
    ek_cuda_spec spec;
    unsetenv("EVENKEEL_CUDA_DEVICES");
    assert_ok(ek_cuda_spec_now(0, &spec));
    ck_assert_int_eq(spec.count, 0);
    assert_refused(ek_cuda_spec_parse("0", 0, &spec), EK_E_DEVICE, "finds 0");
}
