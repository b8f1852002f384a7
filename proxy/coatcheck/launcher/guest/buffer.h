/* Bytes that wait. Whoever fills one bounds it: by a stream's credit, or by a constant. */
#ifndef BUFFER_H
#define BUFFER_H

#include <stddef.h>
#include <stdint.h>

struct buffer {
    uint8_t *bytes;
    size_t start, end, size;
};

static inline size_t buffer_length(const struct buffer *buffer)
{
    return buffer->end - buffer->start;
}

static inline uint8_t *buffer_front(const struct buffer *buffer)
{
    return buffer->bytes + buffer->start;
}

/* Room for `length` more bytes at the end; the caller adds what it wrote to `end`. */
uint8_t *buffer_room(struct buffer *, size_t length);
void buffer_add(struct buffer *, const void *bytes, size_t length);
void buffer_drop(struct buffer *, size_t length);
void buffer_clear(struct buffer *);

#endif
