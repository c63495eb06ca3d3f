"""Collectives: schedules as data, closed forms, topologies, and the time they take on silicon."""
