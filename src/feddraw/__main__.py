"""`python -m feddraw`."""

from feddraw.cli import main

main()
