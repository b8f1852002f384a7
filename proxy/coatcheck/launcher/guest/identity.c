#include "identity.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

const struct identity identity_own = {.name = "root"};
static struct identity identities[MAX_IDENTITIES];
static unsigned count;

/* Whether a user namespace that we may live in has this uid at all. */
static bool mapped(uid_t uid)
{
    unsigned inside, outside, length;
    bool found = false;
    FILE *map = fopen("/proc/self/uid_map", "re");
    while (map && !found && fscanf(map, "%u %u %u", &inside, &outside, &length) == 3)
        found = uid >= inside && uid - inside < length;
    if (map)
        fclose(map);
    return found;
}

/* The group that the image gives this user; its own number where the image does not know it. */
static gid_t group_of(uid_t uid)
{
    char line[512];
    unsigned user, group;
    gid_t answer = uid;
    FILE *users = fopen("/etc/passwd", "re");
    while (users && fgets(line, sizeof line, users))
        if (sscanf(line, "%*[^:]:%*[^:]:%u:%u:", &user, &group) == 2 && user == uid) {
            answer = group;
            break;
        }
    if (users)
        fclose(users);
    return answer;
}

bool identities_set(const char *list, const char **why)
{
    char name[33];
    unsigned uid;
    int used;
    count = 0;
    do {
        if (count == MAX_IDENTITIES || sscanf(list, "%32[a-z0-9-]:%u%n", name, &uid, &used) != 2 ||
            (list[used] && list[used] != ',')) {
            *why = "the host's list of identities is malformed";
            return false;
        }
        if (!strcmp(name, identity_own.name)) {
            *why = "an identity cannot be called root";
            return false;
        }
        for (unsigned at = 0; at < count; at++)
            if (!strcmp(identities[at].name, name) || identities[at].uid == uid) {
                *why = "two identities share a name or a uid";
                return false;
            }
        struct identity *identity = &identities[count++];
        *identity = (struct identity){.uid = uid, .switches = uid != geteuid() && mapped(uid)};
        memcpy(identity->name, name, sizeof name);
        identity->gid = identity->switches ? group_of(uid) : getegid();
        list += used;
    } while (*list++ == ',');
    if (count > 1)
        for (unsigned at = 0; at < count; at++)
            if (!identities[at].switches) {
                *why = "this sandbox has one uid only: identities could not be told apart";
                return false;
            }
    if (!identities[0].switches)
        identities[0].uid = geteuid();
    return true;
}

unsigned identities_count(void)
{
    return count;
}

const struct identity *identity_at(unsigned which)
{
    return &identities[which];
}

bool identity_index(const char *name, unsigned *which)
{
    for (*which = 0; *which < count; *which += 1)
        if (!strcmp(identities[*which].name, name))
            return true;
    return false;
}

const struct identity *identity_of(struct fields fields)
{
    unsigned which = 0;
    const char *name = fields_get(fields, "identity");
    return !name || !*name || identity_index(name, &which) ? &identities[which] : NULL;
}

bool identity_become(const struct identity *identity)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}, {0}};

    /* While we still may: nothing that is exec'ed later gets a capability back, as uid 0 or by a file. */
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        if (prctl(PR_CAPBSET_DROP, capability) && errno != EPERM)
            return false;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && errno != EINVAL)
        return false;
    if (identity->switches &&
        (setgroups(0, NULL) || setresgid(identity->gid, identity->gid, identity->gid) ||
         setresuid(identity->uid, identity->uid, identity->uid)))
        return false;
    return !syscall(SYS_capset, &header, none) && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}
