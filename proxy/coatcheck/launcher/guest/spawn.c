#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

void fail(struct failure *failure, const char *format, ...)
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure->what, sizeof failure->what, format, arguments);
    va_end(arguments);
    failure->error = error ? error : EIO;
    _exit(127);
}

/* ---------------------------------------------------------------------------------- in the child */

static void restore_defaults(void)
{
    const struct rlimit none_at_all = {0, 0};
    sigset_t none;
    sigemptyset(&none);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    setrlimit(RLIMIT_CORE, &none_at_all); /* a core file would hold what the process knew */
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0) { /* out of memory, the kernel takes a command, not the agent */
        ssize_t written = write(score, "500", 3);
        (void)written;
        close(score);
    }
}

static char **list(struct fields fields, const char *wanted)
{
    const char *name, *value;
    size_t count = 0;
    char **words = allocate((fields.length / 2 + 1) * sizeof *words);
    for (size_t at = 0; fields_next(fields, &at, &name, &value);)
        if (!strcmp(name, wanted))
            words[count++] = (char *)value;
    return words;
}

__attribute__((noreturn)) static void become(const struct spawn *spawn, const int ends[3], struct failure *failure)
{
    setsid();
    for (int number = 0; number < 3; number++)
        if (dup2(ends[number], number) < 0)
            fail(failure, "cannot set up its descriptors");
    if (spawn->terminal >= 0 && ioctl(0, TIOCSCTTY, 0))
        fail(failure, "cannot give it a terminal");
    if (spawn->cgroup && !cgroup_enter(spawn->id))
        fail(failure, "cannot limit it");
    restore_defaults();
    if (!identity_become(spawn->who))
        fail(failure, "cannot become `%s`", spawn->who->name);
    if (syscall(SYS_close_range, 3, ~0U, 0)) /* older gVisors have none */
        for (long fd = 3, most = sysconf(_SC_OPEN_MAX); fd < most; fd++)
            close((int)fd);
    if (spawn->work)
        spawn->work(spawn->fields, failure);

    const char *cwd = fields_get(spawn->fields, "cwd"), *directory = cwd && *cwd ? cwd : "/";
    char **arguments = list(spawn->fields, "arg");
    if (chdir(directory)) {
        errno = errno == ENOENT ? ENOTDIR : errno; /* else it would read as if the command were not there */
        fail(failure, "cannot enter %s", directory);
    }
    environ = list(spawn->fields, "env"); /* and so execvp searches the command's own PATH */
    execvp(arguments[0], arguments);
    fail(failure, "cannot run %s", arguments[0]);
}

/* ---------------------------------------------------------------------------------- before it */

static void close_all(const int *descriptors, unsigned count)
{
    for (unsigned at = 0; at < count; at++)
        if (descriptors[at] >= 0)
            close(descriptors[at]);
}

static bool open_terminal(struct spawn *spawn, int *peer)
{
    struct winsize window = {.ws_row = spawn->rows, .ws_col = spawn->columns};
    int locked = 0;
    spawn->terminal = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (spawn->terminal < 0 || ioctl(spawn->terminal, TIOCSPTLCK, &locked))
        return false;
    /* Not by its path: /dev/pts may be another instance's. */
    *peer = ioctl(spawn->terminal, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*peer < 0)
        return false;
    ioctl(*peer, TIOCSWINSZ, &window);
    return !spawn->who->switches || !fchown(*peer, spawn->who->uid, (gid_t)-1);
}

/* `ours` is 0 for the reading end, 1 for the writing one. */
static bool open_pipe(int *our_end, int *their_end, int ours)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return false;
    *our_end = ends[ours];
    *their_end = ends[!ours];
    return !fcntl(*our_end, F_SETFL, O_NONBLOCK);
}

static bool open_ends(struct spawn *spawn, int ends[3])
{
    if (spawn->wants_terminal) {
        if (!open_terminal(spawn, &ends[0]))
            return false;
        ends[1] = dup(ends[0]);
        ends[2] = dup(ends[0]);
        return ends[1] >= 0 && ends[2] >= 0;
    }
    if (spawn->no_input)
        ends[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    else if (!open_pipe(&spawn->input, &ends[0], 1))
        return false;
    if (!open_pipe(&spawn->output, &ends[1], 0))
        return false;
    if (spawn->work)
        ends[2] = open("/dev/null", O_WRONLY | O_CLOEXEC);
    else if (!open_pipe(&spawn->errors, &ends[2], 0))
        return false;
    return ends[0] >= 0 && ends[2] >= 0;
}

pid_t spawn_child(struct spawn *spawn, struct failure *failure)
{
    int ends[3] = {-1, -1, -1};
    spawn->input = spawn->output = spawn->errors = spawn->terminal = -1;
    pid_t child = open_ends(spawn, ends) ? fork() : -1;
    if (child == 0)
        become(spawn, ends, failure);
    int error = errno;
    close_all(ends, 3);
    if (child < 0)
        close_all((int[]){spawn->input, spawn->output, spawn->errors, spawn->terminal}, 4);
    errno = error;
    return child;
}
