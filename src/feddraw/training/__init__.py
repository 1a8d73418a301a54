"""What a client does: network, training loop, optimisers."""

from feddraw.old_names import names_moved_from

__getattr__ = names_moved_from(__name__)
