/* The channel to the host: frames, credit, and whose turn it is (docs/guest-protocol.md). */
#ifndef MUX_H
#define MUX_H

#include "stream.h"

#define HEADER 8
#define MAX_PAYLOAD 32768
#define WINDOW (256 * 1024)
#define FRAME_COST 64
#define MAX_OPEN (256 * 1024)
#define MAX_SMALL 4096
#define MAX_GUEST_STREAMS 512
#define MAX_HOST_STREAMS 256

enum frame { HELLO = 1, OPEN, DATA, CREDIT, END, RESET, NOTE };
enum { FLAG_STDERR = 1, FLAG_MORE = 1, FLAG_RESYNC = 1 };

struct mux_host {
    void (*greeted)(struct fields);
    bool (*resynced)(void); /* a host that knows nothing of our streams; false: not now */
    void (*opened)(struct stream *, const char *kind, struct fields);
};

/* Take the channel, and say HELLO. */
void mux_start(int fd, const struct mux_host *, const char *agent);

/* Send what there is, fairly. Call after each round of the loop. */
void mux_send(void);

/* While it stands still, nothing is sent but on streams that the host opens meanwhile: whoever saves the machine
 * knows that nothing is under way. */
void mux_quiet(bool);

/* So many share what the guest may open: one that takes all of its part takes nothing of another's. */
void mux_divide(unsigned sharers);
bool mux_may_open(unsigned sharer);
/* A stream to the host, or NULL when `sharer` has as many as it may. `opening` begins with `kind`. */
struct stream *mux_open(unsigned sharer, const struct stream_kind *, const struct reply *opening, void *owner);
/* Called when a stream that we opened is over: there is room for another. */
extern void (*mux_room)(void);

/* The stream has something to send. */
void mux_queue(struct stream *);

#endif
