/* Winograd's forms against loops in double, on every instruction set that the processor has. */
#include "conv_isas.h"

static const conv_case cases[] = {
    {"3x3", 2, 2, 16, 32, 1, {8, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"no padding", 2, 3, 32, 16, 1, {9, 7}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {"odd sizes", 2, 2, 8, 24, 1, {7, 11}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"wide padding", 2, 1, 8, 8, 1, {5, 4}, {3, 3}, {1, 1}, {3, 2}, {1, 1}},
    {"one position", 2, 5, 16, 8, 1, {1, 1}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"one window", 2, 1, 40, 72, 1, {3, 3}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {"several blocks", 2, 5, 40, 72, 1, {15, 14}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"several groups of tiles", 2, 9, 8, 16, 1, {31, 31}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"many weights", 2, 2, 256, 360, 1, {6, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"4x4", 2, 3, 16, 32, 1, {8, 8}, {4, 4}, {2, 2}, {1, 1}, {1, 1}},
    {"4x4, odd sizes", 2, 2, 8, 24, 1, {9, 7}, {4, 4}, {2, 2}, {1, 1}, {1, 1}},
    {"4x4, no padding", 2, 2, 24, 8, 1, {10, 11}, {4, 4}, {2, 2}, {0, 0}, {1, 1}},
    {"4x4, wide padding", 2, 2, 8, 8, 1, {5, 4}, {4, 4}, {2, 2}, {2, 3}, {1, 1}},
    {"4x4, to one position", 2, 7, 16, 16, 1, {4, 4}, {4, 4}, {2, 2}, {0, 0}, {1, 1}},
    {"4x4, several blocks", 2, 6, 40, 72, 1, {26, 28}, {4, 4}, {2, 2}, {1, 1}, {1, 1}},
    {"strided", 2, 2, 16, 32, 1, {8, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"strided, odd sizes", 2, 2, 32, 24, 1, {9, 7}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"strided, no padding", 2, 1, 24, 8, 1, {11, 14}, {3, 3}, {2, 2}, {0, 0}, {1, 1}},
    {"strided, unlike paddings", 2, 2, 8, 16, 1, {10, 13}, {3, 3}, {2, 2}, {0, 1}, {1, 1}},
    {"strided, wide padding", 2, 2, 8, 8, 1, {5, 4}, {3, 3}, {2, 2}, {2, 3}, {1, 1}},
    {"strided, to one position", 2, 7, 16, 16, 1, {3, 4}, {3, 3}, {2, 2}, {0, 0}, {1, 1}},
    {"strided, from one position", 2, 3, 16, 8, 1, {1, 1}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"strided, several blocks", 2, 6, 40, 72, 1, {27, 28}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"strided, groups of tiles", 2, 8, 8, 16, 1, {47, 47}, {3, 3}, {2, 2}, {0, 1}, {1, 1}},
    {"strided, many weights", 2, 2, 256, 264, 1, {6, 9}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
};
enum { CASES = sizeof cases / sizeof *cases, WINDOWS_OF_3 = 9 }; /* the first */

static int all_results(const problem *p)
{
    const ek_conv conv = conv_of(p);
    bool can = ek_conv_winograd_can(&conv);
    ck_assert(can == (ek_host_isa() != EK_ISA_PLAIN));
    return can ? RESULTS : 0;
}

/* F(4x4, 3x3) loses some bits. */
static void check(const conv_case *c, int64_t unread, int side)
{
    const twin_layout last[] = {TWIN_LAST, TWIN_LAST, TWIN_LAST};
    const conv_way way = {ek_conv_winograd, side, all_results,
                          case_tolerance(EK_F32) * (side == 2 ? 1 : 30)};
    problem p = problem_of(c, unread, EK_F32, last, true);
    conv_check_isas(&p, &way);
    problem_free(&p);
}

TEST_LOOP(winograd_2, 0, CASES)
{
    check(&cases[_i], 0, 2);
}

TEST_LOOP(winograd_4, 0, WINDOWS_OF_3)
{
    check(&cases[_i], 0, 4);
}

/* As a transposed convolution asks for with an output padding. */
TEST_LOOP(winograd_leaves_the_last_windows_out, 0, CASES)
{
    check(&cases[_i], 1, 2);
    if (_i < WINDOWS_OF_3)
        check(&cases[_i], 1, 4);
}

static const conv_case *case_named(const char *what)
{
    int i = 0;
    while (i < CASES && strcmp(cases[i].what, what) != 0)
        i++;
    ck_assert_int_lt(i, CASES);
    return &cases[i];
}

/* Threads wait for what others write before they read it, at any number of threads. */
TEST_LOOP(weight_gradient_is_the_same_on_any_number_of_threads, 0, 2)
{
    static const char *const names[] = {"several groups of tiles", "strided, groups of tiles"};
    enum { MOST_THREADS = 5, ROUNDS = 5 };
    const twin_layout last[] = {TWIN_LAST, TWIN_LAST, TWIN_LAST};
    problem p = problem_of(case_named(names[_i]), 0, EK_F32, last, true);
    ek_tensor *dw = p.out[DW].host, *db = p.out[DBIAS].host;
    for (int i = 0; i < ROUNDS * MOST_THREADS && all_results(&p); i++) {
        double *once[2] = {NULL};
        for (int turn = 0; turn < 2; turn++) {
            ek_dev *dev = case_device(turn == 0 ? 1 : 1 + i % MOST_THREADS);
            case_poison(dw);
            case_poison(db);
            const ek_conv conv = conv_to(&p, DW);
            assert_ok(ek_conv_winograd(dev, &conv, 2));
            twin_repeated(dw, &once[0], p.what);
            twin_repeated(db, &once[1], p.what);
        }
        free(once[0]);
        free(once[1]);
    }
    problem_free(&p);
}
