"""Ways to split a data set's training images between clients; one file per way."""

from feddraw.old_names import names_moved_from

__getattr__ = names_moved_from(__name__)
