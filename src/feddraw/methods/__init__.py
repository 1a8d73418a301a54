"""One file a published method, holding only what that paper adds; the file's name is the method's name."""
