/* epochs.c: see epochs.h. */
#include "epochs.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    RECORD_NUMBERS = sizeof(epoch_record) / sizeof(double),
    SUMS_NUMBERS = sizeof(epoch_sums) / sizeof(double)
};

int epochs_open(epoch_list *epochs, int64_t most)
{
    epochs->records = calloc((size_t)most, sizeof *epochs->records);
    return epochs->records ? 0
                           : ek_error(EK_E_NO_MEMORY, "no memory for the records of %lld epochs",
                                      (long long)most);
}

void epochs_end(epoch_list *epochs, double test_loss, double test_accuracy)
{
    const epoch_sums *now = &epochs->now;
    epochs->records[epochs->count++] = (epoch_record){.train_loss = now->loss / now->samples,
                                                      .test_loss = test_loss,
                                                      .test_accuracy = test_accuracy,
                                                      .seconds = now->seconds,
                                                      .waited = now->waited};
    epochs->now = (epoch_sums){0};
}

void epochs_checkpoint(epoch_list *epochs, const checkpoint *file)
{
    checkpoint_numbers(file, "epoch_so_far", &epochs->now.loss, EK_SHAPE(SUMS_NUMBERS));
    if (epochs->count > 0)
        checkpoint_numbers(file, "epochs", &epochs->records->train_loss,
                           EK_SHAPE(epochs->count, RECORD_NUMBERS));
}

int64_t epochs_best(const epoch_list *epochs)
{
    int64_t best = epochs->count > 0 ? 0 : -1;
    for (int64_t i = 1; i < epochs->count; i++)
        if (epochs->records[i].test_accuracy > epochs->records[best].test_accuracy)
            best = i;
    return best;
}

epoch_sums epochs_total(const epoch_list *epochs)
{
    epoch_sums total = epochs->now;
    for (int64_t i = 0; i < epochs->count; i++) {
        total.seconds += epochs->records[i].seconds;
        total.waited += epochs->records[i].waited;
    }
    return total;
}

double share_of(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

void epochs_print(const epoch_list *epochs)
{
    const int64_t best = epochs_best(epochs);
    if (epochs->count > 0)
        printf("\n%5s %14s %10s %10s %8s %8s\n", "epoch", "training loss", "test loss", "accuracy",
               "seconds", "waiting");
    for (int64_t i = 0; i < epochs->count; i++) {
        const epoch_record *r = &epochs->records[i];
        printf("%5" PRId64 " %14.4f %10.4f %9.2f%% %8.1f %7.2f%%%s\n", i + 1, r->train_loss,
               r->test_loss, 100 * r->test_accuracy, r->seconds,
               100 * share_of(r->waited, r->seconds), i == best ? "  best" : "");
    }
}

void epochs_json_times(json_writer *json, double seconds, double waited)
{
    json_write(json, "training_seconds %g waiting_seconds %g waiting_share %g", seconds, waited,
               share_of(waited, seconds));
}

void epochs_json(json_writer *json, const epoch_list *epochs)
{
    const int64_t best = epochs_best(epochs);
    json_write(json, "epochs [");
    for (int64_t i = 0; i < epochs->count; i++) {
        const epoch_record *r = &epochs->records[i];
        json_write(json, "{ training_loss %g test_loss %g test_accuracy %g", r->train_loss,
                   r->test_loss, r->test_accuracy);
        epochs_json_times(json, r->seconds, r->waited);
        json_write(json, "}");
    }
    json_write(json, "]");
    if (best >= 0)
        json_write(json, "best_accuracy %g", epochs->records[best].test_accuracy);
}
