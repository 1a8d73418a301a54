"""One file per data set; the file's name is the data set's name."""
