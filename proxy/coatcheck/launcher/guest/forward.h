/* What commands connect to: the proxy, anywhere (by the kernel's redirect), the resolver, the metadata service.
 * Each identity has its own four ports, and only the kernel's rules lead there. */
#ifndef FORWARD_H
#define FORWARD_H

#include <stdbool.h>

/* Listen. `redirected`: the kernel tells identities apart and leads programs to the ports. Otherwise the one
 * identity's services stand at the addresses that programs expect: 127.0.0.1:3128, 127.0.0.53:53,
 * 169.254.169.254:80 and (AWS containers) 169.254.170.2:80. False with errno. */
bool forward_start(bool redirected);

#endif
