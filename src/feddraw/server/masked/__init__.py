"""Rounds of which the server sees sums only: each client weighs itself, masks its weighted move, and stays hidden.

`announcement` is what all are told, `contribution` the client's side, `opening` the server's, `form` which word of the
sum means what, `cohort` what the server rules see of it, `local` both sides in one process.
"""
