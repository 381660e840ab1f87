"""Workers on the nodes of a Ray cluster. Ray starts them and reports their deaths. Tasks and batches go over TCP."""
