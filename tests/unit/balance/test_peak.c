/* What the classic way needs on device 0, tensor by tensor, against what it takes; and what the
 * balanced way takes. */
#include "kit/devices.h"
#include "kit/segmentation.h"

enum { DEVICES = 4, BATCH = 64, CHUNK = BATCH / DEVICES };

FIXTURE(four_devices, NULL)

/* Peaks of the second step: state exists, and so do the replicas. */
static void peaks_of(train_mode mode, uint64_t peaks[DEVICES])
{
    trainer t = make_trainer(mode, make_net(true, EK_F32), DEVICES, EK_EXACT);
    ek_tensor *images, *target;
    double loss;
    make_batch(BATCH, CHUNK, NONE_IGNORED, EK_F32, 1, &images, &target);
    for (int step = 0; step < 2; step++) {
        for (int d = 0; d < DEVICES; d++)
            assert_ok(ek_memory_reset_peak(test_device(d)));
        assert_ok(train_step(&t, images, target, &loss));
    }
    for (int d = 0; d < DEVICES; d++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(test_device(d), &stats));
        peaks[d] = stats.peak;
    }
    ek_release(images);
    ek_release(target);
    free_trainer(&t);
}

TEST(classic_takes_what_the_algorithm_needs)
{
    uint64_t peaks[DEVICES];
    peaks_of(CLASSIC, peaks);
    const uint64_t f32 = 4, i64 = 8;
    uint64_t pixels = PIXELS * PIXELS, half = pixels / 4, quarter = pixels / 16;
    uint64_t parameters =
        (8 * 9 + 8 + 2 * 8) + (16 * 8 * 9 + 16 + 2 * 16) + (CLASSES * 16 + CLASSES);
    /* The peak is at the start of backward. The gradient of the upsampled logits takes their
     * memory. */
    uint64_t needed =
        3 * parameters * f32 +       /* parameters, gradients, momentum */
        CHUNK * pixels * f32 +       /* the first device's images */
        2 * CHUNK * 8 * half * f32 + /* first convolution and its normalised, rectified output */
        2 * CHUNK * 16 * quarter * f32 +  /* second */
        CHUNK * CLASSES * quarter * f32 + /* logits of the first device */
        BATCH * CLASSES * quarter * f32 + /* gathered logits */
        BATCH * pixels * i64 +            /* targets */
        BATCH * CLASSES * pixels * f32 +  /* upsampled logits */
        BATCH * pixels * f32;             /* log of the sum of exponentials, per pixel */
    ck_assert_msg((double)peaks[0] <= 1.1 * (double)needed &&
                      (double)peaks[0] >= 0.9 * (double)needed,
                  "device 0 takes %llu bytes at its peak, the algorithm needs %llu",
                  (unsigned long long)peaks[0], (unsigned long long)needed);
}

static double imbalance(const uint64_t peaks[DEVICES])
{
    double largest = 0, sum = 0;
    for (int d = 0; d < DEVICES; d++) {
        sum += (double)peaks[d];
        largest = (double)peaks[d] > largest ? (double)peaks[d] : largest;
    }
    return largest / (sum / DEVICES);
}

TEST(balanced_is_balanced)
{
    uint64_t classic[DEVICES], balanced[DEVICES];
    peaks_of(CLASSIC, classic);
    peaks_of(BALANCED, balanced);
    ck_assert_msg(imbalance(classic) >= 1.6 * imbalance(balanced), "imbalance %g, balanced %g",
                  imbalance(classic), imbalance(balanced));
    ck_assert_uint_lt(2 * balanced[0], classic[0]);
}
