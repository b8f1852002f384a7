/* Coatcheck's agent: the first process of a sandbox. It starts what the host asks for, and carries every byte that
 * the sandbox sends anywhere to the host, over one channel (docs/guest-protocol.md).
 *
 *   coatcheck-agent              in a microVM, exec'ed by init: the channel is the virtio port
 *   coatcheck-agent --namespace  in a namespace: the channel is descriptor 3, a Unix stream socket
 *   coatcheck-agent --input      in gVisor, which passes on nothing but standard streams: it is descriptor 0
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "control.h"
#include "network.h"

#define CHANNEL 3 /* its descriptor in a namespace */
#define PORT "/dev/vport0p1" /* the first of the only device; 0 would be a console */
#define PORT_MILLISECONDS 5000 /* the port is there when its driver is; a slow host's probing gets this long */
#define FILES 65536 /* descriptors: streams and what commands inherit as their hard limit */

static struct watch signals;

/* ----------------------------------------------------------------------------------- what the host says */

/* The image has none for a user that it does not know. */
static void make_homes(void)
{
    char path[64];
    struct stat status;
    for (unsigned at = 0; at < identities_count(); at++) {
        const struct identity *identity = identity_at(at);
        snprintf(path, sizeof path, "/home/%s", identity->name);
        mkdir(path, 0755);
        if (identity->switches && !lstat(path, &status) && S_ISDIR(status.st_mode) && !status.st_uid &&
            chown(path, identity->uid, identity->gid))
            die("cannot give %s to its user: %s", path, strerror(errno));
    }
}

void host_greeted(struct fields fields)
{
    const char *list = fields_get(fields, "identities"), *why = "the host named no identities";
    if (!list || !identities_set(list, &why) || (control_greeted && !control_greeted(fields, &why)))
        die("%s", why);
    if (!control_set(fields, &why))
        die("cannot set the %s: %s", why, strerror(errno));
    mux_divide(identities_count());
    make_homes();
}

void host_opened(struct stream *stream, const char *kind, struct fields fields)
{
    bool control = !strcmp(kind, "control");
    if (!control && control_unbound && control_unbound())
        stream_reset(stream, "frozen", "a copy does nothing before it knows whose it is");
    else if (!control && !network_ready())
        stream_reset(stream, "network_open", "nothing runs before the network is closed");
    else if (control)
        control_start(stream, fields);
    else if (!strcmp(kind, "exec"))
        command_start(stream, fields);
    else if (!strcmp(kind, "read"))
        worker_start(stream, fields, file_read, false);
    else if (!strcmp(kind, "write"))
        worker_start(stream, fields, file_write, true);
    else if (!strcmp(kind, "connect"))
        network_connect(stream, fields);
    else
        stream_reset(stream, "bad_request", "there is no such kind of stream");
}

/* ----------------------------------------------------------------------------------- start */

static int open_channel(void)
{
    struct timespec pause = {0, 1000000};
    int fd = CHANNEL;
    if (!machine && (fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, O_NONBLOCK)))
        die("descriptor 3 is not the channel: %s", strerror(errno));
    for (int tries = 0; machine && (fd = open(PORT, O_RDWR | O_NONBLOCK | O_CLOEXEC)) < 0; tries++) {
        if (tries == PORT_MILLISECONDS)
            die("there is no virtio port: %s", strerror(errno));
        nanosleep(&pause, NULL);
    }
    return fd;
}

/* What init has not mounted (the image's own /tmp is on the overlay). */
static void prepare_machine(void)
{
    struct rlimit files = {1024, FILES};
    mkdir("/run/coatcheck", 0755);
    mkdir("/tmp", 01777);
    setrlimit(RLIMIT_NOFILE, &files);
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score < 0 || write(score, "-1000", 5) != 5)
        die("cannot protect the agent from the kernel's OOM killer: %s", strerror(errno));
    close(score);
    cgroup_prepare();
    command_watch_memory();
    int resolver = open("/etc/resolv.conf", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (resolver >= 0) { /* an image may have a link there, which leads nowhere: then the redirect has to do */
        dprintf(resolver, "nameserver 127.0.0.53\n");
        close(resolver);
    }
}

static void signalled(struct watch *watch, uint32_t events)
{
    struct signalfd_siginfo information;
    (void)events;
    while (read(watch->fd, &information, sizeof information) > 0)
        ;
    command_reap();
    loop_arm(watch, EPOLLIN);
}

static void watch_children(void)
{
    sigset_t set;
    /* As PID 1 it is deaf to all signals without a handler; blocked, they do not reach it elsewhere either. */
    sigfillset(&set);
    sigprocmask(SIG_SETMASK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0)
        die("signalfd: %s", strerror(errno));
    loop_watch(&signals, fd, NULL, signalled);
    loop_arm(&signals, EPOLLIN);
}

int main(int count, char **arguments)
{
    const char *how = count == 2 ? arguments[1] : "";
    bool given_input = !strcmp(how, "--input");
    machine = !given_input && strcmp(how, "--namespace");
    /* Commands of the same uid must not read our memory or take our descriptors. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (given_input && (dup2(STDIN_FILENO, CHANNEL) < 0 || close(STDIN_FILENO)))
        die("standard input is not the channel: %s", strerror(errno));
    for (int number; (number = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0;)
        if (number > 2) {
            close(number);
            break;
        }
    if (!machine) {
        close_range(4, ~0U, 0); /* what bubblewrap was given */
        chmod("/tmp", 01777);   /* runc gives it the mode of the directory below */
    }
    loop_start();
    watch_children();
    command_prepare();
    if (machine)
        prepare_machine();
    mux_start(open_channel());
    for (;;) {
        mux_send();
        loop_round();
    }
}
