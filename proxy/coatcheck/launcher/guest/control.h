/* What the host orders: `control` streams. */
#ifndef CONTROL_H
#define CONTROL_H

#include "mux.h"

/* How the network was closed; told by `configure`. */
void control_network(bool redirected, const char *why);
void control_start(struct stream *, struct fields);

/* It was done; it was not, for the reason that errno says. */
void control_answer(struct stream *);
void control_failed(struct stream *, const char *what);

/* What a layer above adds (durable/guest); without it there is none. */
#define WEAK __attribute__((weak))
/* Another operation. False: there is none of that name. */
WEAK bool control_more(const char *op, struct stream *, struct fields);
/* A host begins anew: until its `rebind` there is nothing but control. False when the sandbox is not frozen. */
WEAK bool control_resync(void);
WEAK bool control_unbound(void);

#endif
