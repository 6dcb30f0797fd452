/* Which options the text of a call's arguments names, and what follows from it. */
#include "core/keywords.h"
#include "unit.h"

TEST(names_count_and_nothing_else_does)
{
    ck_assert(ek_keyword_is_written("net, .lr = 0", "lr", 1));
    ck_assert(ek_keyword_is_written(".lr=0", "lr", 1));
    ck_assert(ek_keyword_is_written("net,.beta1 = 0 , . lr = 0", "lr", 1));
    ck_assert(ek_keyword_is_written(".chunks[2] = 0", "chunks", 7));
    ck_assert(!ek_keyword_is_written("net, .lr_min = 0", "lr", 5));
    ck_assert(!ek_keyword_is_written("net, .l = 0", "lr", 5));
    ck_assert(!ek_keyword_is_written("", "lr", 1));
    ck_assert(!ek_keyword_is_written(NULL, "lr", 1));
}

TEST(what_lies_in_brackets_and_quotes_is_not_the_calls)
{
    ck_assert(!ek_keyword_is_written("f(.lr = 0), (options){.lr = 0}, {.lr = 0}", "lr", 5));
    ck_assert(!ek_keyword_is_written("\".lr = 0, .lr\", ',', '\\'', \"a\\\", .lr\"", "lr", 5));
    ck_assert(ek_keyword_is_written("f(a, b[1, 2]), \",)\", .lr = 0", "lr", 5));
    ck_assert(ek_keyword_is_written("a[')'], '\"', .lr = g(1)", "lr", 5));
    ck_assert(ek_keyword_is_written("net, .lr = 0.000'1, .beta1 = 0", "beta1", 6));
    ck_assert(ek_keyword_is_written("1'000, 0x1'f, .beta1 = 0", "beta1", 6));
    ck_assert(ek_keyword_is_written("L'a', u8\"b\", .beta1 = 0", "beta1", 6));
    ck_assert(!ek_keyword_is_written("\"never closed, .lr = 0", "lr", 5));
}

TEST(positions_are_counted_up_to_the_first_name)
{
    ck_assert(ek_keyword_is_written("net, 0", "lr", 1));
    ck_assert(!ek_keyword_is_written("net", "lr", 1));
    ck_assert(!ek_keyword_is_written("net, ", "lr", 1));
    ck_assert(ek_keyword_is_written("f(1, 2), 0", "lr", 1));
    ck_assert(!ek_keyword_is_written(".module = net, 0", "lr", 1));
    ck_assert(!ek_keyword_is_written("0, .eps = 1, 0", "lr", 2));
}

TEST(a_given_zero_is_told_from_none)
{
    struct {
        const char *keywords;
        double lr;
    } left_out = {"net", 0}, written = {"net, .lr = 0", 0}, one = {"net, .lr = 1", 1};
    ck_assert(EK_GIVEN(&left_out, lr, 1) == 0);
    ck_assert(EK_GIVEN(&written, lr, 1) == EK_ZERO);
    ck_assert(EK_GIVEN(&one, lr, 1) == 1);
    ck_assert(ek_number_or(EK_GIVEN(&left_out, lr, 1), 0.5) == 0.5);
    ck_assert(ek_number_or(EK_GIVEN(&written, lr, 1), 0.5) == 0);
    ck_assert(ek_integer_or(EK_ZERO, 3) == 0);
    ck_assert(ek_integer_or(0, 3) == 3);
    ck_assert(ek_integer_or(-7, 3) == -7);
}

TEST(switches_are_read_as_they_were_written)
{
    static const struct {
        const char *keywords;
        int given, read;
    } cases[] = {{"net", 0, EK_ON},
                 {"net, .bias = 0", 0, EK_OFF},
                 {"net, .bias = b", 0, EK_OFF},
                 {"net, 0", 0, EK_OFF},
                 {"net, .bias = 1", true, EK_ON},
                 {"net, .bias = EK_OFF", EK_OFF, EK_OFF},
                 {"net, .bias = b", EK_DEFAULT, EK_ON},
                 {NULL, 0, EK_ON},
                 {NULL, EK_DEFAULT, EK_ON},
                 {NULL, EK_OFF, EK_OFF}};
    struct {
        const char *keywords;
        ek_switch bias;
    } o;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        o.keywords = cases[i].keywords;
        o.bias = (ek_switch)cases[i].given;
        for (int again = 0; again < 2; again++) {
            assert_ok(EK_READ_SWITCH("layer", &o, bias, 1, EK_ON));
            ck_assert_int_eq((int)o.bias, cases[i].read);
        }
    }
    o.keywords = NULL;
    o.bias = 0;
    assert_ok(EK_READ_SWITCH("layer", &o, bias, 1, EK_OFF));
    ck_assert_int_eq((int)o.bias, EK_OFF);
    o.bias = (ek_switch)4;
    assert_refused(EK_READ_SWITCH("layer", &o, bias, 1, EK_ON), EK_E_INVALID,
                   "layer: bias can be EK_ON or EK_OFF, not 4");
    o.bias = (ek_switch)-1;
    assert_refused(EK_READ_SWITCH("layer", &o, bias, 1, EK_ON), EK_E_INVALID, "not -1");
}
