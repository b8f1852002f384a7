#include "mux.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "control.h"
#include "identity.h"

#define HEADER 8
#define MAX_PAYLOAD 32768
#define FRAME_COST 64
#define MAX_OPEN (256 * 1024)
#define MAX_GUEST_STREAMS 512
#define PLACES 1024 /* of the table of streams; a power of two, more than there can be streams */
#define READ_AT_ONCE (256 * 1024) /* then the loop goes round, so that the host's flood starves nobody here */
#define SEND_AHEAD (256 * 1024)
#define TURN_ROOM (64 * 1024) /* more than one turn of a stream can put: DATA, and all small frames */

enum frame { HELLO = 1, OPEN, DATA, CREDIT, END, RESET, NOTE };
enum { FLAG_MORE = 1, FLAG_RESYNC = 1 };

static struct watch channel;
static struct buffer incoming, outgoing, opening;
static uint32_t opening_id, last_host_id, next_own_id = 2;
static unsigned host_streams, own_streams[MAX_IDENTITIES], share;
static struct stream *table[PLACES], *queue, **queue_end = &queue;
static bool greeted, quiet;

/* ------------------------------------------------------------------------------------- streams */

static struct stream *find(uint32_t id)
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

static struct stream *make(uint32_t id, unsigned sharer)
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
    if (stream->id % 2 == 0)
        mux_room();
}

void mux_queue(struct stream *stream)
{
    if (stream->queued || stream->over)
        return;
    stream->queued = true;
    stream->next = NULL;
    *queue_end = stream;
    queue_end = &stream->next;
}

/* The first that may send now. Those that must not yet keep their order. */
static struct stream *next(void)
{
    for (struct stream **place = &queue, *stream; (stream = *place);) {
        if (quiet && !stream->speaks && !stream->over) {
            place = &stream->next;
            continue;
        }
        *place = stream->next;
        if (queue_end == &stream->next)
            queue_end = place;
        stream->queued = false;
        if (!stream->over)
            return stream;
        loop_free(&stream->freeable);
    }
    return NULL;
}

void mux_divide(unsigned sharers)
{
    share = MAX_GUEST_STREAMS / sharers;
}

void mux_quiet(bool still)
{
    quiet = still;
    if (!quiet)
        mux_room();
}

bool mux_may_open(unsigned sharer)
{
    return !quiet && own_streams[sharer] < share && next_own_id < UINT32_MAX - 2;
}

/* ------------------------------------------------------------------------------------- sending */

static void put32(uint8_t *bytes, uint32_t number)
{
    for (int at = 0; at < 4; at++)
        bytes[at] = (uint8_t)(number >> (24 - 8 * at));
}

/* `payload` is NULL when it stands in its place already. */
static void put(enum frame type, uint8_t flags, uint32_t id, const void *payload, size_t length)
{
    uint8_t *frame = buffer_room(&outgoing, HEADER + length);
    frame[0] = (uint8_t)type;
    frame[1] = flags;
    frame[2] = (uint8_t)(length >> 8);
    frame[3] = (uint8_t)length;
    put32(frame + 4, id);
    if (payload && length)
        memcpy(frame + HEADER, payload, length);
    outgoing.end += HEADER + length;
}

struct stream *mux_open(unsigned sharer, const struct stream_kind *kind, const struct reply *fields, void *owner)
{
    struct stream *stream = make(next_own_id, sharer);
    next_own_id += 2;
    stream->kind = kind;
    stream->owner = owner;
    put(OPEN, 0, stream->id, fields->bytes, fields->length);
    return stream;
}

/* One DATA frame, straight from the descriptor into the channel's buffer. */
static void put_from_source(struct stream *stream, struct source *source, size_t most)
{
    uint8_t *frame = buffer_room(&outgoing, HEADER + MAX_PAYLOAD);
    ssize_t length = read(source->watch.fd, frame + HEADER, most);
    if (length > 0) {
        put(DATA, source->flags, stream->id, NULL, (size_t)length);
        stream->may_send -= length + FRAME_COST;
        return;
    }
    if (length < 0 && errno == EINTR)
        return;
    source->readable = false;
    if (length < 0 && errno == EAGAIN && !stream->finishing) {
        loop_arm(&source->watch, EPOLLIN);
        return;
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
}

/* One DATA frame, if there is any. True: there may be more. */
static bool put_data(struct stream *stream)
{
    int64_t credit = stream->may_send - FRAME_COST;
    size_t most = credit < MAX_PAYLOAD ? (size_t)credit : MAX_PAYLOAD, length = buffer_length(&stream->out);
    if (length) {
        length = length < most ? length : most;
        put(DATA, 0, stream->id, buffer_front(&stream->out), length);
        buffer_drop(&stream->out, length);
        stream->may_send -= (int64_t)length + FRAME_COST;
        return buffer_length(&stream->out) > 0;
    }
    for (unsigned tries = 0; tries < 2; tries++) {
        struct source *source = &stream->sources[stream->turn++ % 2];
        if (source->open && source->readable) {
            put_from_source(stream, source, most);
            break;
        }
    }
    return (stream->sources[0].open && stream->sources[0].readable) ||
           (stream->sources[1].open && stream->sources[1].readable);
}

/* One turn. True: it wants another. */
static bool turn(struct stream *stream)
{
    bool more = false;
    if (stream->give_back >= WINDOW / 4 && !stream->peer_ended) {
        uint8_t credit[4];
        put32(credit, stream->give_back);
        put(CREDIT, 0, stream->id, credit, sizeof credit);
        stream->may_receive += stream->give_back;
        stream->give_back = 0;
    }
    bool dropping = stream->want_reset && !stream->want_end;
    if (!stream->we_ended && !dropping && stream->may_send > FRAME_COST)
        more = put_data(stream);
    if (stream->over)
        return false;
    if (!dropping && !buffer_length(&stream->out) && !stream_has_sources(stream)) {
        if (stream->note.length)
            put(NOTE, 0, stream->id, stream->note.bytes, stream->note.length);
        stream->note.length = 0;
        if (stream->want_end && !stream->we_ended) {
            put(END, 0, stream->id, NULL, 0);
            stream->we_ended = true;
        }
    }
    if (stream->want_reset && (stream->we_ended || !stream->want_end)) { /* asked anew: output may just have ended */
        put(RESET, 0, stream->id, stream->dropping.bytes, stream->dropping.length);
        mux_forget(stream);
        return false;
    }
    if (stream->we_ended && stream->peer_ended && !buffer_length(&stream->in)) {
        mux_forget(stream);
        return false;
    }
    return more && stream->may_send > FRAME_COST;
}

void mux_send(void)
{
    for (;;) {
        for (struct stream *stream; buffer_length(&outgoing) + TURN_ROOM <= SEND_AHEAD && (stream = next());)
            if (turn(stream))
                mux_queue(stream);
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

static void say_hello(void)
{
    struct reply hello = {.length = 0};
    reply_add(&hello, "protocol", "2");
    put(HELLO, 0, 0, hello.bytes, hello.length);
}

/* ------------------------------------------------------------------------------------- receiving */

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
    if (host_streams >= 2 * MAX_HOST_STREAMS)
        die("the host opens streams faster than it reads their refusals");
    struct stream *stream = make(id, 0);
    if (host_streams > MAX_HOST_STREAMS)
        stream_reset(stream, "busy", "%d streams are open", MAX_HOST_STREAMS);
    else
        host_opened(stream, kind, fields);
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

static void take_hello(uint32_t id, uint8_t flags, struct fields fields)
{
    if (id || (greeted && !(flags & FLAG_RESYNC)))
        die("the host said HELLO twice");
    if (!(flags & FLAG_RESYNC)) {
        greeted = true;
        host_greeted(fields);
        return;
    }
    /* Only a machine that was saved while it stood still can have a host that never heard of its streams. */
    if (!greeted || !control_resync || !control_resync())
        die("the host begins anew with a sandbox that is not frozen");
    for (unsigned place = 0; place < PLACES; place++)
        for (struct stream *stream; (stream = table[place]);) {
            if (stream->kind && stream->kind->left)
                stream->kind->left(stream);
            mux_forget(stream);
        }
    buffer_clear(&opening);
    buffer_clear(&outgoing);
    opening_id = last_host_id = 0;
    next_own_id = 2;
    say_hello();
}

static void take(uint8_t type, uint8_t flags, uint32_t id, const uint8_t *payload, size_t length)
{
    if (type == HELLO) {
        take_hello(id, flags, fields_of(payload, length));
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

void mux_start(int fd)
{
    loop_watch(&channel, fd, NULL, channel_ready);
    loop_arm(&channel, EPOLLIN);
    say_hello();
    mux_send();
}
