"""Measured tables against predictions: errors, intervals, a module per kind of table."""
