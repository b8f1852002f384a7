/* What the host orders of a machine that outlives its boot: to stand still while it is saved, to go on, and to be
 * somebody else. The agent (launcher/guest) works without this file. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "control.h"

#define MACHINE_ID "/etc/machine-id"
#define IN_MEMORY "/run/coatcheck/machine-id"
#define FREEZE_MILLISECONDS 2000 /* a process in an uninterruptible wait takes its time */

static int64_t generation; /* a fork's is larger than its parent's */
static bool unbound; /* a host began anew: whose machine this is has to be said first */

/* ------------------------------------------------------------------------------------- standing still */

/* All commands. False when they do not stand still (or move again). */
static bool set_frozen(bool frozen)
{
    struct timespec pause = {0, 1000000};
    if (!cgroup_available()) /* as PID 1 of a namespace: all processes but ourselves */
        return getpid() == 1 && (!kill(-1, frozen ? SIGSTOP : SIGCONT) || errno == ESRCH);
    if (!cgroup_put(COMMANDS, "cgroup.freeze", frozen ? "1" : "0"))
        return false;
    for (int tries = 0; tries < FREEZE_MILLISECONDS; tries++) {
        if (cgroup_get(COMMANDS, "cgroup.events", "frozen") == frozen)
            return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

static void freeze(struct stream *stream, bool frozen)
{
    if (frozen)
        command_hold(HOLD_ALL); /* first: what starts meanwhile would not stand still */
    else if (unbound) {
        stream_reset(stream, "bad_request", "a rebind comes before the thaw");
        return;
    }
    if (!set_frozen(frozen)) {
        control_failed(stream, frozen ? "freeze" : "thaw");
        return;
    }
    if (!frozen)
        command_hold(HOLD_NOTHING);
    mux_quiet(frozen);
    stream->speaks = true;
    reply_add(&stream->note, "frozen", "%s", frozen ? "yes" : "no");
    stream_done(stream);
}

/* ------------------------------------------------------------------------------------- another identity */

static bool new_generation(struct fields fields)
{
    return parse_number(fields_get(fields, "generation"), generation + 1, INT64_MAX, &generation);
}

bool control_greeted(struct fields fields, const char **why)
{
    *why = "the host's HELLO has no generation";
    return new_generation(fields);
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

/* While its commands stand still: nothing runs before it is acknowledged and thawed. */
static void rebind(struct stream *stream, struct fields fields)
{
    const char *what = "", *id = fields_get(fields, "machine-id");
    command_hold(HOLD_ALL);
    if (!fields_get(fields, "entropy") || !new_generation(fields)) {
        stream_reset(stream, "bad_request", "a rebind needs entropy and a generation after %lld",
                     (long long)generation);
        return;
    }
    if (!control_set(fields, &what) || (machine && id && (what = "machine-id", !put_machine_id(id)))) {
        control_failed(stream, what);
        return;
    }
    unbound = false;
    command_hold(HOLD_COMMANDS); /* the host puts new trust in place, then thaws */
    reply_add(&stream->note, "generation", "%lld", (long long)generation);
    stream_done(stream);
}

/* ------------------------------------------------------------------------------------- as control.h asks */

bool control_resync(void)
{
    unbound = command_held() == HOLD_ALL;
    return unbound;
}

bool control_unbound(void)
{
    return unbound;
}

bool control_more(const char *op, struct stream *stream, struct fields fields)
{
    if (!strcmp(op, "freeze") || !strcmp(op, "thaw"))
        freeze(stream, *op == 'f');
    else if (!strcmp(op, "rebind"))
        rebind(stream, fields);
    else
        return false;
    return true;
}
