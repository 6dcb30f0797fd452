/* soften_real.h: the stable exponentials of softmax and cross entropy, for EK_REAL. */

/* Of 8 elements or more, in 8 lanes. NaN wins, so that it stays. */
EK_MULTIVERSION
static EK_REAL EK_NAME(largest_of)(int64_t size, const EK_REAL *row)
{
    EK_REAL m[8];
    int64_t c = 0;
    for (int j = 0; j < 8; j++)
        m[j] = row[0];
    for (; c + 8 <= size; c += 8)
        for (int j = 0; j < 8; j++)
            m[j] = ((row[c + j] > m[j]) | (row[c + j] != row[c + j])) ? row[c + j] : m[j];
    EK_REAL most = m[0];
    for (int j = 1; j < 8; j++)
        most = ((m[j] > most) | (m[j] != m[j])) ? m[j] : most;
    for (; c < size; c++)
        most = ((row[c] > most) | (row[c] != row[c])) ? row[c] : most;
    return most;
}

/* e = exp(x - largest), and per row the largest and the sum of e. NaN wins, so that it stays. */
EK_MULTIVERSION
static void EK_NAME(soften)(int64_t rows, int64_t size, const EK_REAL *restrict x,
                            EK_REAL *restrict e, EK_REAL *restrict largest, EK_REAL *restrict sum)
{
    if (size < NARROW) { /* all rows at once: a row alone is too short for vectors */
        for (int64_t r = 0; r < rows; r++)
            largest[r] = x[r * size];
        for (int64_t c = 1; c < size; c++)
            for (int64_t r = 0; r < rows; r++) {
                EK_REAL v = x[r * size + c];
                largest[r] = ((v > largest[r]) | (v != v)) ? v : largest[r];
            }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < size; c++)
                e[r * size + c] = x[r * size + c] - largest[r];
        for (int64_t i = 0; i < rows * size; i++)
            e[i] = EK_NAME(ek_exp)(e[i]);
        for (int64_t r = 0; r < rows; r++)
            sum[r] = e[r * size];
        for (int64_t c = 1; c < size; c++)
            for (int64_t r = 0; r < rows; r++)
                sum[r] += e[r * size + c];
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        const EK_REAL *row = x + r * size;
        EK_REAL most = EK_NAME(largest_of)(size, row);
        largest[r] = most;
        for (int64_t c = 0; c < size; c++)
            e[r * size + c] = row[c] - most;
    }
    for (int64_t i = 0; i < rows * size; i++)
        e[i] = EK_NAME(ek_exp)(e[i]);
    for (int64_t r = 0; r < rows; r++) {
        const EK_REAL *row = e + r * size;
        double lane[8] = {0}, total = 0;
        int64_t c = 0;
        for (; c + 8 <= size; c += 8)
            for (int j = 0; j < 8; j++)
                lane[j] += (double)row[c + j];
        if (c > 0)
            for (int j = 0; j < 8; j++)
                total += lane[j];
        for (; c < size; c++)
            total += (double)row[c];
        sum[r] = (EK_REAL)total;
    }
}
