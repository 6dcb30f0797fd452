/* Paths: one address for each path, whichever threads ask. */
#include <pthread.h>

#include "core/thread.h"
#include "unit.h"

TEST(a_path_is_stored_once)
{
    const char *layer = ek_path_join(ek_path_root, "layer1");
    const char *path = ek_path_join(ek_path_join(layer, "0"), "conv1");
    ck_assert_str_eq(path, "layer1.0.conv1");
    ck_assert_ptr_eq(ek_path_join(ek_path_join(layer, "0"), "conv1"), path);
    ck_assert_ptr_ne(ek_path_join(ek_path_root, "conv1"), path);
    ck_assert_ptr_eq(ek_path_join(layer, ""), layer);
    ck_assert_ptr_eq(ek_path_join(ek_path_root, ""), ek_path_root);
    ck_assert_str_eq(ek_path_root, "");
    ck_assert_str_eq(ek_path_end(path, 6), ".conv1");
    ck_assert_str_eq(ek_path_end(path, 100), path);
    ck_assert_str_eq(ek_path_end("a\xC3\xA4z", 2), "z");
    ck_assert_ptr_eq(ek_thread_self()->modes.path, ek_path_root);
}

enum { THREADS = 4, PATHS = 20000 };

static void *join_all(void *user)
{
    const char **paths = user;
    for (int i = 0; i < PATHS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i / 4); /* two levels of names that recur */
        paths[i] = ek_path_join(i % 4 ? paths[i / 4 * 4] : ek_path_root, name);
    }
    return NULL;
}

TEST(threads_get_the_same_paths)
{
    static const char *paths[THREADS][PATHS];
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++)
        ck_assert_int_eq(pthread_create(&threads[t], NULL, join_all, paths[t]), 0);
    for (int t = 0; t < THREADS; t++)
        ck_assert_int_eq(pthread_join(threads[t], NULL), 0);
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < PATHS; i++)
            ck_assert_ptr_eq(paths[t][i], paths[0][i]);
    ck_assert_str_eq(paths[0][PATHS - 4], "4999");
    ck_assert_str_eq(paths[0][PATHS - 1], "4999.4999");
}
