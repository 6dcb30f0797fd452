#include "gan/records.h"

#include <evenkeel/status.h>
#include <stdlib.h>
#include <string.h>

const char *const series_names[SERIES] = {
    [CRITIC_LOSSES] = "critic_losses",       [PENALTIES] = "penalties",
    [WASSERSTEIN] = "wasserstein",           [GRADIENT_NORMS] = "critic_gradient_norms",
    [GENERATOR_LOSSES] = "generator_losses", [SECONDS] = "step_seconds",
};

int records_open(run_records *records, int64_t steps, int64_t critic_steps)
{
    *records = (run_records){0};
    for (int s = 0; s < SERIES; s++) {
        int64_t room = s < CRITIC_SERIES ? steps * critic_steps : steps;
        records->values[s] = malloc((size_t)room * sizeof(double));
        if (!records->values[s])
            return ek_error(EK_E_NO_MEMORY, "no memory for the records of %lld steps",
                            (long long)steps);
        records->room[s] = room;
    }
    return 0;
}

void records_close(run_records *records)
{
    for (int s = 0; s < SERIES; s++)
        free(records->values[s]);
    *records = (run_records){0};
}

void records_add(run_records *records, record_series series, double value)
{
    if (records->counts[series] < records->room[series])
        records->values[series][records->counts[series]++] = value;
}

double records_last(const run_records *records, record_series series)
{
    int64_t count = records->counts[series];

    return count > 0 ? records->values[series][count - 1] : 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double records_median(const run_records *records, record_series series)
{
    size_t count = (size_t)records->counts[series];
    double *sorted = malloc((count + 1) * sizeof(*sorted)), median = 0;

    if (sorted && count > 0) {
        memcpy(sorted, records->values[series], count * sizeof(*sorted));
        qsort(sorted, count, sizeof(*sorted), ascending);
        median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    }
    free(sorted);
    return median;
}
