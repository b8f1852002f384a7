/* What makes this machine itself and no copy: chance, clock, name, generation. */
#ifndef PERSON_H
#define PERSON_H

#include <stdbool.h>
#include <stdint.h>

#include "fields.h"

/* `entropy`, `clock`, `hostname`, `machine-id`, those that are there. False, with which one failed. */
bool person_set(struct fields, const char **what);

/* The larger is the later: a fork's is larger than its parent's. */
int64_t person_generation(void);
bool person_new_generation(struct fields);

#endif
