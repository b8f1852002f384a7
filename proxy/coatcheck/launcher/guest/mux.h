/* The channel to the host: frames, credit, and whose turn it is (docs/guest-protocol.md). */
#pragma once

#include "fields.h"
#include "loop.h"

#define WINDOW (256 * 1024)
#define MAX_HOST_STREAMS 256
#define FLAG_STDERR 1

/* A stream, and what its owner (a command, a connection, a query) is told about it. Any of these may be NULL. */
struct stream;
struct stream_kind {
    void (*received)(struct stream *);            /* bytes came and there is no sink: they are in `in` */
    void (*input_over)(struct stream *);          /* the host's END, and every byte before it was written */
    void (*noted)(struct stream *, struct fields);
    void (*output_over)(struct stream *);         /* no source is open any more */
    void (*gone)(struct stream *);                /* over: let go of everything */
    void (*left)(struct stream *);                /* before `gone`, where the host went and what runs runs on */
};

struct source {
    struct watch watch;
    uint8_t flags;
    bool open, readable;
};

struct stream {
    struct freeable freeable;
    uint32_t id;
    unsigned sharer; /* of those that the guest opens */
    const struct stream_kind *kind;
    void *owner;

    int64_t may_send, may_receive;
    uint32_t give_back;
    bool peer_ended, we_ended, over;

    struct source sources[2]; /* descriptors that are read when there is credit and room */
    unsigned turn;
    bool read_failed; /* a source ended by an error, not at its end */
    bool finishing; /* what can be read now is the last: leftover readers keep the rest */
    void (*leftover)(int fd);

    struct buffer in;  /* from the host, not yet written to the sink; bounded by our credit */
    struct buffer out; /* to the host, when it comes from no descriptor; bounded by the owner */
    struct watch *sink, sink_watch;
    bool sink_broken, input_over_told;

    struct reply note, dropping; /* wait for the output before them */
    bool want_end, want_reset;

    bool queued;
    bool speaks; /* also while the machine stands still */
    struct stream *next;    /* in the queue of those that want to send */
    struct stream *sibling; /* with the same place in the table */
};

/* Sources and sinks. Descriptors are non-blocking and belong to the stream from now on. */
void stream_source(struct stream *, unsigned which, int fd, uint8_t flags);
void stream_sink(struct stream *, int fd);
void stream_sink_is_source(struct stream *); /* a socket or a terminal: one descriptor both ways */
void stream_close_sink(struct stream *);

/* Read what is there and no more: for a command that has ended. `leftover` gets what stays open. */
void stream_finish(struct stream *, void (*leftover)(int fd));
bool stream_has_sources(const struct stream *);

/* After all output, and the note if there is one: END; and with it RESET `done`, nothing more is to come. */
void stream_end(struct stream *);
void stream_done(struct stream *);
/* At once; output that was not sent is lost. */
__attribute__((format(printf, 3, 4))) void stream_reset(struct stream *, const char *reason, const char *format, ...);
/* Bytes from `in` were used by their owner. */
void stream_used(struct stream *, size_t length);
/* Try to write what waits. */
void stream_flush(struct stream *);

/* What the channel calls: the host's first word, and each stream that it opens (main.c). */
void host_greeted(struct fields);
void host_opened(struct stream *, const char *kind, struct fields);

/* Take the channel, and say HELLO. */
void mux_start(int fd);

/* Send what there is, fairly. Call after each round of the loop. */
void mux_send(void);

/* While it stands still, nothing is sent but on streams that the host opens meanwhile: a host that saves the machine
 * knows that nothing is in flight. */
void mux_quiet(bool);

/* So many share what the guest may open: one that takes all of its part takes nothing of another's. */
void mux_divide(unsigned sharers);
bool mux_may_open(unsigned sharer);
/* A stream to the host, only where one may be opened. `opening` begins with `kind`. */
struct stream *mux_open(unsigned sharer, const struct stream_kind *, const struct reply *opening, void *owner);
/* Called when another stream may be opened (network.c). */
void mux_room(void);

/* The stream has something to send, or is over: its owner lets go, its descriptors close. */
void mux_queue(struct stream *);
void mux_forget(struct stream *);
