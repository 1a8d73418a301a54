"""The weight explorer: one page that draws FedDRAW's weights for anyone's clients."""

from feddraw.explorer.page import explorer_page, write_explorer

__all__ = ["explorer_page", "write_explorer"]
