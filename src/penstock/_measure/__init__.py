"""What is always measured: counters of workers in shared memory, and of the caller; and the page that shows them."""
