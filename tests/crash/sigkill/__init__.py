"""Real processes under a real SIGKILL."""
