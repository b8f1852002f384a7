/* The guest's first process: loads modules, mounts the root, and becomes the agent. No shell, no udev, no sleep:
 * every millisecond here is one of the boot's.
 *
 * What it finds in the initramfs: /modules/load (file names, one a line, in the order in which they load), and
 * /agent. Disks are told apart by their serial number (`root`, `overlay`), never by their letter: which of them
 * is vda depends on the order of probing.
 *
 * Whatever goes wrong is said on the console, and the machine ends: QEMU runs with -no-reboot.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DISK_SECONDS 5 /* virtio disks are there when their driver is loaded; a slow host's probing gets this long */

static void fail(const char *format, ...)
{
    int reason = errno;
    va_list arguments;
    va_start(arguments, format);
    dprintf(STDERR_FILENO, "coatcheck init: ");
    vdprintf(STDERR_FILENO, format, arguments);
    dprintf(STDERR_FILENO, reason ? ": %s\n" : "\n", strerror(reason));
    va_end(arguments);
    reboot(RB_AUTOBOOT);
    _exit(1); /* not as PID 1: a panic, and with panic=-1 the same end */
}

static void make(const char *path, mode_t mode)
{
    if (mkdir(path, mode) && errno != EEXIST)
        fail("cannot make %s", path);
}

static void mount_at(const char *what, const char *where, const char *type, unsigned long flags, const char *data)
{
    if (mount(what, where, type, flags, data))
        fail("cannot mount %s (%s) at %s", what, type, where);
}

static void load_modules(void)
{
    char name[256], path[300];
    FILE *list = fopen("/modules/load", "re");
    if (!list)
        fail("the initramfs has no /modules/load");
    while (fgets(name, sizeof name, list)) {
        name[strcspn(name, "\n")] = 0;
        snprintf(path, sizeof path, "/modules/%s", name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            fail("the initramfs has no %s", path);
        if (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST)
            fail("cannot load %s", name);
        close(file);
        unlink(path); /* its memory is the guest's again */
    }
    fclose(list);
}

/* 1 with `device` filled when a virtio disk has this serial number. */
static int find_disk(const char *serial, char *device, size_t size)
{
    char path[300], found[32];
    int answer = 0;
    DIR *disks = opendir("/sys/block");
    if (!disks)
        fail("cannot read /sys/block");
    for (struct dirent *entry; !answer && (entry = readdir(disks));) {
        snprintf(path, sizeof path, "/sys/block/%s/serial", entry->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            continue;
        ssize_t length = read(file, found, sizeof found - 1);
        close(file);
        found[length > 0 ? length : 0] = 0;
        found[strcspn(found, "\n")] = 0;
        if (!strcmp(found, serial)) {
            snprintf(device, size, "/dev/%.200s", entry->d_name);
            answer = 1;
        }
    }
    closedir(disks);
    return answer;
}

static void wait_for_disk(const char *serial, char *device, size_t size)
{
    struct timespec pause = {0, 1000000};
    for (int tries = 0; !find_disk(serial, device, size); tries++) {
        if (tries == DISK_SECONDS * 1000) {
            errno = 0;
            fail("there is no disk with the serial number `%s`", serial);
        }
        nanosleep(&pause, NULL);
    }
}

static void mount_root(void)
{
    char device[256];
    make("/lower", 0755);
    make("/disk", 0755);
    make("/new", 0755);
    wait_for_disk("root", device, sizeof device);
    mount_at(device, "/lower", "ext4", MS_RDONLY | MS_NODEV | MS_NOSUID, "");
    if (find_disk("overlay", device, sizeof device))
        mount_at(device, "/disk", "ext4", MS_NODEV | MS_NOSUID | MS_NOATIME, "");
    else /* a machine without a disk to write on: what it writes is memory */
        mount_at("overlay", "/disk", "tmpfs", MS_NODEV | MS_NOSUID, "mode=0755");
    make("/disk/upper", 0755);
    make("/disk/work", 0755);
    mount_at("overlay", "/new", "overlay", MS_NODEV | MS_NOSUID,
             "lowerdir=/lower,upperdir=/disk/upper,workdir=/disk/work");
}

static void mount_kernel_filesystems(void)
{
    mount_at("/dev", "/new/dev", NULL, MS_MOVE, NULL);
    mount_at("/proc", "/new/proc", NULL, MS_MOVE, NULL);
    mount_at("/sys", "/new/sys", NULL, MS_MOVE, NULL);
    make("/new/dev/pts", 0755);
    make("/new/dev/shm", 01777);
    mount_at("devpts", "/new/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666");
    mount_at("tmpfs", "/new/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    mount_at("tmpfs", "/new/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
    mount_at("cgroup2", "/new/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    /* What devtmpfs leaves to udev. */
    if (symlink("/proc/self/fd", "/new/dev/fd") || symlink("/proc/self/fd/0", "/new/dev/stdin") ||
        symlink("/proc/self/fd/1", "/new/dev/stdout") || symlink("/proc/self/fd/2", "/new/dev/stderr"))
        fail("cannot fill /dev");
}

int main(void)
{
    static char *arguments[] = {"coatcheck-agent", NULL};
    static char *environment[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL};

    umask(0);
    make("/dev", 0755);
    make("/proc", 0755);
    make("/sys", 0755);
    mount_at("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=0755");
    int console = open("/dev/console", O_RDWR | O_NOCTTY);
    for (int number = 0; console >= 0 && number < 3; number++)
        dup2(console, number);
    if (console > 2)
        close(console);
    mount_at("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_at("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    load_modules();
    mount_root();
    mount_kernel_filesystems();

    int agent = open("/agent", O_RDONLY | O_CLOEXEC);
    if (agent < 0)
        fail("the initramfs has no /agent");
    unlink("/init");
    umask(022);
    /* The new root over the old one: what a process could reach by .. is the new root, too. */
    if (chdir("/new") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
        fail("cannot change to the new root");
    syscall(SYS_execveat, agent, "", arguments, environment, 0x1000 /* AT_EMPTY_PATH */);
    fail("cannot start the agent");
}
