/* What the host orders: `control` streams. */
#ifndef CONTROL_H
#define CONTROL_H

#include "stream.h"

/* How the network was closed; told by `configure`. */
void control_network(bool redirected, const char *why);
void control_start(struct stream *, struct fields);

/* A host begins anew: until its `rebind` there is nothing but control. False when the sandbox is not frozen. */
bool control_resync(void);
bool control_unbound(void);

#endif
