/* identity.c: what ranks tell each other first: their machines' names and their builds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "evenkeel/version.h"
#include "link/communication.h"
#include "link/packet.h"
#include "link/rounds.h"

enum { IDENTITY_NAP = 50 }; /* microseconds between looks at messages */

/* Writes the name of this process's machine, or the name that the environment gives it. */
static void identity_name_host(char *host, size_t nbytes)
{
    const char *name = getenv("EVENKEEL_DIST_HOST");
    if (name && *name)
        snprintf(host, nbytes, "%s", name);
    else
        gethostname(host, nbytes - 1);
}

/* What ranks tell each other first. The struct keeps its size for ever, because ranks of other
 * versions read it. */
typedef struct ek_rank_identity {
    char host[64], build[192];
} ek_rank_identity;

/* Writes this rank's identity. The sizes of what ranks send tell builds of one version apart. */
static void identity_write(const ek_communication *communication, ek_rank_identity *identity)
{
    identity_name_host(identity->host, sizeof identity->host);
    snprintf(identity->build, sizeof identity->build,
             "Evenkeel %s (ABI %d, protocol %d-%zu-%zu-%zu) with %s", EK_VERSION, EK_ABI,
             EK_TRANSPORT_VERSION, sizeof(ek_packet), sizeof(ek_descriptor),
             sizeof(ek_agreement_block), communication->transport->name);
}

/* Takes the names of machines from the identities. Returns EK_E_BACKEND if the ranks' builds
 * differ. */
static int identities_read(ek_communication *communication, const ek_rank_identity *identities)
{
    int size = communication->place.size;
    for (int r = 0; r < size; r++)
        memcpy(communication->hosts[r], identities[r].host, sizeof identities[r].host - 1);
    for (int r = 1; r < size; r++)
        if (strncmp(identities[r].build, identities[0].build, sizeof identities[r].build) != 0)
            return EK_FAIL(EK_E_BACKEND,
                           "rank 0 on %s runs %.180s, rank %d on %s %.180s; all ranks need one "
                           "build of the library and one MPI",
                           communication->hosts[0], identities[0].build, r, communication->hosts[r],
                           identities[r].build);
    return 0;
}

int ek_identities_gather(ek_communication *communication)
{
    const ek_transport *transport = communication->transport;
    size_t size = (size_t)communication->place.size;
    communication->hosts = ek_calloc(size, sizeof *communication->hosts);
    ek_rank_identity *identities = ek_calloc(size, sizeof *identities);
    communication->identities = identities;
    size_t *bounds = ek_calloc(size + 1, sizeof *bounds);
    if (communication->hosts && identities && bounds) {
        for (size_t r = 0; r <= size; r++)
            bounds[r] = r * sizeof *identities;
        identity_write(communication, &identities[communication->place.rank]);
        const ek_process_group all = {.communication = communication,
                                      .communicator = communication->everybody,
                                      .rank = communication->place.rank,
                                      .size = communication->place.size};
        ek_rounds rounds = {0};
        int rc = ek_rounds_gather(&rounds, &all, EK_ROUNDS_TAG, identities, bounds);
        while (rc == 0 && (rc = ek_rounds_test(&rounds, &all)) == 0)
            usleep(IDENTITY_NAP);
        if (rc < 0)
            EK_FAIL(EK_E_BACKEND, "%s cannot carry names of machines: %s", transport->name,
                    transport->reason(rc));
        else
            identities_read(communication, identities);
    }
    free(bounds);
    return ek_error_status();
}
