/* ek_combine against plain recursion: any number of terms, all dtypes and operations. */
#include "core/tensor.h"
#include "kit/combined.h"
#include "link/combine.h"
#include "unit.h"

NAMES_DEVICES

enum { MOST = 70, COUNT = 1100 }; /* terms, and elements of a term: several blocks */

static char terms[MOST][COUNT * sizeof(double)], out[COUNT * sizeof(double)];

static void check(ek_dist_op op, ek_dtype dtype, int count, const bool *absent, void *result)
{
    const void *given[MOST];
    char wanted[8];
    size_t size = ek_dtype_size(dtype);
    for (int t = 0; t < count; t++) {
        given[t] = absent && absent[t] ? NULL : terms[t];
        for (int64_t i = 0; i < COUNT; i++)
            combined_write(dtype, terms[t], i, combined_number(dtype, t, i));
    }
    ek_combine(op, dtype, given, count, (void *[]){result, out}, 2, COUNT);
    for (int64_t i = 0; i < COUNT; i++) {
        combined(op, dtype, count, absent, i, wanted);
        ck_assert_msg(memcmp(wanted, (char *)result + (size_t)i * size, size) == 0 &&
                          memcmp(wanted, out + (size_t)i * size, size) == 0,
                      "%s of %d terms of %s: element %d", ek_combine_name(op), count,
                      ek_dtype_name(dtype), (int)i);
    }
}

TEST_LOOP(terms_are_combined_in_the_order_of_the_tree, 0, EK_DTYPES)
{
    for (ek_dist_op op = 0; op <= EK_DIST_BXOR; op++)
        for (int count = 1; count <= MOST && ek_combine_check("", op, (ek_dtype)_i) == 0;
             count += count < 20 ? 1 : 5)
            check(op, (ek_dtype)_i, count, NULL, terms[count / 2]);
    ek_error_clear();
}

TEST(absent_terms_pass_the_other_side_on)
{
    bool absent[9] = {false};
    for (int mask = 0; mask < 511; mask++) {
        for (int t = 0; t < 9; t++)
            absent[t] = mask >> t & 1;
        check(EK_DIST_AVG, mask % 2 ? EK_F64 : EK_BF16, 9, absent, terms[mask % 9]);
    }
}
