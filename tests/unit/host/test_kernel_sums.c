/* Sums of many tensors, and elementwise kernels on threads: the host's against sums in double, the
 * GPU's against the host's. */
#include "kit/combined.h"
#include "twin.h"

/* One addend, and up to as many as there are devices. */
TEST_LOOP(sums_of_many, 0, EK_DTYPES)
{
    static const int counts[] = {1, 2, 3, 21, 64};
    static const int64_t sizes[] = {0, 1, 7, 1003};
    for (int c = 0; c < 5; c++)
        for (int s = 0; s < 4; s++)
            for (int l = TWIN_ROWS; l <= TWIN_DENSE_OFFSET; l += TWIN_DENSE_OFFSET - TWIN_ROWS) {
                ek_scope scope = ek_scope_begin();
                const ek_tensor *parts[2][64];
                double wanted[1003] = {0};
                twin first = {.host = NULL};
                for (int k = 0; k < counts[c]; k++) {
                    twin x = twin_new((ek_dtype)_i, 1, &sizes[s], (twin_layout)l);
                    x = twin_integers(x, 0, k ? 1 : 3, (unsigned)k);
                    first = k ? first : x;
                    for (int side = 0; side < 2; side++)
                        parts[side][k] = ON(x);
                    for (int64_t i = 0; i < sizes[s]; i++)
                        wanted[i] += case_get(x.host, i);
                }
                twin y = twin_new((ek_dtype)_i, 1, &sizes[s], TWIN_ROWS);
                twin_run(add_n, 1, &ON(y), parts[side], counts[c]);
                for (int64_t i = 0; i < sizes[s] && _i == EK_BOOL; i++)
                    wanted[i] = wanted[i] != 0;
                twin_expect(y, wanted, 0, "add_n");
                twin_same(y, "add_n");
                twin_run(add_n, 1, &ON(first), parts[side], counts[c]);
                twin_same(first, "add_n into the first");
                ek_scope_end(&scope);
            }
    twin_refused(EK_E_INVALID, "1 to 64", add_n, 1, NULL, NULL, 0);
    twin_refused(EK_E_INVALID, "1 to 64", add_n, 1, NULL, NULL, 65);
}

/* Many sums at once, of different sizes and addresses, more than one launch takes; the large ones
 * are of several blocks. */
TEST_LOOP(lists_of_sums, 0, EK_DTYPES)
{
    enum { SUMS = 70, ADDENDS = 3 };
    static const int64_t sizes[] = {0, 1, 4096, 7, 4097, 64, 9001};
    twin sums[SUMS];
    ek_tensor *outs[2][SUMS];
    const ek_tensor *parts[2][ADDENDS * SUMS];
    for (int i = 0; i < SUMS; i++) {
        const int64_t *size = &sizes[i % 7];
        twin_layout layout = i % 3 == 1 ? TWIN_DENSE_OFFSET : TWIN_ROWS;
        twin first = {.host = NULL};
        for (int k = 0; k < ADDENDS; k++) {
            twin x = twin_new((ek_dtype)_i, 1, size, layout);
            x = twin_integers(x, 0, 60, (unsigned)(i * ADDENDS + k));
            first = k ? first : x;
            for (int side = 0; side < 2; side++)
                parts[side][k * SUMS + i] = ON(x);
        }
        /* Some are their first addends. */
        sums[i] = i % 5 ? twin_new((ek_dtype)_i, 1, size, TWIN_ROWS) : first;
        for (int side = 0; side < 2; side++)
            outs[side][i] = ON(sums[i]);
    }
    twin_run(add_n, SUMS, outs[side], parts[side], ADDENDS);
    for (int i = 0; i < SUMS; i++)
        twin_same(sums[i], "a list of sums");
}

/* Casts of many, of different sizes and addresses. */
TEST_LOOP(lists_of_casts, 0, 2)
{
    enum { CASTS = 70 };
    static const int64_t sizes[] = {0, 1, 4096, 7, 4097, 64, 9001};
    twin wide[CASTS], narrow[CASTS];
    ek_tensor *outs[2][CASTS];
    const ek_tensor *inputs[2][CASTS];
    for (int i = 0; i < CASTS; i++) {
        const int64_t *size = &sizes[i % 7];
        narrow[i] = twin_uniform(twin_new(_i ? EK_F16 : EK_BF16, 1, size,
                                          i % 3 == 1 ? TWIN_DENSE_OFFSET : TWIN_ROWS),
                                 -3, 3, (unsigned)i);
        wide[i] = twin_new(EK_F32, 1, size, i % 2 ? TWIN_DENSE_OFFSET : TWIN_ROWS);
        for (int side = 0; side < 2; side++) {
            outs[side][i] = ON(wide[i]);
            inputs[side][i] = ON(narrow[i]);
        }
    }
    twin_run(add_n, CASTS, outs[side], inputs[side], 1);
    for (int i = 0; i < CASTS; i++) {
        for (int64_t k = 0; k < sizes[i % 7]; k++)
            case_must(case_get(wide[i].host, k) == case_get(narrow[i].host, k));
        twin_same(wide[i], "a list of casts");
    }
}

/* The sum depends on the order of addends, and is the tree's, with any of them absent. */
TEST_LOOP(order_of_sums, 0, 2)
{
    enum { MOST = 64, COUNT = 9 };
    const int64_t dims[] = {COUNT};
    const ek_dtype dtype = _i ? EK_BF16 : EK_F32;
    twin all[MOST];
    for (int k = 0; k < MOST; k++)
        all[k] = twin_new(dtype, 1, dims, TWIN_ROWS);
    for (int addends = 1; addends <= MOST; addends++)
        for (int holes = 0; holes < 3; holes++) {
            bool absent[MOST];
            const ek_tensor *parts[2][MOST];
            double row[COUNT];
            char wanted[8];
            for (int k = 0; k < addends; k++) {
                absent[k] = holes && k != addends - 1 && k * 7 % 5 < holes + 1;
                for (int i = 0; i < COUNT; i++) {
                    row[i] = combined_number(dtype, k, i);
                    if (dtype == EK_BF16)
                        row[i] = (double)ek_float_of_bf16(ek_bf16_of((float)row[i]));
                }
                twin_set(all[k], row);
                for (int side = 0; side < 2; side++)
                    parts[side][k] = absent[k] ? NULL : ON(all[k]);
            }
            twin y = twin_new(dtype, 1, dims, TWIN_ROWS);
            twin_run(add_n, 1, &ON(y), parts[side], addends);
            twin_same(y, "the order of a sum");
            for (int i = 0; i < COUNT; i++) {
                combined(EK_DIST_SUM, dtype, addends, absent, i, wanted);
                case_must(
                    memcmp((char *)ek_tensor_address(y.host) + (size_t)i * ek_dtype_size(dtype),
                           wanted, ek_dtype_size(dtype)) == 0);
            }
        }
}

/* Large enough for two threads of the host. */
TEST_LOOP(repeats, 0, 3)
{
    const int64_t dims[] = {4, 37, 31, 29};
    twin x = twin_uniform(twin_new((ek_dtype)_i, 4, dims, TWIN_LAST), -2, 2, 1);
    twin y = twin_uniform(twin_new((ek_dtype)_i, 4, dims, TWIN_ROWS), -2, 2, 2);
    twin z = twin_new((ek_dtype)_i, 4, dims, TWIN_LAST);
    twin last = twin_new((ek_dtype)_i, 4, dims, TWIN_LAST);
    const ek_tensor *parts[2][3];
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < 3; k++)
            parts[side][k] = k % 2 ? ON(last) : ON(x);
    double *wanted = case_values(x.host), *more = case_values(y.host);
    for (int64_t i = 0; i < ek_count(x.host); i++)
        wanted[i] = 2 * wanted[i] + more[i];
    twin_repeats(z, unary, EK_UNARY_TANH, ON(z), ON(x), 0, 0);
    twin_repeats(z, binary, EK_BINARY_MUL, ON(z), ON(x), ON(y), 0);
    twin_repeats(last, copy, ON(last), ON(y));
    twin_expect(last, more, 0, "a copy on threads");
    twin_repeats(z, add_n, 1, &ON(z), parts[side], 3);
    twin_expect(z, wanted, _i == EK_BF16 ? 4e-3 : 1e-6, "a sum on threads");
    free(wanted), free(more);
}
