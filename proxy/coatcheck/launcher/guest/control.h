/* What the host orders: `control` streams. */
#ifndef CONTROL_H
#define CONTROL_H

#include "stream.h"

/* How the network was closed; told by `configure`. */
void control_network(bool redirected, const char *why);
void control_start(struct stream *, struct fields);

#endif
