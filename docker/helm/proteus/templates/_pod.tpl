{{/* The pod of a pool; call with a dict of root, name and pool. */}}
{{- define "proteus.pod" -}}
serviceAccountName: {{ include "proteus.name" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add (int .pool.drainSeconds) 60 }}
securityContext: {{- include "proteus.podSecurity" 10001 | nindent 2 }}
{{- with .pool.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .pool.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- include "proteus.placement" . }}
initContainers:
  - {{- include "proteus.prepare" . | nindent 4 }}
containers:
  - {{- include "proteus.server" . | nindent 4 }}
volumes: {{- include "proteus.volumes" . | nindent 2 }}
{{- end -}}

{{/* Call with a dict of root and name. */}}
{{- define "proteus.prepare" -}}
name: prepare
{{ include "proteus.imageOf" .root }}
command: [sh, /etc/proteus/prepare.sh, /model, /etc/proteus/{{ .name }}.toml, /srv/proteus]
resources: {requests: {cpu: 100m, memory: 256Mi}, limits: {memory: 1Gi}}
securityContext: {{- include "proteus.containerSecurity" . | nindent 2 }}
env: {{- include "proteus.environment" .root | nindent 2 }}
volumeMounts: {{- include "proteus.mounts" .root | nindent 2 }}
{{- end -}}

{{- define "proteus.server" -}}
{{- $ports := include "proteus.ports" .root | fromJson -}}
name: server
{{ include "proteus.imageOf" .root }}
args:                            # of the image's entrypoint, which shows the server's log as well
  - serve
  - --deployment=/srv/proteus/deployment.toml
  - --hardware={{ .root.Values.hardware }}
  - --pool={{ .name }}
  - --host=0.0.0.0
  - --http-port={{ $ports.http }}
  - --grpc-port={{ $ports.grpc }}
  - --metrics-port={{ $ports.metrics }}
  - --health-port={{ $ports.health }}
  - --ready-timeout-s={{ int .pool.startupSeconds }}
  - --drain-s={{ int .pool.drainSeconds }}
  {{- with .root.Values.tracing }}
  {{- if .url }}
  - --trace-url={{ .url }}
  - --trace-rate={{ int .rate }}
  {{- end }}
  {{- end }}
ports:
  {{- range $port := list "http" "grpc" "metrics" "health" }}
  - {name: {{ $port }}, containerPort: {{ index $ports $port }}}
  {{- end }}
{{- $every := 10 }}
startupProbe:                    # ready once: engines are loaded, which takes minutes; the launcher gives up first, and says why
  httpGet: {path: /ready, port: health}
  periodSeconds: {{ $every }}
  timeoutSeconds: 5
  failureThreshold: {{ add1 (div (add (int .pool.startupSeconds) 60) $every) }}
readinessProbe:                  # Triton, every model of the pool and every stub; taken out of the Service at once
  httpGet: {path: /ready, port: health}
  periodSeconds: 2
  timeoutSeconds: 5              # an answer that needs Triton takes 3 s at most; a death is told at once
  failureThreshold: 1
livenessProbe:                   # the launcher lives and has not given up: it restarts tritonserver itself
  httpGet: {path: /live, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
lifecycle:                       # until names do not stand for it any more; then it drains, and says that it is not ready
  preStop: {exec: {command: [sleep, "10"]}}
resources: {{- include "proteus.resources" . | nindent 2 }}
securityContext: {{- include "proteus.containerSecurity" . | nindent 2 }}
env: {{- include "proteus.environment" .root | nindent 2 }}
  {{- if and (ne .root.Values.encoderCache.mode "off") (has .name (list "all" "language")) }}
  {{- include "proteus.cacheEnvironment" .root | nindent 2 }}
  {{- end }}
volumeMounts: {{- include "proteus.mounts" .root | nindent 2 }}
  - {name: shm, mountPath: /dev/shm}
  {{- if include "proteus.hasAuthority" . }}
  - {name: cache-authority, mountPath: /etc/proteus-cache, readOnly: true}
  {{- end }}
{{- end -}}

{{- define "proteus.imageOf" -}}
image: {{ include "proteus.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{/* Nothing is fetched at a start, and nothing is written but to /tmp. */}}
{{- define "proteus.environment" -}}
- {name: HOME, value: /tmp}
- {name: PYTHONDONTWRITEBYTECODE, value: "1"}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end -}}

{{- define "proteus.cacheEnvironment" -}}
{{- $secret := include "proteus.cacheSecret" . -}}
- {name: PROTEUS_REDIS_PASSWORD, valueFrom: {secretKeyRef: {name: {{ $secret }}, key: password}}}
- {name: PROTEUS_CACHE_SECRET, valueFrom: {secretKeyRef: {name: {{ $secret }}, key: cache-secret}}}
{{- if include "proteus.hasAuthority" (dict "root" . "name" "language") }}
- {name: SSL_CERT_FILE, value: /etc/proteus-cache/ca.crt}   # beside the authorities of the system's folder
{{- end }}
{{- end -}}

{{/* "true" where the cache's certificate is signed by an authority of its own. */}}
{{- define "proteus.hasAuthority" -}}
{{- $cache := .root.Values.encoderCache -}}
{{- if and (ne $cache.mode "off") $cache.tls.enabled $cache.tls.existingSecret (has .name (list "all" "language")) -}}true{{- end -}}
{{- end -}}

{{- define "proteus.mounts" -}}
- name: model
  mountPath: /model
  readOnly: true
  {{- with .Values.model.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
- {name: config, mountPath: /etc/proteus, readOnly: true}
- {name: served, mountPath: /srv/proteus}
- {name: scratch, mountPath: /tmp}
{{- end -}}

{{- define "proteus.volumes" -}}
{{ include "proteus.sharedVolumes" (dict "root" .root "scratchSize" .pool.scratchSize) }}
- {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .pool.shmSize }}}}
{{- if include "proteus.hasAuthority" . }}
- name: cache-authority
  secret:
    secretName: {{ .root.Values.encoderCache.tls.existingSecret }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end -}}

{{- define "proteus.sharedVolumes" -}}
{{- $model := .root.Values.model -}}
- name: model
  {{- if $model.claim }}
  persistentVolumeClaim: {claimName: {{ $model.claim }}, readOnly: true}
  {{- else if $model.hostPath }}
  hostPath: {path: {{ $model.hostPath | quote }}, type: Directory}
  {{- else }}
  image: {reference: {{ $model.image | quote }}, pullPolicy: {{ .root.Values.image.pullPolicy }}}
  {{- end }}
- {name: config, configMap: {name: {{ include "proteus.name" .root }}}}
- {name: served, emptyDir: {sizeLimit: 64Mi}}
- {name: scratch, emptyDir: {sizeLimit: {{ .scratchSize }}}}
{{- end -}}

{{/* GPUs are whole, or MIG instances: Kubernetes wants request and limit to be the same. */}}
{{- define "proteus.resources" -}}
{{- $resources := deepCopy .pool.resources -}}
{{- if eq .root.Values.hardware "gpu" -}}
{{- range $kind := list "requests" "limits" -}}
{{- $_ := set (index $resources $kind) $.pool.gpu.resource (int $.pool.gpu.count) -}}
{{- end -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{- define "proteus.placement" -}}
{{- $own := dict "root" .root "component" .name -}}
{{- with .pool.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pool.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "proteus.selector" $own | nindent 8 }}
{{- if or (ne .pool.spread "none") .pool.awayFrom }}
affinity:
  podAntiAffinity:
    {{- if eq .pool.spread "preferred" }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "proteus.selector" $own | nindent 14 }}
    {{- end }}
    {{- $never := eq .pool.spread "required" | ternary (list .name) list }}
    {{- with concat $never .pool.awayFrom }}
    requiredDuringSchedulingIgnoredDuringExecution:
      {{- range . }}
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "proteus.selector" (dict "root" $.root "component" .) | nindent 12 }}
      {{- end }}
    {{- end }}
{{- end }}
{{- end -}}
