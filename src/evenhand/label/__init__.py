"""The labelling page: picks in, answers out, nothing leaves this machine.

picks reads what to label, journal keeps every answer at once, answers says what they amount to, server serves the page.
"""
