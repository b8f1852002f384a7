/* The event loop: one thread, epoll, one-shot events. Nothing in the agent ever blocks on a descriptor. And buffers,
 * each bounded by what fills it: by a stream's credit, or by a constant. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
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

/* Stop watching: hand the descriptor back, or close it. */
int loop_release(struct watch *);
void loop_close(struct watch *);

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
void *allocate(size_t size);

struct buffer {
    uint8_t *bytes;
    size_t start, end, size;
};

static inline size_t buffer_length(const struct buffer *buffer)
{
    return buffer->end - buffer->start;
}

static inline uint8_t *buffer_front(const struct buffer *buffer)
{
    return buffer->bytes + buffer->start;
}

/* Room for `length` more bytes at the end; the caller adds what it wrote to `end`. */
uint8_t *buffer_room(struct buffer *, size_t length);
void buffer_add(struct buffer *, const void *bytes, size_t length);
void buffer_drop(struct buffer *, size_t length);
void buffer_clear(struct buffer *);
