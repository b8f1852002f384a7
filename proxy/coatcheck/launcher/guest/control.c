#include "control.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cgroup.h"
#include "mux.h"
#include "person.h"
#include "volume.h"

static bool redirected;
static char why_not[160];

void control_network(bool yes, const char *why)
{
    redirected = yes;
    snprintf(why_not, sizeof why_not, "%s", why);
}

void control_answer(struct stream *stream)
{
    stream->want_note = true;
    stream_end(stream);
    stream_reset(stream, "done", "%s", "");
}

void control_failed(struct stream *stream, const char *what)
{
    stream_reset(stream, "failed", "%s: %s", what, strerror(errno));
}

static void configure(struct stream *stream, struct fields fields)
{
    int64_t memory = 0, processes = 0;
    const char *what = "", *limit = fields_get(fields, "memory"), *most = fields_get(fields, "processes");
    if ((limit && !parse_number(limit, 1, INT64_MAX, &memory)) ||
        (most && !parse_number(most, 1, INT32_MAX, &processes))) {
        stream_reset(stream, "bad_request", "limits are numbers");
        return;
    }
    if (!person_set(fields, &what) || !volumes_mount(fields, &what)) {
        control_failed(stream, what);
        return;
    }
    if (cgroup_available() && !cgroup_limit_all(memory, processes)) {
        control_failed(stream, "limits");
        return;
    }
    reply_add(&stream->note, "redirect", "%s", redirected ? "nftables" : "none");
    if (!redirected)
        reply_add(&stream->note, "why", "%s", why_not);
    reply_add(&stream->note, "cgroup", "%s", cgroup_available() ? "yes" : "no");
    control_answer(stream);
}

void control_start(struct stream *stream, struct fields fields)
{
    const char *op = fields_get(fields, "op");
    op = op ? op : "";
    if (!strcmp(op, "configure")) {
        configure(stream, fields);
    } else if (!strcmp(op, "sync")) {
        sync();
        control_answer(stream);
    } else if (!strcmp(op, "poweroff")) {
        sync();
        power_off(0);
    } else if (!control_more || !control_more(op, stream, fields)) {
        stream_reset(stream, "bad_request", "there is no such operation");
    }
}
