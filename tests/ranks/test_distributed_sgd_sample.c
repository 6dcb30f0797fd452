/* test_distributed_sgd_sample.c: the sample's losses against those of PyTorch's distributed
 * tutorial over gloo, on as many ranks. */
#include <math.h>
#include <unistd.h>

int distributed_sgd_main(int argc, char **argv);
#define main distributed_sgd_main
#include "ranks/distributed_sgd.c"
#undef main
#include "unit.h"

enum { EPOCHS = 10, SAMPLES = 1000, SKIPPED = 77 };

TEST(losses_are_pytorchs)
{
    const char *data = args_pictures();
    char name[32];
    double losses[EPOCHS];
    if (access(data, R_OK) != 0)
        exit(SKIPPED);
    assert_ok(ek_dist_init_process_group());
    int rank = ek_dist_get_rank(NULL), size = ek_dist_get_world_size(NULL);
    opt.data = data;
    opt.epochs = EPOCHS;
    opt.samples = SAMPLES;
    opt.dtype = EK_F64;
    assert_ok(run(losses));
    ek_scope scope = ek_scope_begin();
    snprintf(name, sizeof name, "losses/%d", size);
    ek_tensor *wanted = golden("distributed_sgd.golden", name);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double loss = element(wanted, rank * EPOCHS + epoch);
        if (!(fabs(losses[epoch] - loss) <= 1e-10))
            ck_abort_msg("rank %d of %d, epoch %d: %.17g, wanted %.17g", rank, size, epoch,
                         losses[epoch], loss);
    }
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
