#!/usr/bin/env bash
# Makes the peers' own virtual environment, for Flower pins another Ray: benchmarks/peers.sh [FOLDER]
set -euo pipefail
folder=${1:-runs/peers}
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet "torch==2.13.0" numpy
# OpenFGL's package is openfgl-lib, which names none of what it imports.
openfgl="openfgl-lib torch_geometric scikit-learn scikit-network pymetis munkres tqdm networkx"
for peer in "flwr[simulation]" pfl "$openfgl"; do
    # shellcheck disable=SC2086
    "$folder/bin/pip" install --quiet $peer || echo "$peer cannot be installed here; benchmarks/rounds.py leaves it out"
done
"$folder/bin/pip" list 2>/dev/null | grep -iE "^(flwr|openfgl-lib|pfl|ray|torch) "
