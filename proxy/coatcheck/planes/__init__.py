"""Where traffic enters and leaves. A plane translates foreign types to `decision.message` and back.

It never decides. Imports go downwards in this order: `stock`; `configured`; `listeners`; `mitm`; `origins`,
`upstream` and `dns`; `sockets` and `descriptors`. All of them may import `request` and what is below it.
"""
