#include "mux.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "identity.h"
#include "mux_state.h"

#define PLACES 1024 /* of the table of streams; a power of two, more than there can be streams */

void (*mux_room)(void);

static uint32_t next_own_id = 2;
static unsigned host_streams, own_streams[MAX_IDENTITIES], share;
static struct stream *table[PLACES];
static struct stream *first_queued, *last_queued;
/* Those that have something to send and must not: in order, until the thaw. */
static struct stream *first_hushed, *last_hushed;
static bool quiet;

/* ------------------------------------------------------------------------------------- streams */

struct stream *mux_find(uint32_t id)
{
    struct stream *stream = table[id / 2 % PLACES];
    while (stream && stream->id != id)
        stream = stream->sibling;
    return stream;
}

static unsigned *counter(const struct stream *stream)
{
    return stream->id % 2 ? &host_streams : &own_streams[stream->sharer];
}

struct stream *mux_make(uint32_t id, unsigned sharer)
{
    struct stream *stream = allocate(sizeof *stream);
    stream->id = id;
    stream->sharer = sharer;
    stream->speaks = quiet && id % 2; /* the host asks while it stands still, and wants its answer */
    *counter(stream) += 1;
    stream->may_send = stream->may_receive = WINDOW;
    stream->sources[0].watch.fd = stream->sources[1].watch.fd = stream->sink_watch.fd = -1;
    stream->sibling = table[id / 2 % PLACES];
    table[id / 2 % PLACES] = stream;
    return stream;
}

void mux_forget(struct stream *stream)
{
    if (stream->over)
        return;
    stream->over = true;
    struct stream **place = &table[stream->id / 2 % PLACES];
    while (*place != stream)
        place = &(*place)->sibling;
    *place = stream->sibling;
    if (stream->kind && stream->kind->gone)
        stream->kind->gone(stream);
    stream_close_sink(stream);
    for (int which = 0; which < 2; which++)
        loop_close(&stream->sources[which].watch);
    buffer_clear(&stream->in);
    buffer_clear(&stream->out);
    *counter(stream) -= 1;
    if (!stream->queued)
        loop_free(&stream->freeable);
    if (stream->id % 2 == 0 && mux_room)
        mux_room();
}

void mux_queue(struct stream *stream)
{
    if (stream->queued || stream->over)
        return;
    stream->queued = true;
    stream->next = NULL;
    *(first_queued ? &last_queued->next : &first_queued) = stream;
    last_queued = stream;
}

void mux_divide(unsigned sharers)
{
    share = MAX_GUEST_STREAMS / sharers;
}

void mux_quiet(bool still)
{
    quiet = still;
    if (quiet || !first_hushed)
        return;
    /* In front of what was queued since then: the host takes an OPEN only if its number is above the last one's. */
    last_hushed->next = first_queued;
    if (!first_queued)
        last_queued = last_hushed;
    first_queued = first_hushed;
    first_hushed = NULL;
}

unsigned mux_host_streams(void)
{
    return host_streams;
}

bool mux_opened(uint32_t id)
{
    return id && id < next_own_id;
}

bool mux_may_open(unsigned sharer)
{
    return own_streams[sharer] < share && next_own_id < UINT32_MAX - 2;
}

struct stream *mux_open(unsigned sharer, const struct stream_kind *kind, const struct reply *fields, void *owner)
{
    if (!mux_may_open(sharer))
        return NULL;
    struct stream *stream = mux_make(next_own_id, sharer);
    next_own_id += 2;
    stream->kind = kind;
    stream->owner = owner;
    stream->opening = *fields;
    stream->want_open = true;
    mux_queue(stream);
    return stream;
}

static void hush(struct stream *stream)
{
    stream->queued = true;
    stream->next = NULL;
    *(first_hushed ? &last_hushed->next : &first_hushed) = stream;
    last_hushed = stream;
}

struct stream *mux_next(void)
{
    while (first_queued) {
        struct stream *stream = first_queued;
        first_queued = stream->next;
        stream->queued = false;
        if (stream->over)
            loop_free(&stream->freeable);
        else if (quiet && !stream->speaks)
            hush(stream);
        else
            return stream;
    }
    return NULL;
}

void mux_forget_all(void)
{
    for (unsigned place = 0; place < PLACES; place++)
        for (struct stream *stream; (stream = table[place]);) {
            if (stream->kind && stream->kind->left)
                stream->kind->left(stream);
            mux_forget(stream);
        }
    next_own_id = 2;
}

/* ------------------------------------------------------------------------------------- one stream */

static void stream_ready(struct watch *watch, uint32_t events)
{
    struct stream *stream = watch->owner;
    for (int which = 0; which < 2; which++) {
        struct source *source = &stream->sources[which];
        if (watch == &source->watch && source->open && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
            source->readable = true;
            mux_queue(stream);
        }
    }
    if (watch == stream->sink && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)))
        stream_flush(stream);
    /* What is armed is one-shot: a socket whose write fired still wants its read, and the other way round. */
    for (int which = 0; which < 2; which++)
        if (stream->sources[which].open && !stream->sources[which].readable)
            loop_arm(&stream->sources[which].watch, EPOLLIN);
    if (stream->sink && buffer_length(&stream->in))
        loop_arm(stream->sink, EPOLLOUT);
}

void stream_source(struct stream *stream, unsigned which, int fd, uint8_t flags)
{
    struct source *source = &stream->sources[which];
    loop_watch(&source->watch, fd, stream, stream_ready);
    source->flags = flags;
    source->open = true;
    loop_arm(&source->watch, EPOLLIN);
}

void stream_sink(struct stream *stream, int fd)
{
    loop_watch(&stream->sink_watch, fd, stream, stream_ready);
    stream->sink = &stream->sink_watch;
    stream_flush(stream);
}

void stream_sink_is_source(struct stream *stream)
{
    stream->sink = &stream->sources[0].watch;
    stream_flush(stream);
}

void stream_close_sink(struct stream *stream)
{
    if (stream->sink == &stream->sink_watch)
        loop_close(&stream->sink_watch);
    stream->sink = NULL;
    stream->sink_broken = true;
    stream_used(stream, buffer_length(&stream->in));
    buffer_drop(&stream->in, buffer_length(&stream->in));
}

void stream_finish(struct stream *stream, void (*leftover)(int fd))
{
    stream->finishing = true;
    stream->leftover = leftover;
    stream->sources[0].readable = stream->sources[1].readable = true;
    mux_queue(stream);
}

bool stream_has_sources(const struct stream *stream)
{
    return stream->sources[0].open || stream->sources[1].open;
}

void stream_end(struct stream *stream)
{
    stream->want_end = true;
    mux_queue(stream);
}

void stream_reset(struct stream *stream, const char *reason, const char *format, ...)
{
    char message[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (stream->want_reset)
        return;
    reply_add(&stream->dropping, "reason", "%s", reason);
    if (*message)
        reply_add(&stream->dropping, "message", "%s", message);
    stream->want_reset = true;
    mux_queue(stream);
}

void stream_used(struct stream *stream, size_t length)
{
    stream->give_back += (uint32_t)length;
    if (stream->give_back >= WINDOW / 4)
        mux_queue(stream);
}

void stream_flush(struct stream *stream)
{
    while (stream->sink && buffer_length(&stream->in)) {
        ssize_t written = write(stream->sink->fd, buffer_front(&stream->in), buffer_length(&stream->in));
        if (written > 0) {
            buffer_drop(&stream->in, (size_t)written);
            stream_used(stream, (size_t)written);
        } else if (written < 0 && errno == EAGAIN) {
            loop_arm(stream->sink, EPOLLOUT);
            return;
        } else if (written == 0 || errno != EINTR) {
            stream_close_sink(stream); /* nobody reads there: the rest is of no use */
            if (stream->we_ended || stream->want_end)
                stream_reset(stream, "done", "%s", "");
        }
    }
    if (stream->peer_ended && !buffer_length(&stream->in) && !stream->input_over_told && stream->kind &&
        stream->kind->input_over) {
        stream->input_over_told = true;
        stream->kind->input_over(stream);
    }
    if (stream->peer_ended)
        mux_queue(stream);
}
