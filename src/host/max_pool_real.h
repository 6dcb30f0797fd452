/* max_pool_real.h: the kernels of max_pool.c for one dtype: REAL, POSITION (an integer of its size)
 * and NAME(x) are defined by the includer. */

/* The maximum of `channels` (at most a block) neighbouring channels over one window. */
static inline void NAME(max_window)(const ek_pool *pool, const ek_window window[3], const REAL *x,
                                    int64_t channels, REAL *y, int64_t *index)
{
    REAL best[EK_POOL_BLOCK];
    POSITION at[EK_POOL_BLOCK];
    int64_t first =
        (window[0].first * pool->in[1] + window[1].first) * pool->in[2] + window[2].first;
    for (int64_t c = 0; c < channels; c++) {
        best[c] = -(REAL)INFINITY;
        at[c] = (POSITION)first;
    }
    for (int64_t i = 0; i < window[0].count; i++) {
        for (int64_t j = 0; j < window[1].count; j++) {
            for (int64_t k = 0; k < window[2].count; k++) {
                int64_t position =
                    first + (i * window[0].step * pool->in[1] + j * window[1].step) * pool->in[2] +
                    k * window[2].step;
                const REAL *from = x + position * pool->channels;
                POSITION here = (POSITION)position;
                for (int64_t c = 0; c < channels; c++) {
                    REAL value = from[c];
                    bool better = (value > best[c]) | (value != value); /* NaN wins */
                    best[c] = better ? value : best[c];
                    at[c] = better ? here : at[c];
                }
            }
        }
    }
    for (int64_t c = 0; c < channels; c++)
        y[c] = best[c];
    for (int64_t c = 0; c < channels; c++)
        index[c] = at[c];
}

EK_MULTIVERSION static void NAME(max_forward)(void *context, int64_t begin, int64_t end)
{
    const ek_pool *pool = context;
    for (int64_t item = begin; item < end; item++) {
        ek_window window[3];
        ek_pool_window(pool, item % pool->out_plane, window);
        const REAL *x =
            (const REAL *)pool->x + item / pool->out_plane * pool->in_plane * pool->channels;
        REAL *y = (REAL *)pool->y + item * pool->channels;
        int64_t *index = pool->index + item * pool->channels;
        int64_t c = 0;
        for (; c + EK_POOL_BLOCK <= pool->channels; c += EK_POOL_BLOCK)
            NAME(max_window)(pool, window, x + c, EK_POOL_BLOCK, y + c, index + c);
        if (c < pool->channels)
            NAME(max_window)(pool, window, x + c, pool->channels - c, y + c, index + c);
    }
}

/* Items are (sample, block of channels): no two write the same element. */
static void NAME(max_gradient)(void *context, int64_t begin, int64_t end)
{
    ek_pool *pool = context;
    int64_t blocks = ek_pool_blocks(pool);
    for (int64_t item = begin; item < end; item++) {
        int64_t sample = item / blocks, first = item % blocks * EK_POOL_BLOCK;
        int64_t last =
            first + EK_POOL_BLOCK < pool->channels ? first + EK_POOL_BLOCK : pool->channels;
        REAL *dx = (REAL *)pool->x + sample * pool->in_plane * pool->channels;
        const REAL *dy = (const REAL *)pool->y + sample * pool->out_plane * pool->channels;
        const int64_t *index = pool->index + sample * pool->out_plane * pool->channels;
        for (int64_t i = 0; i < pool->in_plane; i++)
            memset(dx + i * pool->channels + first, 0, (size_t)(last - first) * sizeof(REAL));
        for (int64_t i = 0; i < pool->out_plane; i++) {
            for (int64_t c = first; c < last; c++) {
                int64_t at = i * pool->channels + c;
                if (ek_pool_holds(pool, index[at]))
                    dx[index[at] * pool->channels + c] += dy[at];
            }
        }
    }
}

static void NAME(max_gather)(void *context, int64_t begin, int64_t end)
{
    ek_pool *pool = context;
    for (int64_t item = begin; item < end; item++) {
        const REAL *x =
            (const REAL *)pool->x + item / pool->out_plane * pool->in_plane * pool->channels;
        REAL *y = (REAL *)pool->y + item * pool->channels;
        const int64_t *index = pool->index + item * pool->channels;
        for (int64_t c = 0; c < pool->channels; c++)
            y[c] = ek_pool_holds(pool, index[c]) ? x[index[c] * pool->channels + c] : 0;
    }
}

#undef REAL
#undef POSITION
#undef NAME
