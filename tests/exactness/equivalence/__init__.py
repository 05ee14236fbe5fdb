"""Killed and resumed equals uninterrupted: fresh processes, real SIGKILL, every bit compared."""
