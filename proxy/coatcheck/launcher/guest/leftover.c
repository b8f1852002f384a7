#include "leftover.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "loop.h"

#define MOST 1024 /* two of each command that runs, and as many that ended; those behind any more get SIGPIPE */

struct leftover {
    struct freeable freeable;
    struct watch watch;
};

static unsigned count;

static void ready(struct watch *watch, uint32_t events)
{
    static char thrown_away[65536];
    struct leftover *leftover = watch->owner;
    (void)events;
    /* Once a round: whoever floods it is served in turn like everybody. */
    ssize_t length = read(watch->fd, thrown_away, sizeof thrown_away);
    if (length > 0 || (length < 0 && (errno == EAGAIN || errno == EINTR))) {
        loop_arm(watch, EPOLLIN);
        return;
    }
    loop_close(watch);
    loop_free(&leftover->freeable);
    count--;
}

void leftover_read(int fd)
{
    if (count == MOST) {
        close(fd);
        return;
    }
    count++;
    struct leftover *leftover = allocate(sizeof *leftover);
    loop_watch(&leftover->watch, fd, leftover, ready);
    loop_arm(&leftover->watch, EPOLLIN);
}
