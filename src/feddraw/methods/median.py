"""Median: in every coordinate the middle value, or the mean of the two in the middle. (Yin et al.,
ICML 2018)

It is the trimmed mean that leaves out all but the middle; sizes do not matter.
"""

from __future__ import annotations

from feddraw.core import Method
from feddraw.methods.trimmed_mean import TrimmedMean


def median() -> Method:
    """The middle value in every coordinate."""
    return Method(TrimmedMean(share=0.5))
