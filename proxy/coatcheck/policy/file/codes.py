"""The linter's findings by name: each code is stable, and says why it matters and what to do in general."""

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """What a finding is called in files, reports and pipelines. A code never changes its meaning."""

    NOT_LOADED = "not-loaded"
    WILDCARD_PUBLIC_SUFFIX = "wildcard-public-suffix"
    RULE_NEVER_REACHED = "rule-never-reached"
    SLIPS_PAST = "slips-past"
    HANDSHAKE_ONLY = "handshake-only"
    ALWAYS_REFUSED = "always-refused"
    CREDENTIAL_IN_VAIN = "credential-in-vain"
    CREDENTIALS_SHARE_PLACE = "credentials-share-place"
    HOST_OPENED_WIDER = "host-opened-wider"
    PLAIN_HTTP = "plain-http"
    BEARER_ORIGIN = "bearer-origin"
    TUNNEL = "tunnel"
    OBSERVE = "observe"
    NO_LIMITS = "no-limits"
    LONG_LIFETIME = "long-lifetime"
    LASTING_SIGNATURE = "lasting-signature"
    UNSEARCHED = "unsearched"
    COMPRESSION = "compression"
    NO_OWNER = "no-owner"
    NO_SAMPLE = "no-sample"
    NEEDLESS = "needless"
    DEPRECATED = "deprecated"
    ACCEPTED_IN_VAIN = "accepted-in-vain"


@dataclass(frozen=True, slots=True)
class Explanation:
    """For people: a title, why it matters, what to do."""

    title: str
    why: str
    remedy: str


EXPLANATIONS: dict[Code, Explanation] = {
    Code.NOT_LOADED: Explanation(
        "the file cannot be loaded",
        "A daemon refuses the file, and with it the whole directory: the old policies stay in force.",
        "Write what the message says.",
    ),
    Code.WILDCARD_PUBLIC_SUFFIX: Explanation(
        "a wildcard over names that strangers can get",
        "Anybody can become a customer of that service and receive there what an agent sends.",
        "Write the exact hosts.",
    ),
    Code.RULE_NEVER_REACHED: Explanation(
        "a rule that decides nothing",
        "Earlier rules decide all its requests first, or nothing can match it: its reader believes in "
        "limits or credentials that never apply.",
        "Move the rule up, narrow the earlier one, or remove it.",
    ),
    Code.SLIPS_PAST: Explanation(
        "requests slip past a rule that asks or limits",
        "An earlier rule that is for other requests as well decides some that this rule fits, without its "
        "question or its limits: a reader of this rule believes that they apply.",
        "Move this rule up, narrow the earlier one, or give it the same ask and limits.",
    ),
    Code.HANDSHAKE_ONLY: Explanation(
        "a person is asked about a WebSocket's handshake only",
        "The messages that follow pass without a question, in both directions, for as long as it is open.",
        "Ask in a rule without websocket. Where WebSockets must be allowed, limit bytes_up.",
    ),
    Code.ALWAYS_REFUSED: Explanation(
        "a part of a rule that is always refused",
        "A rule with credentials wants a handle in every request, and here none of its credentials counts: "
        "the rule looks as if it allowed something.",
        "Move it to a rule without credentials, or widen the credential.",
    ),
    Code.CREDENTIAL_IN_VAIN: Explanation(
        "a credential, or a part of one, that no request can use",
        "What is listed and never used is forgotten, and becomes dangerous when another line changes.",
        "Remove it, or allow what it is for.",
    ),
    Code.CREDENTIALS_SHARE_PLACE: Explanation(
        "two credentials could claim the same place of one request",
        "One of them is injected without a handle, so a request that forgot the other's handle leaves under "
        "the wrong account.",
        "Make both `handle: required`, or give them different hosts, methods, paths or places.",
    ),
    Code.HOST_OPENED_WIDER: Explanation(
        "a credential's host is opened more widely by another rule",
        "Without our credential an agent can still talk to that host with a key that an attacker gave it, "
        "and carry data out to the attacker's account there.",
        "Narrow that rule to the methods and paths that are needed without a credential.",
    ),
    Code.PLAIN_HTTP: Explanation(
        "plain HTTP is allowed",
        "Anyone on the network path can read and change the requests, the answers, and any secret in them.",
        "Use https, and remove plain_http.",
    ),
    Code.BEARER_ORIGIN: Explanation(
        "a credential counts for sessions that only a bearer token proves",
        "Anyone who copies the proxy's token and the handle out of a sandbox can use the secret from "
        "anywhere.",
        "Remove bearer from origins; run the sandbox behind its own socket or with a client certificate.",
    ),
    Code.TUNNEL: Explanation(
        "TLS is let through unopened",
        "Methods, paths, uploads and leaks in it pass unseen.",
        "Make the client trust the CA of Coatcheck, and remove tunnel.",
    ),
    Code.OBSERVE: Explanation(
        "what no rule allows passes for a while",
        "On a daemon that is set to, sandboxes reach every host without a credential until that day: what an "
        "agent can read, it can carry out.",
        "Remove observe once the draft of `coatcheck policy learn` is reviewed. Use no real data until then.",
    ),
    Code.NO_LIMITS: Explanation(
        "nothing but the default limits a rule",
        "An agent in a loop, or one that was talked into it, spends money, locks accounts and carries out as "
        "much as it likes: the default of 6000 requests a minute only saves the log.",
        "Add limits that the work needs.",
    ),
    Code.LONG_LIFETIME: Explanation(
        "something counts for very long",
        "An accepted finding for more than a year, observing for more than a month, a yes for more than an "
        "hour: nobody looks at it again before the reason for it is forgotten.",
        "Write a nearer day, or a shorter time; renewing it is one line in a review.",
    ),
    Code.LASTING_SIGNATURE: Explanation(
        "a signature that never expires",
        "Anyone who sees it once can send the same request again, from anywhere: neither the end of the "
        "session nor a revocation stops that, only another key.",
        "Sign the time of the request, if the upstream checks one.",
    ),
    Code.UNSEARCHED: Explanation(
        "answers are not searched for secrets",
        "A secret that an upstream echoes, in an error page, a log or a range of a file, reaches the "
        "sandbox: those of this rule, and every other that its upstreams were sent.",
        "Remove scrub. For large downloads, write a rule of its own for their hosts and paths.",
    ),
    Code.COMPRESSION: Explanation(
        "an upstream may compress answers that are searched",
        "A page that shows a secret beside what the sandbox sent compresses better the more of the secret "
        "was guessed. What reaches the sandbox is cut by its uncompressed size, but when it comes depends on "
        "the compressed one.",
        "Remove compression, or keep it to rules whose upstreams never show a secret.",
    ),
    Code.NO_OWNER: Explanation(
        "no team answers for the file",
        "Audit records name the owner, who is the contact for a refusal or an alarm.",
        "Write the team's name.",
    ),
    Code.NO_SAMPLE: Explanation(
        "a rule that no sample shows at work",
        "The next change can break or widen it, and no test says so.",
        "Add a sample that the rule must allow to samples/NAME.yaml, and one beside it that must be refused.",
    ),
    Code.NEEDLESS: Explanation(
        "a line that changes nothing",
        "What has no effect misleads the next reader.",
        "Remove it.",
    ),
    Code.DEPRECATED: Explanation(
        "a key that has a successor",
        "It means the same as before, and a later version of this format may drop it.",
        "Write what the message says.",
    ),
    Code.ACCEPTED_IN_VAIN: Explanation(
        "an accepted finding that is not there",
        "The reason to look away has gone; left behind, the line hides the next finding of that kind.",
        "Remove the line from accepted.",
    ),
}
