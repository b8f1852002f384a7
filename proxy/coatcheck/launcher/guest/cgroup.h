/* Limits and freezing by cgroup v2, where this sandbox has it: /sys/fs/cgroup/commands and one below it for each
 * command. Where it has not, limits are rlimits and freezing is SIGSTOP. */
#ifndef CGROUP_H
#define CGROUP_H

#include <stdbool.h>
#include <stdint.h>

void cgroup_prepare(void);
bool cgroup_available(void);

/* For all commands together; 0 leaves it. False when the kernel refuses. */
bool cgroup_limit_all(int64_t memory, int64_t processes);

/* A command's own; false when there is none, and rlimits have to do. */
bool cgroup_make(uint32_t id, int64_t memory, int64_t processes);
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

/* All commands. False when they do not stand still (or move again). */
bool cgroup_freeze(bool frozen);

#endif
