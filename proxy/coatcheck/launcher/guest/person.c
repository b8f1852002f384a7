#include "person.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "loop.h"

#define MAX_ENTROPY 256      /* bytes */
#define MIN_ENTROPY 32       /* less would not tell two copies apart for sure */
#define MACHINE_ID "/etc/machine-id"
#define IN_MEMORY "/run/coatcheck/machine-id"

static int64_t generation;

int64_t person_generation(void)
{
    return generation;
}

bool person_new_generation(struct fields fields)
{
    return parse_number(fields_get(fields, "generation"), generation + 1, INT64_MAX, &generation);
}

/* Whole or not at all. */
static bool put(const char *path, const char *text)
{
    char temporary[PATH_MAX];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    bool done = dprintf(fd, "%s\n", text) > 0;
    close(fd);
    if (done && !rename(temporary, path))
        return true;
    unlink(temporary);
    return false;
}

/* On a disk that is full it is in memory, over the file: a sandbox that filled it must wake all the same. */
static bool put_machine_id(const char *id)
{
    umount2(MACHINE_ID, MNT_DETACH); /* as the last time, it may be */
    if (put(MACHINE_ID, id))
        return true;
    return errno == ENOSPC && put(IN_MEMORY, id) && !mount(IN_MEMORY, MACHINE_ID, NULL, MS_BIND, NULL);
}

static int digit(char letter)
{
    const char *digits = "0123456789abcdef", *found = letter ? strchr(digits, letter) : NULL;
    return found ? (int)(found - digits) : -1;
}

static bool mix_entropy(const char *hex)
{
    struct {
        struct rand_pool_info head;
        uint8_t bytes[MAX_ENTROPY];
    } pool = {0};
    size_t length = strlen(hex) / 2;
    if (length < MIN_ENTROPY || length > MAX_ENTROPY || hex[2 * length])
        return false;
    for (size_t at = 0; at < length; at++) {
        int high = digit(hex[2 * at]), low = digit(hex[2 * at + 1]);
        if (high < 0 || low < 0)
            return false;
        pool.bytes[at] = (uint8_t)(high << 4 | low);
    }
    pool.head.entropy_count = (int)(8 * length);
    pool.head.buf_size = (int)length;
    int fd = open("/dev/random", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    /* Adding is not enough: until it reseeds, the kernel's generator goes on from what a copy has, too. */
    bool done = !ioctl(fd, RNDADDENTROPY, &pool) && !ioctl(fd, RNDRESEEDCRNG);
    close(fd);
    explicit_bzero(&pool, sizeof pool);
    return done;
}

static bool set_clock(const char *text)
{
    char *end;
    struct timespec now = {.tv_sec = strtoll(text, &end, 10)};
    if (end == text || (*end && *end != '.'))
        return false;
    char digits[10] = "000000000";
    if (*end == '.')
        for (int at = 0; at < 9 && end[1 + at] >= '0' && end[1 + at] <= '9'; at++)
            digits[at] = end[1 + at];
    now.tv_nsec = strtol(digits, NULL, 10);
    return !clock_settime(CLOCK_REALTIME, &now);
}

bool person_set(struct fields fields, const char **what)
{
    const char *hostname = fields_get(fields, "hostname"), *id = fields_get(fields, "machine-id");
    const char *clock = fields_get(fields, "clock"), *entropy = fields_get(fields, "entropy");
    if (hostname && *hostname && sethostname(hostname, strlen(hostname)) && (*what = "hostname", machine || errno != EPERM))
        return false;
    if (!machine)
        return true; /* the kernel is the host's: its clock and its chance are, too */
    *what = "entropy";
    if (entropy && !mix_entropy(entropy))
        return false;
    *what = "clock";
    if (clock && !set_clock(clock))
        return false;
    *what = "machine-id";
    return !id || put_machine_id(id);
}
