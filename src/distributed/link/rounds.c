/* rounds.c: see rounds.h. */
#include "link/rounds.h"

#include "link/communication.h"

static bool rounds_are_aligned(const ek_process_group *group)
{
    return (group->size & (group->size - 1)) == 0;
}

/* Returns the rank from which this rank receives in a step. For -step returns the rank to which
 * this rank sends. */
static int rounds_peer(const ek_process_group *group, int step)
{
    int size = group->size;
    if (rounds_are_aligned(group))
        return group->rank ^ (step < 0 ? -step : step);
    return (group->rank + size + step) % size;
}

static int rounds_message(ek_rounds *rounds, const ek_process_group *group, bool send, void *data,
                          size_t nbytes, int peer)
{
    const ek_transport *transport = group->communication->transport;
    ek_request **request = &rounds->requests[rounds->open];
    int rc =
        send ? transport->send(group->communicator, data, nbytes, peer, rounds->tag, request)
             : transport->receive(group->communicator, data, nbytes, peer, rounds->tag, request);
    rounds->open += rc >= 0;
    return rc;
}

/* Sends the blocks that the peer, `step` ranks away, lacks. If not `send`, receives the blocks that
 * this rank lacks. If blocks wrap around from the last rank to rank 0, they are two messages. */
static int rounds_move(ek_rounds *rounds, const ek_process_group *group, bool send, int peer,
                       int step)
{
    const size_t *at = rounds->at;
    int owner = send ? group->rank : peer, size = group->size, have = rounds->have;
    int begin = rounds_are_aligned(group) ? owner & ~(have - 1) : owner;
    int over = begin + (have < size - step ? have : size - step) - size;
    size_t end = at[over < 0 ? size + over : size];
    int rc = rounds_message(rounds, group, send, rounds->blocks + at[begin], end - at[begin], peer);
    if (rc >= 0 && over > 0)
        rc = rounds_message(rounds, group, send, rounds->blocks + at[0], at[over] - at[0], peer);
    return rc;
}

/* Starts the transfers of a round, the receives first. */
static int rounds_begin(ek_rounds *rounds, const ek_process_group *group)
{
    int rc = 0, have = rounds->have, room = ek_rounds_room(group->size);
    for (int sends = 0; sends < 2; sends++)
        for (int d = 1; d < room && d * have < group->size && rc >= 0; d++) {
            int peer = rounds_peer(group, sends ? -d * have : d * have);
            if (rounds->combine)
                rc = rounds_message(rounds, group, sends,
                                    rounds->blocks + (sends ? 0 : (size_t)d * rounds->nbytes),
                                    rounds->nbytes, peer);
            else
                rc = rounds_move(rounds, group, sends, peer, d * have);
        }
    return rc;
}

int ek_rounds_gather(ek_rounds *rounds, const ek_process_group *group, int tag, void *all,
                     const size_t *at)
{
    *rounds = (ek_rounds){.blocks = all, .at = at, .tag = tag, .have = 1};
    return rounds_begin(rounds, group);
}

int ek_rounds_reduce(ek_rounds *rounds, const ek_process_group *group, int tag, void *blocks,
                     size_t nbytes, ek_rounds_combine *combine)
{
    *rounds =
        (ek_rounds){.blocks = blocks, .nbytes = nbytes, .combine = combine, .tag = tag, .have = 1};
    return rounds_begin(rounds, group);
}

int ek_rounds_test(ek_rounds *rounds, const ek_process_group *group)
{
    const ek_transport *transport = group->communication->transport;
    int rc = 1, room = ek_rounds_room(group->size);
    while (rounds->have < group->size) {
        while (rounds->open > 0 && rc > 0)
            if ((rc = transport->test(&rounds->requests[rounds->open - 1], NULL)) != 0)
                rounds->open--;
        if (rc <= 0)
            return rc;
        for (int d = 1; d < room && rounds->combine; d++)
            rounds->combine(rounds->blocks, rounds->blocks + (size_t)d * rounds->nbytes,
                            rounds->nbytes);
        rounds->have *= room;
        if (rounds->have < group->size && (rc = rounds_begin(rounds, group)) < 0)
            return rc;
        rc = 1;
    }
    rounds->have = 0;
    return 1;
}
