"""What documents, examples, messages, the demo and the doctor promise, tried."""
