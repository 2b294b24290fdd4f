#!/bin/sh
# Lays out the folder that a pod serves: the deployment file of its pool, the exported folder by links, and configs
# written from that file. Usage: prepare.sh EXPORTED DEPLOYMENT_FILE FOLDER
set -eu
exported=$1 deployment=$2 folder=$3

# A version folder is linked whole, so that graphs and their external data stay side by side; that of an ensemble is
# empty, and written to.
link_model() {
    mkdir -p "$2"
    for entry in "$1"/*; do
        name=$(basename "$entry")
        if [ "$name" = config.pbtxt ] || [ "$name" = configs ]; then
            continue
        elif [ -d "$entry" ] && [ -z "$(ls "$entry")" ]; then
            mkdir "$2/$name"
        else
            ln -s "$entry" "$2/$name"
        fi
    done
}

[ -d "$exported/model_repository" ] || { echo "no model_repository in $exported: is it an exported folder?" >&2; exit 1; }
find "$folder" -mindepth 1 -delete
cp "$deployment" "$folder/deployment.toml"
for entry in "$exported"/*; do
    name=$(basename "$entry")
    case $name in deployment.toml | model_repository) continue ;; esac
    ln -s "$entry" "$folder/$name"
done
for model in "$exported"/model_repository/*; do
    link_model "$model" "$folder/model_repository/$(basename "$model")"
done
python3 -m proteus.configs "$folder/deployment.toml"
