"""AWS Signature Version 4: the sandbox signs with a stand-in key pair, we verify and sign again.

May import: decision.

The stand-in pair (`stand_in`) is a public function of the handle, and the handle is the pair's session
token: the handle alone carries the authority. The stand-in's signature shows which bytes the client
meant, so that we sign those and nothing else (`claim`, `signature`, `resign`). No signing key ever
enters a request. The real pair comes from a secret store (`keys`).
"""
