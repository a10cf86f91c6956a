#!/usr/bin/env bash
# Three hospitals, from folders of pictures to answers: which site gains from training together, how good is the model
# on each class at each site, what does it say of new pictures, and one file for other programs. About a minute.
# From the repository's folder, in the environment that `make run` has made: bash examples/hospitals/hospitals.sh
# Everything is written to the folder hospitals/, which must not be there yet.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
mkdir hospitals
cp examples/site_images.py hospitals/
cd hospitals

# 220 grey pictures: images/SITE/CLASS/NUMBER.png. Sites differ in how many of theirs are ill.
python site_images.py images

# One client per site. A fifth of each class is held out for the test, a tenth of the rest for validation.
python -m data_prep folders --root images --image-size 32 --channels 1 --val-share 0.1 --out shards/hospitals.h5

# Together by two algorithms, and each hospital alone (SOLO).
mpirun -n 4 python -m fedproc_mpi --shards shards/hospitals.h5 --lr 0.01 --algorithm fedavg --run-dir runs/fedavg
mpirun -n 4 python -m fedproc_mpi --shards shards/hospitals.h5 --lr 0.01 --temperature 0.1 --run-dir runs/fedproc
mpirun -n 4 python -m fedproc_mpi --shards shards/hospitals.h5 --lr 0.01 --algorithm solo --run-dir runs/solo

# Who is better, and which site gains?
python -m fedproc_mpi.compare runs/fedavg runs/fedproc runs/solo
python -m fedproc_mpi.compare runs/fedavg runs/fedproc runs/solo --out comparison

# How good is FedProc on each class, at each site?
python -m fedproc_mpi.evaluate runs/fedproc --by site
python -m fedproc_mpi.evaluate runs/fedproc --out figures

# New pictures, and the model for other programs.
python -m fedproc_mpi.predict runs/fedproc images/East/healthy/001.png images/East/ill/001.png images/South/ill/002.png --out predicted.csv
python -m fedproc_mpi.export runs/fedproc --out hospitals.onnx
