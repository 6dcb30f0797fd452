/* test_archive_open.c: ek_dist_archive_open over ranks that are threads: one reads, all have it. */
#include <stdlib.h>
#include <unistd.h>

#include "kit/files.h"
#include "kit/ranks.h"

enum { RANKS = 4, LARGE = 3 << 20 }; /* more elements than one block has bytes */

FIXTURE(make_directory, empty_directory)

/* Machines of the ranks, by case: one; one for each rank; two, of two ranks each; and rank 2 alone.
 */
static const char *const machines[][RANKS] = {{"h", "h", "h", "h"},
                                              {"a", "b", "c", "d"},
                                              {"a", "b", "a", "b"},
                                              {"a", "a", "b", "a"}};

static void set_machines(const ek_process_group *world, int number)
{
    for (int r = 0; r < RANKS; r++)
        strcpy(world->communication->hosts[r], machines[number][r]);
}

static int write_archive(int pth)
{
    ek_archive *archive = ek_archive_new();
    ek_archive_put_text(archive, "note", "text");
    ek_archive_put(archive, "step", ek_value_of_int(5));
    ek_archive_put(archive, "x", ek_value_of_tensor(ek_arange(LARGE, EK_F32, ek_cpu())));
    int rc = ek_archive_save(archive, path_of(pth ? "file.pth" : "file"));
    ek_archive_free(archive);
    return rc;
}

RANKS_LOOP(one_rank_reads_and_all_have_it, RANKS, 0, 8)
{
    const int i = *(const int *)user, root = i % RANKS;
    int64_t step = 0;
    set_machines(world, i % 4);
    if (world->rank == root)
        RANKS_OK(write_archive(i / 4));
    ek_archive *archive =
        ek_dist_archive_open(world->rank == root ? path_of(i / 4 ? "file.pth" : "file") : NULL,
                             root, world);
    RANKS_OK(archive ? 0 : ek_error_status());
    RANKS_OK(ek_dist_barrier(.group = world));
    if (world->rank == root)
        remove_files(); /* what is open stays */
    RANKS_OK(ek_archive_get_int(archive, "step", &step));
    ek_tensor *x = ek_value_tensor(ek_archive_get(archive, "x"));
    LOOP_CHECK(step == 5 && x && element(x, 0) == 0 && element(x, LARGE - 1) == LARGE - 1);
    LOOP_CHECK(strcmp(ek_archive_get_text(archive, "note"), "text") == 0);
    ek_archive_free(archive);
    RANKS_OK(ranks_work(world) ? -1 : 0);
    return NULL;
}

RANKS_TEST(the_error_of_the_reading_rank_is_that_of_all, RANKS, 3)
{
    set_machines(world, 1);
    LOOP_CHECK(!ek_dist_archive_open("/tmp/no/such/file", 2, world));
    if (world->rank == 2)
        RANKS_EXPECT(ek_error_status(), EK_E_IO, "/tmp/no/such/file");
    else
        RANKS_EXPECT(ek_error_status(), EK_E_ABORTED, "rank 2 on c: ");
    if (world->rank == 2)
        write_file("bad", "no archive", 10);
    LOOP_CHECK(!ek_dist_archive_open(world->rank == 2 ? path_of("bad") : "?", 2, world));
    RANKS_EXPECT(ek_error_status(), EK_E_FORMAT, "bad: a header of");
    LOOP_CHECK(!ek_dist_archive_open(world->rank == 1 ? NULL : "?", 1, world));
    LOOP_CHECK(ek_error_status() < 0 && strstr(ek_error_message(), "the path is NULL"));
    ek_error_clear();
    return ranks_work(world);
}

/* A rank that has no room for a copy. */
RANKS_TEST(a_machine_without_room_is_named, RANKS, 4)
{
    static char full[] = "TMPDIR=/tmp/no/such/folder", usual[] = "TMPDIR=/tmp";
    set_machines(world, 3);
    if (world->rank == 0) {
        RANKS_OK(write_archive(0));
        putenv(full);
    }
    RANKS_OK(ek_dist_barrier(.group = world));
    LOOP_CHECK(!ek_dist_archive_open(world->rank == 0 ? path_of("file") : NULL, 0, world));
    if (world->rank == 2)
        RANKS_EXPECT(ek_error_status(), EK_E_IO, "cannot write /tmp/no/such/folder");
    else
        RANKS_EXPECT(ek_error_status(), EK_E_ABORTED, "rank 2 on b: ");
    RANKS_OK(ek_dist_barrier(.group = world));
    if (world->rank == 0)
        putenv(usual);
    return ranks_work(world);
}
