/* distributed_sampler.c: which samples two ranks read, with and without a distributed sampler: over
 * as many samples as batches take, over fewer and over more, from epoch to epoch. */
#include <evenkeel/evenkeel.h>
#include <stdlib.h>

#include "args.h"

enum { RANKS = 2, EPOCHS = 2, BATCH = 4 };
enum { CHANNELS = 3, SIDE = 224, LABELS = 2 };

static const char about[] =
    "Two ranks read a data set of pictures in batches of 4, for two epochs. Shows the numbers of\n"
    "the pictures that each rank gets, batch by batch.\n\n";

/* Samples are a picture, its label and its number. */
static ek_dataset *make_pictures(int64_t count)
{
    ek_tensor *numbers = ek_arange(count, EK_I64, ek_cpu());
    ek_tensor *labels = ek_randint(0, LABELS, EK_SHAPE(count), EK_I64);
    return ek_tensor_dataset(ek_zeros(EK_SHAPE(count, CHANNELS, SIDE, SIDE), EK_U8), labels,
                             numbers);
}

/* ---- the cases ---- */

typedef struct sampler_case {
    const char *name;
    int64_t count;
    bool distributed; /* with a distributed sampler */
    bool set_epoch;   /* before each epoch */
    bool drop_last;   /* the loader's */
    const char *lesson;
} sampler_case;

static const sampler_case cases[] = {
    {"1", 8, false, false, false, "without a distributed sampler every rank reads everything"},
    {"2", 8, true, false, false, "each rank reads its half, in every epoch the same"},
    {"3", 8, true, true, false, "with ek_loader_set_epoch each epoch has its own order"},
    {"4", 6, true, false, false, "fewer than a batch are a smaller batch"},
    {"4", 6, true, false, true, "fewer than a batch are none where the last is dropped"},
    {"5", 5, true, true, false, "an odd one: the first of the order is read twice"},
    {"6", 10, true, false, false, "a last batch of one, which batch normalisation can't take"},
    {"7", 10, true, false, true, "the loader drops it"},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]), ALL = 7 };
static const char *const case_names[] = {"1", "2", "3", "4", "5", "6", "7", "all", NULL};

#define OPTIONS(ROW)                                            \
    ROW(word, case_, "all", case_names, "CASE", "what to show") \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of the distributed samplers")
args_declare(OPTIONS);

static ek_loader *make_loader(const sampler_case *c, int rank)
{
    ek_sampler *sampler = NULL; /* in order */
    if (c->distributed) {
        sampler =
            ek_distributed_sampler(c->count, .num_replicas = RANKS, .rank = rank, .seed = opt.seed);
        if (!sampler)
            return NULL;
    }
    return ek_data_loader(make_pictures(c->count), .sampler = sampler, .batch_size = BATCH,
                          .drop_last = c->drop_last);
}

/* The numbers that came with the pictures, the third part of each sample. */
static int print_batch(const ek_batch *batch)
{
    int64_t numbers[BATCH];
    ek_tensor *tensor = ek_value_tensor(ek_value_at(batch->data, 2));
    if (!tensor || ek_to_data(tensor, numbers, (size_t)batch->count * sizeof numbers[0]) < 0)
        return -1;
    printf(" [");
    for (int64_t i = 0; i < batch->count; i++)
        printf("%s%lld", i ? " " : "", (long long)numbers[i]);
    putchar(']');
    return 0;
}

static int print_epoch(ek_loader *loader, int epoch, int rank)
{
    ek_batch batch;
    int rc;
    if (rank == 0)
        printf("  epoch %d  rank %d:", epoch, rank);
    else
        printf("           rank %d:", rank);
    while ((rc = ek_loader_next(loader, &batch)) > 0) {
        ek_scope step = ek_scope_begin();
        rc = print_batch(&batch);
        ek_scope_end(&step);
        if (rc < 0)
            return rc;
    }
    puts(rc == 0 && ek_loader_length(loader) == 0 ? " no batch" : "");
    return rc;
}

static int print_case(const sampler_case *c)
{
    ek_loader *loaders[RANKS] = {NULL};
    int rc = 0;
    printf("case %s: %lld pictures%s%s%s\n", c->name, (long long)c->count,
           c->distributed ? ", distributed sampler" : "", c->set_epoch ? ", set_epoch" : "",
           c->drop_last ? ", drop_last" : "");
    for (int rank = 0; rank < RANKS && rc == 0; rank++) {
        loaders[rank] = make_loader(c, rank);
        rc = loaders[rank] ? 0 : -1;
    }
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        for (int rank = 0; rank < RANKS && rc == 0; rank++) {
            if (c->set_epoch)
                rc = ek_loader_set_epoch(loaders[rank], epoch);
            if (rc == 0)
                rc = print_epoch(loaders[rank], epoch, rank);
        }
    for (int rank = 0; rank < RANKS; rank++)
        ek_loader_free(loaders[rank]);
    if (rc == 0)
        printf("  (%s)\n\n", c->lesson);
    return rc;
}

int main(int argc, char **argv)
{
    int rc = args_read(argc, argv, about, option_table);
    if (rc != 0)
        return rc == ARGS_HELP ? 0 : REFUSED;
    for (int i = 0; i < CASES; i++) {
        if (opt.case_ != ALL && cases[i].name[0] != case_names[opt.case_][0])
            continue;
        if (print_case(&cases[i]) < 0) {
            fflush(stdout);
            args_complain("case %s: %s", cases[i].name, ek_error_message());
            return FAILED;
        }
    }
    return ek_shutdown() < 0 ? FAILED : 0;
}
