/* fake_plugin.c: plugins for test_launcher.c. FAKE_VERSION is the version that one says it has;
 * without it there is no transport in the plugin. */
#include "link/transport.h"

#ifdef FAKE_VERSION
__attribute__((visibility("default"))) const ek_transport *ek_transport_of_plugin(void);

const ek_transport *ek_transport_of_plugin(void)
{
    static const ek_transport transport = {.version = FAKE_VERSION, .name = "a fake"};
    return &transport;
}
#else
__attribute__((visibility("default"))) int fake_plugin;
int fake_plugin = 1;
#endif
