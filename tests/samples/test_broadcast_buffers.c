/* test_broadcast_buffers.c: the sample's running means against PyTorch's, policy by policy. */
#include <math.h>
#include <string.h>

int broadcast_buffers_main(int argc, char **argv);
#define main broadcast_buffers_main
#include "broadcast_buffers.c"
#undef main
#include "kit/devices.h"

static const char file[] = "broadcast_buffers.golden";
static const char *const names[POLICIES] = {"broadcast", "kept", "sync", "extra"};
/* Which of the golden's rows each look shows; -1: the next forward's result. */
static const int rows[POLICIES][MOST_LOOKS] = {{0, 1, 1, 2, -1},
                                               {0, 1, 1, 2, -1},
                                               {0, 1, 1, 2, -1},
                                               {0, 1, 2, 3, 3, 4, -1}};
static const int looks[POLICIES] = {5, 5, 5, 7};

FIXTURE(two_devices, shut_down)

static void assert_near(double value, double wanted, double absolute)
{
    if (!(fabs(value - wanted) <= absolute))
        ck_abort_msg("%.9g, wanted %.9g", value, wanted);
}

/* The batch's mean as device d's normalisation sees it. */
static double batch_mean(const training *result, buffer_policy policy, int d, int c)
{
    if (policy != POLICY_SYNCHRONISED)
        return (double)result->view.batch_mean[d][c];
    return ((double)result->view.batch_mean[0][c] + (double)result->view.batch_mean[1][c]) / 2;
}

TEST_LOOP(running_means_are_pytorchs, 0, POLICIES)
{
    training result;
    ek_device_list devices = ek_devices(test_kind(), DEVICES);
    assert_ok(train_twice((buffer_policy)_i, &devices, 0, &result));
    ck_assert_int_eq(result.looks, looks[_i]);
    ek_tensor *wanted = golden(file, names[_i]);
    for (int look = 0; look < result.looks; look++)
        for (int d = 0; d < DEVICES; d++)
            for (int c = 0; c < CHANNELS; c++) {
                int row = rows[_i][look];
                double means = (double)result.means[look][d][c];
                if (row >= 0)
                    assert_near(means, element(wanted, (row * DEVICES + d) * CHANNELS + c), 1e-7);
                else
                    assert_near(means,
                                0.9 * (double)result.means[look - 1][d][c] +
                                    0.1 * batch_mean(&result, (buffer_policy)_i, d, c),
                                1e-7);
            }
    if (_i == POLICY_SYNCHRONISED) {
        double loss = element(golden(file, "sync_loss"), 0);
        assert_near(result.loss, loss, 1e-5 * loss);
    } else {
        assert_near(result.loss, 0, 1e-6); /* each sum is rounding noise */
    }
}

TEST_LOOP(devices_differ_as_they_should, 0, POLICIES)
{
    training result;
    ek_device_list devices = ek_devices(test_kind(), DEVICES);
    assert_ok(train_twice((buffer_policy)_i, &devices, 3, &result));
    for (int look = 0; look < result.looks; look++) {
        bool same =
            memcmp(result.means[look][0], result.means[look][1], sizeof result.means[look][0]) == 0;
        bool inside = strncmp(result.moments[look], "inside", 6) == 0;
        bool wanted = _i == POLICY_SYNCHRONISED || look == 0 || (inside && _i != POLICY_KEPT);
        ck_assert_msg(same == wanted, "%s: %s on both devices", result.moments[look],
                      same ? "equal" : "different");
    }
}
