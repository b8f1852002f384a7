#include "buffer.h"

#include <stdlib.h>
#include <string.h>

#include "loop.h"

#define KEPT 4096 /* an empty buffer larger than this gives its memory back */

uint8_t *buffer_room(struct buffer *buffer, size_t length)
{
    size_t used = buffer_length(buffer);
    if (buffer->size - buffer->end < length && buffer->start) {
        memmove(buffer->bytes, buffer_front(buffer), used);
        buffer->start = 0;
        buffer->end = used;
    }
    if (buffer->size - buffer->end < length) {
        size_t size = buffer->size ? buffer->size : 512;
        while (size - used < length)
            size *= 2;
        uint8_t *bytes = realloc(buffer->bytes, size);
        if (!bytes)
            die("out of memory");
        buffer->bytes = bytes;
        buffer->size = size;
    }
    return buffer->bytes + buffer->end;
}

void buffer_add(struct buffer *buffer, const void *bytes, size_t length)
{
    if (length) {
        memcpy(buffer_room(buffer, length), bytes, length);
        buffer->end += length;
    }
}

void buffer_drop(struct buffer *buffer, size_t length)
{
    buffer->start += length;
    if (buffer->start < buffer->end)
        return;
    buffer->start = buffer->end = 0;
    if (buffer->size > KEPT)
        buffer_clear(buffer);
}

void buffer_clear(struct buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct buffer){0};
}
