#include "volume.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "identity.h"

static bool find_disk(const char *serial, size_t length, char *device, size_t size)
{
    char path[300], found[64];
    bool answer = false;
    DIR *disks = opendir("/sys/block");
    if (!disks)
        return false;
    for (struct dirent *entry; !answer && (entry = readdir(disks));) {
        snprintf(path, sizeof path, "/sys/block/%.200s/serial", entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? 0 : read(fd, found, sizeof found - 1);
        if (fd >= 0)
            close(fd);
        found[got > 0 ? got : 0] = 0;
        answer = strcspn(found, "\n") == length && length && !strncmp(found, serial, length);
        if (answer)
            snprintf(device, size, "/dev/%.200s", entry->d_name);
    }
    closedir(disks);
    errno = answer ? 0 : ENODEV;
    return answer;
}

/* Each directory on the way. Before any command runs: nobody can put a link there meanwhile. */
static bool make_path(const char *path)
{
    char part[PATH_MAX];
    for (size_t at = 1; path[at - 1]; at++) {
        if (path[at] && path[at] != '/')
            continue;
        snprintf(part, sizeof part, "%.*s", (int)at, path);
        if (mkdir(part, 0755) && errno != EEXIST)
            return false;
    }
    return true;
}

bool volumes_mount(struct fields fields, const char **what)
{
    const char *name, *value;
    char device[256];
    struct stat status;
    for (size_t at = 0; fields_next(fields, &at, &name, &value);) {
        if (strcmp(name, "volume"))
            continue;
        const char *path = strchr(value, '=');
        *what = value;
        errno = EINVAL;
        if (!path || path[1] != '/' || strlen(path) >= PATH_MAX)
            return false;
        path++;
        if (!find_disk(value, (size_t)(path - value - 1), device, sizeof device) || !make_path(path) ||
            mount(device, path, "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, NULL))
            return false;
        /* A new one belongs to nobody yet. */
        const struct identity *first = identity_at(0);
        if (!stat(path, &status) && !status.st_uid && chown(path, first->uid, first->gid))
            return false;
    }
    return true;
}
