{{/* The deployment file of the gateway: where the servers of this release are, its tenants, its metering log, and who is in
front of it. A pool that is off answers nothing: what it would serve is left out of the file. */}}
{{- define "proteus.gatewayFile" -}}
{{- $pools := include "proteus.pools" . | fromJson -}}
{{- $file := .Values.deployment | fromToml -}}
{{- $reads := hasKey $pools "all" | ternary "all" "language" -}}
{{- $draws := hasKey $pools "all" | ternary "all" "draw" -}}
{{- if not (hasKey $pools $reads) -}}{{- $_ := unset $file "checkpoint" -}}{{- $reads = $draws -}}{{- end -}}
{{- if not (hasKey $pools $draws) -}}{{- $_ := unset $file "draw_checkpoint" -}}{{- $draws = $reads -}}{{- end -}}
{{- $servers := dict -}}
{{- range $kind, $pool := dict "text" $reads "picture" $reads "draw" $draws -}}
{{- $_ := set $servers $kind (include "proteus.serversOf" (dict "root" $ "pool" $pool) | fromJsonArray) -}}
{{- end -}}
{{- $_ := set $file.gateway "pools" $servers -}}
{{- if $file.gateway.light -}}
{{- $light := dict "Chart" .Chart "Values" .Values "Release" (dict "Name" .Values.gateway.light.release "Namespace" .Release.Namespace) -}}
{{- $_ := set $file.gateway.light "servers" (include "proteus.serversOf" (dict "root" $light "pool" .Values.gateway.light.pool) | fromJsonArray) -}}
{{- end -}}
{{- $http := $file.gateway.http -}}
{{- $ways := list -}}
{{- range $way := list .Values.gateway.ingress .Values.gateway.route -}}
{{- if $way.enabled -}}{{- $ways = append $ways $way.host -}}{{- end -}}
{{- end -}}
{{- $_ := set $http "hosts" (concat $http.hosts .Values.gateway.hosts $ways | uniq) -}}
{{- $_ := set $http "proxies" (concat ($http.proxies | default list) .Values.gateway.proxies | uniq) -}}
{{- $_ := set $file.gateway "tenants" "/etc/proteus-tenants/tenants.toml" -}}
{{- if $file.gateway.metering -}}{{- $_ := set $file.gateway.metering "path" "/var/lib/proteus/metering.jsonl" -}}{{- end -}}
{{ $file | toToml | trim }}
{{- end -}}

{{/* Call with a dict of root and pool: what [gateway.pools] says of it, as JSON. */}}
{{- define "proteus.serversOf" -}}
{{- $grpc := include "proteus.addressOf" (dict "root" .root "pool" .pool "port" "grpc") -}}
{{- $health := include "proteus.addressOf" (dict "root" .root "pool" .pool "port" "health") -}}
{{ list (dict "grpc" $grpc "health" $health) | toJson }}
{{- end -}}

{{/* Milliseconds of [gateway.routing] drain_ms, as seconds. */}}
{{- define "proteus.gatewayDrainSeconds" -}}
{{- $file := include "proteus.deployment" . | fromJson -}}
{{ divf $file.gateway.routing.drain_ms 1000 | ceil | int }}
{{- end -}}

{{- define "proteus.gatewayPod" -}}
{{- $gateway := .Values.gateway -}}
{{- $ports := include "proteus.ports" . | fromJson -}}
{{- $leaves := 10 -}}
serviceAccountName: {{ include "proteus.name" . }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add $leaves (include "proteus.gatewayDrainSeconds" . | int) 15 }}
securityContext: {{- include "proteus.podSecurity" 10001 | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- include "proteus.placement" (dict "root" . "name" "gateway" "pool" (dict "nodeSelector" $gateway.nodeSelector "tolerations" $gateway.tolerations "spread" "preferred" "awayFrom" list)) }}
initContainers:
  - {{- include "proteus.prepare" (dict "root" . "name" "gateway") | nindent 4 }}
containers:
  - name: gateway
    {{- include "proteus.imageOf" . | nindent 4 }}
    args:
      - gateway
      - --deployment=/srv/proteus/deployment.toml
      - --host=0.0.0.0
      - --port={{ $ports.gateway }}
      - --metrics-host=0.0.0.0
      - --metrics-port={{ $ports.operations }}
    ports:
      - {name: gateway, containerPort: {{ $ports.gateway }}}
      - {name: metrics, containerPort: {{ $ports.operations }}}
    readinessProbe:              # a server can be asked, and it is not stopping
      httpGet: {path: /health/ready, port: gateway}
      periodSeconds: 2
      timeoutSeconds: 5
      failureThreshold: 1
    livenessProbe:
      httpGet: {path: /health/live, port: gateway}
      initialDelaySeconds: 10
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 3
    lifecycle:                   # until nobody sends it anything any more; then it finishes what is open
      preStop: {exec: {command: [sleep, {{ $leaves | toString | quote }}]}}
    resources: {{- toYaml $gateway.resources | nindent 6 }}
    securityContext: {{- include "proteus.containerSecurity" . | nindent 6 }}
    env:
      {{- include "proteus.environment" . | nindent 6 }}
      - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    volumeMounts:
      {{- include "proteus.mounts" . | nindent 6 }}
      - {name: tenants, mountPath: /etc/proteus-tenants, readOnly: true}
      - {name: metering, mountPath: /var/lib/proteus, subPathExpr: $(POD_NAME)}
volumes:
  {{- include "proteus.sharedVolumes" (dict "root" . "scratchSize" "1Gi") | nindent 2 }}
  - {name: tenants, secret: {secretName: {{ $gateway.tenantsSecret }}}}
  {{- if $gateway.meteringClaim }}
  - {name: metering, persistentVolumeClaim: {claimName: {{ $gateway.meteringClaim }}}}
  {{- else }}
  - {name: metering, emptyDir: {sizeLimit: 1Gi}}   # gone with the pod
  {{- end }}
{{- end -}}
