#include "classify/records.h"

#include <evenkeel/status.h>
#include <stdlib.h>

int records_open(run_records *records, int64_t epochs)
{
    *records =
        (run_records){.epochs = calloc((size_t)epochs, sizeof(epoch_record)), .room = epochs};
    return records->epochs ? 0
                           : ek_error(EK_E_NO_MEMORY, "no memory for the records of %lld epochs",
                                      (long long)epochs);
}

void records_close(run_records *records)
{
    free(records->epochs);
    *records = (run_records){0};
}

void records_add(run_records *records, double loss, int64_t samples, double seconds, double waited)
{
    epoch_sums *now = &records->now;

    now->loss += loss * (double)samples;
    now->samples += (double)samples;
    now->seconds += seconds;
    now->waited += waited;
}

void records_end_epoch(run_records *records, double test_loss, double test_accuracy)
{
    const epoch_sums *now = &records->now;

    if (records->count < records->room)
        records->epochs[records->count++] =
            (epoch_record){.train_loss = now->samples > 0 ? now->loss / now->samples : 0,
                           .test_loss = test_loss,
                           .test_accuracy = test_accuracy,
                           .seconds = now->seconds,
                           .waited = now->waited};
    records->now = (epoch_sums){0};
}

int64_t records_best(const run_records *records)
{
    int64_t best = records->count > 0 ? 0 : -1;

    for (int64_t i = 1; i < records->count; i++)
        if (records->epochs[i].test_accuracy > records->epochs[best].test_accuracy)
            best = i;
    return best;
}

epoch_sums records_total(const run_records *records)
{
    epoch_sums total = records->now;

    for (int64_t i = 0; i < records->count; i++) {
        total.seconds += records->epochs[i].seconds;
        total.waited += records->epochs[i].waited;
    }
    return total;
}
