"""Runs and transcripts as earlier versions wrote them."""
