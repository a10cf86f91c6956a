"""What is learned and how: models, data, local training, sums, evaluation. Knows no ranks, files or MPI."""
