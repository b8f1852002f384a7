#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define FULL_BYTES (256 * 1024) /* less than this left: what just failed, failed for want of space */
#define MOST_LEFTOVERS 1024 /* two of each command that runs, and as many that ended; those behind more get SIGPIPE */
#define SLOTS (MAX_HOST_STREAMS + 64) /* beyond the streams: killed, and not yet reaped */

struct command {
    struct stream *stream; /* NULL: nobody waits for it any more */
    pid_t pid;             /* 0: the slot is free */
    uint32_t id; /* of its cgroup; not the stream's number, which a host that begins anew uses again */
    int input;   /* its standard input where its host went; 0: none */
    bool exited, worker, counted, terminal, squeezed;
    int status;
    char directory[256];
};

static struct command commands[SLOTS];
static struct failure *failures; /* shared with the children, one for each slot */
static enum hold held;
static uint32_t last_number;

void command_prepare(void)
{
    failures = mmap(NULL, SLOTS * sizeof *failures, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (failures == MAP_FAILED)
        die("no memory for commands");
}

void command_hold(enum hold hold)
{
    held = hold;
}

enum hold command_held(void)
{
    return held;
}

/* ---------------------------------------------------------------------------------- how one ended */

static const char *reason_of(int error, bool transfer)
{
    switch (error) {
    case ENOENT:
        return transfer ? "file_not_found" : "not_found";
    case EACCES:
    case EPERM:
    case EROFS:
        return "permission_denied";
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return "no_space";
    case EISDIR:
        return "is_directory";
    case ENOTDIR:
    case ELOOP:
    case EINVAL:
    case ENAMETOOLONG:
        return "invalid_path";
    default:
        return "failed";
    }
}

static bool full(const char *path)
{
    struct statvfs room;
    return !statvfs(path, &room) && !(room.f_flag & ST_RDONLY) && room.f_blocks &&
           (room.f_bavail * room.f_frsize < FULL_BYTES || (room.f_files && !room.f_favail));
}

/* The limit that a command ran into, if any is known. */
static const char *limit_hit(const struct command *command)
{
    const char *limit = command->counted ? cgroup_limit_hit(command->id) : NULL;
    if (command->squeezed)
        return "memory";
    return limit || !command->status || !(full(command->directory) || full("/") || full("/tmp")) ? limit : "disk";
}

static void tell(const struct command *command, const struct failure *failure, struct stream *stream)
{
    if (failure->error) {
        stream_reset(stream, reason_of(failure->error, command->worker), "%.150s: %s", failure->what,
                     strerror(failure->error));
        return;
    }
    if (command->worker && command->status) {
        stream_reset(stream, "failed", "the transfer was killed");
        return;
    }
    const char *limit = command->worker ? NULL : limit_hit(command);
    if (command->worker)
        reply_add(&stream->note, "written", "%lld", (long long)failure->written);
    else if (WIFSIGNALED(command->status))
        reply_add(&stream->note, "signal", "%d", WTERMSIG(command->status));
    else
        reply_add(&stream->note, "exit", "%d", WEXITSTATUS(command->status));
    if (limit)
        reply_add(&stream->note, "limit", "%s", limit);
    stream_done(stream);
}

static void free_slot(struct command *command)
{
    if (command->counted)
        cgroup_remove(command->id);
    if (command->input)
        close(command->input);
    command->input = 0;
    command->pid = 0;
}

/* Once it has exited and all its output is in frames. */
static void settle(struct command *command)
{
    struct stream *stream = command->stream;
    if (!command->exited || !stream || stream_has_sources(stream))
        return;
    command->stream = NULL;
    stream->owner = NULL;
    tell(command, &failures[command - commands], stream);
    free_slot(command);
}

static void kill_all(struct command *command)
{
    if (command->worker) {
        kill(command->pid, SIGTERM); /* it removes what it has half written */
        return;
    }
    if (command->counted)
        cgroup_kill(command->id);
    if (kill(-command->pid, SIGKILL))
        kill(command->pid, SIGKILL); /* it has no group of its own yet */
}

/* ---------------------------------------------------------------------------------- what it leaves behind */

/* Output of processes that a command left behind: read and thrown away, so that they neither die of SIGPIPE nor
 * stand still. */
struct leftover {
    struct freeable freeable;
    struct watch watch;
};

static unsigned leftovers;

static void leftover_ready(struct watch *watch, uint32_t events)
{
    static char thrown_away[65536];
    struct leftover *leftover = watch->owner;
    (void)events;
    /* Once a round: one that floods it is served in turn like everything else. */
    ssize_t length = read(watch->fd, thrown_away, sizeof thrown_away);
    if (length > 0 || (length < 0 && (errno == EAGAIN || errno == EINTR))) {
        loop_arm(watch, EPOLLIN);
        return;
    }
    loop_close(watch);
    loop_free(&leftover->freeable);
    leftovers--;
}

static void leftover_read(int fd)
{
    if (leftovers == MOST_LEFTOVERS) {
        close(fd);
        return;
    }
    leftovers++;
    struct leftover *leftover = allocate(sizeof *leftover);
    loop_watch(&leftover->watch, fd, leftover, leftover_ready);
    loop_arm(&leftover->watch, EPOLLIN);
}

/* ---------------------------------------------------------------------------------- its stream */

static void input_over(struct stream *stream)
{
    struct command *command = stream->owner;
    struct termios modes;
    if (!command || !command->terminal) {
        stream_close_sink(stream);
    } else if (!tcgetattr(stream->sources[0].watch.fd, &modes) && modes.c_lflag & ICANON) {
        ssize_t written = write(stream->sources[0].watch.fd, &modes.c_cc[VEOF], 1);
        (void)written; /* a terminal whose queue is full has other worries than its end */
    }
}

static void noted(struct stream *stream, struct fields fields)
{
    struct command *command = stream->owner;
    const char *size = fields_get(fields, "resize");
    struct winsize window = {0};
    int64_t number;
    pid_t group = 0;
    if (!command || command->exited || command->worker)
        return;
    if (size && command->terminal && sscanf(size, "%hu,%hu", &window.ws_row, &window.ws_col) == 2)
        ioctl(stream->sources[0].watch.fd, TIOCSWINSZ, &window);
    if (!parse_number(fields_get(fields, "signal"), 1, SIGRTMAX, &number))
        return;
    if (command->terminal)
        ioctl(stream->sources[0].watch.fd, TIOCGPGRP, &group);
    if (kill(group > 1 ? -group : -command->pid, (int)number))
        kill(command->pid, (int)number);
}

static void output_over(struct stream *stream)
{
    if (stream->owner)
        settle(stream->owner);
}

static void gone(struct stream *stream)
{
    struct command *command = stream->owner;
    if (!command)
        return;
    command->stream = NULL;
    if (command->exited)
        free_slot(command);
    else
        kill_all(command);
}

/* Whoever asked for it is in another machine, of which this one is a copy. It runs on: its input stays open without
 * a byte, its output is thrown away, its terminal is there. */
static void left(struct stream *stream)
{
    struct command *command = stream->owner;
    if (!command || command->worker || command->exited)
        return; /* `gone` sees to it */
    command->stream = NULL;
    stream->owner = NULL;
    if (stream->sink == &stream->sink_watch) {
        command->input = loop_release(&stream->sink_watch);
        stream->sink = NULL;
    }
    for (int which = 0; which < 2; which++)
        if (stream->sources[which].open)
            leftover_read(loop_release(&stream->sources[which].watch));
}

static const struct stream_kind command_kind = {
    .input_over = input_over, .noted = noted, .output_over = output_over, .gone = gone, .left = left};

/* ---------------------------------------------------------------------------------- starting */

/* `permitted`: the most that may be held where this starts nevertheless. */
static struct command *free_command(struct stream *stream, struct fields fields, const struct identity **who,
                                    enum hold permitted)
{
    if (!*who)
        *who = identity_of(fields);
    if (held > permitted) {
        stream_reset(stream, "frozen", "the sandbox is being saved or forked");
        return NULL;
    }
    if (!*who) {
        stream_reset(stream, "unknown_identity", "this sandbox has no such identity");
        return NULL;
    }
    for (unsigned at = 0; at < SLOTS; at++)
        if (!commands[at].pid) {
            failures[at] = (struct failure){0};
            commands[at] = (struct command){.stream = stream, .id = ++last_number};
            return &commands[at];
        }
    stream_reset(stream, "busy", "too many commands at once");
    return NULL;
}

static void start(struct command *command, struct spawn *spawn)
{
    struct stream *stream = command->stream;
    command->pid = spawn_child(spawn, &failures[command - commands]);
    if (command->pid < 0) {
        command->pid = 0;
        if (command->counted)
            cgroup_remove(command->id);
        stream_reset(stream, "failed", "cannot start a process: %s", strerror(errno));
        return;
    }
    stream->kind = &command_kind;
    stream->owner = command;
    if (spawn->terminal >= 0) {
        stream_source(stream, 0, spawn->terminal, 0);
        stream_sink_is_source(stream);
        return;
    }
    stream_source(stream, 0, spawn->output, 0);
    if (spawn->errors >= 0)
        stream_source(stream, 1, spawn->errors, FLAG_STDERR);
    if (spawn->input >= 0)
        stream_sink(stream, spawn->input);
    else
        stream_close_sink(stream);
}

void command_start(struct stream *stream, struct fields fields)
{
    struct spawn spawn = {.fields = fields};
    struct command *command = free_command(stream, fields, &spawn.who, HOLD_NOTHING);
    if (!command)
        return;
    const char *size = fields_get(fields, "pty"), *input = fields_get(fields, "stdin");
    if (!fields_get(fields, "arg") || (size && sscanf(size, "%hu,%hu", &spawn.rows, &spawn.columns) != 2)) {
        stream_reset(stream, "bad_request", "a command needs `arg`, and numbers that are numbers");
        return;
    }
    spawn.wants_terminal = command->terminal = size != NULL;
    spawn.no_input = input && !strcmp(input, "none");
    spawn.cgroup = command->counted = cgroup_make(command->id);
    spawn.id = command->id;
    const char *cwd = fields_get(fields, "cwd");
    snprintf(command->directory, sizeof command->directory, "%s", cwd ? cwd : "/");
    start(command, &spawn);
}

void worker_start(struct stream *stream, struct fields fields, worker *work, bool stdin_too)
{
    struct spawn spawn = {.fields = fields, .work = work, .no_input = !stdin_too};
    const char *identity = fields_get(fields, "identity");
    if (identity && !strcmp(identity, identity_own.name) && stdin_too)
        spawn.who = &identity_own;
    struct command *command = free_command(stream, fields, &spawn.who, HOLD_COMMANDS);
    if (!command)
        return;
    command->worker = true;
    start(command, &spawn);
}

static void relieve(struct watch *watch, uint32_t events)
{
    uint32_t killed = events & EPOLLPRI ? cgroup_relieve() : 0;
    for (unsigned at = 0; killed && at < SLOTS; at++)
        if (commands[at].pid && commands[at].id == killed)
            commands[at].squeezed = true;
    loop_arm(watch, EPOLLPRI);
}

void command_watch_memory(void)
{
    static struct watch pressure;
    int fd = cgroup_pressure();
    if (fd < 0)
        return; /* a kernel without PSI: its own killer has to do */
    loop_watch(&pressure, fd, NULL, relieve);
    loop_arm(&pressure, EPOLLPRI);
}

void command_reap(void)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        for (unsigned at = 0; at < SLOTS; at++) {
            struct command *command = &commands[at];
            if (command->pid != pid || command->exited)
                continue;
            command->exited = true;
            command->status = status;
            if (!command->stream) {
                free_slot(command);
                break;
            }
            /* What it started and left behind may hold its output open for ever: that is not waited for. */
            stream_finish(command->stream, command->terminal ? NULL : leftover_read);
            settle(command);
            break;
        }
    }
    cgroup_sweep();
}
