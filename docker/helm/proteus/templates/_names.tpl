{{- define "proteus.name" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{ $name | trunc 40 | trimSuffix "-" }}
{{- end -}}

{{/* Of every object; call with a dict of root and component. */}}
{{- define "proteus.labels" -}}
{{ include "proteus.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "proteus.selector" -}}
{{ include "proteus.selectorOfAll" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "proteus.selectorOfAll" -}}
app.kubernetes.io/name: proteus
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "proteus.ports" -}}
{{ dict "http" 8000 "grpc" 8001 "metrics" 8002 "health" 8080 "redis" 6379 "gateway" 8090 "operations" 8091 | toJson }}
{{- end -}}

{{- define "proteus.image" -}}
{{- $tag := .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion .Values.hardware) -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end -}}
{{- end -}}

{{- define "proteus.encoderUrl" -}}
{{ include "proteus.addressOf" (dict "root" . "pool" "encoder" "port" "grpc") }}
{{- end -}}

{{/* Call with a dict of root, pool and port: every ready pod of the pool is an address of the name. */}}
{{- define "proteus.addressOf" -}}
{{- $ports := include "proteus.ports" .root | fromJson -}}
{{ include "proteus.name" .root }}-{{ .pool }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}:{{ index $ports .port }}
{{- end -}}

{{- define "proteus.cacheSecret" -}}
{{ .Values.encoderCache.existingSecret | default (printf "%s-cache" (include "proteus.name" .)) }}
{{- end -}}

{{/* Namespace `restricted` of the Pod Security Standards asks for all of these. */}}
{{- define "proteus.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "proteus.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}
