"""The pure core: plain values in, plain values out.

May import: nothing.

Nothing here does I/O, reads a clock or the environment, logs, awaits, or knows a proxy's types.
One request passes through these modules in this order:

1. message      what a plane saw, as frozen values (Peer, Destination, RequestHead)
2. session      whose request it is: Peer, sessions, now -> Session or Deny
3. policy       which rule allows it: Policy, Destination, RequestHead -> Rule or Deny
4. handle       which handles it carries and whether they count -> Claims or Deny
5. ratelimit    how often: GCRA on numbers
6. substitute   plan + secrets -> Edits
7. response     what must happen to the answer -> ResponsePlan
8. scrub        takes secrets out of the answer, chunk by chunk

`decide` composes 2 to 4 into one Verdict (`verdict`); `denial` holds the reasons and texts of refusals.
"""
