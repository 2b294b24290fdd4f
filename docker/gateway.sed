# Made of a deployment file by the target `cpu-redis`: where docker/compose.yaml mounts what its gateway reads and writes.
s|^# tenants = "tenants.toml" .*|tenants = "/run/secrets/tenants"|
s|^path = "../var/metering.jsonl"$|path = "/var/lib/proteus/metering.jsonl"|
