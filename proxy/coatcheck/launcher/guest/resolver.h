/* DNS over UDP: each query is a stream of its own, its answer goes back where it came from. */
#ifndef RESOLVER_H
#define RESOLVER_H

#include <netinet/in.h>
#include <stdbool.h>

bool resolver_start(unsigned identity, const char *address, in_port_t port);

#endif
