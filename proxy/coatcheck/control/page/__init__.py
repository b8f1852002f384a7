"""The web page for people on call: files for a browser, logins, and what each person sees, live.

May import: control, control/resources, state, secrets, telemetry, settings, platform, decision.
"""
