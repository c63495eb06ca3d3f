"""What one device computes: matrix products, attention, memory-bound passes, in seconds.

Each module holds one mechanism as a formula on numbers or arrays. Its constants are shares of the
datasheet, fitted to measurements; they live in the catalog, one file per measured device, and
`shardcost.kernels.constants` finds those of any device, its own or its family's.
"""
