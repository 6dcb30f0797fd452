/* norm_line.cu: normalised values, and the gradient of x. */
#include "cuda/norm.cuh"

/* y = (x - center) * scale + shift, or dx = scale * dy - shift - (x - center) * slope, with a line
 * for each column. Vectors are loaded before the first is stored. */
template <bool gradient, bool planes, typename T, int V> struct line {
    typedef typename ek_compute<T>::type R;
    enum { PLANES = planes, LOADS = gradient ? 2 : 4, COLUMNS = planes ? 1 : V };
    R center[COLUMNS], scale[COLUMNS], shift[COLUMNS], slope[COLUMNS];
    bool relu, sums;

    __device__ __forceinline__ void begin(const ek_cuda_norm &a, const ek_norm_share &own)
    {
        relu = a.relu;
        sums = a.sum_xhat != nullptr;
        EK_EACH(c, COLUMNS) {
            const int64_t column = own.column + c, group = ek_norm_group(a, own.sample, column);
            const R invstd = ek_norm_value(a.invstd, group, R(1));
            const R weight = a.element ? R(1) : ek_norm_value(a.weight, column, R(1));
            const R factor = (a.weighted ? invstd * weight : invstd) * (R)a.share;
            center[c] = ek_norm_value(a.mean, group, R(0));
            scale[c] = invstd * weight;
            if (gradient) {
                shift[c] = factor * ek_norm_value(a.sum, group, R(0));
                slope[c] = factor * ek_norm_value(a.sum_xhat, group, R(0)) * invstd;
            } else {
                shift[c] = a.element ? R(0) : ek_norm_value(a.bias, column, R(0));
            }
        }
    }

    template <int U> __device__ __forceinline__ void add(const ek_norm_cursor<planes, T> &at)
    {
        R x[U][V] = {}, dy[U][V] = {};
        if (gradient)
            ek_norm_load(dy, at.dy, at.dy_step);
        if (!gradient || sums)
            ek_norm_load(x, at.x, at.x_step);
        if (gradient && at.mask != nullptr)
            ek_norm_cut_off(dy, at.mask, at.mask_step);
        EK_EACH(u, U) {
            R factor[V], term[V];
            EK_EACH(v, V)
                factor[v] = 1, term[v] = 0;
            if (planes && at.weight != nullptr)
                ek_load_elements(factor, at.weight + u * at.x_step);
            if (planes && !gradient && at.bias != nullptr)
                ek_load_elements(term, at.bias + u * at.x_step);
            const bool elements = planes && (at.weight != nullptr || at.bias != nullptr);
            EK_EACH(v, V) {
                const int c = v % COLUMNS;
                R value = dy[u][v] * factor[v] * scale[c];
                if (gradient && sums)
                    value = value - shift[c] - (x[u][v] - center[c]) * slope[c];
                else if (!gradient && elements)
                    value = (x[u][v] - center[c]) * scale[c] * factor[v] + term[v];
                else if (!gradient)
                    value = (x[u][v] - center[c]) * scale[c] + shift[c];
                dy[u][v] = !gradient && relu && value <= 0 ? R(0) : value;
            }
        }
        EK_EACH(u, U)
            ek_norm_store(at.y + u * at.y_step, dy[u]);
    }

    __device__ __forceinline__ void end(const ek_cuda_norm &, const ek_norm_share &)
    {
    }
};

template <bool planes, typename T, int V> using apply = line<false, planes, T, V>;
template <bool planes, typename T, int V> using gradient = line<true, planes, T, V>;

int ek_cuda_launch_norm_line(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    return norm->dy.data != nullptr ? ek_norm_launch<gradient>(stream, norm)
                                    : ek_norm_launch<apply>(stream, norm);
}
