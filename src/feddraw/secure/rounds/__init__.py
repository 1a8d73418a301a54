"""Rounds of which the server sees sums only: each client weighs itself, masks its weighted move,
and stays hidden.

`announcement` is what all are told, `client` and `server` are what each does, `round_weights` how
much a client counts, `word_layout` tells which word of the sum means what, `cohort` is what the
server rules see of it, `in_process` has both sides in one process.
"""
