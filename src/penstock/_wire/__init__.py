"""The messages between the caller and its workers, with the code of both sides: sender and receiver."""
