"""Collective algorithms as exact schedules: steps, closed forms, topologies, simulation."""
