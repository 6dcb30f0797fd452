/* simulate.c: see simulate.h. */
#include "simulate.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "group/sum_schedule.h"

/* ---- costs ---- */

const char *const sim_sum_names[SIM_SUMS] = {"tree", "sent", "ring", "library"};

/* The ranks of one node, and the nodes. */
static double sim_node_ranks(const sim_cluster *cluster, int ranks)
{
    return cluster->per_node < ranks ? cluster->per_node : ranks;
}

static double sim_nodes(const sim_cluster *cluster, int ranks)
{
    return ceil(ranks / sim_node_ranks(cluster, ranks));
}

static double sim_message(const sim_link *link, double nbytes)
{
    return link->latency + nbytes * link->per_byte;
}

double sim_call_cost(const sim_cluster *cluster, int ranks, double nbytes)
{
    return ceil(log2(sim_node_ranks(cluster, ranks))) * sim_message(&cluster->local, nbytes) +
           ceil(log2(sim_nodes(cluster, ranks))) * sim_message(&cluster->network, nbytes);
}

/* ---- the tree ---- */

/* What rank 0 sends or receives in a level: messages, and their share of all elements. */
typedef struct sim_traffic {
    double messages, share;
} sim_traffic;

enum { SIM_UNITS = 1024 }; /* of elements, for each rank */

/* Adds the elements that other ranks than rank 0 own in the node. */
static void sim_count(const ek_sum_node *node, int64_t count, ek_interval elements,
                      sim_traffic *sum)
{
    while (elements.begin < elements.end) {
        ek_interval part;
        int owner = node->owners[ek_sum_node_find(node, count, elements.begin, &part)];
        part = ek_interval_meet(part, elements);
        elements.begin = part.end;
        sum->messages += owner != 0;
        sum->share += owner != 0 ? (double)(part.end - part.begin) / (double)count : 0;
    }
}

/* Adds a level's seconds. */
static void sim_add_level(const sim_cluster *cluster, const ek_sum_level *level, int64_t count,
                          sim_link link, double nbytes, sim_cost *cost)
{
    sim_traffic out = {0}, in = {0};
    ek_interval slice = ek_sum_node_slice(&level->node, count, 0);
    sim_count(&level->node, count, ek_sum_node_slice(&level->sides[level->own], count, 0), &out);
    for (int s = 0; s < level->count; s++)
        sim_count(&level->sides[s], count, slice, &in);
    double seconds = fmax(out.messages, in.messages) * link.latency +
                     fmax(out.share, in.share) * nbytes * link.per_byte;
    cost->spread += seconds;
    cost->collect += seconds;
    cost->add += (level->count - 1) * (double)(slice.end - slice.begin) / (double)count * nbytes *
                 cluster->add;
}

static sim_cost sim_tree_cost(const sim_cluster *cluster, int ranks, double nbytes, bool shares)
{
    const int inside = (int)sim_node_ranks(cluster, ranks);
    const int block = inside == ranks || (inside & (inside - 1)) == 0 ? inside : 1;
    const int64_t count = (int64_t)SIM_UNITS * EK_SUM_UNIT * ranks;
    const bool shared = shares && block > 1 && cluster->shared > 0;
    sim_link network = {cluster->network.latency, cluster->network.per_byte * inside};
    sim_cost cost = {.add = shared ? nbytes * cluster->shared : 0};
    ek_sum_schedule *schedule =
        ek_sum_schedule_new(ranks, 0, block, shared ? EK_SUM_SHARED : EK_SUM_SENT);
    if (!schedule)
        return (sim_cost){NAN, NAN, NAN};
    for (int i = 0; i < schedule->count; i++) {
        const ek_sum_level *level = &schedule->levels[i];
        sim_add_level(cluster, level, count, level->node.size <= block ? cluster->local : network,
                      nbytes, &cost);
    }
    free(schedule);
    return cost;
}

/* ---- other sums ---- */

/* A message from each rank to the next, of which one leaves each node: the slowest of them. */
static double sim_ring_message(const sim_cluster *cluster, int ranks, double nbytes)
{
    double far = sim_nodes(cluster, ranks) > 1 ? sim_message(&cluster->network, nbytes) : 0;
    double near = sim_node_ranks(cluster, ranks) > 1 ? sim_message(&cluster->local, nbytes) : 0;
    return fmax(far, near);
}

/* Halving is from near to far: vectors that pass between nodes, from all ranks of a node at a time,
 * are the shortest. Ranks beyond the last power of two give theirs away before, and get the sum
 * after. */
static double sim_halving_cost(const sim_cluster *cluster, int ranks, double nbytes, bool doubling)
{
    double inside = sim_node_ranks(cluster, ranks), nodes = sim_nodes(cluster, ranks);
    double power = exp2(floor(log2(ranks))), rounds[2] = {floor(log2(nodes)), log2(power)};
    rounds[1] -= rounds[0];
    double far = cluster->network.per_byte * inside, near = cluster->local.per_byte, seconds;
    double latency = rounds[0] * cluster->network.latency + rounds[1] * cluster->local.latency;
    if (doubling) {
        seconds = latency + rounds[0] * nbytes * far + rounds[1] * nbytes * near +
                  log2(power) * nbytes * cluster->add;
    } else {
        double left = exp2(-rounds[1]);
        seconds = 2 * latency + 2 * (1 - left) * nbytes * near +
                  2 * (left - 1 / power) * nbytes * far + (1 - 1 / power) * nbytes * cluster->add;
    }
    if (ranks > power)
        seconds += 2 * sim_ring_message(cluster, ranks, nbytes) + nbytes * cluster->add;
    return seconds;
}

static sim_cost sim_library_cost(const sim_cluster *cluster, int ranks, double nbytes)
{
    double slice = nbytes / ranks;
    double ring =
        (ranks - 1) * (2 * sim_ring_message(cluster, ranks, slice) + slice * cluster->add);
    double halving = sim_halving_cost(cluster, ranks, nbytes, false);
    double doubling = sim_halving_cost(cluster, ranks, nbytes, true);
    return (sim_cost){.spread = fmin(ring, fmin(halving, doubling))};
}

sim_cost sim_sum_cost(const sim_cluster *cluster, sim_sum sum, int ranks, double nbytes)
{
    if (ranks == 1)
        return (sim_cost){0};
    double slice = nbytes / ranks, exchange;
    switch (sum) {
    case SIM_TREE:
    case SIM_SENT:
        return sim_tree_cost(cluster, ranks, nbytes, sum == SIM_TREE);
    case SIM_LIBRARY:
        return sim_library_cost(cluster, ranks, nbytes);
    case SIM_RING:
        exchange = (ranks - 1) * sim_ring_message(cluster, ranks, slice);
        return (sim_cost){exchange, (ranks - 1) * slice * cluster->add, exchange};
    default:
        return (sim_cost){NAN, NAN, NAN};
    }
}

/* From rank 0 to all, by a binomial tree (Thakur, Rabenseifner and Gropp 2005). */
static double sim_broadcast_cost(const sim_cluster *cluster, int ranks, double nbytes)
{
    return ceil(log2(ranks)) * sim_ring_message(cluster, ranks, nbytes);
}

/* ---- the schedule: Note [Schedule of a simulated step] ---- */

/* The stages of an item: a bucket, the agreement before the first, or the reports after the last.
 */
typedef enum sim_stage {
    SIM_WAITS,
    SIM_SPREADS,
    SIM_ADDS,
    SIM_ADDED,
    SIM_COLLECTS,
    SIM_ENDED
} sim_stage;

typedef struct sim_item {
    double ready; /* seconds of backward */
    sim_cost cost;
    sim_stage stage;
    double turn, left; /* seconds of the stage that are left: before the link is asked for, then */
    int began;         /* the number of the transfer, by which the link is taken in turn */
} sim_item;

enum { SIM_MOST_ITEMS = SIM_MOST_BUCKETS + 2 };

typedef struct sim_state {
    const sim_profile *profile;
    const sim_cluster *cluster;
    double slower;  /* the slowest rank's seconds, over the mean */
    double on_node; /* ranks */
    int in_flight, item_count;
    sim_item items[SIM_MOST_ITEMS];
    int spread, collected;      /* items of which the transfers have begun */
    int began;                  /* transfers */
    double clock, computed;     /* since the backward's begin; `computed` is the mean rank's */
    sim_item *on_link, *adding; /* who has the link, and for whom the thread adds */
} sim_state;

static const double sim_instant = 1e-12; /* seconds: less is nothing */

static void sim_fill(sim_state *state, sim_run run)
{
    const sim_profile *profile = state->profile;
    state->items[0].cost.spread =
        sim_call_cost(state->cluster, run.ranks, profile->descriptor_nbytes);
    for (int b = 0; b < profile->bucket_count; b++) {
        sim_item *item = &state->items[b + 1];
        item->ready = fmin(profile->buckets[b].ready, profile->backward);
        item->cost = sim_sum_cost(state->cluster, run.sum, run.ranks, profile->buckets[b].nbytes);
    }
    state->item_count = profile->bucket_count + 2;
    sim_item *report = &state->items[state->item_count - 1];
    report->ready = profile->backward;
    report->cost.spread = sim_call_cost(state->cluster, run.ranks, profile->report_nbytes);
}

/* The agreement ends before the first bucket begins, the last bucket before the reports begin. */
static bool sim_is_barrier(const sim_state *state, int i)
{
    return i == 1 || i == state->item_count - 1;
}

static bool sim_may_spread(const sim_state *state, int i)
{
    if (state->computed < state->items[i].ready - sim_instant)
        return false;
    int after = sim_is_barrier(state, i) ? i - 1 : i - state->in_flight;
    for (int k = 0; k <= after; k++)
        if (state->items[k].stage != SIM_ENDED)
            return false;
    return true;
}

static void sim_begin(sim_state *state, sim_item *item, sim_stage stage, double seconds)
{
    item->stage = stage;
    item->turn = state->cluster->turn;
    item->left = seconds;
    item->began = state->began++;
}

/* Begins the next call if it may begin: calls keep their order. */
static bool sim_begin_next(sim_state *state)
{
    int first = state->collected, next = state->spread;
    int room = next < state->item_count && sim_is_barrier(state, next) ? 1 : state->in_flight;
    if (next < state->item_count && next < first + room) {
        if (!sim_may_spread(state, next))
            return false;
        sim_begin(state, &state->items[next], SIM_SPREADS, state->items[next].cost.spread);
        state->spread++;
        return true;
    }
    if (first == state->item_count || state->items[first].stage != SIM_ADDED)
        return false;
    sim_item *item = &state->items[first];
    state->collected++;
    if (item->cost.collect > 0)
        sim_begin(state, item, SIM_COLLECTS, item->cost.collect);
    else
        item->stage = SIM_ENDED;
    return true;
}

/* Ends stages of which nothing is left; true if there was one. */
static bool sim_end_stages(sim_state *state)
{
    bool any = false;
    for (int i = 0; i < state->item_count; i++) {
        sim_item *item = &state->items[i];
        bool moves = item->stage == SIM_SPREADS || item->stage == SIM_COLLECTS;
        if ((!moves && item->stage != SIM_ADDS) || item->turn > sim_instant ||
            item->left > sim_instant)
            continue;
        any = true;
        if (item->stage == SIM_SPREADS) {
            item->stage = SIM_ADDS;
            item->left = item->cost.add;
        } else {
            item->stage = item->stage == SIM_ADDS ? SIM_ADDED : SIM_ENDED;
        }
    }
    return any;
}

/* Who works now: the addition of the first bucket that has one, and the transfer that has waited
 * longest; the thread that adds copies nothing meanwhile. */
static void sim_choose(sim_state *state)
{
    state->on_link = state->adding = NULL;
    for (int i = 0; i < state->item_count; i++) {
        sim_item *item = &state->items[i];
        if (item->stage == SIM_ADDS && !state->adding)
            state->adding = item;
        if ((item->stage == SIM_SPREADS || item->stage == SIM_COLLECTS) &&
            item->turn <= sim_instant && (!state->on_link || item->began < state->on_link->began))
            state->on_link = item;
    }
    if (state->adding && state->cluster->load > 0)
        state->on_link = NULL;
}

/* The share of a core that each thread of the node has. */
static double sim_share(const sim_cluster *cluster, double on_node, bool computes, double load)
{
    double wanted = on_node * (computes ? cluster->threads + load : load);
    return cluster->cores > 0 && wanted > cluster->cores ? cluster->cores / wanted : 1;
}

static double sim_next_ready(const sim_state *state)
{
    double next = state->profile->backward;
    for (int i = state->spread; i < state->item_count; i++)
        if (state->items[i].ready > state->computed + sim_instant && state->items[i].ready < next)
            next = state->items[i].ready;
    return next;
}

/* Goes on to the next moment at which something becomes ready or ends. */
static void sim_advance(sim_state *state)
{
    bool computes = state->computed < state->profile->backward - sim_instant;
    double load = state->adding ? 1 : state->on_link ? state->cluster->load : 0;
    double share = sim_share(state->cluster, state->on_node, computes, load);
    double computing = share / state->slower;
    double moving = 1 / (1 - load + load / share);
    double seconds = INFINITY;
    if (computes)
        seconds = (sim_next_ready(state) - state->computed) / computing;
    if (state->adding)
        seconds = fmin(seconds, state->adding->left / share);
    if (state->on_link)
        seconds = fmin(seconds, state->on_link->left / moving);
    for (int i = 0; i < state->item_count; i++)
        if (state->items[i].turn > sim_instant)
            seconds = fmin(seconds, state->items[i].turn);
    state->clock += seconds;
    if (computes)
        state->computed += seconds * computing;
    if (state->adding)
        state->adding->left -= seconds * share;
    if (state->on_link)
        state->on_link->left -= seconds * moving;
    for (int i = 0; i < state->item_count; i++)
        if (state->items[i].turn > sim_instant)
            state->items[i].turn -= seconds;
}

/* Seconds of the backward and the averaging; those after backward's own work in *exposed. `state`
 * is that of the beginning. */
static double sim_backward(sim_state state, double slower, double *exposed)
{
    const sim_profile *profile = state.profile;
    state.slower = slower;
    double computed_at = 0;
    for (;;) {
        while (sim_end_stages(&state) || sim_begin_next(&state)) {
        }
        bool computes = state.computed < profile->backward - sim_instant;
        if (!computes && state.items[state.item_count - 1].stage == SIM_ENDED)
            break;
        sim_choose(&state);
        sim_advance(&state);
        if (computes)
            computed_at = state.clock;
    }
    *exposed = state.clock - computed_at;
    return state.clock;
}

/* ---- steps ---- */

/* splitmix64 (Steele, Lea and Flood 2014), as a number in (0, 1). */
static double sim_uniform(uint64_t *seed)
{
    uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return ((double)(z >> 11) + 0.5) * 0x1p-53;
}

/* The largest of the ranks' draws (Box and Muller 1958). */
static double sim_slowest(sim_run run, uint64_t *seed)
{
    double most = -INFINITY;
    for (int r = 0; r < run.ranks; r++) {
        double radius = sqrt(-2 * log(sim_uniform(seed)));
        double deviate = radius * cos(6.283185307179586 * sim_uniform(seed));
        most = fmax(most, deviate);
    }
    return exp(run.sigma * most - run.sigma * run.sigma / 2);
}

/* Rank 0's buffers, which all ranks wait for. */
static double sim_buffers(const sim_profile *profile, const sim_cluster *cluster, int ranks)
{
    if (profile->buffer_nbytes <= 0)
        return 0;
    return 2 * cluster->turn + sim_call_cost(cluster, ranks, profile->descriptor_nbytes) +
           sim_broadcast_cost(cluster, ranks, profile->buffer_nbytes);
}

sim_result sim_simulate(const sim_profile *profile, const sim_cluster *cluster, sim_run run)
{
    double own = profile->forward + profile->backward + profile->optimizer;
    double share = sim_share(cluster, sim_node_ranks(cluster, run.ranks), true, 0);
    uint64_t seed = run.seed;
    sim_result result = {0};
    sim_state state = {.profile = profile,
                       .cluster = cluster,
                       .on_node = sim_node_ranks(cluster, run.ranks),
                       .in_flight = run.in_flight};
    sim_fill(&state, run);
    for (int i = 0; i < run.steps; i++) {
        double slower = sim_slowest(run, &seed), exposed = 0;
        double beside = (profile->forward + profile->optimizer) * slower / share;
        if (run.ranks == 1) {
            result.step += beside + profile->backward * slower / share;
            continue;
        }
        result.step += beside + sim_buffers(profile, cluster, run.ranks) +
                       sim_backward(state, slower, &exposed);
        result.exposed += exposed;
    }
    result.step /= run.steps;
    result.exposed /= run.steps;
    result.efficiency = own / result.step;
    return result;
}
