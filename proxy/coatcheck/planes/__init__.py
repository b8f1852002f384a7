"""Where traffic enters and leaves. A plane translates foreign types to `decision.message` and back.

May import: planes/listeners, planes/mitm, planes/origins, planes/upstream, settings, platform, decision.

It never decides. Imports go downwards in this order: `stock`; `configured`; `listeners`; `mitm`; `origins`,
`upstream` and `dns`; `sockets` and `descriptors`.
"""
