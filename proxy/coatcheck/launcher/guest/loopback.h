/* The guest's only network interface. */
#ifndef LOOPBACK_H
#define LOOPBACK_H

#include <stdbool.h>

bool loopback_up(void);

/* A route for every address, so that a connection to it gets as far as the redirect. IPv4 must work; without IPv6
 * such addresses stay unreachable. */
bool loopback_routes(void);

/* Without the redirect: the metadata service's addresses. */
bool loopback_metadata_addresses(void);

#endif
