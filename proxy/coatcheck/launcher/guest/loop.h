/* The event loop: one thread, epoll, one-shot events. Nothing in the agent ever blocks on a descriptor. */
#ifndef LOOP_H
#define LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct watch {
    int fd; /* -1: nothing is watched */
    uint32_t armed;
    void *owner;
    void (*ready)(struct watch *, uint32_t events);
};

void loop_start(void);

/* From now on `ready` may be called, once for each `loop_arm`. */
void loop_watch(struct watch *, int fd, void *owner, void (*ready)(struct watch *, uint32_t events));

/* Call `ready` once when one of `events` is there (or an error, or a hang-up). */
void loop_arm(struct watch *, uint32_t events);

/* Stop watching, and close the descriptor. */
void loop_close(struct watch *);

/* Stop watching, and hand the descriptor back. */
int loop_release(struct watch *);

/* What holds a watch begins with this, and is freed once no event of this round can point at it. */
struct freeable {
    struct freeable *next;
};
void loop_free(struct freeable *);

/* Wait for events and serve them, once. */
void loop_round(void);

/* In a microVM the agent's end is the machine's; in a namespace it is the namespace's anyway. */
extern bool machine;
__attribute__((noreturn)) void power_off(int code);

/* Say why and end the sandbox: the agent is all that it has. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

/* calloc that never fails: an agent without memory can do nothing but end. */
void *allocate(uint64_t size);

#endif
