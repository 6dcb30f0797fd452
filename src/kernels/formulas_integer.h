/* formulas_integer.h: formulas of integer operations; overflow wraps. Included by formulas.h. */

#define EK_WRAP(expression) ((int64_t)(expression))

EK_FORMULA int64_t ek_affine_i64(int64_t x, double a, double b)
{
    return EK_WRAP((uint64_t)ek_i64_of(a) * (uint64_t)x + (uint64_t)ek_i64_of(b));
}

EK_FORMULA int64_t ek_neg_i64(int64_t x, double a, double b)
{
    (void)a, (void)b;
    return EK_WRAP(0 - (uint64_t)x);
}

EK_FORMULA int64_t ek_magnitude_i64(int64_t x, double a, double b)
{
    return x < 0 ? ek_neg_i64(x, a, b) : x;
}

EK_FORMULA int64_t ek_sign_i64(int64_t x, double a, double b)
{
    (void)a, (void)b;
    return (x > 0) - (x < 0);
}

EK_FORMULA int64_t ek_square_i64(int64_t x, double a, double b)
{
    (void)a, (void)b;
    return EK_WRAP((uint64_t)x * (uint64_t)x);
}

/* Bounds may be fractions or infinite. Compared as integers: doubles don't hold all of them. */
EK_FORMULA int64_t ek_clamp_i64(int64_t x, double a, double b)
{
    int64_t low = a >= 9223372036854775808.0 ? INT64_MAX : ek_i64_of(ceil(a));
    int64_t high = b >= 9223372036854775808.0 ? INT64_MAX : ek_i64_of(floor(b));
    int64_t raised = x < low ? low : x;
    return raised > high ? high : raised;
}

EK_FORMULA int64_t ek_add_i64(int64_t x, int64_t y, double a)
{
    return EK_WRAP((uint64_t)x + (uint64_t)ek_i64_of(a) * (uint64_t)y);
}

EK_FORMULA int64_t ek_sub_i64(int64_t x, int64_t y, double a)
{
    (void)a;
    return EK_WRAP((uint64_t)x - (uint64_t)y);
}

EK_FORMULA int64_t ek_mul_i64(int64_t x, int64_t y, double a)
{
    (void)a;
    return EK_WRAP((uint64_t)x * (uint64_t)y);
}

/* Truncates; by zero gives 0. */
EK_FORMULA int64_t ek_div_i64(int64_t x, int64_t y, double a)
{
    (void)a;
    return y == 0 ? 0 : y == -1 ? EK_WRAP(0 - (uint64_t)x) : x / y;
}

EK_FORMULA int64_t ek_maximum_i64(int64_t x, int64_t y, double a)
{
    (void)a;
    return x > y ? x : y;
}

EK_FORMULA int64_t ek_minimum_i64(int64_t x, int64_t y, double a)
{
    (void)a;
    return x < y ? x : y;
}

#undef EK_WRAP
