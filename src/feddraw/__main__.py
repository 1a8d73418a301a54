"""`python -m feddraw`."""

import sys
from pathlib import Path

if Path(sys.path[0]).resolve() == Path.cwd() and not Path(__file__).is_relative_to(Path.cwd()):
    del sys.path[0]  # put there by `-m`: a stranger's file in it would be taken for an installed module

from feddraw.start import main

if __name__ == "__main__":
    main()
