"""Ways to split a data set's training images between clients; one file per way."""
