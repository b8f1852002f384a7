/* A socket and a stream, joined both ways. */
#ifndef RELAY_H
#define RELAY_H

#include "mux.h"

/* The stream's bytes go to `fd` and back, until both ends are over. */
void relay(struct stream *, int fd);

/* Host-opened: a connection to a server in this sandbox. */
void ingress_start(struct stream *, struct fields);

#endif
