"""What is kept for all processes of a machine: pieces of remote files on a disk, and decoded blocks in memory."""
