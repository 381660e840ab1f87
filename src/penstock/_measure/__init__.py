"""What is counted while a loader runs, and the page on which `penstock top` reads it."""
