"""Measurement: real collectives among real ranks, one table row each, bytes counted on the wire.

What flows: a `job.Job` says what to run; `launch` starts the ranks (`mpi_rank`, `torch_rank`), all
of which run the loop of `rank`; rank 0 sends back one line per measurement, and `table` appends it
to a CSV file that `shardcost validate` and `calibrate` read. `open_mpi` holds the bytes of each
rank to what the schedule of the algorithm sends.
"""
