/* How a child ended, in the protocol's words. */
#ifndef OUTCOME_H
#define OUTCOME_H

#include "command.h"

/* A command ran: its exit code or signal, and the limit that it hit, if any is known or its disk is full. */
void outcome_of_command(struct stream *, int status, const char *limit, const char *directory);

/* A transfer (or a command that could not be started): done, or why not. */
void outcome_of_worker(struct stream *, const struct failure *, int status, bool transfer);

#endif
