#include "loopback.h"

#include <arpa/inet.h>
#include <linux/if_addr.h>
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

bool loopback_up(void)
{
    struct ifreq lo = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd >= 0 && !ioctl(fd, SIOCGIFFLAGS, &lo) && lo.ifr_flags & IFF_UP; /* gVisor's always is */
    lo.ifr_flags = IFF_UP | IFF_RUNNING;
    up = up || (fd >= 0 && !ioctl(fd, SIOCSIFFLAGS, &lo));
    if (fd >= 0)
        close(fd);
    return up;
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

static bool address(const char *number)
{
    static struct netlink netlink;
    struct ifaddrmsg one = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = LOOPBACK};
    struct in_addr where;
    inet_pton(AF_INET, number, &where);
    netlink.length = 0;
    netlink_message(&netlink, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK, &one, sizeof one);
    netlink_put(&netlink, IFA_LOCAL, &where, sizeof where);
    netlink_put(&netlink, IFA_ADDRESS, &where, sizeof where);
    return netlink_send(&netlink, NETLINK_ROUTE);
}

bool loopback_metadata_addresses(void)
{
    return address("169.254.169.254") && address("169.254.170.2");
}
