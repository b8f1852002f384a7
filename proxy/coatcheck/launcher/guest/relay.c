#include "relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "identity.h"

/* ------------------------------------------------------------------------------- both directions */

static void input_over(struct stream *stream)
{
    shutdown(stream->sources[0].watch.fd, SHUT_WR);
}

static void output_over(struct stream *stream)
{
    if (stream->read_failed) /* a torn connection must not look like one that was ended */
        stream_reset(stream, "failed", "the connection was reset");
    else
        stream_end(stream);
    if (stream->sink_broken && !stream->read_failed)
        stream_reset(stream, "done", "%s", "");
}

/* Broken off: a local program must not take it for the end of what it was being told (and a fork's connections are
 * its parent's, and end so). */
static void gone(struct stream *stream)
{
    const struct linger at_once = {.l_onoff = 1};
    struct watch *watch = &stream->sources[0].watch;
    if ((!stream->peer_ended || buffer_length(&stream->in)) && watch->fd >= 0)
        setsockopt(watch->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

static const struct stream_kind relay_kind = {.input_over = input_over, .output_over = output_over, .gone = gone};

void relay(struct stream *stream, int fd)
{
    stream->kind = &relay_kind;
    stream_source(stream, 0, fd, 0);
    stream_sink_is_source(stream);
}

/* ------------------------------------------------------------------------------- to a local server */

struct attempt {
    struct freeable freeable;
    struct watch watch;
    in_port_t port;
    bool second;
};

static void attempt_gone(struct stream *stream)
{
    struct attempt *attempt = stream->owner;
    loop_close(&attempt->watch);
    loop_free(&attempt->freeable);
}

static const struct stream_kind attempt_kind = {.gone = attempt_gone};

static void attempt_ready(struct watch *watch, uint32_t events);

static bool try(struct stream *stream, struct attempt *attempt)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = attempt->port};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = attempt->port, .sin6_addr = in6addr_loopback};
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(attempt->second ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    const struct sockaddr *address = attempt->second ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    if (connect(fd, address, attempt->second ? sizeof six : sizeof four) && errno != EINPROGRESS) {
        close(fd);
        return false;
    }
    loop_watch(&attempt->watch, fd, stream, attempt_ready);
    loop_arm(&attempt->watch, EPOLLOUT);
    return true;
}

static void refuse(struct stream *stream)
{
    stream_reset(stream, "refused", "nothing listens on this port in the sandbox");
}

static void attempt_ready(struct watch *watch, uint32_t events)
{
    struct stream *stream = watch->owner;
    struct attempt *attempt = stream->owner;
    int error = 0;
    socklen_t length = sizeof error;
    if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
        return;
    if (getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error, &length) || error) {
        loop_close(&attempt->watch);
        if (!attempt->second) { /* some servers listen on ::1 only */
            attempt->second = true;
            if (try(stream, attempt))
                return;
        }
        refuse(stream);
        return;
    }
    int fd = loop_release(&attempt->watch);
    loop_free(&attempt->freeable);
    stream->owner = NULL;
    relay(stream, fd);
}

void ingress_start(struct stream *stream, struct fields fields)
{
    int64_t port;
    if (!parse_number(fields_get(fields, "port"), 1, 65535, &port) || port_is_ours((in_port_t)port)) {
        /* Our own listeners: the host would reach itself in another identity's name. */
        stream_reset(stream, "bad_request", "that is not a port of a server in the sandbox");
        return;
    }
    struct attempt *attempt = allocate(sizeof *attempt);
    attempt->port = htons((in_port_t)port);
    attempt->watch.fd = -1;
    stream->owner = attempt;
    stream->kind = &attempt_kind;
    if (!try(stream, attempt))
        refuse(stream);
}
