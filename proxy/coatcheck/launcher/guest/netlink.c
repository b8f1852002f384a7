#include "netlink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop.h"

static uint8_t *room(struct netlink *netlink, size_t length)
{
    size_t padded = NLMSG_ALIGN(length);
    if (netlink->length + padded > NETLINK_ROOM)
        die("the redirect's rules are longer than they can be");
    uint8_t *place = netlink->bytes + netlink->length;
    memset(place, 0, padded);
    netlink->length += padded;
    if (netlink->length > netlink->message) {
        struct nlmsghdr *header = (struct nlmsghdr *)(netlink->bytes + netlink->message);
        header->nlmsg_len = (uint32_t)(netlink->length - netlink->message);
    }
    return place;
}

void netlink_message(struct netlink *netlink, uint16_t type, uint16_t flags, const void *fixed, size_t length)
{
    netlink->message = netlink->length;
    struct nlmsghdr *header = (struct nlmsghdr *)room(netlink, sizeof *header);
    header->nlmsg_type = type;
    header->nlmsg_flags = flags | NLM_F_REQUEST;
    header->nlmsg_seq = ++netlink->number;
    memcpy(room(netlink, length), fixed, length);
}

void netlink_put(struct netlink *netlink, uint16_t type, const void *value, size_t length)
{
    struct nlattr *attribute = (struct nlattr *)room(netlink, NLA_HDRLEN + length);
    attribute->nla_type = type;
    attribute->nla_len = (uint16_t)(NLA_HDRLEN + length);
    if (length)
        memcpy((uint8_t *)attribute + NLA_HDRLEN, value, length);
}

void netlink_put_text(struct netlink *netlink, uint16_t type, const char *value)
{
    netlink_put(netlink, type, value, strlen(value) + 1);
}

void netlink_put_u32(struct netlink *netlink, uint16_t type, uint32_t value)
{
    netlink_put(netlink, type, &value, sizeof value);
}

void netlink_put_be32(struct netlink *netlink, uint16_t type, uint32_t value)
{
    netlink_put_u32(netlink, type, htonl(value));
}

size_t netlink_nest(struct netlink *netlink, uint16_t type)
{
    size_t nest = netlink->length;
    netlink_put(netlink, type | NLA_F_NESTED, NULL, 0);
    return nest;
}

void netlink_close(struct netlink *netlink, size_t nest)
{
    ((struct nlattr *)(netlink->bytes + nest))->nla_len = (uint16_t)(netlink->length - nest);
}

bool netlink_send(struct netlink *netlink, int protocol)
{
    _Alignas(8) uint8_t answer[16384];
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    bool acknowledged = false;
    int error = 0;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    if (fd < 0)
        return false;
    if (sendto(fd, netlink->bytes, netlink->length, 0, (struct sockaddr *)&kernel, sizeof kernel) < 0)
        error = errno;
    /* The kernel answers within sendto: what it has to say is there now. */
    while (!error && !acknowledged) {
        ssize_t length = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
        if (length < 0)
            error = errno == EAGAIN ? EPROTO : errno;
        for (ssize_t at = 0; !error && at + (ssize_t)sizeof(struct nlmsghdr) <= length;) {
            const struct nlmsghdr *header = (struct nlmsghdr *)(answer + at);
            if (header->nlmsg_type == NLMSG_ERROR) {
                error = -((const struct nlmsgerr *)NLMSG_DATA(header))->error;
                acknowledged |= !error;
            }
            at += header->nlmsg_len ? (ssize_t)NLMSG_ALIGN(header->nlmsg_len) : length;
        }
    }
    close(fd);
    errno = error;
    return !error;
}
