/* What the host orders of a machine that outlives its boot: to stand still while it is saved, to go on, and to be
 * somebody else. The agent (launcher/guest) works without this file. */
#include <stdio.h>
#include <string.h>

#include "cgroup.h"
#include "command.h"
#include "control.h"
#include "person.h"

static bool unbound; /* a host began anew: whose machine this is has to be said first */

static void freeze(struct stream *stream, bool frozen)
{
    if (frozen)
        command_hold(HOLD_ALL); /* first: what starts meanwhile would not stand still */
    else if (unbound) {
        stream_reset(stream, "bad_request", "a rebind comes before the thaw");
        return;
    }
    if (!cgroup_freeze(frozen)) {
        control_failed(stream, frozen ? "freeze" : "thaw");
        return;
    }
    if (!frozen)
        command_hold(HOLD_NOTHING);
    mux_quiet(frozen);
    stream->speaks = true;
    reply_add(&stream->note, "frozen", "%s", frozen ? "yes" : "no");
    control_answer(stream);
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
        control_failed(stream, what);
        return;
    }
    unbound = false;
    command_hold(HOLD_COMMANDS); /* the host puts new trust in place, then thaws */
    reply_add(&stream->note, "generation", "%lld", (long long)person_generation());
    control_answer(stream);
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
