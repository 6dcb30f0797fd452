/* avg_pool_real.h: the kernels of avg_pool.c for one dtype: REAL and NAME(x) are defined by the
 * includer. */

static inline void NAME(avg_window)(const ek_pool *pool, const ek_window window[3], const REAL *x,
                                    int64_t channels, REAL *y)
{
    REAL sum[EK_POOL_BLOCK];
    for (int64_t c = 0; c < channels; c++)
        sum[c] = 0;
    for (int64_t i = 0; i < window[0].count; i++) {
        for (int64_t j = 0; j < window[1].count; j++) {
            const REAL *from =
                x + (((window[0].first + i) * pool->in[1] + window[1].first + j) * pool->in[2] +
                     window[2].first) *
                        pool->channels;
            for (int64_t k = 0; k < window[2].count; k++, from += pool->channels)
                for (int64_t c = 0; c < channels; c++)
                    sum[c] += from[c];
        }
    }
    REAL divisor = (REAL)(window[0].divisor * window[1].divisor * window[2].divisor);
    for (int64_t c = 0; c < channels; c++)
        y[c] = sum[c] / divisor;
}

EK_MULTIVERSION static void NAME(avg_forward)(void *context, int64_t begin, int64_t end)
{
    const ek_pool *pool = context;
    for (int64_t item = begin; item < end; item++) {
        ek_window window[3];
        ek_pool_window(pool, item % pool->out_plane, window);
        const REAL *x =
            (const REAL *)pool->x + item / pool->out_plane * pool->in_plane * pool->channels;
        REAL *y = (REAL *)pool->y + item * pool->channels;
        int64_t c = 0;
        for (; c + EK_POOL_BLOCK <= pool->channels; c += EK_POOL_BLOCK)
            NAME(avg_window)(pool, window, x + c, EK_POOL_BLOCK, y + c);
        if (c < pool->channels)
            NAME(avg_window)(pool, window, x + c, pool->channels - c, y + c);
    }
}

static inline void NAME(avg_spread)(const ek_pool *pool, const ek_window window[3], const REAL *dy,
                                    int64_t channels, REAL *dx)
{
    REAL share[EK_POOL_BLOCK];
    REAL divisor = (REAL)(window[0].divisor * window[1].divisor * window[2].divisor);
    for (int64_t c = 0; c < channels; c++)
        share[c] = dy[c] / divisor;
    for (int64_t i = 0; i < window[0].count; i++) {
        for (int64_t j = 0; j < window[1].count; j++) {
            REAL *to =
                dx + (((window[0].first + i) * pool->in[1] + window[1].first + j) * pool->in[2] +
                      window[2].first) *
                         pool->channels;
            for (int64_t k = 0; k < window[2].count; k++, to += pool->channels)
                for (int64_t c = 0; c < channels; c++)
                    to[c] += share[c];
        }
    }
}

/* Items are (sample, block of channels): no two write the same element. */
EK_MULTIVERSION static void NAME(avg_gradient)(void *context, int64_t begin, int64_t end)
{
    const ek_pool *pool = context;
    int64_t blocks = ek_pool_blocks(pool);
    for (int64_t item = begin; item < end; item++) {
        int64_t sample = item / blocks, first = item % blocks * EK_POOL_BLOCK;
        int64_t count = pool->channels - first;
        count = count < EK_POOL_BLOCK ? count : EK_POOL_BLOCK;
        REAL *dx = (REAL *)pool->x + sample * pool->in_plane * pool->channels + first;
        const REAL *dy = (const REAL *)pool->y + sample * pool->out_plane * pool->channels + first;
        for (int64_t i = 0; i < pool->in_plane; i++)
            memset(dx + i * pool->channels, 0, (size_t)count * sizeof(REAL));
        for (int64_t i = 0; i < pool->out_plane; i++, dy += pool->channels) {
            ek_window window[3];
            ek_pool_window(pool, i, window);
            if (count == EK_POOL_BLOCK)
                NAME(avg_spread)(pool, window, dy, EK_POOL_BLOCK, dx);
            else
                NAME(avg_spread)(pool, window, dy, count, dx);
        }
    }
}

#undef REAL
#undef NAME
