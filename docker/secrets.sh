#!/bin/sh
# Makes the secrets of docker/compose.yaml where they are not there yet: docker/secrets/{redis_password,…}, never in git.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
for name in redis_password cache_secret grafana_password; do
    if [ ! -s "secrets/$name" ]; then
        od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "secrets/$name"
        # Compose mounts the file as it is: the users of the containers have to read it, the folder keeps others out.
        chmod 0444 "secrets/$name"
        echo "made docker/secrets/$name"
    fi
done
