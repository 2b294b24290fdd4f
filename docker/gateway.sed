# For a deployment file, the demo's (target `cpu-redis`) or an export's: where docker/compose.yaml mounts what its gateway reads and writes.
s|^# tenants = "tenants.toml" .*|tenants = "/run/secrets/tenants"|
s|^path = "\(\.\./\)\{0,1\}var/metering.jsonl"$|path = "/var/lib/proteus/metering.jsonl"|
