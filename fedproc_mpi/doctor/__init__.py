"""What this machine's MPI, GPUs and launcher give: `python -m fedproc_mpi.doctor`, also under mpirun or srun.

`findings` judges (facts in, findings out, nothing is touched), `trials` starts small jobs, `examine` looks
and measures, `__main__` watches it and prints.
"""
