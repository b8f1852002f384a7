/* Fields: `name NUL value NUL`, any number (docs/guest-protocol.md). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fields {
    const char *bytes; /* ends with NUL when `length` is not 0 */
    size_t length;
};

bool fields_valid(struct fields);

/* Walk: start with *at = 0. */
bool fields_next(struct fields, size_t *at, const char **name, const char **value);

/* The first value of `name`, or NULL. */
const char *fields_get(struct fields, const char *name);

/* `value` as a decimal number in [least, most]; false for anything else. */
bool parse_number(const char *value, int64_t least, int64_t most, int64_t *number);

#define REPLY_SIZE 512 /* what the agent says is short; two of them are in each stream */

struct reply {
    char bytes[REPLY_SIZE];
    size_t length;
};

/* Add a field; one that no longer fits is left out. */
__attribute__((format(printf, 3, 4))) void reply_add(struct reply *, const char *name, const char *format, ...);
