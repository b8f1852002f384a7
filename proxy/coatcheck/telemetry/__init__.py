"""Telling what happened: one frozen value an event (`events`), and sinks that are functions of it."""
