"""One experiment: its settings, preparation, run and verification."""
