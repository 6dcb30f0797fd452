/* window.c: see window.h. */
#include "nn/window.h"

int ek_window_option(const char *layer, const char *name, int dims, int all, const int each[3],
                     const int fallback[3], int least, int result[3])
{
    bool by_direction = each[0] != 0 || each[1] != 0 || each[2] != 0;
    if (by_direction && all != 0)
        return EK_FAIL(EK_E_INVALID, "%s: give %s or %ss, not both", layer, name, name);
    for (int i = dims; i < 3; i++)
        if (each[i] != 0)
            return EK_FAIL(EK_E_INVALID, "%s: %ss has %d entries, at most %d count", layer, name,
                           i + 1, dims);
    for (int i = 0; i < dims; i++) {
        result[i] =
            (int)(by_direction ? ek_integer_or(each[i], 0) : ek_integer_or(all, fallback[i]));
        if (result[i] < least)
            return EK_FAIL(EK_E_INVALID, "%s: %s has to be at least %d, not %d", layer, name, least,
                           result[i]);
    }
    return 0;
}
