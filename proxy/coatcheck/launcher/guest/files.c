#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE 65536

#define OURS "/run/coatcheck/"
#define TRUST_STORE "/etc/ssl/certs/ca-certificates.crt"

static int directory = -1;
static char temporary[64];

static const char *path_of(struct fields fields, struct failure *failure)
{
    const char *path = fields_get(fields, "path");
    size_t length = path ? strlen(path) : 0;
    errno = EINVAL;
    if (!length || *path != '/' || path[length - 1] == '/' || length >= PATH_MAX)
        fail(failure, "the path must be absolute and name a file");
    return path;
}

static void copy(int from, int to, const char *path, struct failure *failure)
{
    static char piece[PIECE];
    for (;;) {
        ssize_t length = read(from, piece, sizeof piece);
        if (length < 0 && errno == EINTR)
            continue;
        if (length < 0)
            fail(failure, "cannot read %s", path);
        if (!length)
            return;
        for (ssize_t at = 0; at < length;) {
            ssize_t written = write(to, piece + at, (size_t)(length - at));
            if (written < 0 && errno != EINTR) {
                int error = errno;
                if (*temporary)
                    unlinkat(directory, temporary, 0);
                errno = error;
                fail(failure, "cannot write %s", path);
            }
            at += written > 0 ? written : 0;
        }
        failure->written += length;
    }
}

void file_read(struct fields fields, struct failure *failure)
{
    struct stat status;
    const char *path = path_of(fields, failure);
    /* O_NOFOLLOW: one identity's link must not make the host read another's file for it. O_NONBLOCK: opening a
     * FIFO would wait for ever. */
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status))
        fail(failure, "cannot open %s", path);
    errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    if (!S_ISREG(status.st_mode))
        fail(failure, "%s is not a plain file", path);
    copy(file, STDOUT_FILENO, path, failure);
    _exit(0);
}

static void give_up(int number)
{
    (void)number;
    if (*temporary)
        unlinkat(directory, temporary, 0);
    _exit(1);
}

/* What the host puts where commands cannot: its own directory, and the trust store of the image. */
static bool is_the_hosts(const char *path)
{
    return !strcmp(path, TRUST_STORE) || (!strncmp(path, OURS, strlen(OURS)) && !strstr(path, "/.."));
}

static void make_parents(const char *path, mode_t mode)
{
    char part[PATH_MAX];
    for (const char *at = path; (at = strchr(at + 1, '/'));) {
        snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
        mkdir(part, mode);
    }
}

void file_write(struct fields fields, struct failure *failure)
{
    const char *path = path_of(fields, failure), *name = strrchr(path, '/') + 1, *wanted = fields_get(fields, "mode");
    char parent[PATH_MAX];
    struct stat status;
    unsigned long chance;
    mode_t mode = 0644;

    const char *identity = fields_get(fields, "identity");
    bool ours = identity && !strcmp(identity, identity_own.name);
    errno = EACCES;
    if (ours && !is_the_hosts(path))
        fail(failure, "%s is not the host's to write", path);
    if (ours || fields_get(fields, "parents"))
        make_parents(path, ours ? 0755 : 0700);
    snprintf(parent, sizeof parent, "%.*s", (int)(name - path), path);
    directory = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        fail(failure, "cannot open %s", parent);
    if (!fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW)) {
        errno = EISDIR;
        if (S_ISDIR(status.st_mode))
            fail(failure, "%s is a directory", path);
        if (S_ISREG(status.st_mode))
            mode = status.st_mode & 0777;
    }
    if (wanted) {
        char *end;
        mode = (mode_t)strtoul(wanted, &end, 8);
        errno = EINVAL;
        if (*end || !*wanted || mode > 0777)
            fail(failure, "the mode %s is not three octal digits", wanted);
    }
    if (getrandom(&chance, sizeof chance, 0) != sizeof chance)
        fail(failure, "cannot name a temporary file");
    signal(SIGTERM, give_up);
    snprintf(temporary, sizeof temporary, ".coatcheck-%lx", chance);
    int file = openat(directory, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        fail(failure, "cannot write in %s", parent);
    copy(STDIN_FILENO, file, path, failure);
    /* Whole or not at all: what reads it meanwhile has the old one. */
    if (fchmod(file, mode) || close(file) || renameat(directory, temporary, directory, name)) {
        int error = errno;
        unlinkat(directory, temporary, 0);
        errno = error;
        fail(failure, "cannot replace %s", path);
    }
    _exit(0);
}
