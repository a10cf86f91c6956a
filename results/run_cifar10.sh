#!/bin/sh
# Every algorithm once on CIFAR-10: m=10, beta=0.5, SimpleCNN, E=5, 20 rounds, seed 0. Each run is
# resumable: start the script again and it goes on where it stopped. The figures go to a table at the end.
#
#   python -m data_prep npz --file cifar10.npz --name cifar10 --clients 10 --beta 0.5 --seed 0 --out shards/cifar10_m10.h5
#   results/run_cifar10.sh [ALGORITHM…]        RANKS=3 by default: a server and two client ranks
#
set -eu
shards=${SHARDS:-shards/cifar10_m10.h5}
ranks=${RANKS:-3}
rounds=${ROUNDS:-20}
out=${OUT:-runs/cifar10_e5_t20}
[ $# -gt 0 ] || set -- fedavg fedproc moon fedprox scaffold solo fedproto

for algorithm in "$@"; do
    case $algorithm in
        moon) options="--mu 5 --temperature 0.5" ;;
        fedprox) options="--mu 0.01" ;;
        fedproto) options="--lam 0.1" ;;
        *) options="" ;;
    esac
    resume=""
    [ -e "$out/$algorithm/config.json" ] && resume="--resume"
    # shellcheck disable=SC2086 # the options are words
    mpirun -n "$ranks" python -m fedproc_mpi --algorithm "$algorithm" $options --shards "$shards" \
        --model simple-cnn --augment cifar10 --rounds "$rounds" --local-epochs 5 --batch-size 64 --lr 0.01 \
        --momentum 0.9 --weight-decay 1e-5 --seed 0 --run-dir "$out/$algorithm" $resume
done
python "$(dirname "$0")/table.py" "$out"/*/
