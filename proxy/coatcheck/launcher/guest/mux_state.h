/* What the table of streams (stream.c), sending (mux.c) and receiving (mux_receive.c) share, each of the former. */
#ifndef MUX_STATE_H
#define MUX_STATE_H

#include "mux.h"

struct stream *mux_find(uint32_t id);
struct stream *mux_make(uint32_t id, unsigned sharer);
struct stream *mux_next(void); /* who may send now */
void mux_forget_all(void);
void mux_forget(struct stream *); /* over, both ways: its owner lets go, its descriptors close */
unsigned mux_host_streams(void);
bool mux_opened(uint32_t id); /* one of ours, once */
void mux_begin_anew(void); /* as at the start, to a host that never heard of any stream */

void mux_put(uint8_t type, uint8_t flags, uint32_t id, const void *payload, size_t length);
void mux_send_on(struct watch *channel);

#endif
