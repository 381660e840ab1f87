"""Workers on the nodes of a Ray cluster. Ray starts them and reports their deaths; tasks and batches go over TCP."""
