#include "fields.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool fields_valid(struct fields fields)
{
    size_t words = 0;
    for (size_t at = 0; at < fields.length; words++) {
        const char *end = memchr(fields.bytes + at, 0, fields.length - at);
        if (!end || (words % 2 == 0 && end == fields.bytes + at))
            return false;
        at = (size_t)(end - fields.bytes) + 1;
    }
    return words % 2 == 0;
}

bool fields_next(struct fields fields, size_t *at, const char **name, const char **value)
{
    if (*at >= fields.length)
        return false;
    *name = fields.bytes + *at;
    *value = *name + strlen(*name) + 1;
    *at = (size_t)(*value - fields.bytes) + strlen(*value) + 1;
    return true;
}

const char *fields_get(struct fields fields, const char *wanted)
{
    const char *name, *value;
    for (size_t at = 0; fields_next(fields, &at, &name, &value);)
        if (!strcmp(name, wanted))
            return value;
    return NULL;
}

bool parse_number(const char *value, int64_t least, int64_t most, int64_t *number)
{
    char *end;
    if (!value || !((*value >= '0' && *value <= '9') || *value == '-'))
        return false;
    errno = 0;
    long long found = strtoll(value, &end, 10);
    if (errno || *end || found < least || found > most)
        return false;
    *number = found;
    return true;
}

void reply_add(struct reply *reply, const char *name, const char *format, ...)
{
    size_t named = strlen(name) + 1;
    if (reply->length + named >= REPLY_SIZE)
        return;
    char *value = reply->bytes + reply->length + named;
    size_t room = REPLY_SIZE - reply->length - named;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(value, room, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= room)
        return;
    /* The host takes only UTF-8 from us, and a path may be anything. */
    for (char *at = value; *at; at++)
        if ((unsigned char)*at < ' ' || (unsigned char)*at > '~')
            *at = '?';
    memcpy(reply->bytes + reply->length, name, named);
    reply->length += named + (size_t)length + 1;
}
