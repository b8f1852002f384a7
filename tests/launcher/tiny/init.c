/* A guest of one program, which does over its port what tests tell it: one line in, one line out. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *modules[] = {"virtio_ring", "virtio", "virtio_mmio", "virtio_console", "virtio_blk", "virtio-rng", "virtio_balloon"};
static int port = -1;
static volatile long *counter;
static char *pages;
static size_t size;

static int first_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    line[0] = 0;
    char *got = fgets(line, (int)size, file);
    fclose(file);
    line[strcspn(line, "\n")] = 0;
    return got ? 0 : -1;
}

/* The entry of directory `where` whose file `which` holds `wanted`. */
static int find(const char *where, const char *which, const char *wanted, char *name, size_t size)
{
    DIR *directory = opendir(where);
    if (!directory)
        return -1;
    struct dirent *entry;
    int found = -1;
    while (found && (entry = readdir(directory))) {
        char path[600], line[128];
        snprintf(path, sizeof path, "%s/%s/%s", where, entry->d_name, which);
        if (!first_line(path, line, sizeof line) && !strcmp(line, wanted)) {
            snprintf(name, size, "/dev/%s", entry->d_name);
            found = 0;
        }
    }
    closedir(directory);
    return found;
}

static int disk(const char *serial)
{
    char path[300];
    return find("/sys/block", "serial", serial, path, sizeof path) ? -1 : open(path, O_RDWR | O_DSYNC | O_CLOEXEC);
}

static void say(const char *text)
{
    dprintf(port, "%s\n", text);
}

static void list(const char *where)
{
    char names[1024] = "";
    DIR *directory = opendir(where);
    struct dirent *entry;
    while (directory && (entry = readdir(directory)))
        if (entry->d_name[0] != '.') {
            strncat(names, entry->d_name, sizeof names - strlen(names) - 2);
            strcat(names, " ");
        }
    say(names);
}

static void obey(char *line)
{
    char *verb = strtok(line, " "), *one = strtok(NULL, " "), *two = strtok(NULL, "");
    static char block[4096] __attribute__((aligned(4096)));
    char text[4096] = "";
    if (!strcmp(verb, "echo"))
        say(one);
    else if (!strcmp(verb, "list"))
        list(one);
    else if (!strcmp(verb, "read")) {
        first_line(one, text, sizeof text);
        say(text);
    } else if (!strcmp(verb, "put")) { /* put SERIAL TEXT, 4 MiB into the disk: past ext4's own */
        int fd = disk(one);
        memset(block, 0, sizeof block);
        strncpy(block, two, sizeof block - 1);
        say(pwrite(fd, block, sizeof block, 4 << 20) == sizeof block ? "written" : "not written");
        close(fd);
    } else if (!strcmp(verb, "get")) {
        int fd = disk(one);
        say(pread(fd, block, sizeof block, 4 << 20) == sizeof block ? block : "not read");
        close(fd);
    } else if (!strcmp(verb, "remember")) { /* in memory only */
        setenv("REMEMBERED", one, 1);
        say("remembered");
    } else if (!strcmp(verb, "straddle")) { /* two texts on both sides of a page's edge, and nowhere together */
        static char pages[2 * 4096] __attribute__((aligned(4096)));
        memcpy(pages + 4096 - strlen(one), one, strlen(one));
        memcpy(pages + 4096, two, strlen(two));
        say("straddled");
    } else if (!strcmp(verb, "count")) { /* another process counts, and goes on while nobody asks */
        counter = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (!fork())
            for (;; usleep(1000))
                ++*counter;
        say("counting");
    } else if (!strcmp(verb, "counted")) {
        snprintf(text, sizeof text, "%ld", *counter);
        say(text);
    } else if (!strcmp(verb, "touch")) { /* so many MiB of memory, each page with something else in it */
        size = (size_t)atol(one) << 20;
        pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t at = 0; pages != MAP_FAILED && at < size; at += 4096)
            memcpy(pages + at, &at, sizeof at), memcpy(pages + at + 2048, "touched", 8);
        say(pages == MAP_FAILED ? "not touched" : "touched");
    } else if (!strcmp(verb, "release")) { /* what was touched last */
        say(munmap(pages, size) ? "not released" : "released");
    } else if (!strcmp(verb, "spin")) { /* so many processes that do nothing else */
        for (int count = atoi(one); count; count--)
            if (!fork())
                for (;;)
                    ;
        say("spinning");
    } else if (!strcmp(verb, "unload")) { /* a module of the kernel, as root may */
        say(syscall(SYS_delete_module, one, 0) ? "not unloaded" : "unloaded");
    } else if (!strcmp(verb, "restart"))
        reboot(RB_AUTOBOOT);
}

int main(void)
{
    char path[300], name[300], line[4096];
    mount("dev", "/dev", "devtmpfs", 0, 0);
    mount("proc", "/proc", "proc", 0, 0);
    mount("sys", "/sys", "sysfs", 0, 0);
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        snprintf(path, sizeof path, "/modules/%s.ko", modules[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (syscall(SYS_finit_module, fd, "", 0))
            perror(path);
        close(fd);
    }
    while (find("/sys/class/virtio-ports", "name", "coatcheck.0", name, sizeof name))
        usleep(1000);
    while ((port = open(name, O_RDWR | O_CLOEXEC)) < 0)
        usleep(1000);
    say("hello");
    FILE *lines = fdopen(dup(port), "r");
    while (fgets(line, sizeof line, lines)) {
        line[strcspn(line, "\n")] = 0;
        obey(line);
    }
    return 1;
}
