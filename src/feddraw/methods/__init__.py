"""One file per method, with only what its paper adds; the file's name is the method's name."""
