"""The page for whoever is on call: files for a browser, who is logged in, what they see, live.

May import: control, control/resources, state, secrets, telemetry, settings, platform, decision.
"""
