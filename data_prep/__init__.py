"""Data sets → one HDF5 shards file: `python -m data_prep SOURCE …`. Needs fedproc_mpi's shards and flags."""
