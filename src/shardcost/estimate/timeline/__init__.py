"""Timelines of one estimate, ready to be drawn: a step (`step`), or one layer (`layer`)."""
