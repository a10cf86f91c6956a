"""Data sets → one HDF5 shards file: `python -m data_prep SOURCE …`. Imports fedproc_mpi.shards alone."""
