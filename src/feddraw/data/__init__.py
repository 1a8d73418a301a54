"""What data sets share: label tables, image preparation, the cache."""

from feddraw.data.dataset import Dataset, Labels

__all__ = ["Dataset", "Labels"]
