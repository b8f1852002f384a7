/* One fork: descriptors before it, and everything that the child gives up after it. */
#ifndef SPAWN_H
#define SPAWN_H

#include "command.h"

struct spawn {
    struct fields fields;
    const struct identity *who;
    worker *work; /* NULL: exec `arg`* */
    bool wants_terminal, no_input, cgroup;
    unsigned short rows, columns;
    int64_t memory, processes; /* 0: no limit of its own */
    uint32_t id;
    /* Our ends, non-blocking; -1 when there is none. */
    int input, output, errors, terminal;
};

/* The child's number, or -1 with errno. */
pid_t spawn_child(struct spawn *, struct failure *);

#endif
