"""What the server does with updates: the gate, the policy, sums, the ledger."""
