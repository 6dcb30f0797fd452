/* test_samplers_ranks.c: seven cases of two ranks that read batches of four, number for number. */
#include <string.h>

#include "evenkeel/sampler.h"
#include "unit.h"

enum { RANKS = 2, EPOCHS = 2, BATCH = 4 };

static const struct {
    const char *name;
    int64_t count;
    bool everything; /* no distributed sampler */
    bool set_epoch, drop_last;
    const char *batches[EPOCHS][RANKS];
} cases[] = {
    {"1: no sampler",
     8,
     true,
     false,
     false,
     {{"0 1 2 3 / 4 5 6 7", "0 1 2 3 / 4 5 6 7"}, {"0 1 2 3 / 4 5 6 7", "0 1 2 3 / 4 5 6 7"}}},
    {"2: a sampler", 8, false, false, false, {{"4 7 2 1", "0 3 5 6"}, {"4 7 2 1", "0 3 5 6"}}},
    {"3: set_epoch", 8, false, true, false, {{"4 7 2 1", "0 3 5 6"}, {"5 2 7 1", "4 6 3 0"}}},
    {"4: fewer than a batch", 6, false, false, false, {{"2 3 1", "5 0 4"}, {"2 3 1", "5 0 4"}}},
    {"4: dropped", 6, false, false, true, {{"", ""}, {"", ""}}},
    {"5: padded", 5, false, true, false, {{"4 1 2", "0 3 4"}, {"0 2 1", "4 3 0"}}},
    {"6: a last batch of one",
     10,
     false,
     false,
     false,
     {{"4 7 3 0 / 6", "1 5 9 8 / 2"}, {"4 7 3 0 / 6", "1 5 9 8 / 2"}}},
    {"7: dropped", 10, false, false, true, {{"4 7 3 0", "1 5 9 8"}, {"4 7 3 0", "1 5 9 8"}}},
};

static void read_pass(ek_sampler *sampler, char *text, size_t room)
{
    const int64_t *batch;
    int64_t count;
    int rc;
    size_t used = 0;
    *text = '\0';
    for (int b = 0; (rc = ek_sampler_next_batch(sampler, &batch, &count)) > 0; b++)
        for (int64_t i = 0; i < count; i++)
            used += (size_t)snprintf(text + used, room - used, "%s%lld",
                                     used == 0 ? ""
                                     : i == 0  ? " / "
                                               : " ",
                                     (long long)batch[i]);
    assert_ok(rc);
}

TEST_LOOP(seven_cases, 0, sizeof cases / sizeof *cases)
{
    char text[200];
    for (int rank = 0; rank < RANKS; rank++) {
        ek_sampler *samples = cases[_i].everything
                                  ? ek_sequential_sampler(cases[_i].count)
                                  : ek_distributed_sampler(cases[_i].count, RANKS, rank);
        ek_sampler *sampler = ek_batch_sampler(samples, BATCH, cases[_i].drop_last);
        assert_made(sampler);
        for (int epoch = 0; epoch < EPOCHS; epoch++) {
            if (cases[_i].set_epoch)
                assert_ok(ek_sampler_set_epoch(sampler, epoch));
            read_pass(sampler, text, sizeof text);
            ck_assert_msg(strcmp(text, cases[_i].batches[epoch][rank]) == 0,
                          "case %s, epoch %d, rank %d: \"%s\"", cases[_i].name, epoch, rank, text);
        }
        ek_sampler_free(sampler);
    }
}
