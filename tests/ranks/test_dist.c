/* test_dist.c: dist.h, the whole of it once, in worlds of any size: of one rank too, without a
 * launcher. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evenkeel/evenkeel.h"
#include "job.h"
#include "launch/launcher.h"

enum { MOST = 8 };

static int rank, size;

static ek_tensor *full(double value, int64_t n)
{
    return ek_full(value, EK_SHAPE(n), .device = ek_cpu());
}

static double at(ek_tensor *tensor, int64_t i)
{
    double value = -1;
    CHECK_OK(ek_item(ek_narrow(tensor, 0, i, 1), &value));
    return value;
}

#define CHECK_IS(tensor, i, value)                                                       \
    CHECK(at(tensor, i) == (value), "element %d is %g, not %g", (int)(i), at(tensor, i), \
          (double)(value))

/* The call fails with a status, and a sentence that has the text. */
#define CHECK_FAILS(call, status, text) fails((call), (status), (text), __LINE__, #call)

static void fails(int rc, int status, const char *text, int line, const char *call)
{
    if (rc != status || !strstr(ek_error_message(), text))
        job_fail(__FILE__, line, call, "%s: \"%s\" instead of %s with \"%s\"", ek_status_name(rc),
                 ek_error_message(), ek_status_name(status), text);
    ek_error_clear();
}

/* ---- joining ---- */

static void nothing_works_before(void)
{
    CHECK(!ek_dist_is_initialized() && !ek_dist_world(), "there is a world before init");
    CHECK(ek_dist_get_rank(NULL) == 0 && ek_dist_get_world_size(NULL) == 1, "a world of one");
    CHECK_FAILS(ek_dist_barrier(), EK_E_STATE, "call ek_dist_init_process_group first");
    CHECK_FAILS(ek_dist_all_reduce(full(1, 2)), EK_E_STATE, "call ek_dist_init_process_group");
    CHECK(!ek_dist_new_group() && ek_error_status() == EK_E_STATE, "a group before init");
    ek_error_clear();
    CHECK_OK(ek_dist_destroy_process_group(NULL));
}

static void wrong_options_are_refused(void)
{
    CHECK_FAILS(ek_dist_init_process_group(.init_method = "tcp://here:1"), EK_E_INVALID, "mpirun");
    CHECK_FAILS(ek_dist_init_process_group(.backend = 7), EK_E_INVALID, "backend 7");
    CHECK_FAILS(ek_dist_init_process_group(.world_size = size + 1), EK_E_INVALID, "was asked for");
    CHECK_FAILS(ek_dist_init_process_group(.rank = rank + 1), EK_E_INVALID, "was asked for");
    CHECK_FAILS(ek_dist_init_process_group(.timeout = -1), EK_E_INVALID, "timeout of -1 seconds");
    CHECK_FAILS(ek_dist_init_process_group(.timeout = 0), EK_E_INVALID, "timeout of 0 seconds");
    static const char *const texts[] = {"soon", "0", "-2", "nan", "inf", "3 seconds"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        setenv("EVENKEEL_DIST_TIMEOUT", texts[i], 1);
        CHECK_FAILS(ek_dist_init_process_group(), EK_E_INVALID, texts[i]);
    }
    unsetenv("EVENKEEL_DIST_TIMEOUT");
    setenv("EVENKEEL_DIST_SHARED_MEMORY", "no", 1);
    CHECK_FAILS(ek_dist_init_process_group(), EK_E_INVALID,
                "EVENKEEL_DIST_SHARED_MEMORY is \"no\"; it can be 0 or 1");
    unsetenv("EVENKEEL_DIST_SHARED_MEMORY");
    CHECK(!ek_dist_is_initialized(), "a refused init has left a world");
}

static void ranks_are_the_launchers(const ek_launched *launched)
{
    CHECK_OK(ek_dist_init_process_group(.world_size = size, .rank = rank, .timeout = 60));
    CHECK_FAILS(ek_dist_init_process_group(), EK_E_STATE, "already");
    CHECK(ek_dist_is_initialized() && ek_dist_world(), "no world after init");
    CHECK(ek_dist_get_rank(NULL) == rank && ek_dist_get_world_size(NULL) == size,
          "rank %d of %d, not %d of %d", ek_dist_get_rank(NULL), ek_dist_get_world_size(NULL), rank,
          size);
    CHECK(launched->local_rank < 0 || ek_dist_local_rank() == launched->local_rank,
          "local rank %d, not %d", ek_dist_local_rank(), launched->local_rank);
    CHECK(launched->local_size == 0 || ek_dist_local_size() == launched->local_size,
          "%d processes on this machine, not %d", ek_dist_local_size(), launched->local_size);
    int here = 0;
    for (int r = 0; r < size; r++)
        here += strcmp(ek_dist_host(r), ek_dist_host(rank)) == 0;
    CHECK(here == ek_dist_local_size(), "%d ranks on %s", here, ek_dist_host(rank));
    CHECK(!ek_dist_host(-1) && !ek_dist_host(size), "machines of ranks that there are not");
    CHECK(ek_dist_devices(EK_HOST).count == ek_device_count(EK_HOST), "the host's devices");
}

/* ---- groups ---- */

static void groups_are_sorted(void)
{
    int reverse[MOST];
    for (int r = 0; r < size; r++)
        reverse[r] = size - 1 - r;
    ek_process_group *group = ek_dist_new_group(.ranks = reverse, .count = size, .timeout = 50);
    CHECK(group, "%s", ek_error_message());
    CHECK(ek_dist_get_rank(group) == rank && ek_dist_get_world_size(group) == size,
          "ranks of a group are sorted");
    CHECK_OK(ek_dist_destroy_process_group(group));
    ek_process_group *last = ek_dist_new_group(EK_RANKS(size - 1));
    CHECK(last, "%s", ek_error_message());
    bool member = rank == size - 1;
    CHECK(ek_dist_get_rank(last) == (member ? 0 : -1), "rank %d", ek_dist_get_rank(last));
    CHECK(ek_dist_get_world_size(last) == (member ? 1 : -1), "size");
    CHECK(ek_dist_group_rank(last, size - 1) == 0 && ek_dist_global_rank(last, 0) == size - 1,
          "ranks in the group and in the world");
    CHECK_FAILS(ek_dist_global_rank(last, 1), EK_E_INVALID, "rank 1 of group");
    CHECK_FAILS(ek_dist_group_rank(last, size), EK_E_INVALID, "is not in group");
    ek_tensor *x = full(rank, 3); /* those who are not in the group do nothing */
    CHECK_OK(ek_dist_all_reduce(x, .group = last));
    CHECK_OK(ek_dist_broadcast(x, size - 1, .group = last));
    CHECK_OK(ek_dist_barrier(.group = last));
    CHECK_IS(x, 2, rank);
    ek_value value = ek_dist_broadcast_value(EK_VALUE(x), size - 1, last);
    CHECK(value.kind == (member ? EK_VALUE_TENSOR : EK_VALUE_NONE), "kind %d", (int)value.kind);
    CHECK_OK(ek_dist_destroy_process_group(last));
}

/* Each half of the world adds for itself. */
static void groups_work_side_by_side(void)
{
    int ranks[2][MOST], counts[2] = {0};
    for (int r = 0; r < size; r++)
        ranks[r % 2][counts[r % 2]++] = r;
    ek_process_group *halves[2] = {NULL};
    for (int h = 0; h < 2 && counts[h]; h++)
        CHECK(halves[h] = ek_dist_new_group(.ranks = ranks[h], .count = counts[h]), "%s",
              ek_error_message());
    ek_tensor *x = full(rank, 3);
    CHECK_OK(ek_dist_all_reduce(x, .group = halves[rank % 2]));
    double sum = 0;
    for (int i = 0; i < counts[rank % 2]; i++)
        sum += ranks[rank % 2][i];
    CHECK_IS(x, 1, sum);
    /* What is left is destroyed with the world. */
}

/* A rank that is ahead fails alone: the others come to the same error by their own call. */
static void wrong_groups_fail_on_all(void)
{
    static const char *const sentences[] = {"is named twice", "the world has ranks 0 to",
                                            "0 ranks; 1 to"};
    const int twice[] = {0, 0}, counts[] = {size > 1 ? 2 : 1, 1, 0};
    const int *const ranks[] = {size > 1 ? twice : &size, &size, &rank};
    for (int i = size > 1 ? 0 : 1; i < 3; i++) {
        CHECK_OK(ek_dist_barrier());
        CHECK(!ek_dist_new_group(.ranks = ranks[i], .count = counts[i]) &&
                  strstr(ek_error_message(), sentences[i]),
              "\"%s\"", ek_error_message());
        ek_error_clear();
    }
    CHECK_OK(ek_dist_barrier());
}

/* ---- collectives ---- */

static double sum_of_ranks(void)
{
    return size * (size - 1) / 2.0;
}

static void one_tensor(void)
{
    static const int64_t counts[] = {1, 7, 70000}; /* in the descriptor, and beyond */
    for (int i = 0; i < 3; i++) {
        int64_t n = counts[i], last = n - 1;
        ek_tensor *x = full(rank, n), *y = full(rank + 1, n);
        CHECK_OK(ek_dist_all_reduce(x));
        CHECK_IS(x, last, sum_of_ranks());
        CHECK_OK(ek_dist_all_reduce(y, .op = EK_DIST_MAX));
        CHECK_IS(y, last, size);
        CHECK_OK(ek_dist_reduce(y, size - 1));
        CHECK_IS(y, 0, rank == size - 1 ? size * size : size);
        CHECK_OK(ek_dist_broadcast(y, size - 1));
        CHECK_IS(y, last, size * size);
        CHECK_OK(ek_dist_all_reduce(y, .op = EK_DIST_AVG));
        CHECK_IS(y, last, size * size);
    }
}

static void lists(void)
{
    ek_tensor *list[MOST], *inputs[MOST], *x = full(rank + 1, 5);
    for (int r = 0; r < size; r++) {
        list[r] = full(-1, 5);
        inputs[r] = full(10 * rank + r, 5);
    }
    CHECK_OK(ek_dist_all_gather(x, list));
    for (int r = 0; r < size; r++)
        CHECK_IS(list[r], 4, r + 1);
    CHECK_OK(ek_dist_all_to_all(.inputs = inputs, .list = list));
    for (int r = 0; r < size; r++)
        CHECK_IS(list[r], 0, 10 * r + rank);
    int root = size - 1;
    CHECK_OK(ek_dist_gather(x, rank == root ? list : NULL, root));
    for (int r = 0; r < size && rank == root; r++)
        CHECK_IS(list[r], 0, r + 1);
    CHECK_OK(ek_dist_scatter(x, rank == root ? inputs : NULL, root));
    CHECK_IS(x, 0, 10 * root + rank);
    CHECK_OK(ek_dist_reduce_scatter(x, inputs));
    CHECK_IS(x, 0, 10 * sum_of_ranks() + size * rank);
}

/* All at once; the waits in another order than the calls. */
static void started_calls(void)
{
    ek_dist_work *works[8] = {NULL};
    ek_tensor *x = full(1, 100), *y = full(rank, 100), *z = full(2, 3);
    ek_tensor *list[MOST], *inputs[MOST], *own = full(rank, 2), *part = full(0, 2);
    for (int r = 0; r < size; r++) {
        list[r] = full(-1, 2);
        inputs[r] = full(r, 2);
    }
    CHECK_OK(ek_dist_all_reduce(x, .work = &works[0]));
    CHECK_OK(ek_dist_broadcast(y, size - 1, .work = &works[1]));
    CHECK_OK(ek_dist_reduce(z, 0, .work = &works[2]));
    CHECK_OK(ek_dist_barrier(.work = &works[3]));
    CHECK_OK(ek_dist_all_gather(own, list, .work = &works[4]));
    CHECK_OK(ek_dist_reduce_scatter(part, inputs, .work = &works[5]));
    for (int i = 5; i >= 0; i--) {
        CHECK(ek_dist_is_completed(works[i]) >= 0, "%s", ek_error_message());
        CHECK_OK(ek_dist_wait(works[i]));
    }
    CHECK_IS(x, 99, size);
    CHECK_IS(y, 0, size - 1);
    CHECK_IS(z, 1, rank == 0 ? 2 * size : 2);
    CHECK_IS(list[size - 1], 1, size - 1);
    CHECK_IS(part, 1, size * rank);
    CHECK(ek_dist_is_completed(NULL) == 1, "NULL is a call that has ended");
    CHECK_OK(ek_dist_wait(NULL));
}

static void what_is_written_meanwhile_is_seen(void)
{
    ek_dist_work *work = NULL;
    ek_tensor *x = full(1, 1000);
    CHECK_OK(ek_dist_all_reduce(x, .work = &work));
    if (size == 1)
        return;
    ek_tensor_touch(x); /* says that it was written to, which a write would race with */
    CHECK_FAILS(ek_dist_wait(work), EK_E_MODIFIED, "between the call and ek_dist_wait");
    CHECK_OK(ek_dist_barrier());
}

/* ---- messages, values, operations, barriers ---- */

static void messages(void)
{
    if (size == 1) {
        CHECK_FAILS(ek_dist_send(full(1, 1), 0), EK_E_INVALID, "this process itself");
        return;
    }
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    ek_tensor *out = full(rank, 3), *in = full(-1, 3), *large = full(rank, 50000);
    ek_dist_work *sent, *more;
    CHECK_OK(ek_dist_send(out, to, .tag = 3, .work = &sent));
    CHECK_OK(ek_dist_send(large, to, .work = &more));
    ek_tensor *came = full(-1, 50000);
    CHECK(ek_dist_recv(came, from) == from, "%s", ek_error_message());
    CHECK(ek_dist_recv(in, EK_DIST_ANY, .tag = 3) == from, "%s", ek_error_message());
    CHECK_OK(ek_dist_wait(sent));
    CHECK_OK(ek_dist_wait(more));
    CHECK_IS(in, 2, from);
    CHECK_IS(came, 49999, from);
    if (rank == 0)
        CHECK_OK(ek_dist_send(out, 1));
    if (rank == 1) {
        ek_dist_work *received;
        CHECK_OK(ek_dist_recv(in, 0, .work = &received));
        CHECK(ek_dist_wait(received) == 0, "%s", ek_error_message());
        CHECK_IS(in, 0, 0);
    }
    if (rank == 0)
        CHECK_FAILS(ek_dist_send(full(1, 4), 1), EK_E_SHAPE, "f32[4] is sent, but f32[5]");
    if (rank == 1)
        CHECK_FAILS(ek_dist_recv(full(1, 5), 0), EK_E_SHAPE, "f32[4] is sent, but f32[5]");
    CHECK_OK(ek_dist_barrier());
}

static void values(void)
{
    ek_value mine = EK_LIST(full(rank, 1 + rank)), all[MOST];
    ek_value last = ek_dist_broadcast_value(mine, size - 1, NULL);
    CHECK(ek_value_length(last) == 1, "%s", ek_error_message());
    CHECK_OK(ek_dist_all_gather_value(mine, all, NULL));
    for (int r = 0; r < size; r++)
        CHECK(ek_tensor_count(ek_value_tensor(ek_value_at(all[r], 0))) == 1 + r, "value %d", r);
}

static void operations(void)
{
    ek_tensor *x = ek_full(rank, EK_SHAPE(2), .requires_grad = true), *gradient = NULL;
    ek_tensor *sum = ek_dist_sum(x, NULL), *mean = ek_dist_mean(x, NULL);
    ek_tensor *joined = ek_dist_join(x, 0, NULL);
    CHECK(sum && mean && joined, "%s", ek_error_message());
    CHECK_IS(sum, 0, sum_of_ranks());
    CHECK_IS(mean, 0, sum_of_ranks() / size);
    CHECK_IS(joined, 2 * size - 1, size - 1);
    ek_tensor *loss = ek_sum(sum);
    CHECK_OK(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                     .gradients = &gradient));
    CHECK_IS(gradient, 1, size);
}

static void gradients(void)
{
    ek_module *net = ek_linear(2, 1), *wrapped = ek_distributed_data_parallel(ek_linear(2, 1));
    CHECK(net && wrapped, "%s", ek_error_message());
    ek_tensor *x = ek_full(rank, EK_SHAPE(1, 2));
    CHECK_OK(ek_backward(ek_sum(ek_apply(net, x))));
    CHECK_OK(ek_dist_average_gradients(net, NULL));
    ek_no_sync no_sync = ek_no_sync_begin(wrapped);
    CHECK_OK(ek_backward(ek_sum(ek_apply(wrapped, x))));
    ek_no_sync_end(&no_sync);
    CHECK_OK(ek_backward(ek_sum(ek_apply(wrapped, x))));
    ek_distributed_stats stats;
    CHECK_OK(ek_distributed_get_stats(wrapped, &stats));
    CHECK(stats.backwards == (size > 1), "%d passes", (int)stats.backwards);
    ek_module_free(net);
    ek_module_free(wrapped);
}

static void barriers(void)
{
    CHECK_OK(ek_dist_barrier());
    CHECK_OK(ek_dist_monitored_barrier(30, false, NULL));
    CHECK_OK(ek_dist_monitored_barrier(30, true, ek_dist_world()));
    if (rank == 0)
        CHECK_FAILS(ek_dist_monitored_barrier(0, true, NULL), EK_E_INVALID, "must be positive");
    else
        CHECK_FAILS(ek_dist_barrier(), EK_E_ABORTED, "must be positive");
}

/* ---- errors ---- */

/* Prints the pending error, and returns how many ranks did. */
static double prints(char *text, size_t room)
{
    FILE *stream = tmpfile();
    CHECK(stream, "no file");
    ek_dist_print_error(stream);
    CHECK(ek_error_status() == 0, "a printed error is pending");
    rewind(stream);
    size_t length = fread(text, 1, room - 1, stream);
    text[length] = '\0';
    fclose(stream);
    ek_tensor *count = full(length > 0, 1);
    CHECK_OK(ek_dist_all_reduce(count));
    return at(count, 0);
}

static void an_error_is_told_to_all_and_printed_once(void)
{
    int wrong = size - 1;
    char text[4096];
    for (int round = 0; round < 2; round++) {
        int rc = 0;
        if (rank == wrong) {
            ek_error(EK_E_USER, "the sample %d is broken", 17);
            rc = ek_dist_raise();
            CHECK(rc == EK_E_USER && ek_dist_error_rank() == -1, "%s, of rank %d",
                  ek_status_name(rc), ek_dist_error_rank());
        } else {
            rc = round ? ek_dist_recv(full(0, 2), wrong) : ek_dist_all_reduce(full(1, 70000));
            char sentence[200];
            snprintf(sentence, sizeof sentence, "rank %d on %s: ", wrong, ek_dist_host(wrong));
            CHECK(rc == EK_E_ABORTED && strstr(ek_error_message(), sentence), "%s: %s",
                  ek_status_name(rc), ek_error_message());
            CHECK(ek_dist_error_rank() == wrong, "rank %d", ek_dist_error_rank());
        }
        CHECK(strstr(ek_error_message(), "sample 17"), "%s", ek_error_message());
        double times = prints(text, sizeof text);
        CHECK(times == 1, "printed by %g ranks", times);
        CHECK((rank == wrong) == (strstr(text, "sample 17") != NULL), "\"%s\"", text);
        CHECK_OK(ek_dist_barrier());
    }
    CHECK(ek_dist_raise() == 0 && ek_dist_error_rank() == -1, "no error is pending");
}

static void the_world_is_left_once(void)
{
    CHECK_OK(ek_dist_destroy_process_group(NULL));
    CHECK(!ek_dist_is_initialized() && !ek_dist_world(), "a world is left");
    CHECK(ek_dist_get_rank(NULL) == 0 && ek_dist_get_world_size(NULL) == 1, "a world of one");
    CHECK(ek_dist_local_size() == 1 && ek_dist_local_rank() == 0, "local ranks");
    CHECK_FAILS(ek_dist_barrier(), EK_E_STATE, "call ek_dist_init_process_group first");
    if (size > 1) {
        CHECK_FAILS(ek_dist_init_process_group(), EK_E_BACKEND,
                    "MPI has been ended in this process, and cannot be started again");
    } else {
        CHECK_OK(ek_dist_init_process_group());
        CHECK_OK(ek_dist_barrier());
    }
}

int main(void)
{
    ek_launched launched;
    CHECK_OK(ek_launcher_find(&launched));
    job_rank = rank = launched.rank;
    job_size = size = launched.size;
    ek_scope scope = ek_scope_begin();
    nothing_works_before();
    wrong_options_are_refused();
    ranks_are_the_launchers(&launched);
    groups_are_sorted();
    groups_work_side_by_side();
    wrong_groups_fail_on_all();
    one_tensor();
    lists();
    started_calls();
    what_is_written_meanwhile_is_seen();
    messages();
    values();
    operations();
    gradients();
    if (size > 1)
        barriers();
    an_error_is_told_to_all_and_printed_once();
    the_world_is_left_once();
    ek_scope_end(&scope);
    CHECK_OK(ek_shutdown());
    CHECK_OK(ek_shutdown());
    if (rank == 0)
        printf("%d ranks: all is well\n", size);
    return 0;
}
