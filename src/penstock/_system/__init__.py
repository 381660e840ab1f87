"""What penstock needs of the interpreter and the operating system: signals, descriptors, threads, exit, trust."""
