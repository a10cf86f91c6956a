"""What this machine's MPI, GPUs and launcher give: `python -m fedproc_mpi.doctor`, also under mpirun or srun.

`findings` judges (facts in, findings out, nothing is touched), `look` looks and tries things out, `__main__`
has the order of the checks and prints.
"""
