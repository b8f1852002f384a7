/* What the host orders: `control` streams. */
#pragma once

#include "mux.h"

void control_start(struct stream *, struct fields);

/* It was not done, for the reason that errno says. */
void control_failed(struct stream *, const char *what);

/* `entropy`, `clock`, `hostname`, those that are there. False with errno, and which one failed. */
bool control_set(struct fields, const char **what);

/* What a layer above adds (durable/guest); without it there is none. */
#define WEAK __attribute__((weak))
/* The host's HELLO. False with what is wrong with it. */
WEAK bool control_greeted(struct fields, const char **why);
/* Another operation. False: there is none of that name. */
WEAK bool control_more(const char *op, struct stream *, struct fields);
/* A host begins anew: until its `rebind` there is nothing but control. False when the sandbox is not frozen. */
WEAK bool control_resync(void);
WEAK bool control_unbound(void);
