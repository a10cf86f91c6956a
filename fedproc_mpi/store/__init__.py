"""Everything that a run leaves: run directory, checkpoints, clients' files, model, metrics."""
