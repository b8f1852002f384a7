/* What commands connect to: the proxy, anywhere (by the kernel's redirect), the resolver, the metadata service.
 * Each identity has its own four ports, and only the kernel's rules lead there. */
#ifndef FORWARD_H
#define FORWARD_H

#include <netinet/in.h>
#include <stdbool.h>

#define FIRST_PORT 61000 /* beyond what the kernel gives to clients (32768-60999) */
enum port { PROXY, TRANSPARENT, RESOLVER, METADATA, PORTS_EACH };

static inline in_port_t port_of(unsigned identity, enum port which)
{
    return (in_port_t)(FIRST_PORT + PORTS_EACH * identity + which);
}

bool forward_owns(in_port_t port);

/* Listen. `redirected`: the kernel tells identities apart and leads programs to the ports. Otherwise the one
 * identity's services stand at the addresses that programs expect: 127.0.0.1:3128, 127.0.0.53:53,
 * 169.254.169.254:80 and (AWS containers) 169.254.170.2:80. False with errno. */
bool forward_start(bool redirected);

#endif
