/* window.c: see window.h. */
#include "nn/window.h"

#include "ops/spatial.h"

int ek_window_option(const char *layer, const char *name, int dims, int all, const int each[3],
                     const int fallback[3], int least, int result[3])
{
    int64_t otherwise[3] = {fallback[0], fallback[1], fallback[2]}, chosen[3];
    EK_TRY(ek_spatial_option(layer, name, dims, each, all, otherwise, least, chosen));
    for (int i = 0; i < dims; i++)
        result[i] = (int)chosen[i];
    return 0;
}
