/* collectives.c: what all ranks of a group do together: reductions, broadcast, scatter, gather.
 *
 *     samples/mpirun -n 2 build/samples/collectives */
#include <evenkeel/evenkeel.h>

enum { MOST_RANKS = 64 };

typedef struct group_place {
    ek_process_group *group;
    int rank, size;
} group_place;

/* A tensor of one element. */
static ek_tensor *tensor_of(double value)
{
    return ek_full(value, EK_SHAPE(1));
}

/* "Rank 0 has gathered 1 2" of a call that returned rc. */
static int print_data(const group_place *at, const char *what, ek_tensor *const *tensors, int count,
                      int rc)
{
    char line[16 * MOST_RANKS] = "";
    int length = 0;
    for (int i = 0; i < count && rc >= 0; i++) {
        double value = 0;
        rc = ek_item(tensors[i], &value);
        length += snprintf(line + length, sizeof line - (size_t)length, " %g", value);
    }
    if (rc >= 0)
        printf("Rank %d has %s%s\n", at->rank, what, line);
    return rc;
}

/* Ones that are added up: every rank has their number then. */
static int sum_ones(const group_place *at)
{
    ek_tensor *tensor = ek_ones(EK_SHAPE(1));
    int rc = ek_dist_all_reduce(tensor, .op = EK_DIST_SUM, .group = at->group);
    return print_data(at, "data", &tensor, 1, rc);
}

/* Of 1, 2, ...: the product, the largest, the smallest. */
static int reduce_ranks(const group_place *at)
{
    static const struct {
        ek_dist_op op;
        const char *what;
    } reductions[] = {{EK_DIST_PRODUCT, "product"},
                      {EK_DIST_MAX, "maximum"},
                      {EK_DIST_MIN, "minimum"}};
    int rc = 0;
    for (int i = 0; i < 3 && rc >= 0; i++) {
        ek_tensor *tensor = tensor_of(at->rank + 1);
        rc = ek_dist_all_reduce(tensor, .op = reductions[i].op, .group = at->group);
        rc = print_data(at, reductions[i].what, &tensor, 1, rc);
    }
    ek_tensor *tensor = tensor_of(at->rank + 1);
    if (rc >= 0)
        rc = ek_dist_reduce(tensor, 0, .op = EK_DIST_SUM, .group = at->group);
    return rc >= 0 && at->rank == 0 ? print_data(at, "reduced", &tensor, 1, rc) : rc;
}

static int send_from_rank_0(const group_place *at)
{
    ek_tensor *tensor = tensor_of(at->rank == 0 ? 7 : 0), *list[MOST_RANKS];
    int rc = ek_dist_broadcast(tensor, 0, .group = at->group);
    rc = print_data(at, "broadcast", &tensor, 1, rc);
    for (int r = 0; r < at->size && rc >= 0; r++)
        list[r] = tensor_of(10 * (r + 1));
    if (rc >= 0) /* the list only where it comes from */
        rc = ek_dist_scatter(tensor, at->rank == 0 ? list : NULL, 0, .group = at->group);
    return print_data(at, "scattered", &tensor, 1, rc);
}

static int collect(const group_place *at)
{
    ek_tensor *tensor = tensor_of(at->rank + 1), *list[MOST_RANKS];
    for (int r = 0; r < at->size; r++)
        list[r] = tensor_of(0);
    int rc = ek_dist_gather(tensor, at->rank == 0 ? list : NULL, 0, .group = at->group);
    if (at->rank == 0)
        rc = print_data(at, "gathered", list, at->size, rc);
    if (rc >= 0)
        rc = ek_dist_all_gather(tensor, list, .group = at->group);
    return print_data(at, "all", list, at->size, rc);
}

static int run(void)
{
    ek_process_group *pair =
        ek_dist_get_world_size(NULL) > 1 ? ek_dist_new_group(EK_RANKS(0, 1)) : ek_dist_new_group();
    group_place at = {pair, ek_dist_get_rank(pair), ek_dist_get_world_size(pair)};
    if (!pair)
        return ek_error_status();
    if (at.rank < 0) /* a third rank has nothing to do */
        return 0;
    int rc = sum_ones(&at);
    if (rc >= 0)
        rc = reduce_ranks(&at);
    if (rc >= 0)
        rc = send_from_rank_0(&at);
    return rc < 0 ? rc : collect(&at);
}

int main(void)
{
    ek_scope scope = ek_scope_begin();
    int rc = ek_dist_init_process_group();
    if (rc == 0)
        rc = run();
    ek_scope_end(&scope);
    if (rc < 0)
        ek_dist_print_error(stderr);
    return ek_shutdown() < 0 || rc < 0;
}
