/* test_gloo.c: collectives of all ranks against those of PyTorch over gloo, on as many ranks. */
#include <stdio.h>

#include "evenkeel/evenkeel.h"
#include "unit.h"

enum { MOST = 3 };

static const char *type;
static int rank, size;

static ek_tensor *wanted(const char *call)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%s/%d", call, type, size);
    return golden("collectives.golden", name);
}

/* A tensor of its own: collectives write to it. */
static ek_tensor *input_of(int r)
{
    ek_tensor *x = ek_clone(ek_select(wanted("input"), 0, r));
    assert_made(x);
    return x;
}

static void assert_row(const ek_tensor *x, const char *call, int r)
{
    assert_close(x, ek_select(wanted(call), 0, r), 1e-6, 0);
}

static void check_reductions(void)
{
    static const struct {
        ek_dist_op op;
        const char *call;
    } ops[] = {{EK_DIST_SUM, "sum"},
               {EK_DIST_PRODUCT, "product"},
               {EK_DIST_MIN, "min"},
               {EK_DIST_MAX, "max"}};
    for (int i = 0; i < 4; i++) {
        ek_tensor *x = input_of(rank);
        assert_ok(ek_dist_all_reduce(x, .op = ops[i].op));
        /* gloo adds in another order. */
        assert_close(x, wanted(ops[i].call), 1e-5, i ? 0 : 1e-6);
    }
    ek_tensor *x = input_of(rank);
    assert_ok(ek_dist_reduce(x, size - 1));
    assert_close(x, ek_select(wanted("reduce"), 0, rank), 1e-5, 1e-6);
}

static void check_copies(void)
{
    int last = size - 1;
    ek_tensor *x = input_of(rank), *own = input_of(rank), *given[MOST], *got[MOST];
    for (int r = 0; r < size; r++) {
        given[r] = input_of(r);
        got[r] = ek_clone(own);
    }
    assert_ok(ek_dist_broadcast(x, last));
    assert_row(x, "broadcast", rank);
    assert_ok(ek_dist_scatter(x, rank == last ? given : NULL, last));
    assert_row(x, "scatter", rank);
    assert_ok(ek_dist_gather(own, rank == last ? got : NULL, last));
    for (int r = 0; r < size && rank == last; r++)
        assert_row(got[r], "gather", r);
    assert_ok(ek_dist_all_gather(own, got));
    for (int r = 0; r < size; r++)
        assert_row(got[r], "all_gather", r);
}

TEST(collectives_are_gloos)
{
    static const char *const types[] = {"f32", "f64", "i64", "u8"};
    assert_ok(ek_dist_init_process_group());
    rank = ek_dist_get_rank(NULL);
    size = ek_dist_get_world_size(NULL);
    ek_scope scope = ek_scope_begin();
    for (int i = 0; i < 4; i++) {
        type = types[i];
        check_reductions();
        check_copies();
    }
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
