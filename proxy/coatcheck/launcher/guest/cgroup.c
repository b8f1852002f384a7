#include "command.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define ROOT "/sys/fs/cgroup"
#define LEFT 512 /* commands that ended and left processes behind; more than these are found by nobody */
#define RESERVED (24 << 20) /* bytes that commands cannot take: the kernel's and the agent's */
/* What is left for programs' own pages: they run from it. */
#define LEFT_BYTES (16 << 20)
#define LEFT_PART 8 /* and not more than this part of a small sandbox */
/* Commands waited for memory for 150 ms of a second. Without swap the kernel goes on evicting programs' pages and
 * reading them again for up to a minute before it calls that out of memory: in an emulated guest every page is a
 * slow read, and everybody waits for the same disk. */
#define STALLED "some 150000 1000000"

static bool available;
static uint32_t left[LEFT];
static unsigned left_count;

bool cgroup_put(const char *directory, const char *file, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool done = write(fd, text, strlen(text)) >= 0;
    close(fd);
    return done;
}

static bool put_number(const char *directory, const char *file, int64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, number);
    return cgroup_put(directory, file, text);
}

int64_t cgroup_get(const char *directory, const char *file, const char *key)
{
    char path[PATH_MAX], text[4096], wanted[32] = "";
    snprintf(path, sizeof path, "%s/%s", directory, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    if (key)
        snprintf(wanted, sizeof wanted, "%s ", key);
    for (char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (!strncmp(line, wanted, strlen(wanted))) {
            const char *number = line + strlen(wanted);
            return *number >= '0' && *number <= '9' ? strtoll(number, NULL, 10) : -1; /* `max`: no limit */
        }
    return -1;
}

static void name(char *path, uint32_t id)
{
    snprintf(path, PATH_MAX, COMMANDS "/%" PRIu32, id);
}

void cgroup_prepare(void)
{
    struct sysinfo system;
    cgroup_put(ROOT, "cgroup.subtree_control", "+cpu"); /* the agent's share is as large as all commands' together */
    available = cgroup_put(ROOT, "cgroup.subtree_control", "+memory +pids") && !mkdir(COMMANDS, 0755) &&
                cgroup_put(COMMANDS, "cgroup.subtree_control", "+memory +pids");
    if (available && !sysinfo(&system))
        put_number(COMMANDS, "memory.max", (int64_t)system.totalram * system.mem_unit - RESERVED);
}

bool cgroup_available(void)
{
    return available;
}

bool cgroup_limit_all(int64_t memory, int64_t processes)
{
    return available && (!memory || put_number(COMMANDS, "memory.max", memory)) &&
           (!processes || put_number(COMMANDS, "pids.max", processes));
}

bool cgroup_make(uint32_t id)
{
    char path[PATH_MAX];
    name(path, id);
    return available && (!mkdir(path, 0755) || errno == EEXIST);
}

bool cgroup_enter(uint32_t id)
{
    char path[PATH_MAX];
    name(path, id);
    return cgroup_put(path, "cgroup.procs", "0");
}

void cgroup_kill(uint32_t id)
{
    char path[PATH_MAX];
    name(path, id);
    if (available)
        cgroup_put(path, "cgroup.kill", "1");
}

const char *cgroup_limit_hit(uint32_t id)
{
    char path[PATH_MAX];
    name(path, id);
    if (available && cgroup_get(path, "memory.events", "oom_kill") > 0)
        return "memory";
    if (available && cgroup_get(path, "pids.events", "max") > 0)
        return "processes";
    return NULL;
}

/* ------------------------------------------------------------------------------- out of memory */

/* Programs' pages can be read again from disk, and that is what thrashing is; what they made cannot. */
static bool used_up(const char *directory)
{
    int64_t most = cgroup_get(directory, "memory.max", NULL);
    int64_t made = cgroup_get(directory, "memory.stat", "anon") + cgroup_get(directory, "memory.stat", "shmem") +
                   cgroup_get(directory, "memory.stat", "kernel");
    int64_t left_for_programs = most / LEFT_PART < LEFT_BYTES ? most / LEFT_PART : LEFT_BYTES;
    return most > 0 && made > most - left_for_programs;
}

int cgroup_pressure(void)
{
    int fd = available ? open(COMMANDS "/memory.pressure", O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd >= 0 && write(fd, STALLED, sizeof STALLED) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

uint32_t cgroup_relieve(void)
{
    char path[PATH_MAX];
    uint32_t largest = 0;
    int64_t most = -1;
    bool all = used_up(COMMANDS);
    DIR *commands = opendir(COMMANDS);
    if (!commands)
        return 0;
    for (struct dirent *entry; (entry = readdir(commands));) {
        uint32_t id = (uint32_t)strtoul(entry->d_name, NULL, 10);
        if (!id)
            continue;
        name(path, id);
        int64_t uses = cgroup_get(path, "memory.current", NULL);
        if (uses > most && (all || used_up(path))) {
            most = uses;
            largest = id;
        }
    }
    closedir(commands);
    if (largest)
        cgroup_kill(largest);
    return largest;
}

/* ------------------------------------------------------------------------------- the end of one */

static bool gone(uint32_t id)
{
    char path[PATH_MAX];
    name(path, id);
    return !rmdir(path) || errno != EBUSY;
}

void cgroup_remove(uint32_t id)
{
    if (available && !gone(id) && left_count < LEFT)
        left[left_count++] = id;
}

void cgroup_sweep(void)
{
    for (unsigned at = 0; at < left_count;)
        if (gone(left[at]))
            left[at] = left[--left_count];
        else
            at++;
}
