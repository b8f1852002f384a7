#include "loopback.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "netlink.h"

#define LOOPBACK 1 /* interface number: the kernel's, in every network namespace */

static bool configure(const char *name, unsigned long request, struct ifreq *wanted)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    strcpy(wanted->ifr_name, name);
    bool done = fd >= 0 && !ioctl(fd, request, wanted);
    if (fd >= 0)
        close(fd);
    return done;
}

bool loopback_up(void)
{
    struct ifreq wanted = {.ifr_flags = IFF_UP | IFF_RUNNING};
    return configure("lo", SIOCSIFFLAGS, &wanted);
}

static bool route(unsigned char family, const void *source, size_t length)
{
    static struct netlink netlink;
    struct rtmsg all = {.rtm_family = family, .rtm_table = RT_TABLE_MAIN, .rtm_protocol = RTPROT_STATIC,
                        .rtm_scope = RT_SCOPE_LINK, .rtm_type = RTN_UNICAST};
    netlink.length = 0;
    netlink_message(&netlink, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK, &all, sizeof all);
    netlink_put_u32(&netlink, RTA_OIF, LOOPBACK);
    netlink_put(&netlink, RTA_PREFSRC, source, length); /* else the kernel finds no address to send from */
    return netlink_send(&netlink, NETLINK_ROUTE);
}

bool loopback_routes(void)
{
    const struct in_addr source = {htonl(INADDR_LOOPBACK)};
    route(AF_INET6, &in6addr_loopback, sizeof in6addr_loopback);
    return route(AF_INET, &source, sizeof source);
}

static bool address(const char *alias, const char *number)
{
    struct ifreq wanted = {0};
    struct sockaddr_in *where = (struct sockaddr_in *)&wanted.ifr_addr;
    where->sin_family = AF_INET;
    inet_pton(AF_INET, number, &where->sin_addr);
    if (!configure(alias, SIOCSIFADDR, &wanted))
        return false;
    inet_pton(AF_INET, "255.255.255.255", &where->sin_addr);
    return configure(alias, SIOCSIFNETMASK, &wanted);
}

bool loopback_metadata_addresses(void)
{
    return address("lo:0", "169.254.169.254") && address("lo:1", "169.254.170.2");
}
