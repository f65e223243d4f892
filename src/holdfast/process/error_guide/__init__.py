"""Explains error messages: finds the rule that matches an exception, a text or a log, and adds what it means on this
machine. A new kind of error is a new rule in one of the `rules_*` modules.
"""
