#include "control.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "identity.h"
#include "network.h"

#define MIN_ENTROPY 64 /* hexadecimal digits; fewer would not tell two copies apart for sure */
#define MAX_ENTROPY 512

/* ---------------------------------------------------------------------------- name, clock, entropy */

static bool mix_entropy(const char *digits)
{
    struct {
        struct rand_pool_info head;
        char bytes[MAX_ENTROPY];
    } pool = {0};
    size_t length = strlen(digits);
    if (length < MIN_ENTROPY || length > MAX_ENTROPY || strspn(digits, "0123456789abcdef") != length)
        return false;
    memcpy(pool.bytes, digits, length);
    pool.head.entropy_count = (int)(4 * length);
    pool.head.buf_size = (int)length;
    int fd = open("/dev/random", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    /* Adding is not enough: until it reseeds, the kernel's generator continues from what a copy has, too. */
    bool done = !ioctl(fd, RNDADDENTROPY, &pool) && !ioctl(fd, RNDRESEEDCRNG);
    close(fd);
    explicit_bzero(&pool, sizeof pool);
    return done;
}

static bool set_clock(const char *text)
{
    long long seconds, nanoseconds;
    int used = 0;
    if (sscanf(text, "%lld.%9lld%n", &seconds, &nanoseconds, &used) != 2 || text[used] || nanoseconds < 0) {
        errno = EINVAL;
        return false;
    }
    return !clock_settime(CLOCK_REALTIME, &(struct timespec){.tv_sec = seconds, .tv_nsec = nanoseconds});
}

bool control_set(struct fields fields, const char **what)
{
    const char *name = fields_get(fields, *what = "hostname");
    if (name && *name && sethostname(name, strlen(name)) && (machine || errno != EPERM))
        return false;
    if (!machine)
        return true; /* the kernel is the host's, and so are its clock and its randomness */
    const char *entropy = fields_get(fields, *what = "entropy");
    if (entropy && !mix_entropy(entropy))
        return false;
    const char *clock = fields_get(fields, *what = "clock");
    return !clock || set_clock(clock);
}

/* ---------------------------------------------------------------------------- volumes */

static bool has_serial(const char *disk, const char *serial, size_t length)
{
    char path[300], found[64];
    snprintf(path, sizeof path, "/sys/block/%.200s/serial", disk);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, found, sizeof found - 1);
    if (fd >= 0)
        close(fd);
    found[got > 0 ? got : 0] = 0;
    return strcspn(found, "\n") == length && !strncmp(found, serial, length);
}

/* `SERIAL=PATH`: a named disk, found by its serial number. Before any command runs: nobody can put a link there. */
static bool mount_volume(const char *volume)
{
    const char *path = strchr(volume, '=');
    char device[256] = "", part[PATH_MAX];
    struct stat status;
    errno = EINVAL;
    if (!path || path == volume || path[1] != '/' || strlen(path) >= PATH_MAX)
        return false;
    DIR *disks = opendir("/sys/block");
    for (struct dirent *entry; disks && !*device && (entry = readdir(disks));)
        if (has_serial(entry->d_name, volume, (size_t)(path - volume)))
            snprintf(device, sizeof device, "/dev/%.200s", entry->d_name);
    if (disks)
        closedir(disks);
    errno = ENODEV;
    if (!*device)
        return false;
    path++;
    for (size_t at = 1; path[at - 1]; at++) {
        snprintf(part, sizeof part, "%.*s", (int)at, path);
        if ((!path[at] || path[at] == '/') && mkdir(part, 0755) && errno != EEXIST)
            return false;
    }
    if (mount(device, path, "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, NULL))
        return false;
    const struct identity *first = identity_at(0); /* to whom a new one, which is nobody's yet, belongs */
    return stat(path, &status) || status.st_uid || !chown(path, first->uid, first->gid);
}

/* ---------------------------------------------------------------------------- operations */

void control_failed(struct stream *stream, const char *what)
{
    stream_reset(stream, "failed", "%s: %s", what, strerror(errno));
}

static void configure(struct stream *stream, struct fields fields)
{
    int64_t memory = 0, processes = 0;
    const char *what = "", *limit = fields_get(fields, "memory"), *most = fields_get(fields, "processes");
    const char *name, *value;
    if ((limit && !parse_number(limit, 1, INT64_MAX, &memory)) ||
        (most && !parse_number(most, 1, INT32_MAX, &processes))) {
        stream_reset(stream, "bad_request", "limits are numbers");
        return;
    }
    if (!control_set(fields, &what)) {
        control_failed(stream, what);
        return;
    }
    for (size_t at = 0; fields_next(fields, &at, &name, &value);)
        if ((!strcmp(name, "volume") && !mount_volume(value)) || (!strcmp(name, "listen") && !network_listen(value))) {
            control_failed(stream, value);
            return;
        }
    if (machine && !cgroup_limit_all(memory, processes)) /* elsewhere the host's own control group limits it */
        control_failed(stream, "limits");
    else
        stream_done(stream);
}

void control_start(struct stream *stream, struct fields fields)
{
    const char *op = fields_get(fields, "op");
    op = op ? op : "";
    if (!strcmp(op, "configure")) {
        configure(stream, fields);
    } else if (!strcmp(op, "netlink")) {
        network_netlink(stream, fields);
    } else if (!strcmp(op, "sync")) {
        sync();
        stream_done(stream);
    } else if (!control_more || !control_more(op, stream, fields)) {
        stream_reset(stream, "bad_request", "there is no such operation");
    }
}
