/* ek_dist_archive_save over ranks that are threads: who writes, and what all ranks know then. */
#include <unistd.h>

#include "kit/ranks.h"

enum { RANKS = 3 };

static char folder[64], path[96];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/evenkeel-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
}

static void remove_folder(void)
{
    unlink(path);
    rmdir(folder);
    ek_shutdown();
}

FIXTURE(make_folder, remove_folder)

/* An archive that tells who has made it. */
static ek_archive *archive_of(int rank)
{
    ek_archive *archive = ek_archive_new();
    ek_archive_put(archive, "rank", ek_value_of_int(rank));
    ek_archive_put(archive, "x",
                   ek_value_of_tensor(ek_full(rank, EK_SHAPE(300), .device = test_home())));
    return archive;
}

RANKS_LOOP(one_rank_writes_and_all_read, RANKS, 0, RANKS)
{
    int writer = *(const int *)user;
    int64_t found = -1;
    ek_archive *archive = world->rank == writer ? archive_of(world->rank) : NULL;
    RANKS_OK(ek_dist_archive_save(archive, path, writer, world));
    ek_archive_free(archive);
    archive = ek_archive_open(path); /* it is there on every rank */
    RANKS_OK(ek_archive_get_int(archive, "rank", &found));
    ek_tensor *x = ek_value_tensor(ek_archive_get(archive, "x"));
    LOOP_CHECK(x && element(x, 299) == writer);
    ek_archive_free(archive);
    LOOP_CHECK(found == writer);
    return NULL;
}

RANKS_TEST(a_file_that_cannot_be_written_is_an_error_on_all_ranks, RANKS, 7)
{
    ek_archive *archive = archive_of(world->rank);
    int rc = ek_dist_archive_save(archive, "/tmp/no/such/folder", 1, world);
    if (world->rank == 1)
        RANKS_EXPECT(rc, EK_E_IO, "/tmp/no/such/folder");
    else
        RANKS_EXPECT(rc, EK_E_ABORTED, "rank 1 on ");
    RANKS_OK(ek_dist_archive_save(archive, path, 2, world)); /* the group goes on */
    ek_archive_free(archive);
    return NULL;
}

RANKS_TEST(a_rank_that_is_not_in_the_group_is_refused, RANKS, 8)
{
    ek_archive *archive = archive_of(world->rank);
    RANKS_EXPECT(ek_dist_archive_save(archive, path, RANKS, world), EK_E_INVALID, "rank 3");
    ek_archive_free(archive);
    return NULL;
}

RANKS_TEST(ranks_that_name_different_writers_are_told, RANKS, 9)
{
    ek_archive *archive = world->rank == 1 ? archive_of(1) : NULL;
    int rc = ek_dist_archive_save(archive, path, world->rank == 2 ? 0 : 1, world);
    RANKS_EXPECT(rc, EK_E_STATE, "broadcast");
    ek_archive_free(archive);
    return NULL;
}
