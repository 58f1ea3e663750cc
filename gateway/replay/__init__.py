"""Sends a recorded trace of LLM requests at the door, at the recorded times, and says how it went."""
