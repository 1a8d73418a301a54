"""Many runs as one study: its plan, its workers, its table, and what it would take."""
