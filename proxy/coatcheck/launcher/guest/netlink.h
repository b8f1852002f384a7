/* Netlink messages, written into one buffer and sent at once. */
#ifndef NETLINK_H
#define NETLINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NETLINK_ROOM 65536

struct netlink {
    _Alignas(8) uint8_t bytes[NETLINK_ROOM];
    size_t length, message;
    uint32_t number;
};

/* Begin a message; what follows is its fixed part, then attributes. */
void netlink_message(struct netlink *, uint16_t type, uint16_t flags, const void *fixed, size_t length);
void netlink_put(struct netlink *, uint16_t type, const void *value, size_t length);
void netlink_put_text(struct netlink *, uint16_t type, const char *value);
void netlink_put_u32(struct netlink *, uint16_t type, uint32_t value);    /* host order */
void netlink_put_be32(struct netlink *, uint16_t type, uint32_t value);   /* network order */
size_t netlink_nest(struct netlink *, uint16_t type);
void netlink_close(struct netlink *, size_t nest);

/* Send all messages, and read until the one that asked for it was acknowledged. False with errno. */
bool netlink_send(struct netlink *, int protocol);

#endif
