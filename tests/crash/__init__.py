"""What a run leaves behind when it is killed, when the storage fails, and when two processes meet."""
