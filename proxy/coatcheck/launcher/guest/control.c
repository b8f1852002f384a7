#include "control.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cgroup.h"
#include "command.h"
#include "mux.h"
#include "person.h"
#include "volume.h"

static bool redirected;
static bool unbound; /* a host began anew: whose machine this is has to be said first */
static char why_not[160];

void control_network(bool yes, const char *why)
{
    redirected = yes;
    snprintf(why_not, sizeof why_not, "%s", why);
}

static void answer(struct stream *stream)
{
    stream->want_note = true;
    stream_end(stream);
    stream_reset(stream, "done", "%s", "");
}

static void failed(struct stream *stream, const char *what)
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
        failed(stream, what);
        return;
    }
    if (cgroup_available() && !cgroup_limit_all(memory, processes)) {
        failed(stream, "limits");
        return;
    }
    reply_add(&stream->note, "redirect", "%s", redirected ? "nftables" : "none");
    if (!redirected)
        reply_add(&stream->note, "why", "%s", why_not);
    reply_add(&stream->note, "cgroup", "%s", cgroup_available() ? "yes" : "no");
    answer(stream);
}

static void freeze(struct stream *stream, bool frozen)
{
    if (frozen)
        command_hold(HOLD_ALL); /* first: what starts meanwhile would not stand still */
    else if (unbound) {
        stream_reset(stream, "bad_request", "a rebind comes before the thaw");
        return;
    }
    if (!cgroup_freeze(frozen)) {
        failed(stream, frozen ? "freeze" : "thaw");
        return;
    }
    if (!frozen)
        command_hold(HOLD_NOTHING);
    mux_quiet(frozen);
    stream->speaks = true;
    reply_add(&stream->note, "frozen", "%s", frozen ? "yes" : "no");
    answer(stream);
}

/* A fork's new person, while its commands stand still: nothing runs before it is acknowledged and thawed. */
static void rebind(struct stream *stream, struct fields fields)
{
    const char *what = "";
    command_hold(HOLD_ALL);
    if (!fields_get(fields, "entropy") || !person_new_generation(fields)) {
        stream_reset(stream, "bad_request", "a rebind needs entropy and a generation after %lld",
                     (long long)person_generation());
        return;
    }
    if (!person_set(fields, &what)) {
        failed(stream, what);
        return;
    }
    unbound = false;
    command_hold(HOLD_COMMANDS); /* the host puts new trust in place, then thaws */
    reply_add(&stream->note, "generation", "%lld", (long long)person_generation());
    answer(stream);
}

bool control_resync(void)
{
    unbound = command_held() == HOLD_ALL;
    return unbound;
}

bool control_unbound(void)
{
    return unbound;
}

void control_start(struct stream *stream, struct fields fields)
{
    const char *op = fields_get(fields, "op");
    op = op ? op : "";
    if (!strcmp(op, "configure")) {
        configure(stream, fields);
    } else if (!strcmp(op, "freeze") || !strcmp(op, "thaw")) {
        freeze(stream, *op == 'f');
    } else if (!strcmp(op, "rebind")) {
        rebind(stream, fields);
    } else if (!strcmp(op, "sync")) {
        sync();
        answer(stream);
    } else if (!strcmp(op, "poweroff")) {
        sync();
        power_off(0);
    } else {
        stream_reset(stream, "bad_request", "there is no such operation");
    }
}
