{{/* The pools that are on, by name, each with the defaults filled in. */}}
{{- define "proteus.pools" -}}
{{- $on := dict -}}
{{- range $name := list "all" "encoder" "language" "draw" -}}
{{- $pool := mergeOverwrite (deepCopy $.Values.defaults) (deepCopy (index $.Values.pools $name)) -}}
{{- if $pool.enabled -}}{{- $_ := set $on $name $pool -}}{{- end -}}
{{- end -}}
{{ $on | toJson }}
{{- end -}}

{{/* The deployment file of the values, parsed. */}}
{{- define "proteus.deployment" -}}
{{ .Values.deployment | fromToml | toJson }}
{{- end -}}

{{/* Call with a dict of root and pool: the deployment file of that pool. */}}
{{- define "proteus.deploymentFile" -}}
{{- $cache := .root.Values.encoderCache -}}
{{- $pools := include "proteus.pools" .root | fromJson -}}
{{ .root.Values.deployment | trim }}
{{- if and (eq .pool "language") (hasKey $pools "encoder") }}

[encoder_pool]
url = {{ include "proteus.encoderUrl" .root | quote }}
timeout_ms = {{ int .root.Values.encoderPool.timeoutMs }}
max_at_once = {{ int .root.Values.encoderPool.maxAtOnce }}
{{- end }}
{{- if and (ne $cache.mode "off") (has .pool (list "all" "language")) }}

[encoder_cache.redis]
url = {{ include "proteus.cacheUrl" .root | quote }}
password_env = "PROTEUS_REDIS_PASSWORD"
timeout_ms = {{ int $cache.timeoutMs }}
max_age_s = {{ printf "%d.0" (int $cache.maxAgeSeconds) }}
secret_env = "PROTEUS_CACHE_SECRET"
{{- end }}
{{- end -}}

{{- define "proteus.cacheUrl" -}}
{{- $cache := .Values.encoderCache -}}
{{- if eq $cache.mode "external" -}}
{{ $cache.external.url }}
{{- else -}}
{{- $at := printf "%s-cache.%s.svc.%s" (include "proteus.name" .) .Release.Namespace .Values.clusterDomain -}}
{{ $cache.tls.enabled | ternary "rediss" "redis" }}://proteus@{{ $at }}:{{ (include "proteus.ports" . | fromJson).redis }}/0
{{- end -}}
{{- end -}}
