#include "mux.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PLACES 1024 /* of the table of streams; a power of two, more than there can be streams */
#define SEND_AHEAD (256 * 1024)
#define TURN_ROOM (64 * 1024) /* more than one turn of a stream can put: DATA, and all small frames */
#define READ_AT_ONCE (256 * 1024) /* then the loop goes round, so that the host's flood starves nobody here */
#define GIVE_BACK (WINDOW / 4)

void (*mux_room)(void);

static struct watch channel;
static const struct mux_host *host;
static struct buffer incoming, outgoing, opening;
static uint32_t opening_id, last_host_id, next_own_id = 2;
static unsigned host_streams, own_streams;
static bool greeted;
static struct stream *table[PLACES];
static struct stream *first_queued, *last_queued;

static uint32_t get32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void put32(uint8_t *bytes, uint32_t number)
{
    for (int at = 0; at < 4; at++)
        bytes[at] = (uint8_t)(number >> (24 - 8 * at));
}

/* ------------------------------------------------------------------------------------- streams */

static struct stream *find(uint32_t id)
{
    struct stream *stream = table[id / 2 % PLACES];
    while (stream && stream->id != id)
        stream = stream->sibling;
    return stream;
}

static struct stream *make(uint32_t id)
{
    struct stream *stream = allocate(sizeof *stream);
    stream->id = id;
    stream->may_send = stream->may_receive = WINDOW;
    stream->sources[0].watch.fd = stream->sources[1].watch.fd = stream->sink_watch.fd = -1;
    stream->sibling = table[id / 2 % PLACES];
    table[id / 2 % PLACES] = stream;
    *(id % 2 ? &host_streams : &own_streams) += 1;
    return stream;
}

static void forget(struct stream *stream)
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
    *(stream->id % 2 ? &host_streams : &own_streams) -= 1;
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

bool mux_may_open(void)
{
    return own_streams < MAX_GUEST_STREAMS && next_own_id < UINT32_MAX - 2;
}

struct stream *mux_open(const struct stream_kind *kind, const struct reply *fields, void *owner)
{
    if (!mux_may_open())
        return NULL;
    struct stream *stream = make(next_own_id);
    next_own_id += 2;
    stream->kind = kind;
    stream->owner = owner;
    stream->opening = *fields;
    stream->want_open = true;
    mux_queue(stream);
    return stream;
}

/* ------------------------------------------------------------------------------------- sending */

static void put(uint8_t type, uint8_t flags, uint32_t id, const void *payload, size_t length)
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
        put(DATA, source->flags, stream->id, NULL, 0);
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
        put(OPEN, 0, stream->id, stream->opening.bytes, stream->opening.length);
        stream->want_open = false;
    }
    if (stream->give_back >= GIVE_BACK && !stream->peer_ended) {
        uint8_t credit[4];
        put32(credit, stream->give_back);
        put(CREDIT, 0, stream->id, credit, sizeof credit);
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
            put(DATA, 0, stream->id, buffer_front(&stream->out), length);
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
            put(NOTE, 0, stream->id, stream->note.bytes, stream->note.length);
            stream->want_note = false;
        }
        if (stream->want_end && !stream->we_ended) {
            put(END, 0, stream->id, NULL, 0);
            stream->we_ended = true;
        }
    }
    if (stream->want_reset && (stream->we_ended || !stream->want_end)) { /* asked anew: output may just have ended */
        put(RESET, 0, stream->id, stream->dropping.bytes, stream->dropping.length);
        forget(stream);
        return false;
    }
    if (stream->we_ended && stream->peer_ended && !buffer_length(&stream->in)) {
        forget(stream);
        return false;
    }
    return more && stream->may_send > FRAME_COST;
}

static void pump(void)
{
    while (first_queued && buffer_length(&outgoing) + TURN_ROOM <= SEND_AHEAD) {
        struct stream *stream = first_queued;
        first_queued = stream->next;
        stream->queued = false;
        if (stream->over)
            loop_free(&stream->freeable);
        else if (turn(stream))
            mux_queue(stream);
    }
}

void mux_send(void)
{
    for (;;) {
        pump();
        size_t length = buffer_length(&outgoing);
        if (!length)
            return;
        ssize_t written = write(channel.fd, buffer_front(&outgoing), length);
        if (written > 0) {
            buffer_drop(&outgoing, (size_t)written);
        } else if (written < 0 && errno == EAGAIN) {
            loop_arm(&channel, EPOLLOUT);
            return;
        } else if (written == 0 || errno != EINTR) {
            die("the host closed the channel");
        }
    }
}

/* ------------------------------------------------------------------------------------- receiving */

static struct fields fields_of(const uint8_t *payload, size_t length)
{
    struct fields fields = {(const char *)payload, length};
    if (!fields_valid(fields))
        die("the host sent malformed fields");
    return fields;
}

static void take_open(uint32_t id, uint8_t flags, const uint8_t *payload, size_t length)
{
    if (!opening_id) {
        if (id % 2 == 0 || id <= last_host_id)
            die("the host opened stream %u after %u", id, last_host_id);
        last_host_id = opening_id = id;
    }
    if (id != opening_id || buffer_length(&opening) + length > MAX_OPEN)
        die("the host sent a malformed OPEN");
    buffer_add(&opening, payload, length);
    if (flags & FLAG_MORE)
        return;
    struct fields fields = fields_of(buffer_front(&opening), buffer_length(&opening));
    const char *name = NULL, *kind = NULL;
    size_t at = 0;
    if (!fields_next(fields, &at, &name, &kind) || strcmp(name, "kind"))
        die("the host sent an OPEN without a kind");
    if (host_streams >= 2 * MAX_HOST_STREAMS)
        die("the host opens streams faster than it reads their refusals");
    struct stream *stream = make(id);
    if (host_streams > MAX_HOST_STREAMS)
        stream_reset(stream, "busy", "%d streams are open", MAX_HOST_STREAMS);
    else
        host->opened(stream, kind, fields);
    buffer_clear(&opening);
    opening_id = 0;
}

static void take_data(struct stream *stream, const uint8_t *payload, size_t length)
{
    stream->may_receive -= (int64_t)length + FRAME_COST;
    if (!length || stream->may_receive < 0 || stream->peer_ended)
        die("the host sent DATA beyond what it may");
    stream->give_back += FRAME_COST; /* frames are joined here: what the frame itself costs is free again */
    if (stream->want_reset || stream->sink_broken) {
        stream_used(stream, length);
        return;
    }
    buffer_add(&stream->in, payload, length);
    if (stream->sink)
        stream_flush(stream);
    else if (stream->kind && stream->kind->received)
        stream->kind->received(stream);
}

static void take(uint8_t type, uint8_t flags, uint32_t id, const uint8_t *payload, size_t length)
{
    if (type == HELLO) {
        if (greeted || id)
            die("the host said HELLO twice");
        greeted = true;
        host->greeted(fields_of(payload, length));
        return;
    }
    if (!greeted || (opening_id && type != OPEN))
        die("the host sent frame %u out of order", type);
    if (type == OPEN) {
        take_open(id, flags, payload, length);
        return;
    }
    struct stream *stream = find(id);
    if (!stream) {
        if (!id || (id % 2 ? id > last_host_id : id >= next_own_id))
            die("the host sent frame %u on stream %u, which nobody opened", type, id);
        return; /* it crossed our RESET, or last END, on its way */
    }
    switch (type) {
    case DATA:
        take_data(stream, payload, length);
        break;
    case CREDIT:
        if (length != 4)
            die("the host sent a malformed WINDOW");
        stream->may_send += get32(payload);
        if (stream->may_send > WINDOW)
            die("the host gave more credit than was used");
        mux_queue(stream);
        break;
    case END:
        if (stream->peer_ended || length)
            die("the host ended stream %u twice", id);
        stream->peer_ended = true;
        stream_flush(stream);
        mux_queue(stream);
        break;
    case RESET:
        fields_of(payload, length);
        forget(stream);
        break;
    case NOTE: {
        struct fields fields = fields_of(payload, length);
        if (stream->kind && stream->kind->noted)
            stream->kind->noted(stream, fields);
        break;
    }
    default:
        die("the host sent frame %u, which this agent does not know", type);
    }
}

static void cut(void)
{
    while (buffer_length(&incoming) >= HEADER) {
        const uint8_t *frame = buffer_front(&incoming);
        size_t length = (size_t)frame[2] << 8 | frame[3];
        if (length > MAX_PAYLOAD)
            die("the host sent a frame of %zu bytes", length);
        if (buffer_length(&incoming) < HEADER + length)
            return;
        take(frame[0], frame[1], get32(frame + 4), frame + HEADER, length);
        buffer_drop(&incoming, HEADER + length);
    }
}

static void channel_ready(struct watch *watch, uint32_t events)
{
    (void)events; /* EPOLLOUT: mux_send follows in any case */
    for (size_t taken = 0; taken < READ_AT_ONCE;) {
        uint8_t *room = buffer_room(&incoming, 2 * MAX_PAYLOAD);
        ssize_t length = read(watch->fd, room, 2 * MAX_PAYLOAD);
        if (length > 0) {
            incoming.end += (size_t)length;
            taken += (size_t)length;
            cut();
        } else if (length < 0 && errno == EAGAIN) {
            break;
        } else if (length == 0 || errno != EINTR) {
            die("the host closed the channel");
        }
    }
    loop_arm(watch, EPOLLIN);
}

void mux_start(int fd, const struct mux_host *with, const char *agent)
{
    struct reply hello = {.length = 0};
    host = with;
    loop_watch(&channel, fd, NULL, channel_ready);
    loop_arm(&channel, EPOLLIN);
    reply_add(&hello, "protocol", "1");
    reply_add(&hello, "agent", "%s", agent);
    put(HELLO, 0, 0, hello.bytes, hello.length);
    mux_send();
}
