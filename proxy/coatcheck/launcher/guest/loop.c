#include "loop.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/reboot.h>
#include <unistd.h>

#define EVENTS 64
#define KEPT 4096 /* an empty buffer larger than this gives its memory back */

bool machine = true;

static int epoll = -1;
static struct freeable *garbage;

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    dprintf(STDERR_FILENO, "coatcheck agent: ");
    vdprintf(STDERR_FILENO, format, arguments);
    dprintf(STDERR_FILENO, "\n");
    va_end(arguments);
    power_off(1);
}

void power_off(int code)
{
    if (machine)
        reboot(RB_POWER_OFF);
    _exit(code);
}

void *allocate(size_t size)
{
    void *memory = calloc(1, size);
    if (!memory)
        die("out of memory");
    return memory;
}

void loop_start(void)
{
    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        die("epoll: %s", strerror(errno));
}

void loop_watch(struct watch *watch, int fd, void *owner, void (*ready)(struct watch *, uint32_t events))
{
    /* Registered, and disarmed as an event that has fired leaves it: even hang-ups are not told. */
    struct epoll_event event = {.events = EPOLLONESHOT, .data.ptr = watch};
    *watch = (struct watch){.fd = fd, .owner = owner, .ready = ready};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        die("epoll add: %s", strerror(errno));
}

void loop_arm(struct watch *watch, uint32_t events)
{
    /* Wanting less than before is not told to the kernel: the event that comes too much is harmless. */
    if (watch->fd < 0 || !(events & ~watch->armed))
        return;
    watch->armed |= events;
    struct epoll_event event = {.events = watch->armed | EPOLLONESHOT, .data.ptr = watch};
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, watch->fd, &event))
        die("epoll modify: %s", strerror(errno));
}

int loop_release(struct watch *watch)
{
    int fd = watch->fd;
    if (fd >= 0)
        epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
    watch->fd = -1;
    watch->armed = 0;
    return fd;
}

void loop_close(struct watch *watch)
{
    int fd = loop_release(watch);
    if (fd >= 0)
        close(fd);
}

void loop_free(struct freeable *memory)
{
    memory->next = garbage;
    garbage = memory;
}

void loop_round(void)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(epoll, events, EVENTS, -1);
    if (count < 0 && errno != EINTR)
        die("epoll wait: %s", strerror(errno));
    for (int at = 0; at < count; at++) {
        struct watch *watch = events[at].data.ptr;
        if (watch->fd < 0)
            continue; /* closed by an earlier event of this round */
        watch->armed = 0;
        watch->ready(watch, events[at].events);
    }
    while (garbage) {
        struct freeable *next = garbage->next;
        free(garbage);
        garbage = next;
    }
}

/* ------------------------------------------------------------------------------- bytes that wait */

uint8_t *buffer_room(struct buffer *buffer, size_t length)
{
    size_t used = buffer_length(buffer);
    if (buffer->size - buffer->end < length && buffer->start) {
        memmove(buffer->bytes, buffer_front(buffer), used);
        buffer->start = 0;
        buffer->end = used;
    }
    if (buffer->size - buffer->end < length) {
        size_t size = buffer->size ? buffer->size : 512;
        while (size - used < length)
            size *= 2;
        uint8_t *bytes = realloc(buffer->bytes, size);
        if (!bytes)
            die("out of memory");
        buffer->bytes = bytes;
        buffer->size = size;
    }
    return buffer->bytes + buffer->end;
}

void buffer_add(struct buffer *buffer, const void *bytes, size_t length)
{
    if (length) {
        memcpy(buffer_room(buffer, length), bytes, length);
        buffer->end += length;
    }
}

void buffer_drop(struct buffer *buffer, size_t length)
{
    buffer->start += length;
    if (buffer->start < buffer->end)
        return;
    buffer->start = buffer->end = 0;
    if (buffer->size > KEPT)
        buffer_clear(buffer);
}

void buffer_clear(struct buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct buffer){0};
}
