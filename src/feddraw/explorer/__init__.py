"""The weight explorer: one page that draws FedDRAW's weights for anyone's clients."""

from feddraw.explorer.build import page, write

__all__ = ["page", "write"]
