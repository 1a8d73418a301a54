"""Rounds of which the server sees sums only: each client weighs itself, masks its weighted move,
and stays hidden.

`driver` is the server's side and says what travels and what is signed, `site` the other side; both
are the same whatever carries their messages (`messages`): `in_process` calls, Flower's grid
elsewhere. `terms` is what all agree on and are told, `update_part` what a client adds,
`word_layout` which word of the sum means what. At the server `training_rules` checks what clients
say while a round is driven, `secure_step` goes from the opened sum to the new model, and `outcome`
to the ledger. `rules_of_method` is what a round asks of a method's rules.
"""
