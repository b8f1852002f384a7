#include "forward.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_ipv6/ip6_tables.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "identity.h"
#include "relay.h"
#include "resolver.h"

#define BACKLOG 4096 /* those above an identity's share wait here */
#define AT_ONCE 16 /* connections of one listener, then the others' turn */

struct listener {
    struct watch watch;
    unsigned identity;
    enum port port;
    bool waiting; /* for the end of one of its streams */
};

static struct listener listeners[MAX_IDENTITIES * PORTS_EACH * 2];
static unsigned count;

/* Where the program thought that it connects to, before the redirect. */
static bool original_destination(int fd, char *address, socklen_t size, unsigned *port)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    socklen_t length = sizeof four;
    if (!getsockopt(fd, IPPROTO_IP, SO_ORIGINAL_DST, &four, &length) && four.sin_family == AF_INET) {
        *port = ntohs(four.sin_port);
        return inet_ntop(AF_INET, &four.sin_addr, address, size) != NULL;
    }
    length = sizeof six;
    if (!getsockopt(fd, IPPROTO_IPV6, IP6T_SO_ORIGINAL_DST, &six, &length)) {
        *port = ntohs(six.sin6_port);
        return inet_ntop(AF_INET6, &six.sin6_addr, address, size) != NULL;
    }
    return false;
}

static bool take(struct listener *listener, int fd)
{
    static const char *const kinds[] = {
        [PROXY] = "proxy", [TRANSPARENT] = "transparent", [RESOLVER] = "dns", [METADATA] = "metadata"};
    struct reply opening = {.length = 0};
    char address[INET6_ADDRSTRLEN];
    unsigned port;
    reply_add(&opening, "kind", "%s", kinds[listener->port]);
    reply_add(&opening, "identity", "%s", identity_at(listener->identity)->name);
    if (listener->port == TRANSPARENT) {
        if (!original_destination(fd, address, sizeof address, &port))
            return false;
        reply_add(&opening, "destination", "%s", address);
        reply_add(&opening, "port", "%u", port);
    }
    struct stream *stream = mux_open(listener->identity, NULL, &opening, NULL);
    if (!stream)
        return false;
    relay(stream, fd);
    return true;
}

static void ready(struct watch *watch, uint32_t events)
{
    struct listener *listener = watch->owner;
    (void)events;
    for (int taken = 0; taken < AT_ONCE; taken++) {
        if (!mux_may_open(listener->identity)) {
            listener->waiting = true; /* more wait in the kernel's backlog */
            return;
        }
        int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            break; /* none is left; or it was given up already */
        if (!take(listener, fd))
            close(fd);
    }
    loop_arm(watch, EPOLLIN);
}

static void room(void)
{
    for (unsigned at = 0; at < count; at++)
        if (listeners[at].waiting) {
            listeners[at].waiting = false;
            loop_arm(&listeners[at].watch, EPOLLIN);
        }
}

static bool listen_at(unsigned identity, enum port which, const struct sockaddr *address, socklen_t length)
{
    const int on = 1;
    struct listener *listener = &listeners[count];
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return address->sa_family == AF_INET6 && errno == EAFNOSUPPORT;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, address, length) || listen(fd, BACKLOG)) {
        close(fd);
        return address->sa_family == AF_INET6 && errno == EADDRNOTAVAIL; /* a guest without IPv6 has no way out by it */
    }
    count++;
    listener->identity = identity;
    listener->port = which;
    loop_watch(&listener->watch, fd, listener, ready);
    loop_arm(&listener->watch, EPOLLIN);
    return true;
}

static bool listen_four(unsigned identity, enum port which, const char *address, in_port_t port)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &four.sin_addr);
    return listen_at(identity, which, (struct sockaddr *)&four, sizeof four);
}

static bool listen_six(unsigned identity, enum port which, in_port_t port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_loopback};
    return listen_at(identity, which, (struct sockaddr *)&six, sizeof six);
}

bool forward_start(bool redirected)
{
    mux_room = room;
    if (!redirected)
        return listen_four(0, PROXY, "127.0.0.1", 3128) && listen_four(0, RESOLVER, "127.0.0.53", 53) &&
               listen_four(0, METADATA, "169.254.169.254", 80) && listen_four(0, METADATA, "169.254.170.2", 80) &&
               resolver_start(0, "127.0.0.53", 53);
    for (unsigned identity = 0; identity < identities_count(); identity++) {
        for (enum port which = 0; which < PORTS_EACH; which++)
            if (!listen_four(identity, which, "127.0.0.1", port_of(identity, which)))
                return false;
        in_port_t resolver = port_of(identity, RESOLVER);
        if (!listen_six(identity, TRANSPARENT, port_of(identity, TRANSPARENT)) ||
            !listen_six(identity, RESOLVER, resolver) || !resolver_start(identity, "127.0.0.1", resolver) ||
            !resolver_start(identity, "::1", resolver))
            return false;
    }
    return true;
}
