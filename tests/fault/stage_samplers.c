/* stage_samplers.c: sampler.h: a pass, its state, and the state put back. */
#include "fault.h"

enum { SAMPLES = 12 };

static const int64_t indices[SAMPLES] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3};
static const double weights[SAMPLES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

typedef struct backwards {
    ek_sampler sampler;
} backwards;

static int64_t backwards_length(ek_sampler *sampler)
{
    return SAMPLES;
}

static int backwards_draw(ek_sampler *sampler, ek_pass *pass)
{
    for (int64_t i = SAMPLES; i-- > 0;)
        if (ek_pass_add(pass, i) < 0 || (i % 4 == 0 && ek_pass_end_batch(pass) < 0))
            return ek_error_status();
    return 0;
}

static const ek_sampler_type backwards_type = {.name = "backwards",
                                               .size = sizeof(backwards),
                                               .length = backwards_length,
                                               .draw = backwards_draw,
                                               .makes_batches = true};

#define SAMPLERS(X)                                                                            \
    X(own, ek_sampler_new(&backwards_type))                                                    \
    X(sequential, ek_sequential_sampler(SAMPLES))                                              \
    X(random, ek_random_sampler(SAMPLES, .num_samples = 15))                                   \
    X(replacement, ek_random_sampler(SAMPLES, .replacement = true))                            \
    X(subset, ek_subset_random_sampler(indices, SAMPLES, NULL))                                \
    X(weighted, ek_weighted_random_sampler(weights, SAMPLES, 9, NULL))                         \
    X(batches, ek_batch_sampler(ek_random_sampler(SAMPLES), 5, false))                         \
    X(distributed,                                                                             \
      ek_distributed_sampler(SAMPLES, .num_replicas = 5, .rank = 2, .automatic_epochs = true)) \
    X(identity, ek_random_identity_sampler(indices, SAMPLES, .num_instances = 2))              \
    X(distributed_identity,                                                                    \
      ek_distributed_random_identity_sampler(indices, SAMPLES, .num_instances = 2,             \
                                             .num_replicas = 2, .rank = 1))                    \
    X(inference, ek_distributed_inference_sampler(SAMPLES, 5, 4, true))

#define SAMPLER_FUNCTION(name, call)     \
    static ek_sampler *make_##name(void) \
    {                                    \
        return call;                     \
    }
SAMPLERS(SAMPLER_FUNCTION)

#define SAMPLER_ROW(name, call) {#name, make_##name},
static const struct {
    const char *name;
    ek_sampler *(*make)(void);
} rows[] = {SAMPLERS(SAMPLER_ROW)};

static void note_pass(const ek_pass *pass)
{
    fault_note_bytes(pass->indices, (size_t)pass->count * sizeof *pass->indices);
    fault_note_bytes(pass->ends, (size_t)pass->batches * sizeof *pass->ends);
    fault_note((double)pass->count);
}

/* One step into a pass. */
static int step_into(ek_sampler *sampler)
{
    const int64_t *batch;
    int64_t count, index;
    if (sampler->type->makes_batches)
        return ek_sampler_next_batch(sampler, &batch, &count);
    return ek_sampler_next(sampler, &index);
}

static int go_through(ek_sampler *sampler, ek_pass *pass)
{
    FAULT_TRY(ek_sampler_draw(sampler, pass));
    note_pass(pass);
    FAULT_TRY(ek_sampler_set_epoch(sampler, 3));
    FAULT_TRY(step_into(sampler));
    int64_t longest = ek_sampler_longest(sampler);
    if (longest < 0)
        return (int)longest;
    fault_note((double)longest);
    ek_value state = ek_sampler_state(sampler);
    FAULT_TRY(fault_note_value(state));
    FAULT_TRY(ek_sampler_load_state(sampler, state));
    return step_into(sampler);
}

static int samplers_attempt(int row)
{
    ek_pass pass = {0};
    ek_set_seed(7);
    ek_sampler *sampler = rows[row].make();
    int status = sampler ? go_through(sampler, &pass) : ek_error_status();
    ek_pass_free(&pass);
    ek_sampler_free(sampler);
    return status;
}

FAULT_STAGE(samplers, FAULT_ROWS(rows), .attempt = samplers_attempt);
