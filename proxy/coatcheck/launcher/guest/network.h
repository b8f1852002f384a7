/* The guest's network: one loopback interface. Its rules come from the host (launcher/network.py); what commands
 * connect to is the proxy, anywhere (by the kernel's redirect), the resolver, the metadata service. Each connection is
 * a stream to the host, and so is each DNS query by UDP. */
#pragma once

#include "mux.h"

/* Control `netlink`: the host's messages (DATA, `length` bytes) go to the kernel, by `protocol`. */
void network_netlink(struct stream *, struct fields);

/* `KIND IDENTITY ADDRESS PORT`: take connections there, and with kind `dns` queries by UDP. An address of IPv6 that
 * this guest has not is no failure: it has no way out by it. False with errno. */
bool network_listen(const char *what);
/* Whether it listens anywhere. */
bool network_ready(void);

/* Host-opened: a connection to a server in this sandbox. */
void network_connect(struct stream *, struct fields);
