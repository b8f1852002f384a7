/* The kernel's rules that lead every connection of a command to this agent, by the uid that made it. */
#ifndef REDIRECT_H
#define REDIRECT_H

#include <stdbool.h>

/* False with errno: then no rule is there. */
bool redirect_rules(void);

#endif
