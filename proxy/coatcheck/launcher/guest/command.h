/* Child processes: commands, and workers of our own (file transfers) that run as an identity. */
#ifndef COMMAND_H
#define COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "identity.h"
#include "mux.h"

/* What a child that could not do its work leaves behind, in memory that it shares with us. */
struct failure {
    int error;
    char what[160];
    int64_t written; /* of a file */
};

/* A worker's whole life, in the child. It never returns. */
typedef void worker(struct fields, struct failure *);

void command_start(struct stream *, struct fields);
/* `stdin_too`: the host's bytes are its standard input; its output goes to the host in any case. */
void worker_start(struct stream *, struct fields, worker *, bool stdin_too);

/* SIGCHLD came. */
void command_reap(void);
/* Called once, before the first command. */
void command_prepare(void);

/* From now on the largest command is killed when all of them stand still for want of memory. */
void command_watch_memory(void);

/* While frozen, or in a fork until its thaw, no command starts; after its rebind files may be written. */
enum hold { HOLD_NOTHING, HOLD_COMMANDS, HOLD_ALL };
void command_hold(enum hold);
enum hold command_held(void);

/* For children: say why and end. */
__attribute__((noreturn, format(printf, 2, 3))) void fail(struct failure *, const char *format, ...);

#endif
