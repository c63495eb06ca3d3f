"""Constants of a cluster, fitted to its user's measurements, as a profile."""
