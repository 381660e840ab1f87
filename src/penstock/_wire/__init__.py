"""Messages between the caller and its workers: the sending and the receiving half of each."""
