#include "mux.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "mux_state.h"

#define SEND_AHEAD (256 * 1024)
#define TURN_ROOM (64 * 1024) /* more than one turn of a stream can put: DATA, and all small frames */
#define GIVE_BACK (WINDOW / 4)

static struct watch *channel;
static struct buffer outgoing;

static void put32(uint8_t *bytes, uint32_t number)
{
    for (int at = 0; at < 4; at++)
        bytes[at] = (uint8_t)(number >> (24 - 8 * at));
}

void mux_send_on(struct watch *watch)
{
    channel = watch;
}

void mux_put(uint8_t type, uint8_t flags, uint32_t id, const void *payload, size_t length)
{
    uint8_t *frame = buffer_room(&outgoing, HEADER + length);
    frame[0] = type;
    frame[1] = flags;
    frame[2] = (uint8_t)(length >> 8);
    frame[3] = (uint8_t)length;
    put32(frame + 4, id);
    if (length)
        memcpy(frame + HEADER, payload, length);
    outgoing.end += HEADER + length;
}

/* One DATA frame, straight from the descriptor into the channel's buffer. True: there may be more. */
static bool put_from_source(struct stream *stream, struct source *source)
{
    size_t most = (size_t)(stream->may_send - FRAME_COST);
    if (most > MAX_PAYLOAD)
        most = MAX_PAYLOAD;
    uint8_t *frame = buffer_room(&outgoing, HEADER + MAX_PAYLOAD);
    ssize_t length = read(source->watch.fd, frame + HEADER, most);
    if (length > 0) {
        mux_put(DATA, source->flags, stream->id, NULL, 0);
        frame[2] = (uint8_t)(length >> 8);
        frame[3] = (uint8_t)length;
        outgoing.end += (size_t)length;
        stream->may_send -= length + FRAME_COST;
        return true;
    }
    if (length < 0 && errno == EINTR)
        return true;
    source->readable = false;
    if (length < 0 && errno == EAGAIN && !stream->finishing) {
        loop_arm(&source->watch, EPOLLIN);
        return false;
    }
    /* EIO is a terminal's end of file: its last user is gone. */
    source->open = false;
    stream->read_failed |= length < 0 && errno != EAGAIN && errno != EIO;
    if (length < 0 && errno == EAGAIN && stream->leftover)
        stream->leftover(loop_release(&source->watch));
    else if (stream->sink != &source->watch)
        loop_close(&source->watch);
    if (!stream_has_sources(stream) && stream->kind->output_over)
        stream->kind->output_over(stream);
    return false;
}

/* One turn. True: it wants another. */
static bool turn(struct stream *stream)
{
    bool more = false;
    if (stream->want_open) {
        mux_put(OPEN, 0, stream->id, stream->opening.bytes, stream->opening.length);
        stream->want_open = false;
    }
    if (stream->give_back >= GIVE_BACK && !stream->peer_ended) {
        uint8_t credit[4];
        put32(credit, stream->give_back);
        mux_put(CREDIT, 0, stream->id, credit, sizeof credit);
        stream->may_receive += stream->give_back;
        stream->give_back = 0;
    }
    bool dropping = stream->want_reset && !stream->want_end;
    if (!stream->we_ended && !dropping && stream->may_send > FRAME_COST) {
        size_t length = buffer_length(&stream->out);
        if (length) {
            if (length > MAX_PAYLOAD)
                length = MAX_PAYLOAD;
            if ((int64_t)length > stream->may_send - FRAME_COST)
                length = (size_t)(stream->may_send - FRAME_COST);
            mux_put(DATA, 0, stream->id, buffer_front(&stream->out), length);
            buffer_drop(&stream->out, length);
            stream->may_send -= (int64_t)length + FRAME_COST;
            more = buffer_length(&stream->out) > 0;
        } else {
            for (unsigned tries = 0; tries < 2; tries++) {
                struct source *source = &stream->sources[stream->turn++ % 2];
                if (source->open && source->readable) {
                    put_from_source(stream, source);
                    break;
                }
            }
            more = (stream->sources[0].open && stream->sources[0].readable) ||
                   (stream->sources[1].open && stream->sources[1].readable);
        }
    }
    if (stream->over)
        return false;
    if (!dropping && !buffer_length(&stream->out) && !stream_has_sources(stream)) {
        if (stream->want_note) {
            mux_put(NOTE, 0, stream->id, stream->note.bytes, stream->note.length);
            stream->want_note = false;
        }
        if (stream->want_end && !stream->we_ended) {
            mux_put(END, 0, stream->id, NULL, 0);
            stream->we_ended = true;
        }
    }
    if (stream->want_reset && (stream->we_ended || !stream->want_end)) { /* asked anew: output may just have ended */
        mux_put(RESET, 0, stream->id, stream->dropping.bytes, stream->dropping.length);
        mux_forget(stream);
        return false;
    }
    if (stream->we_ended && stream->peer_ended && !buffer_length(&stream->in)) {
        mux_forget(stream);
        return false;
    }
    return more && stream->may_send > FRAME_COST;
}

static void pump(void)
{
    for (struct stream *stream; buffer_length(&outgoing) + TURN_ROOM <= SEND_AHEAD && (stream = mux_next());)
        if (turn(stream))
            mux_queue(stream);
}

void mux_send(void)
{
    for (;;) {
        pump();
        size_t length = buffer_length(&outgoing);
        if (!length)
            return;
        ssize_t written = write(channel->fd, buffer_front(&outgoing), length);
        if (written > 0) {
            buffer_drop(&outgoing, (size_t)written);
        } else if (written < 0 && errno == EAGAIN) {
            loop_arm(channel, EPOLLOUT);
            return;
        } else if (written == 0 || errno != EINTR) {
            die("the host closed the channel");
        }
    }
}

void mux_begin_anew(void)
{
    mux_forget_all();
    buffer_clear(&outgoing);
}
