"""A run's folder: writing it as it happens, reading it back."""
