"""Trainers: the folders they work in, the process that watches one, and what they tell."""
