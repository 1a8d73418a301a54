"""`feddraw watch`: a page on this machine that follows running and finished runs."""
