"""Measurement of single kernels: GEMMs, grouped GEMMs, attention, elementwise, one row each.

What flows: `cases` says which shapes are worth measuring on a device; a *device* (`torch_device`
with a GPU or a CPU, `numpy_device` where torch is not installed) runs one case and returns its
times; `session` does so for as long as a time budget lasts and skips what a table already has;
`table` writes each row as it is measured. `shardcost validate` and `calibrate` read the table.
"""
