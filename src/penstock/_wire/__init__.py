"""The messages between the caller and its workers, and the code that sends and receives them."""
