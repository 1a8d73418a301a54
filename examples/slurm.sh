#!/usr/bin/env bash
# A study dealt to a job array: sbatch examples/slurm.sh studies/paper.toml
# Every task takes its share of the runs; a task that is stopped is submitted again and goes on. Then: feddraw report runs/paper
# On machines without SLURM the same by hand: SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=2 bash examples/slurm.sh FILE.toml
# A task asks for one GPU, which as many runs share as its memory holds, and a core for each of them. Without GPUs its four
# runs train on the processor: 7 GB each for DenseNet121 at 224 px, so 32 GB. Leave out --gres where there are none.
#SBATCH --job-name=feddraw
#SBATCH --array=1-8
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=32G
#SBATCH --time=24:00:00
set -euo pipefail
study=${1:?give a study file}
shift
where=(--workers "${SLURM_CPUS_PER_TASK:-1}")
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
  where=(--devices all)
fi
exec feddraw study "$study" --shard "${SLURM_ARRAY_TASK_ID:-1}/${SLURM_ARRAY_TASK_COUNT:-1}" "${where[@]}" "$@"
