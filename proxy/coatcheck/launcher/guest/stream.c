#include "mux.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

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

void stream_done(struct stream *stream)
{
    stream_end(stream);
    stream_reset(stream, "done", "%s", "");
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
