#include "resolver.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "identity.h"
#include "mux.h"

#define MAX_QUERY 1232 /* what fits in one packet anywhere; a longer question is nobody's name */
#define MAX_ANSWER 4096
#define PENDING 64 /* queries of one identity; the oldest makes room, as its client has long asked again */
#define AT_ONCE 16

struct query {
    struct freeable freeable;
    struct stream *stream;
    unsigned identity;
    int fd;
    struct sockaddr_storage client;
    socklen_t length;
};

struct port_watch {
    struct watch watch;
    unsigned identity;
};

static struct port_watch watches[MAX_IDENTITIES * 2];
static unsigned count;
static struct query *pending[MAX_IDENTITIES][PENDING];
static unsigned oldest[MAX_IDENTITIES];

static void gone(struct stream *stream)
{
    struct query *query = stream->owner;
    for (unsigned at = 0; at < PENDING; at++)
        if (pending[query->identity][at] == query)
            pending[query->identity][at] = NULL;
    loop_free(&query->freeable);
}

static void received(struct stream *stream)
{
    struct query *query = stream->owner;
    const uint8_t *answer = buffer_front(&stream->in);
    size_t have = buffer_length(&stream->in);
    size_t length = have < 2 ? 0 : (size_t)answer[0] << 8 | answer[1];
    if (have < 2 || (have < 2 + length && length <= MAX_ANSWER))
        return;
    if (length <= MAX_ANSWER)
        sendto(query->fd, answer + 2, length, MSG_DONTWAIT, (struct sockaddr *)&query->client, query->length);
    stream_reset(stream, "done", "%s", "");
}

static void input_over(struct stream *stream)
{
    stream_reset(stream, "done", "%s", ""); /* no answer: the client will ask again, or give up */
}

static const struct stream_kind query_kind = {.received = received, .input_over = input_over, .gone = gone};

static void ask(struct port_watch *port, const uint8_t *question, size_t length, const struct query *from)
{
    const uint8_t prefix[2] = {(uint8_t)(length >> 8), (uint8_t)length};
    struct reply opening = {.length = 0};
    unsigned who = port->identity;
    struct query **place = &pending[who][oldest[who]];
    if (*place)
        stream_reset((*place)->stream, "done", "%s", "");
    if (!mux_may_open(who))
        return;
    struct query *query = allocate(sizeof *query);
    *query = *from;
    query->identity = who;
    reply_add(&opening, "kind", "dns");
    reply_add(&opening, "identity", "%s", identity_at(who)->name);
    query->stream = mux_open(who, &query_kind, &opening, query);
    buffer_add(&query->stream->out, prefix, sizeof prefix);
    buffer_add(&query->stream->out, question, length);
    stream_end(query->stream);
    *place = query;
    oldest[who] = (oldest[who] + 1) % PENDING;
}

static void ready(struct watch *watch, uint32_t events)
{
    uint8_t question[MAX_QUERY + 1];
    (void)events;
    for (int taken = 0; taken < AT_ONCE; taken++) {
        struct query from = {.fd = watch->fd, .length = sizeof from.client};
        ssize_t length = recvfrom(watch->fd, question, sizeof question, 0, (struct sockaddr *)&from.client, &from.length);
        if (length < 0)
            break;
        if (length >= 12 && length <= MAX_QUERY) /* a DNS header */
            ask(watch->owner, question, (size_t)length, &from);
    }
    loop_arm(watch, EPOLLIN);
}

bool resolver_start(unsigned identity, const char *address, in_port_t port)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    bool is_six = inet_pton(AF_INET6, address, &six.sin6_addr) == 1;
    inet_pton(AF_INET, address, &four.sin_addr);
    int fd = socket(is_six ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return is_six && errno == EAFNOSUPPORT;
    if (bind(fd, is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four, is_six ? sizeof six : sizeof four)) {
        close(fd);
        return is_six && errno == EADDRNOTAVAIL;
    }
    struct port_watch *watch = &watches[count++];
    watch->identity = identity;
    loop_watch(&watch->watch, fd, watch, ready);
    loop_arm(&watch->watch, EPOLLIN);
    return true;
}
