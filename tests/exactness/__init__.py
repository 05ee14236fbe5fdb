"""A resumed training equals an uninterrupted one in every bit, or says before that it will not."""
