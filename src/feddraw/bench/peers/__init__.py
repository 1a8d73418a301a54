"""The same rounds in other systems: a script each, run by whichever Python has the system."""
