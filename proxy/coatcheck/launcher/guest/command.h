/* Child processes: commands, and workers of our own (file transfers) that run as an identity. */
#pragma once

#include <sys/types.h>

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
worker file_read, file_write;

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

/* ------------------------------------------------------------- one fork (spawn.c) */

struct spawn {
    struct fields fields;
    const struct identity *who;
    worker *work; /* NULL: exec `arg`* */
    bool wants_terminal, no_input, cgroup;
    unsigned short rows, columns;
    uint32_t id;
    /* Our ends, non-blocking; -1 when there is none. */
    int input, output, errors, terminal;
};

/* Descriptors before the fork, and all that the child gives up after it. The child's number, or -1 with errno. */
pid_t spawn_child(struct spawn *, struct failure *);

/* For children: say why and end. */
__attribute__((noreturn, format(printf, 2, 3))) void fail(struct failure *, const char *format, ...);

/* ------------------------------------------------------------- limits (cgroup.c)
 *
 * By cgroup v2 in a microVM: /sys/fs/cgroup/commands and one below it for each command. */

void cgroup_prepare(void);
bool cgroup_available(void);

/* For all commands together; 0 leaves it. False when the kernel refuses. */
bool cgroup_limit_all(int64_t memory, int64_t processes);

/* A command's own; false when there is none. */
bool cgroup_make(uint32_t id);
/* In the child, before it gives its rights up. */
bool cgroup_enter(uint32_t id);
void cgroup_kill(uint32_t id);
/* `memory`, `processes` or NULL: what the command's processes ran into. */
const char *cgroup_limit_hit(uint32_t id);
/* Memory is used up by what cannot be thrown away: the largest command is killed. Its number, or 0: all is well. */
uint32_t cgroup_relieve(void);
/* A descriptor that has EPOLLPRI when commands stand still for want of memory; -1 when there is none. */
int cgroup_pressure(void);
/* Removed as soon as its last process is gone: now, or at a later call of `cgroup_sweep`. */
void cgroup_remove(uint32_t id);
void cgroup_sweep(void);

/* A file of a control group: written; the number behind `key` in it, or its own number without one, or -1. */
#define COMMANDS "/sys/fs/cgroup/commands"
bool cgroup_put(const char *directory, const char *file, const char *text);
int64_t cgroup_get(const char *directory, const char *file, const char *key);
