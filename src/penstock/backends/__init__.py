"""Where workers run. Each backend is thin: it moves tasks out and outcomes in, and decides nothing."""
