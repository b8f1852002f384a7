#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "mux.h"
#include "mux_state.h"

#define READ_AT_ONCE (256 * 1024) /* then the loop goes round, so that the host's flood starves nobody here */

static struct watch channel;
static const struct mux_host *host;
static const char *version;
static struct buffer incoming, opening;
static uint32_t opening_id, last_host_id;
static bool greeted;

static uint32_t get32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

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
    if (mux_host_streams() >= 2 * MAX_HOST_STREAMS)
        die("the host opens streams faster than it reads their refusals");
    struct stream *stream = mux_make(id, 0);
    if (mux_host_streams() > MAX_HOST_STREAMS)
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

static void say_hello(void)
{
    struct reply hello = {.length = 0};
    reply_add(&hello, "protocol", "1");
    reply_add(&hello, "agent", "%s", version);
    mux_put(HELLO, 0, 0, hello.bytes, hello.length);
}

static void take_hello(uint32_t id, uint8_t flags, const uint8_t *payload, size_t length)
{
    struct fields fields = fields_of(payload, length);
    if (id || (greeted && !(flags & FLAG_RESYNC)))
        die("the host said HELLO twice");
    if (!(flags & FLAG_RESYNC)) {
        greeted = true;
        host->greeted(fields);
        return;
    }
    /* Only a machine that was saved while it stood still can have a host that never heard of its streams. */
    if (!greeted || !host->resynced || !host->resynced())
        die("the host begins anew with a sandbox that is not frozen");
    buffer_clear(&opening);
    opening_id = last_host_id = 0;
    mux_begin_anew();
    say_hello();
}

static void take(uint8_t type, uint8_t flags, uint32_t id, const uint8_t *payload, size_t length)
{
    if (type == HELLO) {
        take_hello(id, flags, payload, length);
        return;
    }
    if (!greeted || (opening_id && type != OPEN))
        die("the host sent frame %u out of order", type);
    if (type == OPEN) {
        take_open(id, flags, payload, length);
        return;
    }
    struct stream *stream = mux_find(id);
    if (!stream) {
        if (!id || (id % 2 ? id > last_host_id : !mux_opened(id)))
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
        mux_forget(stream);
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
    host = with;
    version = agent;
    loop_watch(&channel, fd, NULL, channel_ready);
    loop_arm(&channel, EPOLLIN);
    mux_send_on(&channel);
    say_hello();
    mux_send();
}
