#include "mux.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "identity.h"
#include "mux_state.h"

#define PLACES 1024 /* of the table of streams; a power of two, more than there can be streams */
#define SEND_AHEAD (256 * 1024)
#define TURN_ROOM (64 * 1024) /* more than one turn of a stream can put: DATA, and all small frames */
#define GIVE_BACK (WINDOW / 4)

void (*mux_room)(void);

static struct watch *channel;
static struct buffer outgoing;
static uint32_t next_own_id = 2;
static unsigned host_streams, own_streams[MAX_IDENTITIES], share;
static struct stream *table[PLACES];
static struct stream *first_queued, *last_queued;
/* Those that have something to send and must not: in order, until the thaw. */
static struct stream *first_hushed, *last_hushed;
static bool quiet;

static void put32(uint8_t *bytes, uint32_t number)
{
    for (int at = 0; at < 4; at++)
        bytes[at] = (uint8_t)(number >> (24 - 8 * at));
}

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

void mux_begin_anew(void)
{
    for (unsigned place = 0; place < PLACES; place++)
        for (struct stream *stream; (stream = table[place]);) {
            if (stream->kind && stream->kind->left)
                stream->kind->left(stream);
            mux_forget(stream);
        }
    buffer_clear(&outgoing);
    next_own_id = 2;
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

/* ------------------------------------------------------------------------------------- sending */

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

static void hush(struct stream *stream)
{
    stream->queued = true;
    stream->next = NULL;
    *(first_hushed ? &last_hushed->next : &first_hushed) = stream;
    last_hushed = stream;
}

static void pump(void)
{
    while (first_queued && buffer_length(&outgoing) + TURN_ROOM <= SEND_AHEAD) {
        struct stream *stream = first_queued;
        first_queued = stream->next;
        stream->queued = false;
        if (stream->over)
            loop_free(&stream->freeable);
        else if (quiet && !stream->speaks)
            hush(stream);
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
