#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_ipv6/ip6_tables.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "identity.h"

#define BACKLOG 4096 /* those above an identity's share wait here */
#define AT_ONCE 16 /* connections or queries of one listener, then the others' turn */
#define LISTENERS (MAX_IDENTITIES * 10)
#define MAX_QUERY 1232 /* what fits in one packet anywhere; a longer question is nobody's name */
#define MAX_ANSWER 4096
#define PENDING 64 /* queries of one identity; the oldest makes room, as its client has long asked again */
#define MAX_NETLINK 131072

union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

struct listener {
    struct watch watch;
    union address address;
    unsigned identity;
    char kind[16];
    bool datagrams, waiting; /* until another stream may be opened */
};

struct query {
    struct freeable freeable;
    struct stream *stream;
    unsigned identity;
    int fd;
    union address client;
    socklen_t length;
};

static struct listener listeners[LISTENERS];
static unsigned count;
static struct query *pending[MAX_IDENTITIES][PENDING];
static unsigned oldest[MAX_IDENTITIES];

static bool set_address(union address *address, const char *number, in_port_t port)
{
    memset(address, 0, sizeof *address); /* also what is behind the shorter one: `is_ours` compares all of it */
    address->four.sin_port = htons(port); /* which is in the same place in both */
    address->any.sa_family = strchr(number, ':') ? AF_INET6 : AF_INET;
    void *place = address->any.sa_family == AF_INET ? (void *)&address->four.sin_addr : &address->six.sin6_addr;
    return inet_pton(address->any.sa_family, number, place) == 1;
}

static socklen_t size_of(const union address *address)
{
    return address->any.sa_family == AF_INET ? sizeof address->four : sizeof address->six;
}

/* ------------------------------------------------------------------------------- the kernel's rules */

/* True once the kernel has acknowledged the message that asked for it; what it has to say is there after sendto. */
static bool send_netlink(int protocol, const void *messages, size_t length)
{
    _Alignas(8) uint8_t answer[16384];
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    bool acknowledged = false;
    int error = 0;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    if (fd < 0)
        return false;
    if (sendto(fd, messages, length, 0, (struct sockaddr *)&kernel, sizeof kernel) < 0)
        error = errno;
    while (!error && !acknowledged) {
        ssize_t got = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
        if (got < 0)
            error = errno == EAGAIN ? EPROTO : errno;
        for (ssize_t at = 0; !error && at + (ssize_t)sizeof(struct nlmsghdr) <= got;) {
            const struct nlmsghdr *header = (struct nlmsghdr *)(answer + at);
            if (header->nlmsg_type == NLMSG_ERROR) {
                error = -((const struct nlmsgerr *)NLMSG_DATA(header))->error;
                acknowledged |= !error;
            }
            at += header->nlmsg_len ? (ssize_t)NLMSG_ALIGN(header->nlmsg_len) : got;
        }
    }
    close(fd);
    errno = error;
    return !error;
}

struct batch {
    struct freeable freeable;
    int64_t protocol, length;
};

static void batch_received(struct stream *stream)
{
    struct batch *batch = stream->owner;
    if ((int64_t)buffer_length(&stream->in) < batch->length)
        return;
    if (send_netlink((int)batch->protocol, buffer_front(&stream->in), (size_t)batch->length))
        stream_done(stream);
    else
        stream_reset(stream, "failed", "netlink: %s", strerror(errno));
}

static void batch_gone(struct stream *stream)
{
    loop_free(stream->owner);
}

static const struct stream_kind batch_kind = {.received = batch_received, .gone = batch_gone};

void network_netlink(struct stream *stream, struct fields fields)
{
    struct batch *batch = allocate(sizeof *batch);
    stream->kind = &batch_kind;
    stream->owner = batch;
    if (!parse_number(fields_get(fields, "protocol"), 0, 31, &batch->protocol) ||
        !parse_number(fields_get(fields, "length"), 1, MAX_NETLINK, &batch->length))
        stream_reset(stream, "bad_request", "netlink needs `protocol` and `length`");
}

/* ------------------------------------------------------------------------------- both directions */

static void input_over(struct stream *stream)
{
    shutdown(stream->sources[0].watch.fd, SHUT_WR);
}

static void output_over(struct stream *stream)
{
    if (stream->read_failed) /* a torn connection must not look like one that was ended */
        stream_reset(stream, "failed", "the connection was reset");
    else if (stream->sink_broken)
        stream_done(stream);
    else
        stream_end(stream);
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

/* The stream's bytes go to `fd` and back, until both ends are over. */
static void relay(struct stream *stream, int fd)
{
    stream->kind = &relay_kind;
    stream_source(stream, 0, fd, 0);
    stream_sink_is_source(stream);
}

/* ------------------------------------------------------------------------------- connections to the host */

/* Where the program thought that it connects to, before the redirect. */
static bool original_destination(int fd, struct reply *opening)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    char address[INET6_ADDRSTRLEN];
    socklen_t length = sizeof four;
    bool is_four = !getsockopt(fd, IPPROTO_IP, SO_ORIGINAL_DST, &four, &length) && four.sin_family == AF_INET;
    length = sizeof six;
    if (!is_four && getsockopt(fd, IPPROTO_IPV6, IP6T_SO_ORIGINAL_DST, &six, &length))
        return false;
    const void *number = is_four ? (const void *)&four.sin_addr : &six.sin6_addr;
    reply_add(opening, "destination", "%s", inet_ntop(is_four ? AF_INET : AF_INET6, number, address, sizeof address));
    reply_add(opening, "port", "%u", ntohs(is_four ? four.sin_port : six.sin6_port));
    return true;
}

static struct reply opening_of(const struct listener *listener)
{
    struct reply opening = {.length = 0};
    reply_add(&opening, "kind", "%s", listener->kind);
    reply_add(&opening, "identity", "%s", identity_at(listener->identity)->name);
    return opening;
}

/* False: none is left. */
static bool take_connection(struct listener *listener)
{
    int fd = accept4(listener->watch.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct reply opening = opening_of(listener);
    if (fd < 0)
        return false;
    if (strcmp(listener->kind, "transparent") || original_destination(fd, &opening))
        relay(mux_open(listener->identity, NULL, &opening, NULL), fd);
    else
        close(fd);
    return true;
}

static void query_received(struct stream *stream)
{
    struct query *query = stream->owner;
    const uint8_t *answer = buffer_front(&stream->in);
    size_t have = buffer_length(&stream->in);
    size_t length = have < 2 ? 0 : (size_t)answer[0] << 8 | answer[1];
    if (have < 2 || (have < 2 + length && length <= MAX_ANSWER))
        return;
    if (length <= MAX_ANSWER)
        sendto(query->fd, answer + 2, length, MSG_DONTWAIT, &query->client.any, query->length);
    stream_reset(stream, "done", "%s", "");
}

/* The host's END. An answer that is not whole is none. */
static void query_over(struct stream *stream)
{
    stream_reset(stream, "done", "%s", "");
}

static void query_gone(struct stream *stream)
{
    struct query *query = stream->owner;
    for (unsigned at = 0; at < PENDING; at++)
        if (pending[query->identity][at] == query)
            pending[query->identity][at] = NULL;
    loop_free(&query->freeable);
}

static const struct stream_kind query_kind = {
    .received = query_received, .input_over = query_over, .gone = query_gone};

static void drop_oldest(unsigned identity)
{
    struct query *query = pending[identity][oldest[identity]];
    if (query)
        stream_reset(query->stream, "done", "%s", "");
}

/* False: none is left. */
static bool take_query(struct listener *listener)
{
    unsigned who = listener->identity;
    struct query from = {.fd = listener->watch.fd, .identity = who, .length = sizeof from.client};
    uint8_t question[2 + MAX_QUERY + 1];
    ssize_t length = recvfrom(from.fd, question + 2, MAX_QUERY + 1, 0, &from.client.any, &from.length);
    if (length < 0)
        return false;
    if (length < 12 || length > MAX_QUERY) /* a DNS header */
        return true;
    question[0] = (uint8_t)(length >> 8);
    question[1] = (uint8_t)length;
    drop_oldest(who);
    struct query *query = allocate(sizeof *query);
    *query = from;
    struct reply opening = opening_of(listener);
    query->stream = mux_open(who, &query_kind, &opening, query);
    buffer_add(&query->stream->out, question, 2 + (size_t)length);
    stream_end(query->stream);
    pending[who][oldest[who]] = query;
    oldest[who] = (oldest[who] + 1) % PENDING;
    return true;
}

static void ready(struct watch *watch, uint32_t events)
{
    struct listener *listener = watch->owner;
    (void)events;
    for (int taken = 0; taken < AT_ONCE; taken++) {
        if (!mux_may_open(listener->identity)) {
            if (listener->datagrams)
                drop_oldest(listener->identity);
            listener->waiting = true; /* more wait in the kernel */
            return;
        }
        if (!(listener->datagrams ? take_query(listener) : take_connection(listener)))
            break;
    }
    loop_arm(watch, EPOLLIN);
}

void mux_room(void)
{
    for (unsigned at = 0; at < count; at++)
        if (listeners[at].waiting) {
            listeners[at].waiting = false;
            loop_arm(&listeners[at].watch, EPOLLIN);
        }
}

/* ------------------------------------------------------------------------------- listening */

static bool listen_at(struct listener wanted)
{
    const int on = 1, type = wanted.datagrams ? SOCK_DGRAM : SOCK_STREAM;
    bool six = wanted.address.any.sa_family == AF_INET6;
    if (count == LISTENERS)
        return false;
    int fd = socket(wanted.address.any.sa_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return six && errno == EAFNOSUPPORT;
    if (!wanted.datagrams)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &wanted.address.any, size_of(&wanted.address)) || (!wanted.datagrams && listen(fd, BACKLOG))) {
        int error = errno;
        close(fd);
        errno = error;
        return six && errno == EADDRNOTAVAIL;
    }
    struct listener *listener = &listeners[count++];
    *listener = wanted;
    loop_watch(&listener->watch, fd, listener, ready);
    loop_arm(&listener->watch, EPOLLIN);
    return true;
}

bool network_listen(const char *what)
{
    struct listener wanted = {.waiting = false};
    char name[33], address[INET6_ADDRSTRLEN];
    unsigned short port;
    errno = EINVAL;
    if (sscanf(what, "%15s %32s %45s %hu", wanted.kind, name, address, &port) != 4 ||
        !identity_index(name, &wanted.identity) || !set_address(&wanted.address, address, port) || !listen_at(wanted))
        return false;
    wanted.datagrams = !strcmp(wanted.kind, "dns");
    return !wanted.datagrams || listen_at(wanted);
}

bool network_ready(void)
{
    return count > 0;
}

/* ------------------------------------------------------------------------------- to a local server */

struct attempt {
    struct freeable freeable;
    struct watch watch;
    in_port_t port;
    unsigned tried; /* of its addresses: some servers listen on ::1 only */
};

static void attempt_gone(struct stream *stream)
{
    struct attempt *attempt = stream->owner;
    loop_close(&attempt->watch);
    loop_free(&attempt->freeable);
}

static const struct stream_kind attempt_kind = {.gone = attempt_gone};

static void attempt_ready(struct watch *watch, uint32_t events);

static void try(struct stream *stream, struct attempt *attempt)
{
    static const char *const places[] = {"127.0.0.1", "::1"};
    union address server;
    while (attempt->tried < 2) {
        set_address(&server, places[attempt->tried++], attempt->port);
        int fd = socket(server.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0 && (!connect(fd, &server.any, size_of(&server)) || errno == EINPROGRESS)) {
            loop_watch(&attempt->watch, fd, stream, attempt_ready);
            loop_arm(&attempt->watch, EPOLLOUT);
            return;
        }
        if (fd >= 0)
            close(fd);
    }
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
        try(stream, attempt);
        return;
    }
    int fd = loop_release(&attempt->watch);
    loop_free(&attempt->freeable);
    stream->owner = NULL;
    relay(stream, fd);
}

/* Through our own listeners the host would reach itself in another identity's name. */
static bool is_ours(in_port_t port)
{
    union address four, six;
    set_address(&four, "127.0.0.1", port);
    set_address(&six, "::1", port);
    for (unsigned at = 0; at < count; at++)
        if (!memcmp(&listeners[at].address, &four, sizeof four) || !memcmp(&listeners[at].address, &six, sizeof six))
            return true;
    return false;
}

void network_connect(struct stream *stream, struct fields fields)
{
    int64_t port;
    if (!parse_number(fields_get(fields, "port"), 1, 65535, &port) || is_ours((in_port_t)port)) {
        stream_reset(stream, "bad_request", "that is not a port of a server in the sandbox");
        return;
    }
    struct attempt *attempt = allocate(sizeof *attempt);
    attempt->port = (in_port_t)port;
    attempt->watch.fd = -1;
    stream->owner = attempt;
    stream->kind = &attempt_kind;
    try(stream, attempt);
}
