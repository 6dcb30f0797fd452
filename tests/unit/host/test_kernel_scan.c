/* Linear recurrences: the host's kernel against loops in double, the GPU's against the host's. */
#include "twin.h"

/* Along dimension 1. On a GPU: lines within a tile, lines of several tiles, lines side by side, and
 * more tiles than are joined at once. */
static const int64_t shapes[][3] = {
    {3, 40, 5}, {1, 1, 1}, {2, 2500, 2}, {2, 9, 2200}, {2, 530000, 1}};
static const ek_dtype dtypes[] = {EK_F64, EK_I64, EK_F32, EK_BF16, EK_F16};
enum { SHAPES = sizeof shapes / sizeof shapes[0], DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* Which operands there are. */
enum { FACTORS = 1, ADDENDS = 2 };

static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 || dtype == EK_I64 ? 1e-11 : dtype == EK_F32 ? 1e-4 : 2e-2;
}

static void check_scan(ek_dtype dtype, int s, int layout, int operands, bool reverse)
{
    const int64_t *shape = shapes[s], size = shape[1], inner = shape[2];
    const char *what =
        text_of("shape %d, layout %d, operands %d, reverse %d", s, layout, operands, reverse);
    twin a = twin_new(dtype, 3, shape, (twin_layout)layout), b = twin_none;
    twin h = twin_new(dtype, 3, shape, (twin_layout)((layout + 1) % TWIN_LAYOUTS));
    if (dtype == EK_I64)
        twin_integers(a, -1, 1, 1);
    else
        twin_uniform(a, 0.99, 1.008, 1);
    if (operands & ADDENDS) {
        b = twin_new(dtype, 3, shape, (twin_layout)((layout + 2) % TWIN_LAYOUTS));
        twin_integers(b, -4, 4, 2);
    }
    double *wanted = case_zeros(ek_count(h.host));
    for (int64_t line = 0; line < shape[0] * inner; line++) {
        double last = operands & ADDENDS ? 0 : 1;
        for (int64_t k = 0; k < size; k++) {
            const int64_t i =
                line / inner * size * inner + line % inner + (reverse ? size - 1 - k : k) * inner;
            last = last * (operands & FACTORS ? case_get(a.host, i) : 1) +
                   (operands & ADDENDS ? case_get(b.host, i) : 0);
            wanted[i] = last;
        }
    }
    if (!(operands & FACTORS))
        a = twin_none;
    twin_run(scan, ON(h), ON(a), ON(b), 1, reverse);
    twin_expect(h, wanted, tolerance_of(dtype), what);
    twin_close(h, tolerance_of(dtype), tolerance_of(dtype), what);
    free(wanted);
}

TEST_LOOP(recurrences, 0, DTYPES)
{
    for (int s = 0; s < SHAPES; s++)
        for (int operands = FACTORS; operands <= (FACTORS | ADDENDS); operands++)
            for (int layout = 0; layout < TWIN_LAYOUTS; layout++) {
                ek_scope scope = ek_scope_begin();
                if (s < SHAPES - 1 || (_i < 2 && layout == TWIN_ROWS))
                    check_scan(dtypes[_i], s, layout, operands, (layout + operands) % 2);
                ek_scope_end(&scope);
            }
}

/* Joined factors are not formed in the type of elements: those of a part overflow or vanish, but no
 * element does. */
TEST_LOOP(factors_of_parts_are_beyond_the_type, 0, 2)
{
    const int64_t shape[] = {5000};
    const double extreme = _i ? 1e30 : 1e-30;
    twin a = twin_new(EK_F32, 1, shape, TWIN_ROWS), b = twin_new(EK_F32, 1, shape, TWIN_ROWS);
    twin h = twin_new(EK_F32, 1, shape, TWIN_ROWS);
    double wanted[5000], last = 0;
    for (int64_t i = 0; i < shape[0]; i++) {
        case_set(a.host, i, i % 4 < 2 ? extreme : 1 / extreme);
        case_set(b.host, i, i == 0);
        last = last * case_get(a.host, i) + case_get(b.host, i);
        wanted[i] = (double)(float)last;
    }
    twin_push(a);
    twin_push(b);
    twin_run(scan, ON(h), ON(a), ON(b), 0, false);
    twin_expect(h, wanted, 1e-3, "scan");
    twin_close(h, 1e-3, 0, "scan");
}
