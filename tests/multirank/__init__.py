"""Jobs of many ranks: as threads, under `msrun`, and simulated."""
