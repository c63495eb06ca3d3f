"""Measurement against prediction: measured tables, errors on them, constants fitted to them."""
