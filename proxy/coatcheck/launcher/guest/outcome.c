#include "outcome.h"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#define FULL_BYTES (256 * 1024) /* less than this left: whoever just failed, failed for want of space */

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

static void done(struct stream *stream)
{
    stream->want_note = true;
    stream_end(stream);
    stream_reset(stream, "done", "%s", "");
}

void outcome_of_command(struct stream *stream, int status, const char *limit, const char *directory)
{
    if (!limit && status && (full(directory) || full("/") || full("/tmp")))
        limit = "disk";
    if (WIFSIGNALED(status))
        reply_add(&stream->note, "signal", "%d", WTERMSIG(status));
    else
        reply_add(&stream->note, "exit", "%d", WEXITSTATUS(status));
    if (limit)
        reply_add(&stream->note, "limit", "%s", limit);
    done(stream);
}

void outcome_of_worker(struct stream *stream, const struct failure *failure, int status, bool transfer)
{
    if (failure->error) {
        stream_reset(stream, reason_of(failure->error, transfer), "%.150s: %s", failure->what,
                     strerror(failure->error));
    } else if (status) {
        stream_reset(stream, "failed", "the transfer was killed");
    } else {
        reply_add(&stream->note, "written", "%lld", (long long)failure->written);
        done(stream);
    }
}
