#!/usr/bin/env bash
# A study dealt to a job array: sbatch examples/slurm.sh studies/paper.toml
# Every task takes its share of the runs; a task that is stopped is submitted again and goes on. Then: feddraw report runs/paper
# On machines without SLURM the same by hand: SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=2 bash examples/slurm.sh FILE.toml
#SBATCH --job-name=feddraw
#SBATCH --array=1-8
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=24:00:00
set -euo pipefail
study=${1:?give a study file}
shift
exec feddraw study "$study" \
  --shard "${SLURM_ARRAY_TASK_ID:-1}/${SLURM_ARRAY_TASK_COUNT:-1}" \
  --workers "${SLURM_CPUS_PER_TASK:-1}" "$@"
