#!/bin/sh
# Makes the secrets of docker/compose.yaml where they are not there yet: docker/secrets/{redis_password,…}, never in git.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
# Compose mounts a file as it is: the users of the containers have to read it, the folder keeps others out.
made() {
    chmod 0444 "secrets/$1"
    echo "made docker/secrets/$1"
}
for name in redis_password cache_secret grafana_password; do
    if [ ! -s "secrets/$name" ]; then
        od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "secrets/$name"
        made "$name"
    fi
done
# The gateway's tenants, docs/tenants.md: one, of whose key only the digest is mounted.
if [ ! -s secrets/tenants ]; then
    key=pk-$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n')
    printf '%s\n' "$key" > secrets/api_key
    printf '[tenants.demo]\nkeys = ["sha256:%s"]\n' "$(printf %s "$key" | sha256sum | cut -d ' ' -f 1)" > secrets/tenants
    made tenants
    echo "made docker/secrets/api_key, which the gateway's clients send"
fi
