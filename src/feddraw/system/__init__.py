"""What we ask of the operating system: files, locks, worker processes, shared memory."""
