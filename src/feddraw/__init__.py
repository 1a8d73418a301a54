"""FedDRAW and its rivals: who counts how much when hospitals train one chest-radiograph model together."""

__version__ = "0.1.0"
