"""Workers on the nodes of a Ray cluster. Ray starts them and knows who lives; tasks and batches go over TCP."""
