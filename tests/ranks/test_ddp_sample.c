/* test_ddp_sample.c: the sample's parameters and losses against those of PyTorch's
 * DistributedDataParallel over gloo, on as many ranks. */
#include <math.h>
#include <stdio.h>

int ddp_main(int argc, char **argv);
#define main ddp_main
#include "ranks/ddp.c"
#undef main
#include "kit/exact.h"
#include "unit.h"

enum { STEPS = 5 };

static void assert_near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-6))
        ck_abort_msg("%.9g, wanted %.9g", value, wanted);
}

TEST(five_steps_are_pytorchs)
{
    char name[32];
    double losses[STEPS];
    assert_ok(ek_dist_init_process_group());
    int rank = ek_dist_get_rank(NULL), size = ek_dist_get_world_size(NULL);
    ek_scope scope = ek_scope_begin();
    ek_module *model = make_model(rank);
    assert_made(model);
    assert_ok(train(model, rank, STEPS, losses));
    snprintf(name, sizeof name, "parameters/%d", size);
    ek_tensor *wanted = golden("ddp.golden", name);
    ek_tensor *parameters = exact_parameters(&(exact_job){.model = model});
    assert_made(parameters);
    ck_assert_int_eq(ek_tensor_count(parameters), ek_tensor_count(wanted));
    for (int64_t i = 0; i < ek_tensor_count(wanted); i++)
        assert_near(element(parameters, i), element(wanted, i));
    snprintf(name, sizeof name, "losses/%d", size);
    wanted = golden("ddp.golden", name);
    for (int step = 0; step < STEPS; step++)
        assert_near(losses[step], element(wanted, rank * STEPS + step));
    ek_module_free(model);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
