#!/bin/sh
# Starts Redis with one user, who may read and write entries and nothing else; the password is in no argument.
# Usage: redis.sh PASSWORD_FILE FOLDER [OPTION...]
set -eu
hash=$(sha256sum <"$1" | cut -d " " -f 1) folder=$2
shift 2
umask 077
{
    echo "user default off"
    echo "user proteus on #$hash resetchannels ~proteus:vt:* -@all +getrange +set +select +ping +client|setname +client|setinfo"
} >"$folder/users.acl"
exec redis-server --aclfile "$folder/users.acl" --dir "$folder" --save "" --appendonly no \
    --maxmemory-policy allkeys-lru --maxclients 1000 --timeout 0 --tcp-keepalive 60 "$@"
