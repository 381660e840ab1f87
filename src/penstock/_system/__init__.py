"""Access to the interpreter and the operating system: signals, descriptors, threads, exit, and trust in files."""
