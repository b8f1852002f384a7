/* Output of processes that a command left behind: read and thrown away, so that they neither die of SIGPIPE nor
 * stand still. */
#ifndef LEFTOVER_H
#define LEFTOVER_H

void leftover_read(int fd);

#endif
