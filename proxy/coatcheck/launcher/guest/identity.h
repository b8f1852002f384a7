/* Whose commands and connections they are: names that the host gave, each with a uid of its own. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "fields.h"

#define MAX_IDENTITIES 8

struct identity {
    char name[33];
    uid_t uid;
    gid_t gid;
    bool switches; /* commands change to this uid; false where there is only our own */
};

/* From the host's HELLO: `agent:1000,tool:1001`. False when that cannot be had, with why. */
bool identities_set(const char *list, const char **why);
unsigned identities_count(void);
const struct identity *identity_at(unsigned which);

/* Which one has that name. False: none. */
bool identity_index(const char *name, unsigned *which);
/* Field `identity`, or the default one; NULL when there is none of that name. */
const struct identity *identity_of(struct fields);

/* The agent itself. */
extern const struct identity identity_own;

/* In a child: become it, without capabilities or a way to gain any. False with errno. */
bool identity_become(const struct identity *);
